"""Machines by their device tree and release file: recognised, and refused by name."""

from pathlib import Path

import pytest

from appliance.box.platform import Platform, identify, parse_release
from appliance.box.root import Root

CAPTURED_R36 = """\
# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64, DATE: Wed Jan  8 01:49:37 UTC 2025
# KERNEL_VARIANT: oot
TARGET_USERSPACE_LIB_DIR=nvidia
TARGET_USERSPACE_LIB_DIR_PATH=usr/lib/aarch64-linux-gnu/nvidia
"""  # noqa: E501


def machine(folder: Path, compatible: tuple[str, ...] = (), release: str = "", model: str = "") -> Platform:
    """Write these files, NUL-terminated as in a device tree, and identify them."""
    tree = folder / "proc" / "device-tree"
    tree.mkdir(parents=True)
    (tree / "compatible").write_text("".join(f"{part}\0" for part in compatible))
    (tree / "model").write_text(f"{model}\0")
    if release:
        (folder / "etc").mkdir()
        (folder / "etc" / "nv_tegra_release").write_text(
            f"# R{release.replace('.', ' (release), REVISION: ', 1)}, GCID: 1"
        )
    return identify(Root(folder))


def orin(folder: Path, release: str) -> Platform:
    return machine(folder, ("nvidia,p3737-0000+p3701-0005", "nvidia,tegra234"), release)


def test_captured_release_is_read() -> None:
    assert parse_release(CAPTURED_R36) == (36, 4, 3)
    assert parse_release("# R39 (release), REVISION: 2.0, GCID: 45755727, BOARD: generic") == (39, 2, 0)
    assert parse_release("") == ()


@pytest.mark.parametrize(("release", "jetpack"), [
    ("36.4.0", "6.1"), ("36.4.3", "6.2"), ("36.4.7", "6.2.1"), ("36.5.0", "6.2.2"), ("36.5.2", "6.2.3"),
    ("36.5.9", "6"), ("39.2.0", "7.2"),
    ("39.2.2", "7.2.2"), ("39.3.0", "7"),
])  # fmt: skip
def test_supported_releases(tmp_path: Path, release: str, jetpack: str) -> None:
    found = orin(tmp_path, release)
    assert (found.jetpack, found.release, found.refusal) == (jetpack, f"R{release}", None)


@pytest.mark.parametrize(("release", "named"), [
    ("35.3.1", "R35.3.1 is JetPack 5, which"), ("36.3.0", "R36.3.0 is JetPack 6.0, which"),
    ("38.2.0", "R38.2.0 is JetPack 7.0, which"), ("39.1.0", "R39.1.0 is JetPack 7, which"),
    ("40.1.0", "R40.1.0 is a JetPack that this release does not know"),
])  # fmt: skip
def test_other_releases_are_refused_by_name(tmp_path: Path, release: str, named: str) -> None:
    refused = str(orin(tmp_path, release).refusal)
    assert named in refused
    assert "JetPack 6.1" in refused and "JetPack 7.2" in refused


def test_a_laptop_is_no_jetson(tmp_path: Path) -> None:
    found = identify(Root(tmp_path))
    assert found == Platform()
    assert not found.is_jetson
    assert "not a Jetson" in str(found.refusal)


def test_an_older_tegra_and_a_release_file_that_is_not_there_are_named(tmp_path: Path) -> None:
    older = machine(tmp_path / "older", ("nvidia,p2972-0000+p2888-0004", "nvidia,tegra194"), "36.4.3")
    assert older.is_jetson and "tegra194" in str(older.refusal)
    found = orin(tmp_path / "none", "")
    assert (found.l4t, found.release, found.jetpack) == ((), "", "")
    assert "/etc/nv_tegra_release" in str(found.refusal)


@pytest.mark.parametrize(("compatible", "model", "named"), [
    (("nvidia,p3768-0000+p3767-0000", "nvidia,tegra234"), "", "Jetson Orin NX or Orin Nano (p3767-0000)"),
    (("nvidia,p3768-0000+p3767-0009", "nvidia,tegra234"), "", "Jetson Orin NX or Orin Nano (p3767-0009)"),
    (("vendor,box", "nvidia,tegra234"), "NVIDIA Jetson Orin NX Engineering Reference", "Jetson Orin NX"),
])  # fmt: skip
def test_smaller_orins_are_named(tmp_path: Path, compatible: tuple[str, ...], model: str, named: str) -> None:
    refused = str(machine(tmp_path, compatible, "36.4.3", model).refusal)
    assert f"the module is {named}" in refused and "supported: a Jetson AGX Orin" in refused


@pytest.mark.parametrize(("compatible", "module"), [
    (("nvidia,p3737-0000+p3701-0005", "nvidia,tegra234"), "p3701-0005"),
    (("nvidia,p3737-0000+p3701-0004-super", "nvidia,tegra234"), "p3701-0004"),
    (("lanner,eai-i233", "nvidia,p3701-0004", "nvidia,tegra234"), "p3701-0004"),
    (("lanner,eai-i233", "nvidia,tegra234"), ""),
])  # fmt: skip
def test_the_module_is_not_the_carrier(tmp_path: Path, compatible: tuple[str, ...], module: str) -> None:
    assert machine(tmp_path, compatible).module == module
