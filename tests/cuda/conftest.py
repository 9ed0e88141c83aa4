"""The counting libraries in the place of CUDA's, and the bundles whose graphs run over them."""

from __future__ import annotations

import fcntl
import gc
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.contract import bundle as contract
from appliance.contract.bundle import Bundle
from tests.cuda import libraries, runtime
from tests.cuda.runtime import Runtime
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
WORKSHOP = ROOT / ".venv/bin/python"
BLOCKS = int(os.environ.get("F5_DEPTH", "2"))
"""Of v1_Base's 22: the last, and one that all others are like."""


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
    """An Orin, on which every test does only what CUDA allows, until its objects are gone."""
    device.use(runtime.ORIN)
    before = len(device.wrong_uses())
    yield device
    gc.collect()
    assert device.wrong_uses()[before:] == []


@pytest.fixture(scope="session")
def demo() -> Bundle:
    return contract.read(ROOT / "appliance/demo/bundle", verify=False)


@pytest.fixture(scope="session")
def base() -> Bundle:
    """As wide as v1_Base; written by the workshop when what it is made of has changed."""
    if not WORKSHOP.exists():
        pytest.skip("the workshop, .venv, is not installed: scripts/test makes it")
    sources = (
        *ROOT.glob("export/**/*.py"),
        *ROOT.glob("appliance/contract/*.py"),
        ROOT / "tests/cuda/base.py",
    )
    key = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(sources))).hexdigest()[:16]
    kept = ROOT / "out/cuda"
    kept.mkdir(parents=True, exist_ok=True)
    folder = kept / f"{key}-{BLOCKS}"
    with (kept / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / contract.MANIFEST).exists():
            for stale in filter(Path.is_dir, kept.iterdir()):
                shutil.rmtree(stale)
            command = (WORKSHOP, "-m", "tests.cuda.base", folder, str(BLOCKS))
            ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=5 * PATIENCE_S)
            assert ran.returncode == 0, ran.stderr
    return contract.read(folder, verify=False)


@pytest.fixture(scope="session", params=["demo", "base"])
def bundle(request: pytest.FixtureRequest) -> Bundle:
    """The voice that is shipped, and v1_Base."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Bundle)
    return found
