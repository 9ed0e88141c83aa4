"""An NVIDIA device in host memory; see README.md."""

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from appliance.engine.ort_cuda import OrtCudaBackend
from appliance.engine.tensorrt.trt import TrtBackend
from tests.fakes.nvidia import cudart, onnxruntime_gpu, tensorrt
from tests.fakes.nvidia.device import Device


@contextmanager
def installed(
    device: Device, trt: tensorrt.TensorRT | None = None
) -> Iterator[tuple[cudart.Runtime, onnxruntime_gpu.Runtime]]:
    """Replace the modules of cuda-python, ONNX Runtime and TensorRT by a device's fake runtimes within the
    block.

    If `trt` is None, TensorRT is not installed.
    """
    runtimes = cudart.Runtime(device), onnxruntime_gpu.Runtime(device)
    bindings: Any = types.ModuleType("cuda.bindings")
    bindings.runtime = runtimes[0]
    cuda: Any = types.ModuleType("cuda")
    cuda.bindings = bindings
    modules: dict[str, Any] = {"cuda": cuda, "cuda.bindings": bindings, "tensorrt": trt}
    modules |= {"cuda.bindings.runtime": runtimes[0], "onnxruntime": runtimes[1]}
    # patch.dict would drop, on exit, every module that was imported within the block.
    before = {name: sys.modules[name] for name in modules if name in sys.modules}
    sys.modules.update(modules)
    try:
        yield runtimes
    finally:
        for name in modules:
            sys.modules.pop(name, None)
        sys.modules.update(before)


def open_on(device: Device) -> OrtCudaBackend:
    with installed(device):
        return OrtCudaBackend()


def open_trt_on(
    device: Device, engines: Path, max_batch: int | None = None, trt: tensorrt.TensorRT | None = None
) -> TrtBackend:
    """The TensorRT backend on a fake device, with its engines in the folder `engines`."""
    with installed(device, trt or tensorrt.TensorRT(device)):
        backend = TrtBackend(engines)
    backend.max_batch = backend.max_batch if max_batch is None else max_batch
    return backend
