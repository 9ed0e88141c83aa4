"""OpenVINO on the CPU."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from appliance.contract.graphs import STEPS, GraphSpec
from appliance.engine.backend import Bound, Graph, Ranges, Tensor, sizes_of
from appliance.engine.host import HostMemory
from appliance.errors import BundleError, EngineFault

Precision = Literal["bf16", "f32"]
"""Precision of the step graphs; the others compute in float32."""
PRODUCT = (256, 1024, 1024)
"""m, k, n of the product that is timed to choose the precision."""


class OpenVinoBound:
    def __init__(self, compiled: Any, request: Any, arrays: list[Tensor]) -> None:
        self._compiled, self._request = compiled, request
        self._arrays = arrays  # keeps the memory valid

    def run(self, *, release: bool = False, capture: bool = False) -> None:
        try:
            self._request.infer()
            if release:
                self._compiled.release_memory()
        except Exception as error:  # the runtime's exceptions share no base class of their own
            raise _fault(error) from error


class OpenVinoGraph:
    def __init__(self, runtime: Any, compiled: Any, spec: GraphSpec) -> None:
        self._runtime, self._compiled, self._spec = runtime, compiled, spec

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Bound:
        sizes_of(self._spec, inputs, outputs, lambda reason: _fault(f"{self._spec.name}: {reason}"))
        arrays = {**inputs, **outputs}
        try:
            request = self._compiled.create_infer_request()
            for name, array in arrays.items():
                request.set_tensor(name, self._runtime.Tensor(array, shared_memory=True))
        except Exception as error:
            raise _fault(error) from error
        return OpenVinoBound(self._compiled, request, [*arrays.values()])


class OpenVinoBackend(HostMemory):
    name = "openvino"

    def __init__(self, threads: int = 0, *, precision: Precision | None = None) -> None:
        """`threads` 0: the runtime's choice. `precision` None: the faster one here."""
        # `import openvino` reports itself through this dependency, and does without.
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
        try:
            import openvino
        except ImportError as missing:
            raise BundleError(
                "backend 'openvino' is not installed: pip install 'f5-appliance[openvino]'"
            ) from missing
        self._runtime, self._core = openvino, openvino.Core()
        self._options = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads}
        if precision is None:
            # 0.5 of float32's time on AMD Zen 5, 1.6 on an Intel Xeon with AVX512-BF16 but no AMX.
            has_bf16 = "BF16" in self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
            precision = "bf16" if has_bf16 and product_s("bf16") < product_s("f32") else "f32"
        self.precision = precision
        self.label = f"{self.name} ({precision})"

    def load(self, name: str, path: Path, spec: GraphSpec, ranges: Ranges) -> Graph:
        options = {**self._options, "INFERENCE_PRECISION_HINT": self.precision if name in STEPS else "f32"}
        try:
            compiled = self._core.compile_model(self._core.read_model(path), "CPU", options)
        except Exception as error:  # the runtime's exceptions share no base class of their own
            raise BundleError(
                f"{path}: OpenVINO {self._runtime.__version__} cannot load it: {' '.join(str(error).split())}"
            ) from error
        return OpenVinoGraph(self._runtime, compiled, spec)


def product_s(precision: Precision) -> float:
    """Least seconds of 20 matrix products on one thread."""
    runtime, ops = importlib.import_module("openvino"), importlib.import_module("openvino.opset13")
    rows = ops.parameter(PRODUCT[:2], np.float32)
    weight = ops.constant(np.ones(PRODUCT[1:], np.float32))
    model = runtime.Model([ops.matmul(rows, weight, False, False)], [rows])
    options = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": precision}
    request = runtime.Core().compile_model(model, "CPU", options).create_infer_request()
    request.set_input_tensor(runtime.Tensor(np.ones(PRODUCT[:2], np.float32)))
    seconds = []
    for _ in range(20):
        begun = time.perf_counter()
        request.infer()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def _fault(reason: object) -> EngineFault:
    return EngineFault(f"OpenVINO: {' '.join(str(reason).split())}")
