"""What is refused before anything is touched: each with what is wrong, and what to do."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.box.root import Root
from appliance.box.system import Box
from appliance.box.tools import Tools
from scripts.installer import bundles, installation, preflight, wheels
from scripts.installer.actions import Failure
from scripts.installer.installation import FAILED, REFUSED, Options
from scripts.installer.layout import RELEASES
from scripts.installer.releases import HALF
from scripts.installer.source import Source
from scripts.installer.target import Target
from tests.fakes.jetson import Jetson
from tests.install import small
from tests.install.small import Workshop, everything

THOR = "nvidia,p4071-0000+p3834-0008\0nvidia,p3834-0008\0nvidia,tegra264\0"
R38 = "# R38 (release), REVISION: 2.0, GCID: 41844464, BOARD: generic, EABI: aarch64\n"
R36_3 = "# R36 (release), REVISION: 3.0, GCID: 36923193, BOARD: generic, EABI: aarch64\n"


def attempt(box: Box, workshop: Workshop, *, staged: bool = True, **chosen: object) -> tuple[int, list[str]]:
    """Try to install; exit status and lines."""
    source, folder = workshop.checkout()
    lines: list[str] = []
    options = Options(**{"offline": folder, "python": sys.executable, **chosen})  # type: ignore[arg-type]
    return installation.Installation(Target(box, staged), source, options, lines.append).run(), lines


def assert_refused(jetson: Jetson, box: Box, workshop: Workshop, *words: str, **how: object) -> None:
    before = everything(jetson.root)
    code, lines = attempt(box, workshop, **how)  # type: ignore[arg-type]
    assert code == REFUSED, lines
    assert any(all(word in line for word in words) for line in lines if line.startswith("refused: ")), lines
    assert everything(jetson.root) == before


def test_jetpack_5_by_name(tmp_path: Path, workshop: Workshop) -> None:
    jetson = Jetson(tmp_path / "jetson", "jp5-0005")
    assert_refused(jetson, jetson.box(), workshop, "JetPack 5", "JetPack 6.1", "--force-platform")


def test_jetpack_6_0(jetson: Jetson, workshop: Workshop) -> None:
    jetson.write("/etc/nv_tegra_release", R36_3)
    assert_refused(jetson, jetson.box(), workshop, "JetPack 6.0", "flash the box")


def test_thor(jetson: Jetson, workshop: Workshop) -> None:
    jetson.box().root.at("/proc/device-tree/compatible").write_text(THOR)
    jetson.write("/etc/nv_tegra_release", R38)
    assert_refused(jetson, jetson.box(), workshop, "tegra264", "AGX Orin")


def test_a_machine_that_is_no_jetson(jetson: Jetson, workshop: Workshop) -> None:
    jetson.box().root.at("/proc/device-tree/compatible").unlink()
    assert_refused(jetson, jetson.box(), workshop, "no Jetson", "--force-platform")


@pytest.mark.parametrize("profile", ["jp6-0004", "jp7-0000"])
def test_supported_boxes_are_not_refused(profile: str, tmp_path: Path, workshop: Workshop) -> None:
    jetson = Jetson(tmp_path / profile, profile)
    code, lines = attempt(jetson.box(), workshop, dry_run=True)
    assert code == 0
    assert jetson.profile.module in lines[0]


def test_force_platform_goes_on_all_the_same(jetson: Jetson, workshop: Workshop) -> None:
    jetson.write("/etc/nv_tegra_release", R36_3)
    code, lines = attempt(jetson.box(), workshop, dry_run=True, force_platform=True)
    assert code == 0, lines


def test_an_ordinary_user_on_a_live_box(jetson: Jetson, workshop: Workshop) -> None:
    jetson.write("/run/systemd/system/marker", "")
    box = jetson.box(user=lambda: 1000)
    assert_refused(jetson, box, workshop, "must run as root", "sudo", staged=False)


def test_a_live_box_without_systemd(jetson: Jetson, workshop: Workshop) -> None:
    assert_refused(jetson, jetson.box(), workshop, "systemd does not run here", "--root DIR", staged=False)


def test_a_python_that_is_not_there(jetson: Jetson, workshop: Workshop) -> None:
    assert_refused(jetson, jetson.box(), workshop, "/no/python", "--python", python="/no/python")


def test_a_python_that_is_too_old(jetson: Jetson, workshop: Workshop, tmp_path: Path) -> None:
    old = tmp_path / "python"
    old.write_text("#!/bin/sh\necho 3.8 aarch64\n")
    old.chmod(0o755)
    assert_refused(jetson, jetson.box(), workshop, "3.8", "3.10, 3.11, 3.12", python=str(old))


def test_wheels_for_another_python_and_machine(jetson: Jetson, workshop: Workshop, tmp_path: Path) -> None:
    source, _ = workshop.checkout()
    small.offline(tmp_path / "other", source, pythons=("3.9",))
    assert_refused(jetson, jetson.box(), workshop, "Python 3.9", small.PYTHON, offline=tmp_path / "other")
    manifest = tmp_path / "other" / wheels.MANIFEST
    document = json.loads(manifest.read_text()) | {"pythons": [small.PYTHON], "machine": "riscv64"}
    manifest.write_text(json.dumps(document))
    assert_refused(jetson, jetson.box(), workshop, "riscv64", offline=tmp_path / "other")


def test_wheels_of_another_checkout(jetson: Jetson, workshop: Workshop) -> None:
    _, folder = workshop.checkout("0.9.0")
    assert_refused(jetson, jetson.box(), workshop, "not of this checkout", "0.1.0", offline=folder)


def test_wheels_of_a_checkout_that_was_edited_since(
    jetson: Jetson, workshop: Workshop, tmp_path: Path
) -> None:
    source = small.checkout(tmp_path / "checkout")
    small.offline(tmp_path / "wheels", source)
    assert wheels.suits(wheels.read(tmp_path / "wheels"), small.PYTHON, small.MACHINE, source) == ""
    (source.folder / "appliance/__init__.py").write_text("edited = True\n")
    told = wheels.suits(wheels.read(tmp_path / "wheels"), small.PYTHON, small.MACHINE, source)
    assert "appliance/__init__.py differs" in told


def test_a_folder_that_is_no_bundle(jetson: Jetson, workshop: Workshop, tmp_path: Path) -> None:
    assert_refused(jetson, jetson.box(), workshop, "is no bundle", "manifest.yaml", bundle=tmp_path)


def test_a_disk_that_is_full(jetson: Jetson, workshop: Workshop) -> None:
    jetson.fault("disk_full")
    code, lines = attempt(jetson.box(), workshop)
    assert code == FAILED
    assert lines[-1].startswith("error: release: /opt/f5-appliance has ")
    assert "free space" in lines[-1]
    assert list((jetson.root / "opt/f5-appliance/releases").iterdir()) == []


def test_a_checkout_that_lacks_a_part(jetson: Jetson, workshop: Workshop, tmp_path: Path) -> None:
    source = small.checkout(tmp_path / "checkout")
    (source.folder / "scripts/health").unlink()
    with pytest.raises(Failure, match=r"lacks scripts/health"):
        _ = source.released
    with pytest.raises(Failure, match="is not a checkout"):
        _ = Source(tmp_path).version


# The offline folder's own manifest.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small.offline(tmp_path / "wheels", small.checkout(tmp_path / "checkout"))
    return tmp_path / "wheels"


def test_offline_folder_as_made(folder: Path) -> None:
    wheels.verify(wheels.read(folder))


def test_a_damaged_wheel(folder: Path) -> None:
    wheel = folder / "tinylib-1.0-py3-none-any.whl"
    data = bytearray(wheel.read_bytes())
    data[len(data) // 2] ^= 1
    wheel.write_bytes(bytes(data))
    with pytest.raises(Failure, match=r"tinylib-1.0-py3-none-any.whl is damaged"):
        wheels.verify(wheels.read(folder))


def test_a_missing_and_a_foreign_wheel(folder: Path) -> None:
    wheel = folder / "tinylib-1.0-py3-none-any.whl"
    wheel.rename(folder / "tinylib-2.0-py3-none-any.whl")
    with pytest.raises(Failure, match="is missing"):
        wheels.verify(wheels.read(folder))
    (folder / "tinylib-2.0-py3-none-any.whl").rename(wheel)
    (folder / "planted-1.0-py3-none-any.whl").write_bytes(b"")
    with pytest.raises(Failure, match=r"planted-1.0-py3-none-any.whl, which its manifest does not name"):
        wheels.verify(wheels.read(folder))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"schema": 2}', '{"schema": 1, "files": {"../x.whl": ""}}']
)
def test_a_damaged_manifest(folder: Path, text: str) -> None:
    (folder / wheels.MANIFEST).write_text(text)
    with pytest.raises(Failure, match=r"manifest.json cannot be used"):
        wheels.read(folder)


def test_a_folder_without_a_manifest(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no offline folder") as caught:
        wheels.read(tmp_path)
    assert "scripts/make-offline-bundle" in caught.value.remedy


def test_a_damaged_wheel_stops_the_release_and_nothing_else(
    jetson: Jetson, workshop: Workshop, tmp_path: Path
) -> None:
    source, _ = workshop.checkout()
    folder = tmp_path / "wheels"
    small.offline(folder, source)
    with (folder / "tinylib-1.0-py3-none-any.whl").open("ab") as stream:
        stream.write(b"x")
    code, lines = attempt(jetson.box(), workshop, offline=folder)
    assert code == FAILED
    assert "release:" in lines[-1] and "damaged" in lines[-1] and "make it anew" in lines[-1]
    assert list((jetson.root / "opt/f5-appliance/releases").iterdir()) == []


def test_systemd_without_its_programs(tmp_path: Path) -> None:
    box = Box(Root(tmp_path), Tools())
    missing = Tools()
    object.__setattr__(missing, "find", lambda name: None)
    box = Box(Root(tmp_path), missing)
    told = [failure.what for failure in preflight._systemd(Target(box, staged=True))]
    assert told == [
        f"{name} is not installed" for name in ("systemctl", "systemd-sysusers", "systemd-tmpfiles")
    ]


@pytest.mark.parametrize("name", ["install", "uninstall", "switch", "make-offline-bundle"])
def test_a_python_too_old_for_the_code_is_refused_before_the_code_is_read(name: str) -> None:
    script = small.ROOT / "scripts" / name
    code = f"""
