"""Shared parts of all tests: the root, hypothesis settings, and skips for missing programs and devices."""

import contextlib
import gc
import importlib.util
import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

import appliance.box.program  # noqa: F401 -- from here on Ctrl-C is a program's, if it is not given back
import tests.harness.patience  # noqa: F401 -- measures before the first test
from tests.harness.guard import Guard

Checked = Callable[..., tuple[int, dict[str, dict[str, Any]]]]
pytest_plugins = ["tests.harness.budget"]
ROOT = Path(__file__).resolve().parent.parent
JETSON_RELEASE = Path("/etc/nv_tegra_release")
CUDA_PROVIDER = "capi/libonnxruntime_providers_cuda.so"
MEMORY = Path("/dev/shm")
MEMORY_BYTES = 4 << 30
"""Most bytes of memory that temporary files may take, environments included."""

# Threads that spin while they wait take ten times as long if test processes run side by side. The limit also
# holds for the programs that a test starts.
for pool in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(pool, "1")
# If there is no network, pip would retry each index for a minute.
os.environ.setdefault("PIP_RETRIES", "1")

# Examples are the same on every run and machine; a shared machine's pauses are no failures.
SLOW = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("reproducible", derandomize=True, print_blob=True, **SLOW)
hypothesis.settings.load_profile("reproducible")

# All tests of the exporter import torch.
collect_ignore = [] if importlib.util.find_spec("torch") else ["export"]


def _is_roomy(folder: Path) -> bool:
    """True if programs can be written to the folder and run there, and there is enough space."""
    if not os.access(folder, os.W_OK):
        return False
    state = os.statvfs(folder)
    return not state.f_flag & os.ST_NOEXEC and state.f_bavail * state.f_frsize > MEMORY_BYTES


def _remove_abandoned(folder: Path) -> None:
    """Remove the folders of killed runs: pytest keeps folders for days, and here they take memory."""
    mounted = Path("/proc/mounts").read_text()
    for lock in folder.glob("pytest-of-*/pytest-*/.lock"):
        with contextlib.suppress(OSError, ValueError):
            # A test of the package may have left the machine's own /dev mounted below.
            if not Path(f"/proc/{int(lock.read_text())}").exists() and str(lock.parent) not in mounted:
                shutil.rmtree(lock.parent, ignore_errors=True)


if os.access(MEMORY, os.W_OK):
    _remove_abandoned(MEMORY)

# A fake Jetson is four hundred small files: on a shared disk they take most of a test's time.
if _is_roomy(MEMORY):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# Tests send these signals. Under nohup, and in the background of a script, every child process ignores them.
if threading.current_thread() is threading.main_thread():
    for number, act in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, act)


GUARD = Guard()


def pytest_configure() -> None:
    GUARD.start()


def pytest_unconfigure() -> None:
    GUARD.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Lift the guard for a test marked `packaging`, which uses the programs of its private root."""
    if item.get_closest_marker("packaging"):
        with GUARD.lifted():
            return (yield)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    result = yield
    if asked := GUARD.asked():
        pytest.fail(f"asked this machine, and no shim or root of its own, for: {'; '.join(asked)}")
    return result


pytest_runtest_setup = pytest_runtest_teardown = pytest_runtest_call
"""Setup and teardown fail like the call if a fixture asked the machine for something."""


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository's root."""
    return ROOT


@pytest.fixture(scope="session")
def shared_box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The daemon of this process, with the voice `ann`; `tests.harness.daemons.shared` lends it to a module.

    The daemon waits an hour for a reader: if it drops a caller earlier, the API reported that the caller
    left.
    """
    from tests.harness.daemons import sharing

    folder = tmp_path_factory.mktemp("shared") / "box"
    folder.mkdir()
    with sharing(folder, server={"write_timeout_s": 3_600.0}) as box:
        yield box


@pytest.fixture(scope="session")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The daemon of this process with TLS and a token for each role."""
    from tests.test_lock import locking

    with locking(tmp_path_factory.mktemp("locked")) as box:
        yield box


@pytest.fixture
def checked(capsys: pytest.CaptureFixture[str]) -> Checked:
    """Run `appliance check` with a configuration and options: exit status, and findings by name."""
    from appliance.cli import main

    def checked(config: Path, *options: str) -> tuple[int, dict[str, dict[str, Any]]]:
        capsys.readouterr()
        code = main(["check", "--json", "--config", str(config), *options])
        document = json.loads(capsys.readouterr().out)
        assert document["exit"] == code
        return code, {finding["check"]: finding for finding in document["findings"]}

    return checked


@pytest.fixture(autouse=True)
def as_found(request: pytest.FixtureRequest) -> Iterator[None]:
    """Restore a shared daemon after each test. Before the test, restore Ctrl-C, which programs of the box
    take."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    used = {"shared_box", "bundles_box"}.intersection(request.fixturenames)
    boxes = [request.getfixturevalue(name) for name in used]
    yield
    for box in boxes:
        box.reset()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skips = {
        "torch": None if importlib.util.find_spec("torch") else "torch is not installed",
        "gpu": None if _has_gpu() or os.environ.get("F5_REQUIRE_GPU") == "1" else "no CUDA device",
        "cuda": None if _has_cuda_provider() else "onnxruntime-gpu is not installed",
        "jetson": None if JETSON_RELEASE.exists() else f"no {JETSON_RELEASE}: not a Jetson",
    }
    for item in items:
        for marker, reason in skips.items():
            if reason is not None and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Exclude imported modules from later garbage collections: exports cause hundreds."""
    gc.freeze()


def _has_cuda_provider() -> bool:
    found = importlib.util.find_spec("onnxruntime")
    return found is not None and (Path(str(found.origin)).parent / CUDA_PROVIDER).exists()


def _has_gpu() -> bool:
    return any(Path("/dev").glob("nvidia[0-9]*"))
