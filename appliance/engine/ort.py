"""ONNX Runtime on the CPU. Its tensors are numpy arrays, bound by address: nothing is copied in or out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from appliance.engine.backend import Graph, HostArray, Tensor
from appliance.errors import BundleError, EngineFault


class OrtGraph:
    """A session with its inputs and outputs bound to the caller's memory."""

    def __init__(self, session: Any, fault: type[Exception]) -> None:
        self._session = session
        self._fault = fault
        self._binding = session.io_binding()

    def run(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        """See `Graph.run`. Raises EngineFault when the runtime refuses or fails."""
        binding = self._binding
        binding.clear_binding_inputs()
        binding.clear_binding_outputs()
        try:
            for bind, tensors in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
                for name, tensor in tensors.items():
                    array = cast(HostArray, tensor)
                    bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
            self._session.run_with_iobinding(binding)
        except self._fault as error:
            raise EngineFault(f"ONNX Runtime: {error}") from error


class OrtBackend:
    """The CPU execution provider."""

    name = "ort-cpu"
    exact_shapes = True

    def __init__(self, threads: int = 0) -> None:
        """`threads` 0 leaves the number to the runtime: one per physical core."""
        import onnxruntime

        self._runtime = onnxruntime
        onnxruntime.set_default_logger_severity(3)
        self._options = onnxruntime.SessionOptions()
        self._options.intra_op_num_threads = threads
        self._options.inter_op_num_threads = 1

    def load(self, path: Path) -> Graph:
        """See `Backend.load`."""
        try:
            session = self._runtime.InferenceSession(
                str(path), self._options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the runtime's exceptions share no base class of their own
            raise BundleError(
                f"{path}: ONNX Runtime {self._runtime.__version__} cannot load it: {error}"
            ) from error
        return OrtGraph(session, Exception)

    def empty(self, shape: Sequence[int], dtype: str) -> HostArray:
        """See `Backend.empty`. The system hands out the pages when they are first written."""
        return np.zeros(shape, dtype)

    def upload(self, array: HostArray, to: Tensor, put: tuple[int, ...] = ()) -> None:
        """See `Backend.upload`."""
        cast(HostArray, to)[put][: len(array)] = array

    def copy(
        self, source: Tensor, to: Tensor, *, take: tuple[int, ...] = (), put: tuple[int, ...] = ()
    ) -> None:
        """See `Backend.copy`."""
        a, b = cast(HostArray, source)[take], cast(HostArray, to)[put]
        frames = min(len(a), len(b))
        b[:frames] = a[:frames]

    def download(self, tensor: Tensor) -> HostArray:
        """See `Backend.download`."""
        return cast(HostArray, tensor).copy()

    def close(self) -> None:
        """Sessions end with their last reference."""
