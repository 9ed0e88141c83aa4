"""The package without a Debian around it: its contents, and its speech from an unpacked folder."""

import hashlib
import re
import shutil
import signal
import subprocess
import threading
import wave
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from appliance.engine.cases import FEMALE
from scripts.debian.package import OPTIONAL
from tests.debian.made import ARCH, PYTHON, ROOT, UNPACKED_PYTHON, needs_dpkg, package, run
from tests.harness.daemons import finished, write_config
from tests.harness.patience import PATIENCE_S, until
from tests.systemd.staging import stand_in_programs, unit_names, values

pytestmark = [pytest.mark.slow, needs_dpkg]
SCRIPTS = ("backup", "clock-lock", "health", "quiet", "restore", "setup", "support-bundle", "upgrade")
COMMANDS = tuple(f"f5-{name}" for name in SCRIPTS)
LIBRARY = "usr/lib/f5-appliance"
"""Folder of the appliance. The package's first start compiles the Python packages in it."""


@pytest.fixture(scope="module")
def deb() -> Path:
    return package()


@pytest.fixture(scope="module")
def tree(deb: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    run("dpkg-deb", "-x", deb, folder)
    return folder


def unpacked(folder: Path) -> Iterator[Path]:
    """Every file except the bytecode of a daemon that ran there."""
    return (path for path in folder.rglob("*") if "__pycache__" not in path.parts)


def test_names_modes_and_owners(deb: Path, tree: Path) -> None:
    top = {str(path.relative_to(tree)) for path in (*tree.glob("*"), *tree.glob("*/*"))}
    assert top == {"usr", "etc", "etc/f5-appliance", "usr/bin", "usr/lib", "usr/share"}
    for path in unpacked(tree):
        inside = str(path.relative_to(tree))
        runs = path.is_dir() or inside == "usr/bin/appliance" or inside.startswith(f"{LIBRARY}/scripts/")
        assert path.is_symlink() or path.stat().st_mode & 0o7777 == (0o755 if runs else 0o644), inside
    assert {path.name for path in tree.glob("usr/bin/*")} == {"appliance", *COMMANDS}
    for command in COMMANDS:
        assert (tree / "usr/bin" / command).resolve().is_relative_to(tree / LIBRARY / "scripts")
        assert run(*UNPACKED_PYTHON, tree / "usr/bin" / command, "--help").startswith(f"usage: {command}")
    listed = [line.split() for line in run("dpkg-deb", "-c", deb).splitlines()]
    assert {(line[1], line[5].endswith(".pyc")) for line in listed} == {("root/root", False)}


def test_every_link_of_the_pages_leads_somewhere_on_a_box(tree: Path) -> None:
    folder = tree / "usr/share/doc/f5-appliance"
    followed = 0
    for page in folder.glob("*.md"):
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
            if not target.startswith("https://"):
                name, _, section = target.partition("#")
                text = (folder / (name or page.name)).read_text()
                headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
                anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
                anchors |= set(re.findall(r'<a id="([^"]+)">', text))
                assert not section or section in anchors, (page.name, target)
                followed += 1
    assert followed > 20


def test_control_files_of_the_package(deb: Path, tree: Path, tmp_path: Path) -> None:
    run("dpkg-deb", "-e", deb, tmp_path)
    assert (tmp_path / "conffiles").read_text() == "/etc/f5-appliance/appliance.yaml\n"
    fields = yaml.safe_load((tmp_path / "control").read_text().partition("Description:")[0])
    assert fields["Version"].endswith(f"+py{PYTHON}") and fields["Architecture"] == ARCH
    assert f"python{PYTHON}, " in fields["Depends"]
    sums = dict(reversed(line.split("  ", 1)) for line in (tmp_path / "md5sums").read_text().splitlines())
    files = [path for path in unpacked(tree / "usr") if path.is_file() and not path.is_symlink()]
    found = {str(path.relative_to(tree)): hashlib.md5(path.read_bytes()).hexdigest() for path in files}
    assert sums == found
    for script in ("postinst", "prerm", "postrm"):
        text = (tmp_path / script).read_text()
        assert "@" not in text, "a word was not replaced"
        run("sh", "-n", tmp_path / script)
    enabled = {name for name in unit_names() if values((ROOT / "systemd" / name).read_text(), "WantedBy")}
    started = (tmp_path / "postinst").read_text().partition("for unit in ")[2].partition(";")[0]
    assert set(started.split()) == enabled - set(OPTIONAL)


@pytest.mark.parametrize("version", [(3, 8, 10), (3, 99, 0)])
def test_another_python_is_refused_in_one_line(version: tuple[int, int, int], tree: Path) -> None:
    """Every command refuses before it reads its arguments. It exits with 2, as 1 is WARN to f5-health."""
    for command in (tree / "usr/bin").iterdir():
        code = f"import runpy, sys; sys.version_info = {version}; runpy.run_path({str(command)!r})"
        ran = subprocess.run([*UNPACKED_PYTHON, "-c", code], capture_output=True, text=True)
        assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1), ran.stderr
        assert f"it takes Python {PYTHON}; " in ran.stderr
    named = [path for path in unpacked(tree) if path.is_file() and b"/usr/bin/python3 " in path.read_bytes()]
    assert not named


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed here")
def test_the_units_as_they_are_unpacked(tree: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(tree / "usr/lib/systemd", root / "usr/lib/systemd")
    shutil.copytree(tree / "usr/bin", root / "usr/bin", symlinks=True)
    shutil.copytree(tree / LIBRARY / "scripts", root / LIBRARY / "scripts")
    stand_in_programs(root, (f"/usr/bin/python{PYTHON}", "/usr/bin/jetson_clocks", "/bin/kill"))
    options = (f"--root={root}", "--man=no", "--recursive-errors=no")
    ran = finished("systemd-analyze", "verify", *options, *unit_names(), cwd=Path("/"))
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")


def test_the_unpacked_package_speaks(tree: Path, tmp_path: Path) -> None:
    """The unit's command speaks with the Python packages and the voice in the package."""
    demo = tree / LIBRARY / "appliance/demo"
    config = write_config(tmp_path, demo / "bundle")
    [unit_command] = values((tree / "usr/lib/systemd/system/f5-appliance.service").read_text(), "ExecStart")
    words = unit_command.replace("/etc/f5-appliance/appliance.yaml", str(config)).split()
    assert words[0] == f"/usr/bin/python{PYTHON}"
    words[words.index("/usr/bin/appliance")] = str(tree / "usr/bin/appliance")
    appliance = (*UNPACKED_PYTHON, tree / "usr/bin/appliance")
    address = ("--address", yaml.safe_load(config.read_text())["server"]["listen"])
    with subprocess.Popen([*UNPACKED_PYTHON, *words[1:]], cwd=tmp_path,
                          stderr=subprocess.PIPE, text=True) as daemon:  # fmt: skip
        assert daemon.stderr is not None
        killer = threading.Timer(PATIENCE_S, daemon.kill)
        killer.start()
        try:
            lines = []
            for line in daemon.stderr:
                lines.append(line)
                if "ready on" in line:
                    break
            assert daemon.poll() is None and "ready on" in lines[-1], "".join(lines)
            recording = demo / "voices" / f"{FEMALE}.wav"
            voice = (FEMALE, recording, "--transcript", recording.with_suffix(".txt").read_text())
            # A busy machine may exceed an upload's deadline, so the test retries: the same voice again is no
            # error.
            add = (*appliance, "voices", "add", *voice, *address)
            until(lambda: subprocess.run(add, capture_output=True).returncode == 0)
            said = tmp_path / "said.wav"
            run(*appliance, "say", "Hello from the package.", "--voice", FEMALE, "--out", said, *address)
        finally:
            killer.cancel()
            daemon.send_signal(signal.SIGTERM)
            daemon.communicate(timeout=PATIENCE_S)
    with wave.open(str(said)) as recording:
        assert recording.getnframes() > recording.getframerate() / 2
        assert any(recording.readframes(recording.getnframes()))
