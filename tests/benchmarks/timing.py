"""ONNX Runtime's time on the CPU: of each node of a graph, of a call, of a product of matrices."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from appliance.engine.backend import HostArray
from appliance.engine.ort import _field, import_runtime, load_session, session_options

FLOAT = 1
"""onnx.proto's number of the element type."""


def profile(
    path: Path, feed: Mapping[str, HostArray], *, threads: int = 0, runs: int = 1, optimised: bool = True
) -> list[dict[str, Any]]:
    """Profile a graph on the CPU: one entry per node and run, after one run that is not counted.

    Keys: name, op, seconds, inputs and outputs (shapes). Without `optimised` the nodes are the file's. Raises
    BundleError when the runtime cannot read the file.
    """
    runtime = import_runtime()
    options = session_options(runtime, threads)
    if not optimised:
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling = True
    with tempfile.TemporaryDirectory() as folder:
        options.profile_file_prefix = str(Path(folder) / "profile")
        session = load_session(runtime, path, options, ["CPUExecutionProvider"])
        for _ in range(runs + 1):
            session.run(None, dict(feed))
        events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    begins = [event["ts"] for event in events if event["name"] == "model_run"]
    counted = sorted(begins)[1:]
    return [
        {
            "name": event["name"].removesuffix("_kernel_time"),
            "op": event["args"]["op_name"],
            "seconds": event["dur"] / 1e6,
            "inputs": _shapes_of(event["args"]["input_type_shape"]),
            "outputs": _shapes_of(event["args"]["output_type_shape"]),
        }
        for event in events
        if event["cat"] == "Node" and event["name"].endswith("_kernel_time") and event["ts"] >= counted[0]
    ]


def _shapes_of(typed: Sequence[Mapping[str, Sequence[int]]]) -> list[tuple[int, ...]]:
    return [tuple(shape) for one in typed for shape in one.values()]


class Timed:
    def __init__(self, path: Path, threads: int = 0) -> None:
        """Raises BundleError when the runtime cannot read the file."""
        runtime = import_runtime()
        options = session_options(runtime, threads)
        self._session = load_session(runtime, path, options, ["CPUExecutionProvider"])

    def __call__(self, feed: Mapping[str, HostArray]) -> float:
        begun = time.perf_counter()
        self._session.run(None, dict(feed))
        return time.perf_counter() - begun


def products(size: int, *, threads: int = 0, runs: int = 100) -> float:
    """Least seconds of a product of two (size, size) float32 matrices."""
    draw = np.random.default_rng(0)
    given = {name: draw.random((size, size), dtype=np.float32) for name in ("a", "b")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "product.onnx"
        path.write_bytes(_product_model())
        run = Timed(path, threads)
        return min(run(given) for _ in range(runs))


def _product_model() -> bytes:
    """The ONNX file of y = a·b: the device has no package that writes one."""
    graph = _field(1, _field(1, b"a") + _field(1, b"b") + _field(2, b"y") + _field(4, b"MatMul"))
    for number, name in ((11, b"a"), (11, b"b"), (12, b"y")):
        graph += _field(number, _field(1, name) + _field(2, _field(1, _field(1, FLOAT))))
    return _field(1, 10) + _field(8, _field(2, 20)) + _field(7, _field(2, b"products") + graph)
