"""ONNX Runtime on the CPU, on numpy arrays."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from appliance.contract.bundle import INT8 as INT8_VARIANT
from appliance.contract.bundle import Bundle
from appliance.contract.graphs import GraphSpec
from appliance.engine.backend import Bound, Graph, Ranges, Tensor
from appliance.engine.host import HostMemory
from appliance.errors import (
    BundleError,
    EngineFault,
    Interrupted,
    OutOfDeviceMemory,
    engine_fault,
    lacks_memory,
)

RunOptions = tuple[Any, Any]
"""Usual options of a run, and options that return working memory to the system."""
OLDEST = (1, 18)
"""First version of ONNX Runtime that reads IR 10."""
SHRINKS = ("memory.enable_memory_arena_shrinkage", "cpu:0")
"""Option of a run that returns the arena's free memory to the system."""
ARENA = {"initial_chunk_size_bytes": 1 << 16, "max_dead_bytes_per_chunk": 1 << 16}
"""Size of the arena's first region, which is never released, and the most that a tensor's chunk may waste."""
REGION = {"initial_growth_chunk_size_bytes": 64 << 20}
"""Size of the first region after the arena has shrunk. Pages count once they are written.

Regions that double from 1 MB on would hold more, because no tensor lies in the rests of two.
"""
PRODUCT_DEPTH = 256
EXACT_PRODUCT = PRODUCT_DEPTH * 255 * 127
INTEGER_MODEL = Path(__file__).with_name("products.onnx")
"""MatMulInteger of a, uint8, and an int8 matrix (PRODUCT_DEPTH, 64) of 127s.

The model has both zero points, which are optional: without them ONNX Runtime's rewriting to u8·u8 crashes.
"""


class OrtBound:
    """A graph with its inputs and outputs, on the CPU."""

    def __init__(
        self,
        session: Any,
        binding: Any,
        tensors: list[Tensor],
        options: RunOptions,
        fault: Callable[[str], EngineFault] = engine_fault,
    ) -> None:
        """`fault` turns the runtime's message into an error."""
        self._session, self._binding, self._options, self._fault = session, binding, options, fault
        self._tensors = tensors  # keeps the addresses valid

    def run(self, *, release: bool = False, capture: bool = False) -> None:
        options = self._options[release]
        try:
            self._session.run_with_iobinding(self._binding, options)
        except Exception as error:  # the runtime's exceptions have no base class in common
            traceback.clear_frames(error.__traceback__)  # else the error holds the session beyond `close`
            if options.terminate:
                raise Interrupted from error
            raise self._fault(f"ONNX Runtime: {error}") from error

    def close(self) -> None:
        self._session = self._binding = None


class OrtGraph:
    """A graph in a session of ONNX Runtime, on the CPU."""

    def __init__(self, session: Any, options: RunOptions) -> None:
        self._session, self._options = session, options

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Bound:
        binding = bind(self._session, inputs, outputs, "cpu", 0, lambda tensor: tensor.ctypes.data)
        return OrtBound(self._session, binding, [*inputs.values(), *outputs.values()], self._options)


class OrtBackend(HostMemory):
    """ONNX Runtime on the CPU."""

    name = label = "ort-cpu"
    can_interrupt = True

    def __init__(self, threads: int = 0, *, spinning: bool = False) -> None:
        """`threads` 0: one per physical core. `spinning`: idle threads stay busy, for dedicated cores."""
        self._runtime = onnxruntime = import_runtime()
        self._options = session_options(onnxruntime, threads, spinning=spinning)
        share_memory(self._options)
        self._run_options = (onnxruntime.RunOptions(), onnxruntime.RunOptions())
        # ONNX Runtime 1.31 raises and catches an error in every run that names no CUDA graph.
        for options in self._run_options:
            options.add_run_config_entry("gpu_graph_id", "-1")
        self._run_options[1].add_run_config_entry(*SHRINKS)

    def interrupt(self, on: bool) -> None:
        for options in self._run_options:  # read before each node
            options.terminate = on

    def load(self, name: str, path: Path, spec: GraphSpec, ranges: Ranges) -> Graph:
        session = load_session(self._runtime, path, self._options, ["CPUExecutionProvider"])
        return OrtGraph(session, self._run_options)


def import_runtime() -> Any:
    """Import ONNX Runtime. Raises EngineFault if it is too old for the graphs."""
    import onnxruntime

    if tuple(map(int, onnxruntime.__version__.split(".")[:2])) < OLDEST:
        raise EngineFault(
            f"ONNX Runtime {onnxruntime.__version__} cannot read a bundle's graphs: install onnxruntime 1.20 "
            "or later"
        )
    onnxruntime.set_default_logger_severity(3)  # errors
    return onnxruntime


