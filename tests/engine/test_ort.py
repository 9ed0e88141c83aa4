"""The CPU backend: memory, loading, and how it fails."""

from __future__ import annotations

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
from appliance.engine.backend import Graph, HostArray
from appliance.engine.loading import open_backend
from appliance.engine.ort import OrtBackend, import_runtime
from appliance.errors import BundleError, EngineFault


@pytest.fixture(scope="module")
def backend() -> OrtBackend:
    return OrtBackend(1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_new_memory_is_zero_and_of_the_asked_type(backend: OrtBackend, dtype: str) -> None:
    tensor = backend.empty((2, 3), dtype)
    assert tensor.shape == (2, 3) and tensor.dtype == np.dtype(dtype)
    assert not tensor.any()


def test_a_view_is_a_stretch_of_the_tensors_memory(backend: OrtBackend) -> None:
    tensor = backend.empty((3, 4, 5), "float32")
    tensor[:] = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    assert np.array_equal(backend.view(tensor, (2, 5), (1, 2)), tensor[1, 2:4])
    assert np.array_equal(backend.view(tensor, (2, 4, 5), (1,)), tensor[1:])
    assert backend.view(tensor, (), (2, 3, 4)) == 59
    assert backend.view(tensor, (1, 0, 5), (2, 3)).shape == (1, 0, 5)
    nested = backend.view(backend.view(tensor, (7, 5)), (2,), (6, 1))
    assert np.array_equal(nested, tensor[1, 2, 1:3])
    nested[:] = -1
    assert tensor[1, 2].tolist() == [30, -1, -1, 33, 34]
    with pytest.raises(ValueError, match="reshape"):
        backend.view(tensor, (2, 5), (2, 3))


def test_upload_and_copy_fill_the_whole_of_what_they_write(backend: OrtBackend) -> None:
    tensor, other = backend.empty((2, 3), "float32"), backend.empty((2, 3), "float32")
    host = np.array([1, 2, 3], np.float32)
    backend.upload(host, backend.view(tensor, (3,), (1,)))
    host[:] = 0
    backend.copy(backend.view(tensor, (3,), (1,)), backend.view(other, (3,)))
    assert tensor.tolist() == [[0, 0, 0], [1, 2, 3]] and other.tolist() == [[1, 2, 3], [0, 0, 0]]
    with pytest.raises(ValueError, match="broadcast"):
        backend.upload(np.zeros(4, np.float32), backend.view(tensor, (3,)))


def test_a_download_is_a_copy(backend: OrtBackend) -> None:
    tensor = backend.empty((3,), "float32")
    host = backend.download(tensor)
    host[:] = 7
    assert not tensor.any()


def test_what_it_cannot_load_is_a_bundle_error_that_names_the_file(
    backend: OrtBackend, tiny: Bundle, tmp_path: Path
) -> None:
    spec = signatures(tiny.manifest.dimensions)["step"]
    garbage = tmp_path / "step.onnx"
    garbage.write_bytes(b"not a graph")
    with pytest.raises(BundleError, match=r"step\.onnx: ONNX Runtime [\d.]+ cannot load it"):
        backend.load("step", garbage, spec, {})
    with pytest.raises(BundleError, match=r"absent\.onnx"):
        backend.load("step", tmp_path / "absent.onnx", spec, {})


def modulation(backend: OrtBackend, tiny: Bundle) -> tuple[Graph, HostArray]:
    """The graph, and memory for its rows of two times."""
    d = tiny.manifest.dimensions
    graph = backend.load("modulation", tiny.graph("modulation"), signatures(d)["modulation"], {})
    return graph, backend.empty((2, d.rows, d.dim), "float32")


def test_what_the_runtime_refuses_is_an_engine_fault(backend: OrtBackend, tiny: Bundle) -> None:
    graph, rows = modulation(backend, tiny)
    for inputs in (
        {},
        {"time": backend.empty((2,), "float32")},
        {"t": backend.empty((2,), "int32")},
        {"t": backend.empty((2, 2), "float32")},
    ):
        with pytest.raises(EngineFault, match="ONNX Runtime"):
            graph.bind(inputs, {"rows": rows}).run()


def test_a_bound_graph_runs_again_after_a_fault_and_reads_what_its_memory_holds(
    backend: OrtBackend, tiny: Bundle
) -> None:
    graph, rows = modulation(backend, tiny)
    t = np.array([0.1, 0.4], np.float32)
    bound = graph.bind({"t": t}, {"rows": rows})
    bound.run()
    before = rows.copy()
    with pytest.raises(EngineFault):
        graph.bind({"time": t}, {"rows": rows}).run()
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
def test_threads_and_spinning_reach_the_session(
    tiny: Bundle, spinning: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime

    made: list[Any] = []

    class Session(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, path: str, options: Any, **rest: Any) -> None:
            made.append(options)
            super().__init__(path, options, **rest)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    backend = open_backend("ort-cpu", EngineConfig(threads=3, spinning=spinning))
    modulation(backend, tiny)  # type: ignore[arg-type]
    (options,) = made
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == str(int(spinning))


LONG = """
import sys
from pathlib import Path
from appliance.contract import bundle
from appliance.engine import condition, flow, vocoder
from appliance.engine.ort import OrtBackend, import_runtime
from appliance.engine.engine import Synthesizer
from tests.engine.lanes import segment

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

def say(frames):
    lane = engine.open(segment(frames, nfe=2, guidance=2.0))
    for _ in range(2):
        engine.step([lane.id])
    engine.finish(lane.id)
    engine.close(lane.id)

# After these two the pages of the engine's own tensors are there.
engine = Synthesizer(bundle.read(Path(sys.argv[1])), OrtBackend(1), lanes=1)
say(60)
say(2040)
if len(sys.argv) > 2:
    condition.RELEASE_FRAMES = flow.RELEASE_FRAMES = vocoder.RELEASE_FRAMES = 1 << 30
before = resident()
say(2040)
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


def test_the_runtime_is_imported_only_when_it_is_used() -> None:
    code = (
        "import sys, appliance.engine.ort, appliance.engine.engine;"
        "sys.exit('onnxruntime' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_runtime_that_reads_no_bundle_is_refused_with_the_version_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = types.SimpleNamespace(__version__="1.17.3")
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    with pytest.raises(
        EngineFault, match=r"ONNX Runtime 1\.17\.3 cannot read .*: install onnxruntime 1\.20 or"
    ):
        import_runtime()
