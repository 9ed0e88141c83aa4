"""Memory of a host and of a device: its size, and the part that speaking takes of a device."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.contract.bundle import Arch, Bundle, Sampling
from appliance.engine.backend import Backend
from appliance.engine.cuda import STAGING_BYTES
from appliance.engine.engine import Synthesizer
from appliance.engine.ort import OrtBackend
from appliance.engine.tensorrt.prepare import tensor_bytes
from appliance.errors import OutOfDeviceMemory
from tests.engine.lanes import changed
from tests.fakes.nvidia import open_on, open_trt_on
from tests.fakes.nvidia.device import Device

pytestmark = pytest.mark.once

GB = 1 << 30
V1_BASE = Arch(dim=1024, depth=22, heads=16, ff_mult=2, text_dim=512, conv_layers=4)
STEP_PARAMETERS = 189.6e6
"""Parameters of a step graph of v1_Base, without modulation."""
OTHER_BYTES = 2 * (13.5e6 + 12e6)
"""Vocos and the condition graph, in float16."""
INT8_SHARE = 0.8
"""Smallest share of a step graph's weights that int8-qdq quantises."""
WORKSPACE = 0.7 * GB
"""Assumed, because no device was measured: activations of two rows of 4,096 frames, and kernels."""


@pytest.fixture(params=["host", "device"])
def backend(request: pytest.FixtureRequest, device: Device) -> Backend:
    return OrtBackend(1) if request.param == "host" else open_on(device)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_new_memory_is_zero_and_of_the_asked_type(backend: Backend, dtype: str) -> None:
    found = backend.download(backend.empty((2, 3), dtype))
    assert found.shape == (2, 3) and found.dtype == np.dtype(dtype) and not found.any()


def test_a_view_is_a_stretch_of_the_tensors_memory(backend: Backend) -> None:
    given, tensor = np.arange(60, dtype=np.float32).reshape(3, 4, 5), backend.empty((3, 4, 5), "float32")
    backend.upload(given, tensor)
    views: dict[tuple[int, ...], Any] = {(1, 2): given[1, 2:4], (1,): given[1:], (2, 3, 4): given[2, 3, 4]}
    for at, wanted in (views | {(2, 3): np.zeros((1, 0, 5))}).items():
        assert np.array_equal(backend.download(backend.view(tensor, wanted.shape, at)), wanted)
    nested = backend.view(backend.view(tensor, (7, 5)), (2,), (6, 1))
    backend.upload(np.full(2, -1, np.float32), nested)
    assert backend.download(tensor)[1, 2].tolist() == [30, -1, -1, 33, 34]
    with pytest.raises(ValueError, match="reshape"):
        backend.view(tensor, (2, 5), (2, 3))


def test_uploads_and_copies_fill_their_whole_target(backend: Backend) -> None:
    tensor, other = backend.empty((2, 3), "float32"), backend.empty((2, 3), "float32")
    host = np.array([1, 2, 3], np.float32)
    backend.upload(host, backend.view(tensor, (3,), (1,)))
    host[:] = 0
    backend.copy(backend.view(tensor, (3,), (1,)), backend.view(other, (3,)))
    backend.download(other)[:] = 7
    assert backend.download(tensor).tolist() == [[0, 0, 0], [1, 2, 3]]
    assert backend.download(other).tolist() == [[1, 2, 3], [0, 0, 0]]
    with pytest.raises(ValueError, match="broadcast"):
        backend.upload(np.zeros(4, np.float32), backend.view(tensor, (3,)))
    with pytest.raises(ValueError, match=r"broadcast|cannot copy"):
        backend.copy(tensor, backend.view(other, (3,)))


def test_an_array_may_be_changed_as_soon_as_upload_returns(device: Device) -> None:
    backend = open_on(device)
    tensors = [backend.empty((STAGING_BYTES // 8,), "float32") for _ in range(12)]
    host = np.zeros(STAGING_BYTES // 8, np.float32)
    for number, tensor in enumerate(tensors):
        host[:] = number
        backend.upload(host, tensor)
    assert [float(backend.download(tensor).max()) for tensor in tensors] == list(range(12))
    assert device.counts["event"] > 0, "the halves were changed"


def test_more_than_the_pinned_memory_goes_up_and_comes_down(device: Device) -> None:
    backend, host = open_on(device), np.arange(STAGING_BYTES, dtype=np.int32)
    tensor = backend.empty(host.shape, "int32")
    backend.upload(host, tensor)
    assert np.array_equal(backend.download(tensor), host)


def test_a_full_device_names_the_requested_size(device: Device) -> None:
    backend = open_on(device)
    device.memory_bytes = 1000
    asked = r"cudaMalloc: cudaErrorMemoryAllocation.*4000 bytes for \(10, 100\)"
    with pytest.raises(OutOfDeviceMemory, match=asked):
        backend.empty((10, 100), "float32")


@pytest.mark.slow
@pytest.mark.parametrize(("sampling", "lanes"), [("exact", 3), ("short", 1), ("short-kv", 2)])
def test_an_engine_is_as_planned(short: Bundle, device: Device, sampling: Sampling, lanes: int) -> None:
    bundle, backend = changed(short, sampling), open_on(device)
    before = device.allocated("device")
    Synthesizer(bundle, backend, host=OrtBackend(1), lanes=lanes).warm_up(2)
    assert device.allocated("device") - before == tensor_bytes(bundle, backend, lanes)


@pytest.mark.parametrize(("precision", "limit"), [("fp16", 4.0 * GB), ("int8-qdq", 3.0 * GB)])
def test_v1_base_has_room(tiny: Bundle, device: Device, tmp_path: Path, precision: str, limit: float) -> None:
    """4 lanes of up to 43 s and a voice of 12 s, with three engines that each carry the weights."""
    bundle = changed(tiny, "short-kv", arch=V1_BASE, precision=precision, max_frames=4096)
    tensors = tensor_bytes(bundle, open_trt_on(device, tmp_path), 4)
    of_a_parameter = 2 - INT8_SHARE if precision == "int8-qdq" else 2
    assert tensors + 3 * STEP_PARAMETERS * of_a_parameter + OTHER_BYTES + WORKSPACE <= limit
