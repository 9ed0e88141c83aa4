"""The packages of both JetPacks: their GPU backends find bindings for the CUDA of the JetPack's driver."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.debian import package
from scripts.debian.package import MACHINES, PYTHONS
from tests.debian.made import ALONE, ARCH, built, needs_dpkg, run
from tests.harness.patience import PATIENCE_S
from tests.systemd.page import BUILD
from tests.test_pythons import found

# Each package takes half a minute; the daily test_package.py builds the package of this machine.
pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.once, needs_dpkg]
L4T = {"6": "36.4", "7": "39.2"}
DRIVERS = {"6": "12.6.", "7": "13.2."}
"""JetPack → CUDA of its driver."""
ELF_AARCH64 = 183
OPEN = """
import importlib.metadata, sys
sys.path.insert(0, sys.argv[1])
from cuda.bindings import runtime
from appliance.engine.cuda import DeviceMemory
from appliance.errors import ApplianceError
print([found.version for found in importlib.metadata.distributions(path=sys.argv[1:])
       if found.name in ("cuda-python", "cuda-bindings")])
try:
    DeviceMemory("tensorrt").close()
except ApplianceError as error:
    print(error)
"""
"""First steps of TensorRT's backend, before it imports TensorRT, which JetPack supplies."""


@pytest.fixture
def library(jetpack: str, arch: str, tmp_path: Path) -> Iterator[Path]:
    """The unpacked package. Tree and package are removed: no other test reads them."""
    line = BUILD.replace("--jetpack 6", f"--jetpack {jetpack}").removeprefix("scripts/build-deb ")
    made = built(*line.split(), "--arch", arch, "--compress", "none")
    assert re.fullmatch(rf"f5-appliance_.*_jp{jetpack}_{arch}\.deb", made.name)
    run("dpkg-deb", "-x", made, tmp_path / "root")
    yield tmp_path / "root" / package.LIBRARY
    for folder in (tmp_path / "root", made.parent):
        shutil.rmtree(folder)


@pytest.mark.parametrize("arch", [ARCH])
@pytest.mark.parametrize("jetpack", PYTHONS)
def test_the_gpu_backends_find_their_bindings(library: Path, jetpack: str) -> None:
    """The package for this machine, under the JetPack's Python, lacks nothing but a device."""
    command = (found(PYTHONS[jetpack]), *ALONE, "-c", OPEN, library)
    ran = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.returncode == 0, ran.stderr
    versions, *refusal = ran.stdout.splitlines()
    assert versions.startswith(f"['{DRIVERS[jetpack]}") and versions.count("'") == 2
    assert not refusal or "no NVIDIA device" in refusal[0]


@pytest.mark.parametrize("arch", ["arm64"])
@pytest.mark.parametrize("jetpack", PYTHONS)
def test_the_jetsons_package_is_for_its_machine(library: Path, jetpack: str) -> None:
    """Every extension is for arm64 and this Python, CUDA's bindings among them."""
    depends = package.Flavour("arm64", jetpack).depends.split(", ")
    assert f"python{PYTHONS[jetpack]}" in depends and f"nvidia-l4t-core (>= {L4T[jetpack]})" in depends
    tag = f"cpython-{PYTHONS[jetpack].replace('.', '')}-{MACHINES['arm64']}-linux-gnu"
    assert (library / f"cuda/bindings/runtime.{tag}.so").exists()
    for path in library.rglob("*.so*"):
        head = path.read_bytes()[:20]
        assert (head[:4], int.from_bytes(head[18:], "little")) == (b"\x7fELF", ELF_AARCH64), path
        assert ".cpython-" not in path.name or tag in path.name, path
