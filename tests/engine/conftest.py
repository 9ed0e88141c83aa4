"""The committed tiny bundle, and engines on it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.contract import bundle as contract
from appliance.contract.bundle import Bundle
from appliance.engine.backend import Backend
from appliance.engine.engine import Synthesizer
from appliance.engine.ort import OrtBackend
from tests.engine.lanes import Padded, changed
from tests.fakes.nvidia import open_on, open_trt_on
from tests.fakes.nvidia.device import Device

TINY = Path(__file__).resolve().parent.parent / "tiny" / "bundle"
BACKENDS: dict[str, Callable[[Path], Backend]] = {
    "exact": lambda _: OrtBackend(1),
    "padded": lambda _: Padded(),
    "device": lambda _: open_on(Device()),
    "tensorrt": lambda engines: open_trt_on(Device(), engines),
}


@pytest.fixture(scope="session")
def tiny() -> Bundle:
    """float32, v1, width 64, two blocks; random weights."""
    return contract.read(TINY)


@pytest.fixture(scope="session")
def short(tiny: Bundle) -> Bundle:
    """`tiny` with 256 frames at most: its warm-up and comparison are quick."""
    return changed(tiny, max_frames=256)


@pytest.fixture
def make_engine(tiny: Bundle) -> Callable[..., Synthesizer]:
    """Engines on one thread, so that sums are split the same way whatever the machine does."""

    def make(backend: Backend | None = None, bundle: Bundle = tiny, **options: Any) -> Synthesizer:
        return Synthesizer(bundle, backend or OrtBackend(1), **options)

    return make


@pytest.fixture
def engine(make_engine: Callable[..., Synthesizer]) -> Synthesizer:
    """Four lanes at true lengths."""
    return make_engine(lanes=4)


FAKES = ("device", "tensorrt")
ONCE = (pytest.mark.slow, pytest.mark.once)


@pytest.fixture(params=[pytest.param(b, marks=ONCE if b in FAKES else ()) for b in BACKENDS])
def either(
    request: pytest.FixtureRequest, make_engine: Callable[..., Synthesizer], engines: Path
) -> Synthesizer:
    """An engine of four lanes: at true lengths, with padded rows that share calls, or on a fake GPU."""
    return make_engine(BACKENDS[request.param](engines), lanes=4)


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def engines(tmp_path: Path) -> Path:
    return tmp_path / "engines"


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow) for name in FAKES])
def gpu(request: pytest.FixtureRequest, device: Device, engines: Path) -> Any:
    return open_on(device) if request.param == "device" else open_trt_on(device, engines)
