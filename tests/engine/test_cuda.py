"""The backends for GPUs on a fake device, which is asynchronous, poisoned and strict; and missing parts."""

import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from appliance.config import EngineConfig
from appliance.contract.bundle import Bundle
from appliance.contract.graphs import signatures
from appliance.engine import engine as synthesizer
from appliance.engine.cuda import fault_of
from appliance.engine.engine import Synthesizer
from appliance.engine.loading import load_beside, load_for, open_backend
from appliance.engine.ort import OrtBackend
from appliance.errors import BundleError, DeviceLost, EngineFault, OutOfDeviceMemory
from tests.engine.lanes import BATCHED, changed, relative, segment, solo
from tests.fakes.nvidia import installed, open_on
from tests.fakes.nvidia.cudart import Runtime, cudaError_t
from tests.fakes.nvidia.device import Device
from tests.fakes.nvidia.tensorrt import TensorRT
from tests.harness.patience import PATIENCE_S

pytestmark = pytest.mark.once


def config(backend: str, **others: Any) -> EngineConfig:
    return EngineConfig(backend=backend, threads=1, **{"lanes": 1} | others)


def test_once_warm_nothing_is_allocated_and_calls_wait_once(short: Bundle, device: Device, gpu: Any) -> None:
    """An engine that is warm builds nothing either, and copies only samples back."""
    engine, nfe = Synthesizer(short, gpu, host=OrtBackend(1), lanes=2), 2
    engine.warm_up(nfe)
    given = segment(100, nfe=nfe, sampling=short.manifest.defaults.sampling)
    device.counts.clear()
    lane, calls = engine.open(given), []
    for call in (*[lambda: engine.step([lane.id])] * nfe, lambda: engine.finish(lane.id)):
        calls.append(dict(device.counts))
        device.counts.clear()
        call()
    finished = dict(device.counts)
    for counts in (*calls, finished):
        assert not {"allocate device", "allocate pinned", "context", "build"} & counts.keys()
        assert counts["synchronise"] == 1
    assert all("DeviceToHost" not in counts for counts in calls)
    # The copies hold row indices, and the weights of the lane's update.
    assert {counts["HostToDevice"] for counts in calls[1:]} <= {2, 3, 4}
    assert finished["DeviceToHost"] == 1
    engine.shutdown()
    assert not device.wrong


def test_a_device_that_fails_ends_this_call_and_later_ones(tiny: Bundle, device: Device, gpu: Any) -> None:
    engine = Synthesizer(tiny, gpu, host=OrtBackend(1), lanes=2)
    lane = engine.open(segment(60))

    def fail() -> None:
        raise RuntimeError("an illegal address")

    device.streams[gpu.stream].enqueue(fail)
    with pytest.raises(EngineFault, match="CUDA: cudaStreamSynchronize: cudaErrorLaunchFailure"):
        engine.step([lane.id])
    with pytest.raises(EngineFault):
        engine.open(segment(60, seed=2))
    engine.close(lane.id)
    engine.shutdown()


