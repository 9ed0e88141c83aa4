"""ONNX Runtime on an NVIDIA GPU: rows padded to buckets, tensors of the device, one stream."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast
from weakref import WeakSet

from appliance.contract.graphs import STEPS, GraphSpec
from appliance.engine.backend import Bound, Graph, Shapes, Tensor
from appliance.engine.cuda import CAPTURING, MAX_CAPTURED, DeviceMemory, DeviceTensor, fault_of
from appliance.engine.ort import OrtBound, import_runtime, load_session
from appliance.errors import BundleError, EngineFault

PROVIDER = "CUDAExecutionProvider"
MEMORY_EFFICIENT = "2"
"""`AttentionBackend::EFFICIENT_ATTENTION`, for which the fused step graphs are masked (`export/fused.py`):
other kernels read the masks differently."""


UNCAPTURED = -1


class OrtCudaBound(OrtBound):
    """A binding that becomes a CUDA graph: the first run with its number captures it."""

    to_capture: Any = None
    """Run options with the number, until it is captured."""

    def run(self, *, release: bool = False) -> None:
        if self.to_capture is None or not CAPTURING.acquire(blocking=False):
            super().run(release=release)
            return
        try:
            self._options, self.to_capture = (self.to_capture,) * 2, None
            super().run(release=release)
        finally:
            CAPTURING.release()


class OrtCudaGraph:
    def __init__(
        self, runtime: Any, session: Any, device: int, captured: itertools.count[int] | None
    ) -> None:
        self._runtime, self._session, self._device, self._captured = runtime, session, device, captured
        self._bound: WeakSet[OrtBound] = WeakSet()

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Bound:
        binding = self._session.io_binding()
        try:
            for bind, tensors in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
                for name, tensor in tensors.items():
                    t = cast(DeviceTensor, tensor)
                    bind(name, "cuda", self._device, t.dtype.type, t.shape, t.address)
        except Exception as error:  # the runtime's exceptions share no base class of their own
            raise EngineFault(f"ONNX Runtime: {error}") from error
        given = [*inputs.values(), *outputs.values()]
        bound = OrtCudaBound(self._session, binding, given, (self._options(),) * 2, fault_of)
        if self._captured is not None and (number := next(self._captured)) <= MAX_CAPTURED:
            bound.to_capture = self._options(number)
        self._bound.add(bound)
        return bound

    def _options(self, number: int = UNCAPTURED) -> Any:
        """Run options of the CUDA graph of that number."""
        options = self._runtime.RunOptions()
        options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        options.add_run_config_entry("gpu_graph_id", str(number))
        return options

    def close(self) -> None:
        """Drop the session, with every binding of it."""
        for bound in self._bound:
            bound.close()
        self._session = None


class OrtCudaBackend(DeviceMemory):
    """The CUDA execution provider, never with the CPU provider as its fallback."""

    name = "ort-cuda"
    label = "ort-cuda"
    exact_shapes = False
    buckets: tuple[int, ...] = (256, 512, 768, 1024, 1280, 1536, 2048, 3072)
    max_batch = 8

    def __init__(self, device: int = 0) -> None:
        """Raises BundleError where the provider, cuda-python, the driver or the device is missing."""
        runtime = import_runtime()
        if PROVIDER not in runtime.get_available_providers():
            raise BundleError(
                f"backend {self.name!r}: ONNX Runtime {runtime.__version__} has no {PROVIDER}: install "
                "onnxruntime-gpu in place of onnxruntime"
            )
        super().__init__(self.name, device)
        # CUDA and cuDNN from pip's packages, where the system has none. It prints what is missing.
        if hasattr(runtime, "preload_dlls"):
            runtime.preload_dlls()
        self._runtime = runtime
        self._captured = itertools.count(1)
        self._graphs: list[OrtCudaGraph] = []

    def load(self, name: str, path: Path, spec: GraphSpec, shapes: Shapes) -> Graph:
        """See `Backend`. Also raises BundleError when the provider cannot be started."""
        is_step = name in STEPS
        options = {
            "device_id": str(self.device),
            "user_compute_stream": str(self.stream),
            # Float32 is float32: TF32 has ten bits of mantissa.
            "use_tf32": "0",
            "sdpa_kernel": MEMORY_EFFICIENT,
            "enable_cuda_graph": str(int(is_step)),
        }
        session = load_session(self._runtime, path, self._runtime.SessionOptions(), [(PROVIDER, options)])
        # Without its libraries the provider is replaced by the CPU one, with a line in the log.
        if PROVIDER not in (used := session.get_providers()):
            raise BundleError(
                f"backend {self.name!r}: {PROVIDER} could not be started, ONNX Runtime would compute on "
                f"{', '.join(used)}: CUDA or cuDNN of its version is missing"
            )
        graph = OrtCudaGraph(self._runtime, session, self.device, self._captured if is_step else None)
        self._graphs.append(graph)
        return graph

    def close(self) -> None:
        for graph in self._graphs:  # a session waits for its stream when it ends
            graph.close()
        self._graphs.clear()
        super().close()
