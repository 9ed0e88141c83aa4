"""The CPU backend: loading, 8-bit products, failures; and runtimes that are not installed."""

import importlib
import shutil
import subprocess
import sys
import types
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.config import EngineConfig
from appliance.contract.bundle import Bundle
from appliance.contract.graphs import signatures
from appliance.engine import ort
from appliance.engine.backend import Graph, HostArray
from appliance.engine.loading import load_for, open_backend
from appliance.engine.ort import OrtBackend, import_runtime, load_session
from appliance.errors import BundleError, EngineFault, OutOfDeviceMemory
from tests.engine.lanes import changed
from tests.harness.engine import raising
from tests.harness.patience import PATIENCE_S


@pytest.fixture(scope="module")
def backend() -> OrtBackend:
    return OrtBackend(1)


def modulation(backend: Any, tiny: Bundle) -> tuple[Graph, HostArray]:
    """The graph, and memory for its rows of two times."""
    d = tiny.manifest.dimensions
    graph = backend.load("modulation", tiny.graph("modulation"), signatures(d)["modulation"], {})
    return graph, np.zeros((2, d.rows, d.dim), np.float32)


def test_unloadable_graphs_are_named(backend: OrtBackend, tiny: Bundle, tmp_path: Path) -> None:
    spec = signatures(tiny.manifest.dimensions)["step"]
    garbage = tmp_path / "step.onnx"
    garbage.write_bytes(b"not a graph")
    with pytest.raises(BundleError, match=r"step\.onnx: ONNX Runtime [\d.]+ cannot load it"):
        backend.load("step", garbage, spec, {})
    with pytest.raises(BundleError, match=r"absent\.onnx"):
        backend.load("step", tmp_path / "absent.onnx", spec, {})
    runtime = types.SimpleNamespace(InferenceSession=raising(RuntimeError("std::bad_alloc")), __version__="1")
    with pytest.raises(OutOfDeviceMemory, match=r"step\.onnx: .*bad_alloc"):
        load_session(runtime, garbage, import_runtime().SessionOptions(), [])


def test_graphs_of_all_lengths_compute_in_the_same_memory(tiny: Bundle) -> None:
    """Separate memory for each graph would take 30 MB more per graph, and for each length 1.3 MB more."""
    code = f"""
import sys
from pathlib import Path
import numpy as np
from appliance.contract.bundle import read
from appliance.contract.graphs import signatures
from appliance.engine.ort import OrtBackend
bundle, backend, sizes = read(Path({str(tiny.folder)!r})), OrtBackend(1), []
spec = signatures(bundle.manifest.dimensions)["vocoder"]
mel, wave = np.zeros((1000, 100), np.float32), np.zeros(999 * 256, np.float32)
graphs = [backend.load("vocoder", bundle.graph("vocoder"), spec, {{}}) for _ in range(4)]
for graph, n in zip(graphs * 11, (10, 1000, *range(590, 1000, 10))):
    graph.bind({{"log_mel": mel[:n]}}, {{"samples": wave[: n * 256 - 256]}}).run(release=n == 10)
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    sizes.append(next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")))
print(sizes[-1] - sizes[1])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert int(ran.stdout) < 600, ran.stderr


def test_a_bound_graph_hides_no_fault_and_runs_after_one(backend: OrtBackend, tiny: Bundle) -> None:
    graph, rows = modulation(backend, tiny)
    t = np.array([0.1, 0.4], np.float32)
    bound = graph.bind({"t": t}, {"rows": rows})
    hidden: list[object] = []
    sys.setprofile(lambda frame, event, what: hidden.append(what) if event == "c_exception" else None)
    bound.run()
    sys.setprofile(None)
    assert not hidden, "an error that the runtime catches costs as much as two small graphs"
    before = rows.copy()
    for inputs in (
        {},
        {"time": backend.empty((2,), "float32")},
        {"t": backend.empty((2,), "int32")},
        {"t": backend.empty((2, 2), "float32")},
    ):
        with pytest.raises(EngineFault, match="ONNX Runtime"):
            graph.bind(inputs, {"rows": rows}).run()
    t[:] = 0.4, 0.1
    bound.run(release=True)
    assert rows.any() and not np.allclose(rows, before)
    assert np.allclose(rows, before[::-1], atol=1e-6)


def test_a_binding_keeps_its_memory_alive(backend: OrtBackend, tiny: Bundle) -> None:
    graph, rows = modulation(backend, tiny)
    tensor = np.array([0.1, 0.4], np.float32)
    gone = weakref.ref(tensor)
    bound = graph.bind({"t": tensor}, {"rows": rows})
    del tensor
    assert gone() is not None
    bound.run()
    del bound
    assert gone() is None


@pytest.mark.parametrize("spinning", [False, True])
def test_threads_and_spinning_are_set(tiny: Bundle, spinning: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    onnxruntime, made = importlib.import_module("onnxruntime"), list[Any]()
    real = onnxruntime.InferenceSession

    def session(path: str, options: Any, **rest: Any) -> Any:
        made.append(options)
        return real(path, options, **rest)

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    modulation(open_backend("ort-cpu", EngineConfig(threads=3, spinning=spinning)), tiny)
    [options] = made
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == str(int(spinning))


LONG = """
import sys
from pathlib import Path
from appliance.contract import bundle
from appliance.engine import condition, engine as facade, flow
from appliance.engine.ort import OrtBackend
from appliance.engine.engine import Synthesizer
from tests.engine.lanes import segment, spoken

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

