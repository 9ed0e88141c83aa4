"""An NVIDIA device in host memory; see README.md."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from appliance.engine.ort_cuda import OrtCudaBackend
from tests.fakes.gpu import cudart, onnxruntime_gpu
from tests.fakes.gpu.device import Device


@contextmanager
def installed(device: Device) -> Iterator[tuple[cudart.Runtime, onnxruntime_gpu.Runtime]]:
    """The fake runtimes of a device in the place of cuda-python's and ONNX Runtime's modules."""
    runtimes = cudart.Runtime(device), onnxruntime_gpu.Runtime(device)
    bindings: Any = types.ModuleType("cuda.bindings")
    bindings.runtime = runtimes[0]
    cuda: Any = types.ModuleType("cuda")
    cuda.bindings = bindings
    modules = {
        "cuda": cuda,
        "cuda.bindings": bindings,
        "cuda.bindings.runtime": runtimes[0],
        "onnxruntime": runtimes[1],
    }
    with patch.dict(sys.modules, modules):
        yield runtimes


def open_on(device: Device, buckets: tuple[int, ...] | None = None) -> OrtCudaBackend:
    """The backend on a fake device."""
    with installed(device):
        backend = OrtCudaBackend()
    if buckets is not None:
        backend.buckets = buckets
    return backend
