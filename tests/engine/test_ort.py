"""The CPU backend: memory, loading, and how it fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from appliance.contract.bundle import Bundle
from appliance.engine.ort import OrtBackend
from appliance.errors import BundleError, EngineFault


@pytest.fixture(scope="module")
def backend() -> OrtBackend:
    return OrtBackend(1)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_new_memory_is_zero_and_of_the_asked_type(backend: OrtBackend, dtype: str) -> None:
    tensor = backend.empty((2, 3), dtype)
    assert tensor.shape == (2, 3) and tensor.dtype == np.dtype(dtype)
    assert not tensor.any()


def test_upload_fills_from_the_start_and_leaves_the_rest(backend: OrtBackend) -> None:
    tensor = backend.empty((2, 4), "float32")
    backend.upload(np.array([1, 2, 3], np.float32), tensor, put=(1,))
    assert tensor.tolist() == [[0, 0, 0, 0], [1, 2, 3, 0]]


def test_copy_takes_as_much_as_fits_on_both_sides(backend: OrtBackend) -> None:
    source = backend.empty((2, 5, 2), "float32")
    backend.upload(np.arange(20, dtype=np.float32).reshape(2, 5, 2), source)
    short, long = backend.empty((3, 2), "float32"), backend.empty((2, 7, 2), "float32")
    backend.copy(source, short, take=(1,))
    backend.copy(source, long, take=(1,), put=(0,))
    assert np.array_equal(short, source[1, :3])
    assert np.array_equal(long[0, :5], source[1]) and not long[0, 5:].any() and not long[1].any()


def test_a_download_is_a_copy(backend: OrtBackend) -> None:
    tensor = backend.empty((3,), "float32")
    host = backend.download(tensor)
    host[:] = 7
    assert not tensor.any()


def test_what_it_cannot_load_is_a_bundle_error_that_names_the_file(
    backend: OrtBackend, tmp_path: Path
) -> None:
    garbage = tmp_path / "step.onnx"
    garbage.write_bytes(b"not a graph")
    with pytest.raises(BundleError, match=r"step\.onnx: ONNX Runtime [\d.]+ cannot load it"):
        backend.load(garbage)
    with pytest.raises(BundleError, match=r"absent\.onnx"):
        backend.load(tmp_path / "absent.onnx")


def test_what_the_runtime_refuses_is_an_engine_fault(backend: OrtBackend, tiny: Bundle) -> None:
    graph = backend.load(tiny.graph("modulation"))
    d = tiny.manifest.dimensions
    rows = backend.empty((2, d.rows, d.dim), "float32")
    with pytest.raises(EngineFault, match="ONNX Runtime"):
        graph.run({}, {"rows": rows})
    with pytest.raises(EngineFault, match="ONNX Runtime"):
        graph.run({"t": backend.empty((2,), "int32")}, {"rows": rows})
    with pytest.raises(EngineFault, match="ONNX Runtime"):
        graph.run({"t": backend.empty((2, 2), "float32")}, {"rows": rows})


def test_a_graph_runs_again_after_a_fault(backend: OrtBackend, tiny: Bundle) -> None:
    graph = backend.load(tiny.graph("modulation"))
    d = tiny.manifest.dimensions
    t, rows = np.array([0.1, 0.4], np.float32), backend.empty((2, d.rows, d.dim), "float32")
    graph.run({"t": t}, {"rows": rows})
    before = rows.copy()
    with pytest.raises(EngineFault):
        graph.run({"time": t}, {"rows": rows})
    rows[:] = 0
    graph.run({"t": t}, {"rows": rows})
    assert np.array_equal(rows, before) and rows.any()


def test_the_runtime_is_imported_only_when_it_is_used() -> None:
    code = (
        "import sys, appliance.engine.ort, appliance.engine.synthesizer;"
        "sys.exit('onnxruntime' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
