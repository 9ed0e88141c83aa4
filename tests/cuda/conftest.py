"""The counting libraries in the place of CUDA's, and the bundles whose graphs run over them."""

import gc
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.contract import bundle as contract
from appliance.contract.bundle import Bundle
from tests.fakes.nvidia.counting import libraries, runtime
from tests.fakes.nvidia.counting.runtime import Runtime
from tests.harness.kept import kept
from tests.harness.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
WORKSHOP = Path(os.environ.get("F5_WORKSHOP", ROOT / ".venv/bin/python"))
BLOCKS = int(os.environ.get("F5_DEPTH", "2"))
"""Number of v1_Base's 22 blocks that are built: the last block differs, all others are alike."""


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The libraries, libcudart first."""
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    return libraries.build(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="session")
def device(made: list[Path]) -> Runtime:
    return runtime.install(made)


@pytest.fixture(autouse=True)
def cuda(device: Runtime) -> Iterator[Runtime]:
    """An Orin. Fails a test if the test, or the end of its objects, does anything that CUDA forbids."""
    device.use(runtime.ORIN)
    before = len(device.wrong_uses())
    yield device
    gc.collect()
    assert device.wrong_uses()[before:] == []


@pytest.fixture(scope="session")
def demo() -> Bundle:
    """The shipped voice."""
    return contract.read(ROOT / "appliance/demo/bundle", verify=False)


@pytest.fixture(scope="session")
def base() -> Bundle:
    """The bundle of base.py. The workshop builds it again if its sources have changed."""
    if not WORKSHOP.exists():
        pytest.skip(f"no workshop, {WORKSHOP}: scripts/test makes it, or F5_WORKSHOP names its python")
    folder = kept("v1-base", ("tests.cuda.base",), make, BLOCKS)
    return contract.read(folder / "bundle", verify=False)


def make(folder: Path, blocks: int) -> None:
    command = (WORKSHOP, "-m", "tests.cuda.base", folder / "bundle", str(blocks))
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=5 * PATIENCE_S)
    assert ran.returncode == 0, ran.stderr


@pytest.fixture(params=["demo", "base"])
def bundle(request: pytest.FixtureRequest) -> Bundle:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Bundle)
    return found