import runpy, sys
sys.version_info = (3, 8, 10, "final", 0)
try:
    runpy.run_path({str(script)!r}, run_name="__main__")
finally:
    print(sorted(set(sys.modules) & {{"scripts.installer.actions", "appliance.box.tools"}}))
"""
    ran = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ran.returncode, ran.stdout) == (REFUSED, "[]\n"), ran.stderr
    assert "Python 3.8" in ran.stderr and "JetPack 5 is not supported" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_the_refusal_itself_can_be_read_by_an_old_python() -> None:
    refusal = (small.ROOT / "scripts/installer/old_python.py").read_text()
    ast.parse(refusal, feature_version=(3, 6))
    assert "from __future__" not in refusal


# Space.


def test_what_is_left_over_goes_before_the_space_is_counted(
    jetson: Jetson, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target(jetson.box(), staged=True)
    half, bundle = target.at(f"{RELEASES}/{HALF}0.1.0"), target.at(bundles.NEW)
    for folder in (half, bundle):
        folder.mkdir(parents=True)
        (folder / "junk").write_text("left by a power cut")
    seen = []

    def full(*_: object) -> Failure:
        seen.append((half.exists(), bundle.exists()))
        return Failure("no space")

    monkeypatch.setattr(preflight, "too_little_space", full)
    assert attempt(jetson.box(), workshop)[0] == FAILED
    assert seen == [(False, False)]
