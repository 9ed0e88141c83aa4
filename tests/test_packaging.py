"""The wheel and the locks."""

import re
import zipfile
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.once]


def version(root: Path) -> str:
    found = re.search(r'^version = "(.+)"$', (root / "pyproject.toml").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_changelog_begins_with_this_version(root: Path) -> None:
    first = re.search(r"^## (\S+)", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first is not None and first[1] == version(root)


def test_wheel_holds_the_device_only(root: Path, tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    info = f"f5_appliance-{version(root)}.dist-info"

    [path] = WheelBuilder(str(root)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        entry_points = wheel.read(f"{info}/entry_points.txt").decode()
    assert {name.split("/")[0] for name in names} == {"appliance", info}
    assert "appliance/rpc/appliance.proto" in names
    files = {str(f.relative_to(root)) for f in (root / "appliance").rglob("*.*") if f.suffix != ".pyc"}
    assert files <= set(names) and "appliance/demo/bundle/manifest.yaml" in files
    assert f"{info}/licenses/appliance/text/phones/NOTICE" in names
    assert "appliance = appliance.cli:main" in entry_points


def test_locks_name_no_place(root: Path) -> None:
    locks = list((root / "scripts" / "requirements").glob("*.txt"))
    names = "clients cuda-tests riva-old device dev export hibari jetpack ort-cuda quality tensorrt torch vox"
    assert {*names.split(), "upstream", "upstream-server"} == {lock.stem for lock in locks}
    for lock in locks:
        text = re.sub(r" \\\n +--hash=sha256:[0-9a-f]{64}", "", lock.read_text())
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        pins = [re.fullmatch(r"[a-z0-9._-]+==[\w.]+( ; .+)?", line) for line in lines]
        assert all(pins), f"{lock.name}: {[line for line, pin in zip(lines, pins, strict=True) if not pin]}"


@pytest.mark.parametrize("lock", ["device", "jetpack"])
def test_the_packages_hashes_are_of_its_locks(root: Path, lock: str) -> None:
    folder = root / "scripts" / "requirements"
    hashes = (folder / f"{lock}.hashes").read_text()
    pins = re.findall(r"^([^# ].*?) \\$", hashes, re.MULTILINE)
    assert pins == (folder / f"{lock}.txt").read_text().splitlines()[1:]
    assert re.search(r"^    --hash=sha256:[0-9a-f]{64}$", hashes, re.MULTILINE)


def test_cudas_bindings_are_of_the_drivers_of_jetpack(root: Path) -> None:
    """CUDA 12.6 on Python 3.10 and at most 13.2 on later Pythons, in every lock and in the extras."""
    for lock in ("jetpack", "ort-cuda"):
        text = (root / f"scripts/requirements/{lock}.txt").read_text()
        pins = r"^cuda-(?:python|bindings)==(\d+\.\d+)\S* ; python_full_version (\S+ '3.11')"
        found = dict(re.findall(pins, text, re.MULTILINE))
        assert found == {"12.6": "< '3.11'", "13.2": ">= '3.11'"}
    extras = (root / "pyproject.toml").read_text().split("[project.optional-dependencies]")[1]
    limits = re.findall(r'"cuda-(?:python|bindings)[^"]*,<([\d.]+); python_version ([<>=]+)', extras)
    assert limits == [("12.7", "<"), ("13.3", ">=")] * 2


def test_device_lock_holds_every_dependency_and_no_workshop(root: Path) -> None:
    def names(text: str) -> set[str]:
        found = re.findall(r"^[\s\"]*([A-Za-z0-9._-]+)[>=]=", text, re.MULTILINE)
        return {name.lower().replace("_", "-") for name in found}

    project = (root / "pyproject.toml").read_text()
    required = names(project.split("dependencies = [")[1].split("]")[0])
    locked = names((root / "scripts/requirements/device.txt").read_text())
    assert required and required <= locked
    assert not locked & {"torch", "scipy", "librosa", "pydantic", "onnx", "safetensors", "huggingface-hub"}
