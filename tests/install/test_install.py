"""The install into a staged tree: once, twice, dry, interrupted, without a network."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.box import platform
from appliance.box.tools import Tools
from scripts.installer import environment, releases, target, wheels
from scripts.installer.actions import Failure
from scripts.installer.installation import Installation, Options
from scripts.installer.layout import COMMANDS, FOLDERS, USER
from scripts.installer.source import Source
from tests.fakes.jetson import Jetson
from tests.install.small import PYTHON, ROOT, Workshop, bundle, everything, unpack

UNITS = Path("etc/systemd/system")
RELEASE = Path("opt/f5-appliance/releases/0.1.0")
DEAD = "http://127.0.0.1:9"


def test_installs_what_the_layout_names(jetson: Jetson, workshop: Workshop) -> None:
    code, lines = workshop.install(jetson.box())
    assert code == 0, lines
    root = jetson.root
    assert os.readlink(root / "opt/f5-appliance/current") == "releases/0.1.0"
    assert (root / "usr/local/bin/appliance").stat().st_mode & 0o777 == 0o755
    for command, script in COMMANDS.items():
        assert os.readlink(root / "usr/local/sbin" / command) == f"/opt/f5-appliance/current/scripts/{script}"
        assert os.access(root / RELEASE / "scripts" / script, os.X_OK)
    assert not os.path.lexists(root / "opt/f5-appliance/previous")
    assert (root / "var/lib/f5-appliance/bundle/manifest.yaml").is_file()
    assert any("ONLY MAKES NOISE" in line for line in lines)


def test_folders_have_the_modes_and_owners_of_the_layout(jetson: Jetson, workshop: Workshop) -> None:
    workshop.install(jetson.box())
    users = dict(line.split(":")[0:3:2] for line in jetson.read("/etc/passwd").splitlines())
    groups = dict(line.split(":")[0:3:2] for line in jetson.read("/etc/group").splitlines())
    for folder in FOLDERS:
        found = jetson.path(folder.path).stat()
        assert stat.S_IMODE(found.st_mode) == folder.mode, folder.path
        if os.geteuid() == 0:
            owner = 0 if folder.owner == "root" else int(users[USER])
            group = 0 if folder.group == "root" else int(groups[USER])
            assert (found.st_uid, found.st_gid) == (owner, group), folder.path
    config = jetson.path("/etc/f5-appliance/appliance.yaml").stat()
    assert stat.S_IMODE(config.st_mode) == 0o640
    assert os.geteuid() or config.st_gid == int(groups[USER])


def test_nothing_that_root_runs_can_be_written_by_others(jetson: Jetson, workshop: Workshop) -> None:
    workshop.install(jetson.box())
    open_to_others = [
        path
        for path in (jetson.root / "opt/f5-appliance").rglob("*")
        if not path.is_symlink() and path.stat().st_mode & 0o022
    ]
    assert open_to_others == []


def test_units_are_on_as_systemctl_makes_them(jetson: Jetson, workshop: Workshop) -> None:
    workshop.install(jetson.box())
    units = jetson.root / UNITS
    assert (units / "nvpmodel.service.d/f5-appliance.conf").is_file()
    wanted = {str(path.relative_to(units)) for path in units.glob("*.wants/f5-*")}
    assert wanted == {
        "multi-user.target.wants/f5-appliance.service",
        "multi-user.target.wants/f5-clocks.service",
        "multi-user.target.wants/f5-gateway.service",
        "timers.target.wants/f5-clocks-check.timer",
        "timers.target.wants/f5-health.timer",
        "timers.target.wants/f5-guard.timer",
    }
    started = [call for call in jetson.calls("systemctl") if " start " in call or "restart" in call]
    assert started == []


def test_second_run_changes_nothing(jetson: Jetson, workshop: Workshop) -> None:
    workshop.install(jetson.box())
    before = everything(jetson.root)
    calls = jetson.calls()
    code, lines = workshop.install(jetson.box())
    assert code == 0
    assert lines[-1] == "nothing to do"
    assert everything(jetson.root) == before
    assert jetson.calls() == calls


def test_running_the_installed_scripts_writes_nothing_into_the_release(
    jetson: Jetson, workshop: Workshop
) -> None:
    workshop.install(jetson.box())
    before = everything(jetson.root)
    script = jetson.root / RELEASE / "scripts/switch"
    result = subprocess.run(
        [sys.executable, "-I", str(script), "list"],
        env={**os.environ, **jetson.environment},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("* 0.1.0")
    assert everything(jetson.root) == before


def test_dry_run_changes_nothing_and_says_what_it_would_do(jetson: Jetson, workshop: Workshop) -> None:
    before = everything(jetson.root)
    _, folder = workshop.checkout()
    options = Options(offline=folder, python=sys.executable, dry_run=True)
    code, lines = workshop.install(jetson.box(), "0.1.0", options=options)
    assert code == 0
    assert everything(jetson.root) == before
    would = [line for line in lines if line.startswith("would ")]
    for words in (
        "systemd-sysusers",
        "/var/lib/f5-appliance/voices",
        "build release 0.1.0",
        "copy the bundle",
    ):
        assert any(words in line for line in would), (words, lines)
    assert "would put release 0.1.0 in place" in would


def test_record_names_the_box_and_every_file(jetson: Jetson, workshop: Workshop) -> None:
    workshop.install(jetson.box())
    record = json.loads((jetson.root / RELEASE / "installed.json").read_text())
    found = platform.identify(jetson.box().root)
    assert (record["version"], record["module"]) == ("0.1.0", "p3701-0005")
    assert (record["l4t"], record["jetpack"]) == (found.release[1:], found.jetpack)
    assert record["python"] == PYTHON
    assert record["packages"] == {"f5_appliance": "0.1.0", "tinylib": "1.0"}
    for path, digest in record["files"].items():
        assert target.sha256(jetson.root / RELEASE / path) == digest
    for path, found in record["system"].items():
        place = jetson.root / path[1:]
        assert found in (f"-> {os.readlink(place)}" if place.is_symlink() else target.sha256(place))
    assert "/etc/systemd/system/f5-appliance.service" in record["system"]


def test_no_path_of_the_tree_is_written_into_the_environment(jetson: Jetson, workshop: Workshop) -> None:
    workshop.install(jetson.box())
    staged = os.fsencode(jetson.root)
    named = [
        path
        for path in (jetson.root / RELEASE).rglob("*")
        if path.is_file() and not path.is_symlink() and staged in path.read_bytes()
    ]
    assert named == []
    script = (jetson.root / RELEASE / "venv/bin/appliance").read_text()
    assert "/opt/f5-appliance/releases/0.1.0/venv/bin/python" in script


def test_environment_sees_the_locked_packages_and_not_the_callers_folder(
    jetson: Jetson, workshop: Workshop, tmp_path: Path
) -> None:
    workshop.install(jetson.box())
    (tmp_path / "appliance.py").write_text("raise SystemExit('taken from where somebody stood')")
    python = jetson.root / RELEASE / "venv/bin/python"
    code = "import appliance, tinylib; print(appliance.__file__, tinylib.answer)"
    result = subprocess.run(
        [python, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=True
    )
    assert result.stdout.split() == [
        str(
            next((jetson.root / RELEASE / "venv/lib").glob("python*")) / "site-packages/appliance/__init__.py"
        ),
        "42",
    ]
    assert " -I -m appliance " in (jetson.root / "usr/local/bin/appliance").read_text()


# Without a network, as a technician runs it.


def run_script(jetson: Jetson, source: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """scripts/install of this repository's code on a small checkout, every way to a network closed."""
    environment = {
        **os.environ,
        **jetson.environment,
        **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), DEAD),
        "PIP_INDEX_URL": DEAD,
        "PIP_FIND_LINKS": "",
    }
    return subprocess.run(
        [sys.executable, "-I", str(source / "scripts/install"), "--python", sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_script_installs_from_the_offline_folder_without_a_network(
    jetson: Jetson, workshop: Workshop
) -> None:
    source, folder = workshop.checkout()
    script = source.folder / "scripts/install"
    script.write_text((ROOT / "scripts/install").read_text())
    result = run_script(jetson, source.folder, "--offline", str(folder))
    assert result.returncode == 0, result.stdout + result.stderr
    before = everything(jetson.root)
    again = run_script(jetson, source.folder, "--offline", str(folder))
    assert (again.returncode, again.stdout.splitlines()[-1]) == (0, "nothing to do")
    assert everything(jetson.root) == before


def test_without_a_folder_and_a_network_only_the_release_is_missing(
    jetson: Jetson, workshop: Workshop
) -> None:
    box = jetson.box()
    closed = {
        **box.tools.environment,
        "PIP_INDEX_URL": DEAD,
        "PIP_RETRIES": "0",
        "PIP_CONFIG_FILE": "/dev/null",
    }
    box = replace(box, tools=replace(box.tools, environment=closed))
    code, lines = workshop.install(box, "0.1.1", options=Options(python=sys.executable))
    assert code == 1
    assert lines[-1].startswith("error: release: ")
    assert "--offline DIR" in lines[-1]
    assert list((jetson.root / "opt/f5-appliance/releases").iterdir()) == []
    assert not os.path.lexists(jetson.root / "opt/f5-appliance/current")


# Interrupted.


@pytest.mark.parametrize(("where", "version"), [("build", "0.1.2"), ("settle", "0.1.3")])
def test_an_interrupted_install_leaves_nothing_half(
    jetson: Jetson, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, where: str, version: str
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(environment, where, interrupted)
        with pytest.raises(KeyboardInterrupt):
            workshop.install(jetson.box(), version)
    assert list((jetson.root / "opt/f5-appliance/releases").iterdir()) == []
    code, lines = workshop.install(jetson.box(), version)
    assert code == 0, lines


def test_what_a_power_cut_left_is_removed_by_the_next_build(jetson: Jetson, workshop: Workshop) -> None:
    half = jetson.root / "opt/f5-appliance/releases/.new-0.1.1"
    half.mkdir(parents=True)
    (half / "junk").write_text("half")
    box = jetson.box()
    assert releases.names(target.Target(box, staged=True)) == ()
    with pytest.raises(Failure, match="no release"):
        releases.known(target.Target(box, staged=True), ".new-0.1.1")
    releases.remove_half(target.Target(box, staged=True))
    assert not half.exists()


def test_a_damaged_release_is_not_touched_and_another_is_built_beside_it(
    jetson: Jetson, workshop: Workshop
) -> None:
    workshop.install(jetson.box())
    damaged = jetson.root / RELEASE / "scripts/health"
    damaged.write_text("#!/bin/sh\nexit 2\n")
    source, _ = workshop.checkout()
    code, lines = workshop.install(jetson.box())
    assert code == 0, lines
    beside = f"0.1.0+{source.digest[:8]}"
    assert os.readlink(jetson.root / "opt/f5-appliance/current") == f"releases/{beside}"
    assert damaged.read_text() == "#!/bin/sh\nexit 2\n"
    assert workshop.install(jetson.box())[1][-1] == "nothing to do"


def test_another_jetpack_gets_a_release_of_its_own(jetson: Jetson, workshop: Workshop) -> None:
    workshop.install(jetson.box())
    release = jetson.read("/etc/nv_tegra_release")
    number = release.split("REVISION: ")[1].split(",")[0]
    jetson.write("/etc/nv_tegra_release", release.replace(f"REVISION: {number}", "REVISION: 5.0") + "\n")
    workshop.install(jetson.box())
    record = json.loads((jetson.root / "opt/f5-appliance/current/installed.json").read_text())
    assert (record["l4t"], record["jetpack"]) == ("36.5.0", "6.2.2")
    assert len(releases.names(target.Target(jetson.box(), staged=True))) == 2


# Configuration and bundle.


def test_a_changed_configuration_is_kept_with_the_new_default_beside_it(
    jetson: Jetson, workshop: Workshop
) -> None:
    workshop.install(jetson.box())
    config = jetson.path("/etc/f5-appliance/appliance.yaml")
    config.write_text("synthesis: {nfe: 16}\n")
    code, _ = workshop.install(jetson.box(), "0.2.0", config="log: {level: debug}\n")
    assert code == 0
    assert config.read_text() == "synthesis: {nfe: 16}\n"
    assert config.with_name("appliance.yaml.new").read_text() == "log: {level: debug}\n"
    before = everything(jetson.root)
    assert workshop.install(jetson.box(), "0.2.0", config="log: {level: debug}\n")[1][-1] == "nothing to do"
    assert everything(jetson.root) == before


def test_an_unchanged_configuration_follows_the_release(jetson: Jetson, workshop: Workshop) -> None:
    workshop.install(jetson.box())
    workshop.install(jetson.box(), "0.2.0", config="log: {level: debug}\n")
    config = jetson.path("/etc/f5-appliance/appliance.yaml")
    assert config.read_text() == "log: {level: debug}\n"
    assert not config.with_name("appliance.yaml.new").exists()


def test_a_bundle_is_kept_unless_another_is_given(jetson: Jetson, workshop: Workshop, tmp_path: Path) -> None:
    workshop.install(jetson.box())
    _, folder = workshop.checkout()
    real = bundle(tmp_path / "real", b"a voice")
    options = Options(offline=folder, python=sys.executable, bundle=real)
    assert workshop.install(jetson.box(), options=options)[0] == 0
    weights = jetson.path("/var/lib/f5-appliance/bundle/weights")
    assert weights.read_bytes() == b"a voice"
    assert workshop.install(jetson.box())[1][-1] == "nothing to do"
    assert workshop.install(jetson.box(), options=options)[1][-1] == "nothing to do"
    assert weights.read_bytes() == b"a voice"
    assert sorted(os.listdir(weights.parent.parent)) == ["bundle", "clocks", "journal", "voices"]


def test_a_damaged_bundle_is_refused_and_the_one_in_use_stays(
    jetson: Jetson, workshop: Workshop, tmp_path: Path
) -> None:
    workshop.install(jetson.box())
    before = everything(jetson.root / "var/lib/f5-appliance/bundle")
    _, folder = workshop.checkout()
    damaged = bundle(tmp_path / "damaged", b"a voice")
    (damaged / "weights").write_bytes(b"a noise")
    options = Options(offline=folder, python=sys.executable, bundle=damaged)
    code, lines = workshop.install(jetson.box(), options=options)
    assert code == 1
    assert "weights: sha256 differs" in lines[-1]
    assert everything(jetson.root / "var/lib/f5-appliance/bundle") == before
    assert not (jetson.root / "var/lib/f5-appliance/.bundle.new").exists()


def test_a_bundle_that_rotted_on_the_box_is_mended_by_installing_it_again(
    jetson: Jetson, workshop: Workshop, tmp_path: Path
) -> None:
    _, folder = workshop.checkout()
    real = bundle(tmp_path / "real", b"a voice")
    options = Options(offline=folder, python=sys.executable, bundle=real)
    workshop.install(jetson.box(), options=options)
    weights = jetson.path("/var/lib/f5-appliance/bundle/weights")
    weights.write_bytes(b"a noise")
    assert workshop.install(jetson.box(), options=options)[0] == 0
    assert weights.read_bytes() == b"a voice"


# apt, on a box with a network.


APT = """\
#!/bin/sh
echo "$*" >> {log}
case "$*" in
*update*) touch {log}.updated ;;
*libnvinfer*) {libnvinfer} ;;
esac
"""


def with_apt(
    jetson: Jetson, workshop: Workshop, monkeypatch: pytest.MonkeyPatch, libnvinfer: str
) -> Callable[[], tuple[int, list[str]]]:
    """A live box whose apt-get does that for TensorRT's binding; installs on it as from a network."""
    jetson.write("/run/systemd/system/marker", "")
    log = jetson.root.parent / "apt"
    apt = jetson.bin / "apt-get"
    apt.write_text(APT.format(log=log, libnvinfer=libnvinfer.format(log=log)))
    apt.chmod(0o755)
    _, folder = workshop.checkout()

    def build(tools: Tools, python: str, venv: Path, source: Source, _: object) -> None:
        unpack(tools, python, venv, source, wheels.read(folder))

    def can_import(_: Tools, __: str, module: str) -> bool:
        return module != "tensorrt" or log.with_name("apt.binding").exists()

    monkeypatch.setattr(environment, "build", build)
    monkeypatch.setattr(environment, "can_import", can_import)
    options = Options(python=sys.executable)
    source, _ = workshop.checkout()

    def install() -> tuple[int, list[str]]:
        lines: list[str] = []
        run = Installation(target.Target(jetson.box()), source, options, lines.append, lambda _: "").run
        return run(), lines

    return install


def apt_calls(jetson: Jetson) -> list[str]:
    return (jetson.root.parent / "apt").read_text().splitlines()


def test_what_apt_brings_is_in_the_record_so_that_a_second_run_changes_nothing(
    jetson: Jetson, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = jetson.path("/var/lib/dpkg/status")
    sed = f"sed -i 's/10[.]3[.]0[.]30/10.7.0.23/' {status}; touch {{log}}.binding"
    install = with_apt(jetson, workshop, monkeypatch, sed)
    assert install()[0] == 0
    assert json.loads((jetson.root / RELEASE / "installed.json").read_text())["tensorrt"] == "10.7.0"
    code, lines = install()
    assert (code, lines[-2]) == (0, "nothing to do")
    assert len(releases.names(target.Target(jetson.box()))) == 1
    assert apt_calls(jetson) == [
        "-o DPkg::Lock::Timeout=300 install --yes --no-install-recommends python3-libnvinfer"
    ]


def test_apt_gets_its_lists_anew_and_tries_once_more(
    jetson: Jetson, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    install = with_apt(jetson, workshop, monkeypatch, "test -e {log}.updated && touch {log}.binding")
    code, lines = install()
    assert code == 0, lines
    assert [call.split()[2] for call in apt_calls(jetson)] == ["install", "update", "install"]
    assert not any("is missing" in line for line in lines)


def test_without_the_binding_the_install_goes_on(
    jetson: Jetson, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    install = with_apt(jetson, workshop, monkeypatch, "echo 'E: Unable to locate it'; exit 100")
    code, lines = install()
    assert code == 0, lines
    assert any("python3-libnvinfer is missing" in line and "Unable to locate" in line for line in lines)
