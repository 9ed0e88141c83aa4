"""ONNX Runtime's CUDA provider on a fake device: asynchronous, poisoned, strict about addresses."""

from __future__ import annotations

import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.config import EngineConfig
from appliance.contract.bundle import Bundle
from appliance.contract.graphs import signatures
from appliance.engine import engine as synthesizer
from appliance.engine import ort_cuda
from appliance.engine.cuda import STAGING_BYTES, fault_of
from appliance.engine.engine import Synthesizer
from appliance.engine.loading import load_beside, load_for, open_backend
from appliance.engine.ort import OrtBackend
from appliance.engine.ort_cuda import OrtCudaBackend
from appliance.errors import BundleError, DeviceLost, EngineFault, OutOfDeviceMemory
from tests.engine.lanes import (
    BATCHED,
    check_a_device_that_fails,
    check_a_request_on_a_device,
    relative,
    segment,
    solo,
)
from tests.fakes.gpu import installed, open_on
from tests.fakes.gpu.cudart import Runtime, cudaError_t
from tests.fakes.gpu.device import Device
from tests.fakes.gpu.tensorrt import TensorRT
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.once


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def backend(device: Device) -> OrtCudaBackend:
    return open_on(device)


def engine_on(tiny: Bundle, backend: OrtCudaBackend, lanes: int = 2) -> Synthesizer:
    return Synthesizer(tiny, backend, host=OrtBackend(1), lanes=lanes)


# Memory


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_new_memory_is_zero(backend: OrtCudaBackend, dtype: str) -> None:
    found = backend.download(backend.empty((2, 3), dtype))
    assert found.shape == (2, 3) and found.dtype == np.dtype(dtype) and not found.any()


def test_views_uploads_and_copies(backend: OrtCudaBackend) -> None:
    tensor, other = backend.empty((3, 4, 5), "float32"), backend.empty((2, 5), "float32")
    host = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    backend.upload(host, tensor)
    host[:] = -1
    backend.copy(backend.view(tensor, (2, 5), (1, 2)), other)
    assert backend.download(other).tolist() == np.arange(30, 40).reshape(2, 5).tolist()
    backend.upload(np.ones(5, np.float32), backend.view(tensor, (5,), (2, 3)))
    assert backend.download(tensor)[2, 3].tolist() == [1.0] * 5
    with pytest.raises(ValueError, match="reshape"):
        backend.view(tensor, (2, 5), (2, 3))
    with pytest.raises(ValueError, match="broadcast"):
        backend.upload(np.zeros(4, np.float32), other)
    with pytest.raises(ValueError, match="cannot copy"):
        backend.copy(tensor, other)