def bind(
    session: Any,
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    device: str,
    number: int,
    address: Callable[[Any], int],
) -> Any:
    """Bind tensors of a device. Raises EngineFault."""
    binding = session.io_binding()
    try:
        for bind_one, tensors in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
            for name, tensor in tensors.items():
                bind_one(name, device, number, tensor.dtype.type, tensor.shape, address(tensor))
    except Exception as error:  # the runtime's exceptions have no base class in common
        raise engine_fault(f"ONNX Runtime: {error}") from error
    return binding


def session_options(runtime: Any, threads: int, *, spinning: bool = False) -> Any:
    """Options of all sessions: threads, and no rewriting that would saturate INT8 sums."""
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spinning)))
    # This computes u8·s8 as u8·u8, which is exact. With VNNI or AMX, which do not saturate, it would be
    # several times slower.
    options.add_session_config_entry("session.x64quantprecision", str(int(adds_in_16_bits())))
    # The rewriting fails on products that share a zero point, as int8-qdq has. These stay in float.
    options.add_session_config_entry("session.disable_quant_qdq", str(int(adds_in_16_bits())))
    return options


def share_memory(options: Any) -> None:
    """Let all sessions of the process compute in one arena. They run one at a time, and each arena grows."""
    _make_arena()
    options.add_session_config_entry("session.use_env_allocators", "1")


@functools.cache
def _make_arena() -> None:
    """Register the arena, without a maximum."""
    ort = import_runtime()
    kind = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(kind, ort.OrtArenaCfg(ARENA | REGION))


def shrink_memory() -> None:
    """Release the arena's memory of sessions that are gone. The arena does so only at the end of a run."""
    runtime = import_runtime()
    options, run_options = runtime.SessionOptions(), runtime.RunOptions()
    share_memory(options)
    run_options.add_run_config_entry(*SHRINKS)
    integer_product(runtime, options, run_options)


def load_session(runtime: Any, path: Path, options: Any, providers: Sequence[object]) -> Any:
    """Load a session. Raises BundleError if the runtime cannot read the file, OutOfDeviceMemory."""
    # Otherwise each new length would allocate one piece of working memory, into which no other length fits.
    options.enable_mem_pattern = False
    # Weights between the pieces would keep them from being released.
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    try:
        return runtime.InferenceSession(str(path), options, providers=providers)
    except Exception as error:  # the runtime's exceptions have no base class in common
        kind = OutOfDeviceMemory if lacks_memory(str(error)) else BundleError
        raise kind(f"{path}: ONNX Runtime {runtime.__version__} cannot load it: {error}") from error


@functools.cache
def adds_in_16_bits() -> bool:
    """True if products of uint8 and int8 saturate: on x86 without VNNI."""
    runtime = import_runtime()
    return integer_product(runtime, runtime.SessionOptions()) != EXACT_PRODUCT


def cpu_variant(bundle: Bundle) -> str:
    """The bundle's INT8 variant, if it has one and products of uint8 and int8 are exact; else the backend's.

    Without VNNI, exact products take longer than float32's.
    """
    quick = INT8_VARIANT in bundle.manifest.variants and not adds_in_16_bits()
    return INT8_VARIANT if quick else bundle.variant_for(OrtBackend.name)


def integer_product(runtime: Any, options: Any, run_options: Any = None) -> int:
    """The runtime's sum of PRODUCT_DEPTH products of the largest numbers."""
    session = runtime.InferenceSession(str(INTEGER_MODEL), options, providers=["CPUExecutionProvider"])
    (product,) = session.run(None, {"a": np.full((8, PRODUCT_DEPTH), 255, np.uint8)}, run_options)
    return int(product[0, 0])


def check_integers(bundle: Bundle) -> None:
    """Raise BundleError for an INT8 bundle if integer products are wrong."""
    precision, runtime = bundle.manifest.precision, import_runtime()
    if precision not in ("int8", "int8-qdq"):
        return
    if (product := integer_product(runtime, session_options(runtime, 1))) != EXACT_PRODUCT:
        raise BundleError(
            f"{bundle.folder}: precision {precision}: ONNX Runtime {runtime.__version__} multiplies 8-bit "
            f"integers wrongly on this processor ({product:,} instead of {EXACT_PRODUCT:,}): install an fp32 "
            "or fp16 bundle, or another version of onnxruntime"
        )
