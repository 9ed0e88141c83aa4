"""OpenVINO on the CPU: the graphs of the default variant, their steps in bfloat16 where the processor has it.

Its tensors are numpy arrays, whose memory the runtime shares: nothing is copied in or out.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from appliance.contract.graphs import STEPS, Axis, GraphSpec
from appliance.engine.backend import Bound, Graph, Shapes, Tensor
from appliance.engine.host import HostMemory
from appliance.errors import BundleError, EngineFault

Precision = Literal["bf16", "f32"]


class OpenVinoBound:
    """A request for inference, on tensors that share the memory of arrays."""

    def __init__(self, compiled: Any, request: Any, arrays: list[Tensor]) -> None:
        self._compiled, self._request = compiled, request
        self._arrays = arrays  # keeps the memory valid

    def run(self, *, release: bool = False) -> None:
        """See `Bound.run`."""
        try:
            self._request.infer()
            if release:
                self._compiled.release_memory()
        except Exception as error:  # the runtime's exceptions share no base class of their own
            raise _fault(error) from error


class OpenVinoGraph:
    """A compiled model."""

    def __init__(self, runtime: Any, compiled: Any, spec: GraphSpec) -> None:
        self._runtime, self._compiled, self._spec = runtime, compiled, spec

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Bound:
        """See `Graph.bind`."""
        arrays = {**inputs, **outputs}
        _check(self._spec, arrays)
        try:
            request = self._compiled.create_infer_request()
            for name, array in arrays.items():
                request.set_tensor(name, self._runtime.Tensor(array, shared_memory=True))
        except Exception as error:
            raise _fault(error) from error
        return OpenVinoBound(self._compiled, request, [*arrays.values()])


class OpenVinoBackend(HostMemory):
    """The CPU plugin. Batches gain nothing there: rows run one by one at their true length."""

    name = "openvino"
    exact_shapes = True
    buckets: tuple[int, ...] = ()
    max_batch = 1

    def __init__(self, threads: int = 0, *, precision: Precision | None = None) -> None:
        """`threads` 0 leaves the number to the runtime. `precision` of the steps; None takes bfloat16 on a
        processor that multiplies it, else float32."""
        try:
            import openvino
        except ImportError as missing:
            raise BundleError(
                "backend 'openvino' is not installed: pip install 'f5-appliance[openvino]'"
            ) from missing
        self._runtime, self._core = openvino, openvino.Core()
        if precision is None:
            capabilities = self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
            precision = "bf16" if "BF16" in capabilities else "f32"
        self.precision = precision
        self.label = f"{self.name} ({precision})"
        self._options = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads}

    def load(self, name: str, path: Path, spec: GraphSpec, shapes: Shapes) -> Graph:
        """See `Backend.load`. Any shape runs."""
        options = {**self._options, "INFERENCE_PRECISION_HINT": self.precision if name in STEPS else "f32"}
        try:
            compiled = self._core.compile_model(self._core.read_model(path), "CPU", options)
        except Exception as error:  # the runtime's exceptions share no base class of their own
            raise BundleError(
                f"{path}: OpenVINO {self._runtime.__version__} cannot load it: {' '.join(str(error).split())}"
            ) from error
        return OpenVinoGraph(self._runtime, compiled, spec)


def _check(spec: GraphSpec, arrays: Mapping[str, Tensor]) -> None:
    """Raise EngineFault for missing tensors and contradicting sizes: the runtime would return zeros."""
    wanted = {tensor.name: tensor.axes for tensor in (*spec.inputs, *spec.outputs)}
    if difference := wanted.keys() ^ arrays.keys():
        raise EngineFault(f"OpenVINO: {spec.name}: missing or unknown: {', '.join(sorted(difference))}")
    sizes: dict[Axis, int] = {}
    for name, axes in wanted.items():
        shape = arrays[name].shape
        fits = len(shape) == len(axes) and all(
            sizes.setdefault(axis, n if isinstance(axis, str) else axis) == n
            for axis, n in zip(axes, shape, strict=True)
        )
        if not fits:
            raise EngineFault(f"OpenVINO: {spec.name}: {name}: shape {shape} is not {axes} with {sizes}")


def _fault(error: Exception) -> EngineFault:
    return EngineFault(f"OpenVINO: {' '.join(str(error).split())}")