def test_an_array_may_be_changed_as_soon_as_upload_returns(backend: OrtCudaBackend, device: Device) -> None:
    tensors = [backend.empty((STAGING_BYTES // 8,), "float32") for _ in range(12)]
    host = np.zeros(STAGING_BYTES // 8, np.float32)
    for number, tensor in enumerate(tensors):
        host[:] = number
        backend.upload(host, tensor)
    assert [float(backend.download(tensor).max()) for tensor in tensors] == list(range(12))
    assert device.counts["event"] > 0, "the halves were changed"


def test_more_than_the_pinned_memory_goes_up_and_comes_down(backend: OrtCudaBackend) -> None:
    host = np.arange(STAGING_BYTES, dtype=np.int32)
    tensor = backend.empty(host.shape, "int32")
    backend.upload(host, tensor)
    assert np.array_equal(backend.download(tensor), host)


def test_a_full_device_says_what_was_asked(device: Device) -> None:
    backend = open_on(device)
    device.memory_bytes = 1000
    with pytest.raises(
        EngineFault, match=r"cudaMalloc: cudaErrorMemoryAllocation.*4000 bytes for \(10, 100\)"
    ):
        backend.empty((10, 100), "float32")


# A request


def test_a_request_after_the_warm_up_allocates_nothing_and_waits_once_a_call(
    short: Bundle, backend: OrtCudaBackend, device: Device
) -> None:
    check_a_request_on_a_device(engine_on(short, backend), device, nfe=4)


def test_a_reply_is_the_cpus(tiny: Bundle, device: Device) -> None:
    engine, alone = engine_on(tiny, open_on(device)), Synthesizer(tiny, OrtBackend(1))
    given = segment(120, nfe=3)
    spoken = []
    for one in (engine, alone):
        lane = one.open(given)
        for _ in range(3):
            one.step([lane.id])
        spoken.append(one.finish(lane.id))
    assert relative(*spoken) <= BATCHED


def test_a_device_that_fails_ends_the_call_by_name(
    tiny: Bundle, backend: OrtCudaBackend, device: Device
) -> None:
    check_a_device_that_fails(engine_on(tiny, backend), device, backend.stream)


def test_a_step_is_captured_after_two_runs_and_at_most_so_many_are(
    short: Bundle, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort_cuda, "MAX_CAPTURED", 3)
    with installed(device) as (_, runtime):
        backend = OrtCudaBackend()
    engine = engine_on(short, backend)
    engine.warm_up(7)
    engine.captures = True

    def captured() -> int:
        return sum(session.captured() for session in runtime.sessions)

    assert captured() == 0
    for frames, steps, graphs in ((60, 2, 0), (60, 7, 1), (60, 7, 1), (200, 3, 1), (200, 7, 2)):
        solo(engine, segment(frames, nfe=steps))
        assert captured() == graphs, (frames, steps)
    for frames in (100, 150, 60):
        solo(engine, segment(frames, nfe=9))
    assert captured() == 3
    assert not device.wrong
    engine.shutdown()


def test_an_engine_that_is_loaded_beside_another_is_captured_on_the_thread_that_speaks(
    short: Bundle, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `Daemon.swap` does it: loaded and warmed up in another thread, tested and used on this one."""
    monkeypatch.setattr(synthesizer, "LAUNCH_BOUND_S", 1e9)
    warm, spoken, warm_up = threading.Event(), threading.Event(), Synthesizer.warm_up

    def held(engine: Synthesizer, nfe: int) -> None:
        warm_up(engine, nfe)
        warm.set()
        assert spoken.wait(PATIENCE_S)

    monkeypatch.setattr(Synthesizer, "warm_up", held)
    loads = EngineConfig(backend="ort-cuda", threads=1, lanes=2)
    with installed(device), ThreadPoolExecutor(1) as pool:
        speaking = load_for(short, EngineConfig(backend="ort-cuda", threads=1, lanes=2))
        speaking.captures = True
        before = device.counts["capture"]
        loading = pool.submit(load_beside, short, loads, 2, lambda line: None)
        assert warm.wait(PATIENCE_S)
        assert solo(speaking, segment(60, nfe=7)).size
        assert device.counts["capture"] == before
        spoken.set()
        other = loading.result(PATIENCE_S)
        for engine in (other, speaking):
            captured = device.counts["capture"]
            engine.prove()
            assert solo(engine, segment(60, nfe=7)).size
            assert device.counts["capture"] > captured
            engine.shutdown()
    assert not device.wrong


# What is missing


def spoilt(name: str, cuda: Runtime, runtime: Any) -> None:
    """Let something be missing of CUDA or of ONNX Runtime."""
    match name:
        case "provider":
            runtime.providers = ["CPUExecutionProvider"]
        case "device":
            cuda.start = cudaError_t.cudaErrorNoDevice
        case "driver":
            cuda.start, cuda.device.driver = cudaError_t.cudaErrorInsufficientDriver, 0
        case "newer driver":
            cuda.start, cuda.version = cudaError_t.cudaErrorInsufficientDriver, 13020
        case "bindings":
            sys.modules["cuda.bindings"] = None  # type: ignore[assignment]
        case "libraries":
            runtime.libraries_missing = True
        case "cuDNN":
            runtime.cudnn_missing = True


MISSING = {
    "provider": "has no CUDAExecutionProvider: install onnxruntime-gpu in place of onnxruntime",
    "device": "no NVIDIA device can be used: CUDA: cudaGetDeviceCount: cudaErrorNoDevice",
    "driver": "cudaGetDeviceCount: cudaErrorInsufficientDriver: .*, and there is no driver$",
    "newer driver": r"cuda-python is of CUDA 13\.2, the driver of 12\.6: the package .* cuda-python==12",
    "bindings": r"needs cuda-python \(.*\): the package holds it: sudo apt install --reinstall \./FILE\.deb",
    "libraries": "could not be started, ONNX Runtime would compute on CPUExecutionProvider",
}


@pytest.mark.parametrize("spoil", MISSING)
def test_what_is_missing_is_named_and_the_cpu_is_not_taken_in_its_place(
    tiny: Bundle, device: Device, spoil: str
) -> None:
    with installed(device) as runtimes:
        spoilt(spoil, *runtimes)
        with pytest.raises(BundleError, match=f"^backend 'ort-cuda'.*{MISSING[spoil]}"):
            load_for(tiny, EngineConfig(backend="ort-cuda", threads=1, lanes=1))


def test_a_runtime_without_the_provider_is_refused() -> None:
    with pytest.raises(BundleError, match="has no CUDAExecutionProvider"):
        open_backend("ort-cuda")


PASSED_OVER = {**MISSING, "cuDNN": "Conv.*cuDNN is unavailable"}


@pytest.mark.parametrize("spoil", ["", *PASSED_OVER])
def test_auto_takes_the_first_backend_that_speaks(
    tiny: Bundle,
    device: Device,
    spoil: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with installed(device) as runtimes:
        spoilt(spoil, *runtimes)
        engine = load_for(tiny, EngineConfig(backend="auto", threads=1, lanes=1))
        assert solo(engine, segment(60, nfe=1)).size
        engine.shutdown()
    tensorrt, *others = engine.passed_over
    assert (tensorrt.backend, "needs TensorRT's Python package" in tensorrt.reason) == ("tensorrt", True)
    assert engine.backend == ("ort-cpu" if spoil else "ort-cuda")
    assert [one.backend for one in others] == (["ort-cuda"] if spoil else [])
    if spoil:
        assert re.search(PASSED_OVER[spoil], others[0].reason)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line for line in warned if line.startswith("engine.backend auto: ")] == [
        f"engine.backend auto: {one.backend} passed over: {one.reason}" for one in engine.passed_over
    ]


def test_without_a_backend_that_speaks_every_reason_is_named(
    tiny: Bundle, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise TypeError("factory function returned nullptr")

    monkeypatch.setattr(OrtBackend, "load", broken)
    with installed(device), pytest.raises(EngineFault) as raised:
        load_for(tiny, EngineConfig(backend="auto", threads=1, lanes=1))
    assert str(raised.value).count("TypeError: factory function returned nullptr") == 2


def tensors(backend: OrtCudaBackend) -> dict[str, Any]:
    return {
        "latents": backend.empty((4, 100), "float32"),
        "guided": backend.empty((4, 100), "float32"),
        "unguided": backend.empty((4, 100), "float32"),
        "weights": backend.empty((2,), "float32"),
    }


def test_a_refused_binding_is_an_engine_fault(tiny: Bundle, backend: OrtCudaBackend) -> None:
    spec = signatures(tiny.manifest.dimensions)["update"]
    graph = backend.load("update", tiny.graph("update"), spec, {})
    misaligned = {"weights": backend.view(backend.empty((8,), "float32"), (2,), (1,))}
    with pytest.raises(EngineFault, match="multiple of 16"):
        graph.bind(tensors(backend) | misaligned, {"latents_out": backend.empty((4, 100), "float32")})


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (cudaError_t.cudaErrorMemoryAllocation, OutOfDeviceMemory),
        (cudaError_t.cudaErrorDevicesUnavailable, DeviceLost),
        (cudaError_t.cudaErrorUnknown, DeviceLost),
    ],
)
@pytest.mark.parametrize("backend", ["ort-cuda", "tensorrt", "auto"])
def test_a_device_that_is_full_or_lost_at_start_is_no_reason_to_speak_from_the_cpu(
    tiny: Bundle, tmp_path: Path, backend: str, status: cudaError_t, kind: type[EngineFault]
) -> None:
    device = Device()
    with installed(device, TensorRT(device)) as (cuda, _):
        cuda.start = status
        with pytest.raises(kind):
            load_for(tiny, EngineConfig(backend=backend, threads=1, lanes=1, cache=tmp_path))


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("CUDA failure 700: an illegal memory access was encountered ; GPU=0", DeviceLost),
        ("Error Code 1: Cuda Runtime (an illegal memory access was encountered)", DeviceLost),
        ("Error Code 1: Cuda Runtime (unspecified launch failure)", DeviceLost),
        ("CUDA failure 2: out of memory", OutOfDeviceMemory),
        ("Failed to allocate memory for requested buffer of size 4096", OutOfDeviceMemory),
        ("CUDA failure 1: invalid argument", EngineFault),
        ("a shape is refused", EngineFault),
    ],
)
def test_faults_are_distinguished_by_number_or_words(message: str, kind: type[EngineFault]) -> None:
    assert type(fault_of(message)) is kind


def test_closing_on_a_lost_device_says_nothing_more(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_on(device)
    lost = (cudaError_t.cudaErrorLaunchFailure,)
    monkeypatch.setattr(Runtime, "cudaEventDestroy", lambda runtime, event: lost)
    backend.close()


# Fused attention


@pytest.fixture
def short_kv(short: Bundle) -> Bundle:
    defaults = replace(short.manifest.defaults, sampling="short-kv")
    return replace(short, manifest=replace(short.manifest, defaults=defaults))


@pytest.mark.parametrize(
    ("fuses", "label", "step"),
    [(True, "ort-cuda", "step_reply_fused.onnx"), (False, "ort-cuda (plain attention)", "step_reply.onnx")],
)
def test_fused_attention_is_relied_on_where_it_gives_the_plain_ones_numbers(
    short_kv: Bundle,
    device: Device,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fuses: bool,
    label: str,
    step: str,
) -> None:
    """A runtime without its kernel reads the masks as others, and says nothing."""
    given = segment(120, nfe=3, sampling="short-kv")
    with installed(device) as (_, runtime):
        runtime.fuses = fuses
        engine = load_for(short_kv, EngineConfig(backend="ort-cuda", threads=1, lanes=2))
        runtime.sessions.clear()
        assert engine.backend == label
        spoken, wanted = (solo(one, given) for one in (engine, Synthesizer(short_kv, OrtBackend(1))))
        assert relative(spoken, wanted) <= BATCHED
        assert step in {Path(session.path).name for session in runtime.sessions}
        engine.shutdown()
    assert ("fused attention is wrong here, the plain one takes its place" in caplog.text) == (not fuses)
    assert not device.wrong