# After these two the pages of the engine's own tensors are there.
engine = Synthesizer(bundle.read(Path(sys.argv[1])), OrtBackend(1), lanes=1)
for frames in (60, 2040):
    spoken(engine, segment(frames, nfe=2))
if len(sys.argv) > 2:
    condition.RELEASE_FRAMES = flow.RELEASE_FRAMES = facade.RELEASE_FRAMES = 1 << 30
before = resident()
spoken(engine, segment(2040, nfe=2))
print(resident() - before)
"""


@pytest.mark.once
@pytest.mark.slow
def test_a_long_segment_leaves_no_working_memory_behind(tiny: Bundle, root: Path) -> None:
    """Attention over 2040 frames works in tens of megabytes; without the release they stay in the arena."""
    grown = [
        float(subprocess.check_output([sys.executable, "-c", LONG, str(tiny.folder), *more], cwd=root))
        for more in ([], ["keep"])
    ]
    assert grown[0] <= 20 and grown[1] >= grown[0] + 20


@pytest.fixture
def saturates(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that makes this a processor without VNNI, whose runtime has no exact products."""

    def product(runtime: Any, options: Any) -> int:
        """vpmaddubsw and vpmaddwd add pairs of uint8 · int8 in 16 bits, which saturate."""
        pairs = np.full(ort.PRODUCT_DEPTH // 2, min(2 * 255 * 127, 2**15 - 1))
        return int(pairs.sum())

    def begin() -> int:
        ort.adds_in_16_bits.cache_clear()
        monkeypatch.setattr(ort, "integer_product", product)
        return product(None, None)

    ort.adds_in_16_bits.cache_clear()
    yield begin
    ort.adds_in_16_bits.cache_clear()


@pytest.mark.once
@pytest.mark.parametrize("precision", ["int8", "int8-qdq"])
def test_int8_is_refused_by_name_if_products_are_wrong(precision: str, short: Bundle, saturates: Any) -> None:
    bundle = changed(short, precision=precision)
    ort.check_integers(bundle)
    assert saturates() == 4_194_176, "as was seen on an EPYC with AVX2 alone"
    ort.check_integers(short)
    wrong = rf"precision {precision}: .*4,194,176 instead of 8,290,560.*fp32 or fp16"
    for backend in ("ort-cpu", "auto"):
        with pytest.raises(BundleError, match=wrong):
            load_for(bundle, EngineConfig(backend=backend, lanes=1))


@pytest.mark.torch
def test_the_integer_model_is_the_product_of_bytes_and_127s() -> None:
    onnx = pytest.importorskip("onnx")
    ones, value = np.full((ort.PRODUCT_DEPTH, 64), 127, np.int8), onnx.helper.make_tensor_value_info
    constants = {"zero_a": np.uint8(0), "b": ones, "zero_b": np.int8(0)}
    kept = [onnx.numpy_helper.from_array(np.asarray(one), name) for name, one in constants.items()]
    node = onnx.helper.make_node("MatMulInteger", ["a", "b", "zero_a", "zero_b"], ["y"])
    ends = [value("a", onnx.TensorProto.UINT8, None)], [value("y", onnx.TensorProto.INT32, None)]
    graph = onnx.helper.make_graph([node], "products", *ends, kept)
    model = onnx.helper.make_model(graph, ir_version=10, opset_imports=[onnx.helper.make_opsetid("", 20)])
    assert onnx.load(ort.INTEGER_MODEL) == model


@pytest.mark.once
def test_exact_products_are_used_only_if_plain_ones_are_wrong(
    saturates: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, entry = import_runtime(), "session.x64quantprecision"
    assert ort.integer_product(runtime, ort.session_options(runtime, 1)) == ort.EXACT_PRODUCT == 8_290_560
    with monkeypatch.context() as patch:
        ort.adds_in_16_bits.cache_clear()
        patch.setattr(ort, "integer_product", lambda runtime, options: ort.EXACT_PRODUCT)
        assert ort.session_options(runtime, 1).get_session_config_entry(entry) == "0"
    saturates()
    assert ort.session_options(runtime, 1).get_session_config_entry(entry) == "1"


@pytest.mark.once
@pytest.mark.slow
def test_the_real_runtime_is_exact_with_avx2_alone() -> None:
    if (qemu := shutil.which("qemu-x86_64")) is None:
        pytest.skip("needs qemu-x86_64, which emulates a processor with AVX2 alone")
    code = (
        "from appliance.engine import ort; runtime = ort.import_runtime(); print("
        "ort.integer_product(runtime, runtime.SessionOptions()), "
        "ort.integer_product(runtime, ort.session_options(runtime, 1)))"
    )
    command = [qemu, "-cpu", "Haswell", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout.split() == ["4194176", "8290560"], done.stderr


def test_a_runtime_is_imported_at_its_first_use_and_named_if_absent_or_old(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backends = "tensorrt, ort-cuda, ort-cpu"
    with pytest.raises(BundleError, match=f"'cuda' is not built in; available: {backends}$"):
        open_backend("cuda")
    monkeypatch.setitem(sys.modules, "onnxruntime", types.SimpleNamespace(__version__="1.17.3"))
    old = r"ONNX Runtime 1\.17\.3 cannot read .*: install onnxruntime 1\.20 or"
    with pytest.raises(EngineFault, match=old):
        import_runtime()
    names = ("ort", "ort_cuda", "tensorrt.trt", "tensorrt.build", "engine")
    modules = ", ".join(f"appliance.engine.{name}" for name in names)
    runtimes = {"onnxruntime", "cuda", "tensorrt", "torch"}
    code = f"import sys, {modules}; sys.exit(bool({runtimes} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