@pytest.mark.slow
def test_an_engine_loaded_next_to_another_is_captured_on_the_speaking_thread(
    short: Bundle, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Daemon.swap` does the same: another thread loads the engine and warms it up; this thread tests and
    uses it."""
    monkeypatch.setattr(synthesizer, "LAUNCH_BOUND_S", 1e9)
    warm, spoken, warm_up = threading.Event(), threading.Event(), Synthesizer.warm_up

    def held(engine: Synthesizer, nfe: int) -> None:
        warm_up(engine, nfe)
        warm.set()
        assert spoken.wait(PATIENCE_S)

    monkeypatch.setattr(Synthesizer, "warm_up", held)
    loads = config("ort-cuda")
    with installed(device), ThreadPoolExecutor(1) as pool:
        speaking = load_for(short, loads)
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
            engine.self_test()
            assert solo(engine, segment(60, nfe=7)).size
            assert device.counts["capture"] > captured
            engine.shutdown()
    assert not device.wrong


def spoil(name: str, cuda: Runtime, runtime: Any) -> None:
    """Remove a part of CUDA, of ONNX Runtime or of TensorRT."""
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
        case "package":
            sys.modules["tensorrt"] = None  # type: ignore[assignment]


NO_DEVICE = "no NVIDIA device can be used: CUDA: cudaGetDeviceCount: cudaErrorNoDevice"
MISSING = {
    "provider": "has no CUDAExecutionProvider: install onnxruntime-gpu in place of onnxruntime",
    "device": NO_DEVICE,
    "driver": "cudaGetDeviceCount: cudaErrorInsufficientDriver: .*, and there is no driver$",
    "newer driver": r"cuda-python is of CUDA 13\.2, the driver of 12\.6: the package .* cuda-python==12",
    "bindings": r"needs cuda-python \(.*\): the package holds it: sudo apt install --reinstall \./FILE\.deb",
    "libraries": "could not be started, ONNX Runtime would compute on CPUExecutionProvider",
}
OF_TENSORRT = {
    "package": "needs TensorRT's Python package, on a Jetson python3-libnvinfer of JetPack$",
    "bindings": MISSING["bindings"],
    "device": NO_DEVICE,
}
PASSED_OVER = {**MISSING, "cuDNN": "Conv.*cuDNN is unavailable"}


@pytest.mark.parametrize(("backend", "what"), [
    *(("ort-cuda", what) for what in MISSING), *(("tensorrt", w) for w in OF_TENSORRT),
])  # fmt: skip
def test_missing_parts_are_named_and_the_cpu_does_not_replace_them(
    tiny: Bundle, device: Device, engines: Path, backend: str, what: str
) -> None:
    message = (MISSING if backend == "ort-cuda" else OF_TENSORRT)[what]
    with installed(device, TensorRT(device)) as runtimes:
        spoil(what, *runtimes)
        with pytest.raises(BundleError, match=f"^backend '{backend}'.*{message}"):
            load_for(tiny, config(backend, cache=engines))


def test_a_runtime_without_the_provider_is_refused() -> None:
    with pytest.raises(BundleError, match="has no CUDAExecutionProvider"):
        open_backend("ort-cuda")


@pytest.mark.parametrize("what", ["", *PASSED_OVER])
def test_auto_takes_the_first_backend_that_speaks(
    tiny: Bundle, device: Device, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    with installed(device) as runtimes:
        spoil(what, *runtimes)
        engine = load_for(tiny, config("auto"))
        assert solo(engine, segment(60, nfe=1)).size
        engine.shutdown()
    tensorrt, *others = engine.passed_over
    assert (tensorrt.backend, "needs TensorRT's Python package" in tensorrt.reason) == ("tensorrt", True)
    assert engine.backend == ("ort-cpu" if what else "ort-cuda")
    assert [one.backend for one in others] == (["ort-cuda"] if what else [])
    if what:
        assert re.search(PASSED_OVER[what], others[0].reason)
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line for line in warned if line.startswith("engine.backend auto: ")] == [
        f"engine.backend auto: cannot use {one.backend}: {one.reason}" for one in engine.passed_over
    ]


def test_every_reason_is_named_if_no_backend_speaks(
    tiny: Bundle, device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise TypeError("factory function returned nullptr")

    monkeypatch.setattr(OrtBackend, "load", broken)
    with installed(device), pytest.raises(EngineFault) as raised:
        load_for(tiny, config("auto"))
    assert str(raised.value).count("TypeError: factory function returned nullptr") == 2


def test_a_refused_binding_is_an_engine_fault(tiny: Bundle, device: Device) -> None:
    backend, spec = open_on(device), signatures(tiny.manifest.dimensions)["update"]
    graph = backend.load("update", tiny.graph("update"), spec, {})
    *names, out = ("latents", "guided", "unguided", "latents_out")
    tensors: dict[str, Any] = {name: backend.empty((4, 100), "float32") for name in names}
    tensors["weights"] = backend.view(backend.empty((8,), "float32"), (2,), (1,))
    with pytest.raises(EngineFault, match="multiple of 16"):
        graph.bind(tensors, {out: backend.empty((4, 100), "float32")})


@pytest.mark.parametrize(("status", "kind"), [
    (cudaError_t.cudaErrorMemoryAllocation, OutOfDeviceMemory),
    (cudaError_t.cudaErrorDevicesUnavailable, DeviceLost),
    (cudaError_t.cudaErrorUnknown, DeviceLost),
])  # fmt: skip
@pytest.mark.parametrize("backend", ["ort-cuda", "tensorrt", "auto"])
def test_a_device_that_is_full_or_lost_at_start_is_no_reason_to_speak_from_the_cpu(
    tiny: Bundle, device: Device, engines: Path, backend: str, status: cudaError_t, kind: type[EngineFault]
) -> None:
    with installed(device, TensorRT(device)) as (cuda, _):
        cuda.start = status
        with pytest.raises(kind):
            load_for(tiny, config(backend, cache=engines))


@pytest.mark.parametrize(("message", "kind"), [
    ("CUDA failure 700: an illegal memory access was encountered ; GPU=0", DeviceLost),
    ("Error Code 1: Cuda Runtime (an illegal memory access was encountered)", DeviceLost),
    ("Error Code 1: Cuda Runtime (unspecified launch failure)", DeviceLost),
    ("CUDA failure 2: out of memory", OutOfDeviceMemory),
    ("Failed to allocate memory for requested buffer of size 4096", OutOfDeviceMemory),
    ("CUDA failure 1: invalid argument", EngineFault),
    ("a shape is refused", EngineFault),
])  # fmt: skip
def test_faults_are_distinguished_by_number_or_words(message: str, kind: type[EngineFault]) -> None:
    assert type(fault_of(message)) is kind


def test_closing_on_a_lost_device_says_nothing_more(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = open_on(device)
    lost = (cudaError_t.cudaErrorLaunchFailure,)
    monkeypatch.setattr(Runtime, "cudaEventDestroy", lambda runtime, event: lost)
    backend.close()


@pytest.mark.parametrize(("fuses", "label", "step"), [
    (True, "ort-cuda", "step_reply_fused.onnx"),
    (False, "ort-cuda (plain attention)", "step_reply.onnx"),
])  # fmt: skip
@pytest.mark.slow
def test_fused_attention_is_used_if_it_agrees_with_the_plain_one(
    short: Bundle, device: Device, caplog: pytest.LogCaptureFixture, fuses: bool, label: str, step: str
) -> None:
    """A runtime without the kernel misreads the masks without an error."""
    bundle, given = changed(short, "short-kv"), segment(120, nfe=3, sampling="short-kv")
    with installed(device) as (_, runtime):
        runtime.fuses = fuses
        engine = load_for(bundle, config("ort-cuda", lanes=2))
        runtime.sessions.clear()
        assert engine.backend == label
        found, wanted = (solo(one, given) for one in (engine, Synthesizer(bundle, OrtBackend(1))))
        assert relative(found, wanted) <= BATCHED
        assert step in {Path(session.path).name for session in runtime.sessions}
        engine.shutdown()
    assert ("fused attention computes wrongly here" in caplog.text) == (not fuses)
    assert not device.wrong
