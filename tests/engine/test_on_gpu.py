"""The backends for GPUs on a real device. `scripts/gpu-check` runs these; elsewhere they are deselected."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from appliance.config import EngineConfig
from appliance.contract.bundle import FUSED, Bundle
from appliance.contract.graphs import CONTEXT, STEPS, signatures
from appliance.engine import ort_cuda
from appliance.engine.backend import RUNS_BEFORE_CAPTURE, Backend
from appliance.engine.engine import Synthesizer
from appliance.engine.loading import load_for, open_backend
from appliance.engine.modulation import CAPACITY
from appliance.engine.ort import OrtBackend, import_runtime, load_session
from appliance.engine.ort_cuda import PROVIDER, OrtCudaBackend
from appliance.errors import BundleError
from appliance.request import FloatArray, Segment
from tests.engine.lanes import SAMPLINGS, bind_on_device, on_zeros, relative, run, segment, spoken

pytestmark = pytest.mark.gpu

CLOSE = 1e-4
"""‖a − b‖ / ‖b‖ of float32 on the device against float32 on the CPU."""


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the engines that are built for this device."""
    return tmp_path_factory.mktemp("engines")


def opened(name: str) -> Backend:
    try:
        return open_backend(name)
    except BundleError as missing:
        if os.environ.get("F5_REQUIRE_GPU") == "1" and name == "ort-cuda":
            raise
        pytest.skip(str(missing))


@pytest.fixture
def backend() -> OrtCudaBackend:
    found = opened("ort-cuda")
    assert isinstance(found, OrtCudaBackend)
    return found


@pytest.fixture(params=["ort-cuda", "tensorrt"])
def engine(request: pytest.FixtureRequest, tiny: Bundle, engines: Path) -> Iterator[Synthesizer]:
    """An engine on each GPU backend of this machine; for TensorRT, engines are built and compared with the
    CPU first."""
    opened(request.param).close()
    made = load_for(tiny, EngineConfig(backend=request.param, threads=1, lanes=6, cache=engines))
    yield made
    made.shutdown()


def speak(engine: Synthesizer, given: Segment) -> FloatArray:
    return spoken(engine, given)[1]


@pytest.mark.parametrize("frames", [60, 255, 256, 257, 700])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_reply_is_the_cpus(engine: Synthesizer, tiny: Bundle, sampling: str, frames: int) -> None:
    given = segment(frames, nfe=5, sampling=sampling)  # type: ignore[arg-type]
    assert relative(speak(engine, given), speak(Synthesizer(tiny, OrtBackend(1)), given)) <= CLOSE


def test_lanes_that_share_calls_are_as_alone(engine: Synthesizer, tiny: Bundle) -> None:
    given = [segment(60 + 31 * n, nfe=5, guidance=2.0 * (n % 2), seed=n) for n in range(6)]
    lanes = [engine.open(one) for one in given]
    run(engine, [lane.id for lane in lanes], 5)
    alone = Synthesizer(tiny, OrtBackend(1))
    for lane, one in zip(lanes, given, strict=True):
        assert relative(engine.finish(lane.id), speak(alone, one)) <= CLOSE


def test_a_captured_step_equals_an_uncaptured_one(engine: Synthesizer, tiny: Bundle, engines: Path) -> None:
    given = segment(200, nfe=8, sampling="short-kv")
    engine.captures = True
    captured = [speak(engine, given) for _ in range(RUNS_BEFORE_CAPTURE + 2)]
    plain = load_for(tiny, EngineConfig(backend=engine.backend, threads=1, lanes=1, cache=engines))
    for samples in captured:
        assert relative(samples, speak(plain, given)) <= 1e-6


def test_requests_after_the_warm_up_take_no_memory_of_the_device(engine: Synthesizer) -> None:
    from cuda.bindings import runtime

    engine.warm_up(5)
    # The runtime's arena may grow for a length that the warm-up did not have, and once more where the next
    # request captures its graph.
    for number in range(3):
        for frames in (100, 180, 260, 500):
            speak(engine, segment(frames, nfe=5, sampling="short-kv"))
        if number == 1:
            _, before, _ = runtime.cudaMemGetInfo()
    _, after, _ = runtime.cudaMemGetInfo()
    assert after >= before


@pytest.mark.parametrize("variant", ["default", FUSED])
@pytest.mark.parametrize("name", STEPS)
def test_no_step_leaves_the_device(
    tiny: Bundle,
    backend: OrtCudaBackend,
    name: str,
    variant: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Every node is placed there; fused attention runs the kernel that its masks are for."""
    monkeypatch.setenv("ORT_ENABLE_ATTENTION_KERNEL_DEBUG_INFO", "1")
    runtime = import_runtime()
    options = runtime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    providers = [
        (PROVIDER, {"user_compute_stream": str(backend.stream), "sdpa_kernel": ort_cuda.MEMORY_EFFICIENT})
    ]
    session = load_session(runtime, tiny.graph(name, variant), options, providers)
    spec = signatures(tiny.manifest.dimensions)[name]
    sizes = {"R": 2, "N": 256, "P": 256, "C": CONTEXT, "S": CAPACITY}
    inputs, outputs = on_zeros(backend, spec, sizes)
    for what, lengths in (("lengths", [200, 90]), ("reference_lengths", [256, 256])):
        if what in inputs:
            backend.upload(np.array(lengths, np.int32), inputs[what])
    binding = bind_on_device(session, inputs, outputs)
    session.run_with_iobinding(binding)
    nodes = json.loads(Path(session.end_profiling()).read_text())
    assert not [node["name"] for node in nodes if "Memcpy" in node["name"]]
    kernels = re.findall(r"Operator=MultiHeadAttention.*SdpaKernel=(\w+)", capfd.readouterr().out)
    assert kernels == ["EFFICIENT_ATTENTION"] * (tiny.manifest.arch.depth if variant == FUSED else 0)
