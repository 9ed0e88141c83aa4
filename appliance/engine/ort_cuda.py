"""ONNX Runtime on an NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakSet

from appliance.contract.graphs import STEPS, GraphSpec
from appliance.engine.backend import RUNS_BEFORE_CAPTURE, Bound, Graph, Ranges, Tensor
from appliance.engine.cuda import CAPTURING, DeviceMemory, fault_of
from appliance.engine.ort import OrtBound, RunOptions, bind, import_runtime, load_session
from appliance.errors import BundleError

PROVIDER = "CUDAExecutionProvider"
MEMORY_EFFICIENT = "2"
"""`AttentionBackend::EFFICIENT_ATTENTION`. The fused step graphs need its reading of masks."""
UNCAPTURED = -1
MAX_CAPTURED = 64
"""Limit of CUDA graphs. ONNX Runtime keeps each as long as its session."""


class OrtCudaBound(OrtBound):
    """A binding that becomes a CUDA graph: the first run with a number is captured."""

    def __init__(self, graph: OrtCudaGraph, binding: Any, tensors: list[Tensor]) -> None:
        super().__init__(graph.session, binding, tensors, graph.options(UNCAPTURED), fault_of)
        self._graph, self._runs, self._number = graph, 0, UNCAPTURED

    def run(self, *, release: bool = False, capture: bool = False) -> None:
        is_due = capture and self._number == UNCAPTURED and self._runs >= RUNS_BEFORE_CAPTURE
        self._runs += 1
        if not is_due or not CAPTURING.acquire(blocking=False):
            super().run(release=release)
            return
        try:
            self._number = next(self._graph.numbers, UNCAPTURED)
            self._options = self._graph.options(self._number)
            super().run(release=release)
        finally:
            CAPTURING.release()


class OrtCudaGraph:
    """A graph in a session of ONNX Runtime, on a GPU."""

    def __init__(self, runtime: Any, session: Any, device: int, numbers: Iterator[int]) -> None:
        """`numbers`: numbers of the CUDA graphs that may still be captured."""
        self._runtime, self.session, self._device, self.numbers = runtime, session, device, numbers
        self._bound: WeakSet[OrtCudaBound] = WeakSet()

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Bound:
        binding = bind(self.session, inputs, outputs, "cuda", self._device, lambda tensor: tensor.address)
        bound = OrtCudaBound(self, binding, [*inputs.values(), *outputs.values()])
        self._bound.add(bound)
        return bound

    def options(self, number: int) -> RunOptions:
        options = self._runtime.RunOptions()
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        options.add_run_config_entry("gpu_graph_id", str(number))
        return options, options

    def close(self) -> None:
        for bound in self._bound:
            bound.close()
        self.session = None


class OrtCudaBackend(DeviceMemory):
    """The CUDA execution provider, which never falls back to the CPU."""

    name = label = "ort-cuda"
    max_batch = 8

    def __init__(self, device: int = 0) -> None:
        """Raises BundleError if the provider, cuda-python, the driver or the device is missing."""
        runtime = import_runtime()
        if PROVIDER not in runtime.get_available_providers():
            raise BundleError(
                f"backend {self.name!r}: ONNX Runtime {runtime.__version__} has no {PROVIDER}: install "
                "onnxruntime-gpu in place of onnxruntime"
            )
        super().__init__(self.name, device)
        # CUDA and cuDNN come from pip's packages if the system has none. The call prints what is missing.
        if hasattr(runtime, "preload_dlls"):
            runtime.preload_dlls()
        self._runtime = runtime
        self._numbers = iter(range(1, MAX_CAPTURED + 1))
        self._graphs: list[OrtCudaGraph] = []

    def load(self, name: str, path: Path, spec: GraphSpec, ranges: Ranges) -> Graph:
        """Load a graph. Raises BundleError if the file cannot be read, or the provider cannot be started."""
        is_step = name in STEPS
        options = {
            "device_id": str(self.device),
            "user_compute_stream": str(self.stream),
            # Float32 is float32: TF32 has a mantissa of ten bits.
            "use_tf32": "0",
            "sdpa_kernel": MEMORY_EFFICIENT,
            # The default would search an algorithm for each new length of a convolution, in new memory.
            "cudnn_conv_algo_search": "HEURISTIC",
            "enable_cuda_graph": str(int(is_step)),
        }
        session = load_session(self._runtime, path, self._runtime.SessionOptions(), [(PROVIDER, options)])
        # If its libraries are missing, the provider is replaced by the CPU's, with a line in the log.
        if PROVIDER not in (used := session.get_providers()):
            raise BundleError(
                f"backend {self.name!r}: {PROVIDER} could not be started, ONNX Runtime would compute on "
                f"{', '.join(used)}: CUDA or cuDNN of its version is missing"
            )
        graph = OrtCudaGraph(self._runtime, session, self.device, self._numbers if is_step else iter(()))
        self._graphs.append(graph)
        return graph

    def close(self) -> None:
        for graph in self._graphs:  # a session waits for its stream when it ends
            graph.close()
        self._graphs.clear()
        super().close()
