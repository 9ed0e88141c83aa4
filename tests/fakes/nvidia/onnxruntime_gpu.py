"""ONNX Runtime with a CUDA provider: sessions compute on the CPU, late, in the order of their stream.

Seen in the real provider (1.23.2, 1.30.0, 1.31.1) over libraries that only count: a graph is captured by its
number *and* thread, and the first run of either computes, captures and replays; a session that ends waits for
its stream; a missing cuDNN shows at the first Conv.

Guesses, which hide real failures: every graph opens (the real one refuses to capture a session that copies
between host and device); other threads may call CUDA during a capture (the real one captures globally, and
such calls fail); a capture allocates nothing. Fused attention reads whole masks on CUDA alone. Instead of a
graph with fused attention the default graph computes, whatever a release changes in the masks.
`tests/export/test_fused.py` proves that both give the same numbers.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import onnxruntime

from tests.fakes.nvidia.device import Device

PROVIDER = "CUDAExecutionProvider"
FUSED = "_fused.onnx"
NO_CUDNN = (
    "Non-zero status code returned while running Conv node. NOT_IMPLEMENTED : cuDNN is unavailable or "
    "disabled for CUDA Execution Provider"
)


class Binding:
    """Tensors by address. The fake makes real bindings when the work runs."""

    def __init__(self, session: Session, device: Device) -> None:
        self.real = session.real.io_binding()
        self._misreads = session.misreads
        self.inputs: set[str] = set()
        self.outputs: set[str] = set()
        self.addresses: dict[str, tuple[int, tuple[int, ...], int]] = {}
        self._device = device

    def bind_input(self, name: str, *tensor: Any) -> None:
        dtype, shape, address = self._take(name, *tensor)
        self.inputs.add(name)
        if name == "lengths" and self._misreads:
            frames = self.addresses["latents"][1][1]
            self._all = np.full(shape, frames, np.int32)
            address = self._all.ctypes.data
        self.real.bind_input(name, "cpu", 0, dtype, shape, address)

    def bind_output(self, name: str, *tensor: Any) -> None:
        dtype, shape, address = self._take(name, *tensor)
        self.outputs.add(name)
        self.real.bind_output(name, "cpu", 0, dtype, shape, address)

    def _take(
        self, name: str, kind: str, number: int, dtype: Any, shape: Sequence[int], address: int
    ) -> tuple[Any, Sequence[int], int]:
        if (kind, number) != ("cuda", 0):
            raise self._device.refuse(f"{name} is bound to {kind}:{number}")
        size = math.prod(shape) * np.dtype(dtype).itemsize
        self._device.check(address, size, "device", f"{name} is bound")
        # A guess: kernels load floating point in blocks of 16 bytes, and single indices.
        least = 16 if np.issubdtype(dtype, np.floating) else np.dtype(dtype).itemsize
        if address % least:
            raise self._device.refuse(f"{name} is bound at {address:#x}, which is no multiple of {least}")
        self.addresses[name] = (address, tuple(shape), size)
        return dtype, shape, address


class Session:
    path = ""
    misreads = False
    """True if the session computes padding as frames."""

    def __init__(self, runtime: Runtime, real: Any, options: dict[str, str]) -> None:
        self.real, self._runtime, self._options = real, runtime, options
        self._device = runtime.device
        self._captured: dict[str, tuple[int, dict[str, tuple[int, tuple[int, ...], int]]]] = {}
        """Number of a CUDA graph → its thread and addresses."""

    def __del__(self) -> None:
        if PROVIDER in self.get_providers():
            self._device.stream(int(self._options["user_compute_stream"])).run()

    def get_providers(self) -> list[str]:
        cpu = ["CPUExecutionProvider"]
        return cpu if self._runtime.libraries_missing else [PROVIDER, *cpu]

    def io_binding(self) -> Binding:
        return Binding(self, self._device)

    def run_with_iobinding(self, binding: Binding, options: Any) -> None:
        device = self._device
        wanted = {i.name for i in self.real.get_inputs()}, {o.name for o in self.real.get_outputs()}
        for what, names, bound in zip(
            ("input", "output"), wanted, (binding.inputs, binding.outputs), strict=True
        ):
            if names != bound:
                raise device.refuse(f"{what}s that are not bound: {', '.join(sorted(names ^ bound))}")
        for name, (address, _, size) in binding.addresses.items():
            device.check(address, size, "device", f"{name} is used")
        if self._runtime.cudnn_missing and b"Conv" in Path(self.path).read_bytes():
            raise RuntimeError(NO_CUDNN)
        stream, runs = device.stream(int(self._options["user_compute_stream"])), 1
        number = _entry(options, "gpu_graph_id")
        if self._options["enable_cuda_graph"] == "1" and number != "-1":
            thread = threading.get_ident()
            if number not in self._captured:
                self._captured[number] = (thread, binding.addresses)
                device.counts["capture"] += 1
                runs = 2
            if self._captured[number][0] != thread:
                raise device.refuse(f"graph {number} would be captured again, on another thread")
            if self._captured[number][1] != binding.addresses:
                raise device.refuse(
                    f"captured graph {number or 'without a number'} is replayed at other addresses"
                )
        device.counts["run"] += 1
        for _ in range(runs):
            stream.enqueue(partial(self.real.run_with_iobinding, binding.real))
        if _entry(options, "disable_synchronize_execution_providers") != "1":
            device.counts["synchronise"] += 1
            stream.run()

    def captured(self) -> int:
        return len(self._captured)


def _entry(options: Any, key: str) -> str:
    try:
        return str(options.get_run_config_entry(key))
    except RuntimeError:
        return ""


class Runtime:
    """Replaces the module `onnxruntime`."""

    RunOptions = onnxruntime.RunOptions
    SessionOptions = onnxruntime.SessionOptions
    OrtMemoryInfo, OrtMemType = onnxruntime.OrtMemoryInfo, onnxruntime.OrtMemType
    OrtAllocatorType, OrtArenaCfg = onnxruntime.OrtAllocatorType, onnxruntime.OrtArenaCfg
    create_and_register_allocator = staticmethod(onnxruntime.create_and_register_allocator)
    __version__ = onnxruntime.__version__

    def __init__(self, device: Device) -> None:
        self.device = device
        self.libraries_missing = False
        """True if the provider exists but cannot start, which the real one only logs."""
        self.cudnn_missing = False
        """True if cuDNN is missing, which fails at the first Conv, as in ONNX Runtime since 1.30."""
        self.fuses = True
        """True if the memory-efficient kernel was built in. Without it the session reads padding as frames: a
        guess."""
        self.providers = [PROVIDER, "CPUExecutionProvider"]
        self.sessions: WeakSet[Session] = WeakSet()

    def set_default_logger_severity(self, level: int) -> None: ...

    def preload_dlls(self) -> None: ...

    def get_available_providers(self) -> list[str]:
        return self.providers

    def InferenceSession(self, path: str, options: Any, providers: list[Any]) -> Any:
        on_device = isinstance(providers[0], tuple)
        if on_device and path.endswith(FUSED) and providers[0][1].get("sdpa_kernel") != "2":
            raise self.device.refuse(f"{path}: its masks are for the memory-efficient kernel")
        plain = path.replace(FUSED, ".onnx") if on_device else path
        real = onnxruntime.InferenceSession(plain, options, providers=["CPUExecutionProvider"])
        if not on_device:
            return real
        session = Session(self, real, providers[0][1])
        session.path, session.misreads = path, path.endswith(FUSED) and not self.fuses
        self.sessions.add(session)
        return session
