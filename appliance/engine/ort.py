"""ONNX Runtime on the CPU, which reads and writes numpy arrays by address."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from appliance.contract.graphs import GraphSpec
from appliance.engine.backend import Bound, Graph, HostArray, Shapes, Tensor
from appliance.engine.host import HostMemory
from appliance.errors import BundleError, EngineFault, Interrupted

RunOptions = tuple[Any, Any]
"""The usual run options, and those that return working memory to the system."""


class OrtBound:
    def __init__(
        self,
        session: Any,
        binding: Any,
        tensors: list[Tensor],
        options: RunOptions,
        fault: Callable[[str], EngineFault] = EngineFault,
    ) -> None:
        """`fault` turns a message of the runtime into an error."""
        self._session, self._binding, self._options, self._fault = session, binding, options, fault
        self._tensors = tensors  # keeps the addresses valid

    def run(self, *, release: bool = False) -> None:
        options = self._options[release]
        try:
            self._session.run_with_iobinding(self._binding, options)
        except Exception as error:  # the runtime's exceptions share no base class of their own
            if options.terminate:
                raise Interrupted from error
            raise self._fault(f"ONNX Runtime: {error}") from error


class OrtGraph:
    def __init__(self, session: Any, options: RunOptions) -> None:
        self._session, self._options = session, options

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Bound:
        binding = self._session.io_binding()
        try:
            for bind, tensors in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
                for name, tensor in tensors.items():
                    array = cast(HostArray, tensor)
                    bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
        except Exception as error:
            raise EngineFault(f"ONNX Runtime: {error}") from error
        return OrtBound(self._session, binding, [*inputs.values(), *outputs.values()], self._options)


class OrtBackend(HostMemory):
    """The CPU execution provider. Batching gains nothing on a CPU: rows run one by one, unpadded."""

    name = label = "ort-cpu"
    exact_shapes = True
    buckets: tuple[int, ...] = ()
    max_batch = 1
    can_interrupt = True

    def __init__(self, threads: int = 0, *, spinning: bool = False) -> None:
        """`threads` 0: the runtime's choice, one per physical core. `spinning` keeps idle threads busy, which
        is faster on dedicated cores and slower on shared ones."""
        self._runtime = onnxruntime = import_runtime()
        self._options = _options_of(onnxruntime, threads, spinning=spinning)
        self._run_options = (onnxruntime.RunOptions(), onnxruntime.RunOptions())
        self._run_options[1].add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")

    def interrupt(self, on: bool) -> None:
        """See `Backend`. The runtime checks before each node."""
        for options in self._run_options:
            options.terminate = on

    def load(self, name: str, path: Path, spec: GraphSpec, shapes: Shapes) -> Graph:
        session = load_session(self._runtime, path, self._options, ["CPUExecutionProvider"])
        return OrtGraph(session, self._run_options)


def import_runtime() -> Any:
    """ONNX Runtime, set to log errors only."""
    import onnxruntime

    onnxruntime.set_default_logger_severity(3)
    return onnxruntime


def _options_of(runtime: Any, threads: int, *, spinning: bool = False) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    return options


def load_session(runtime: Any, path: Path, options: Any, providers: Sequence[object]) -> Any:
    """Raises BundleError when the runtime cannot read the file."""
    try:
        return runtime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # the runtime's exceptions share no base class of their own
        raise BundleError(f"{path}: ONNX Runtime {runtime.__version__} cannot load it: {error}") from error


def profile(
    path: Path, feed: Mapping[str, HostArray], *, threads: int = 0, runs: int = 1, optimised: bool = True
) -> list[dict[str, Any]]:
    """Profile a graph on the CPU: one entry per node and run, after one run that is not counted.

    Keys: name, op, seconds, inputs and outputs (shapes). Without `optimised` the nodes are the file's. Raises
    BundleError when the runtime cannot read the file.
    """
    runtime = import_runtime()
    options = _options_of(runtime, threads)
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
        options = _options_of(runtime, threads)
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
    """The ONNX file of y = a·b, encoded by hand (onnx.proto): the device has no package that writes one."""

    def field(number: int, value: bytes | int) -> bytes:
        if isinstance(value, int):
            return bytes((number << 3, value))
        assert len(value) < 128  # one byte holds its length
        return bytes((number << 3 | 2, len(value))) + value

    def float_tensor(name: bytes) -> bytes:
        return field(1, name) + field(2, field(1, field(1, 1)))

    node = field(1, b"a") + field(1, b"b") + field(2, b"y") + field(4, b"MatMul")
    inputs = field(11, float_tensor(b"a")) + field(11, float_tensor(b"b"))
    graph = field(1, node) + field(2, b"product") + inputs + field(12, float_tensor(b"y"))
    return field(1, 10) + field(8, field(2, 20)) + field(7, graph)
