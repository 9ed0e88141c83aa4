"""Memory of an NVIDIA device through cuda-python, and the one stream for all work."""

from __future__ import annotations

import contextlib
import ctypes
import math
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from appliance.contract.graphs import FRAME_MULTIPLE
from appliance.engine.backend import HostArray, Tensor
from appliance.errors import BundleError, DeviceLost, EngineFault, OutOfDeviceMemory

STAGING_BYTES = 4 << 20
"""Bytes of each of two pinned buffers."""

CAPTURING = threading.Lock()
"""Held while ONNX Runtime captures a CUDA graph, because no other thread may allocate then.

Also held while another engine is loaded, because a graph is replayed only on the thread that captured it.
"""


@dataclass(frozen=True, eq=False)
class DeviceTensor:
    """A tensor in GPU memory."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


BINDINGS = (
    "the package holds it: sudo apt install --reinstall ./FILE.deb; in a checkout: "
    "pip install cuda-python==12.6.2.post1 (JetPack 6) or 'cuda-bindings==13.2.*' (JetPack 7)"
)
"""Remedy if cuda-python is missing or newer than the driver."""
STATUSES: Mapping[int, type[EngineFault]] = {
    2: OutOfDeviceMemory,  # cudaErrorMemoryAllocation
    46: DeviceLost,  # cudaErrorDevicesUnavailable
    214: DeviceLost,  # cudaErrorECCUncorrectable
    700: DeviceLost,  # cudaErrorIllegalAddress
    702: DeviceLost,  # cudaErrorLaunchTimeout
    709: DeviceLost,  # cudaErrorContextIsDestroyed
    710: DeviceLost,  # cudaErrorAssert
    714: DeviceLost,  # cudaErrorHardwareStackError
    715: DeviceLost,  # cudaErrorIllegalInstruction
    716: DeviceLost,  # cudaErrorMisalignedAddress
    717: DeviceLost,  # cudaErrorInvalidAddressSpace
    718: DeviceLost,  # cudaErrorInvalidPc
    719: DeviceLost,  # cudaErrorLaunchFailure
    999: DeviceLost,  # cudaErrorUnknown: after a reset of the driver
}
"""CUDA status (driver_types.h) → error.

DeviceLost ends the process. Other statuses are faults of one call.
"""
TEXTS = {
    "out of memory|failed to allocate": 2,
    "illegal memory access": 700,
    "launch timed out": 702,
    "illegal instruction": 715,
    "misaligned address": 716,
    "unspecified launch failure": 719,
}
"""Message (`cudaGetErrorString`) → status, because TensorRT quotes messages without their numbers."""
REMEDIES: Mapping[type[EngineFault], str] = {
    OutOfDeviceMemory: "lower engine.lanes, or end what else uses the device's memory",
    DeviceLost: "the daemon has to start again; where it repeats, `sudo journalctl -k -b` says why",
}


def fault_of(message: str, status: int | None = None) -> EngineFault:
    """Error of a CUDA status, with a remedy. The default is the status in the runtime's message."""
    if status is None:
        match = re.search(r"CUDA (?:failure|error) (\d+)", message)
        quoted = (number for text, number in TEXTS.items() if re.search(text, message, re.I))
        status = int(match[1]) if match else next(quoted, 0)
    kind = STATUSES.get(status, EngineFault)
    return kind(f"{message}; {REMEDIES[kind]}" if kind in REMEDIES else message)


class DeviceMemory:
    """Tensors in GPU memory, for the backends on CUDA."""

    builds = False
    can_interrupt = False
    frame_multiple = FRAME_MULTIPLE
    max_batch: int

    def __init__(self, backend: str, device: int = 0) -> None:
        """Raises BundleError without cuda-python, driver or device. `backend` is the name in errors."""
        try:
            from cuda.bindings import runtime
        except ImportError as missing:
            raise BundleError(f"backend {backend!r} needs cuda-python ({missing}): {BINDINGS}") from missing
        self._cuda: Any = runtime
        try:
            devices = self._call("cudaGetDeviceCount")
            if device >= devices:
                raise BundleError(f"backend {backend!r}: device {device} of {devices} is not there")
            self._call("cudaSetDevice", device)
            self._stream = self._call("cudaStreamCreateWithFlags", runtime.cudaStreamNonBlocking)
        except (DeviceLost, OutOfDeviceMemory):
            raise  # temporary: another start may succeed
        except RuntimeError as fault:  # cuda-python 12.6 raises it without libcuda, and has no status
            reason = f"no NVIDIA device can be used: {fault}; {self._versions()}"
            raise BundleError(f"backend {backend!r}: {reason}") from fault
        self.device = device
        self._allocations: list[int] = []
        self._staging = _Staging(self._call, self._stream, runtime.cudaEventDisableTiming)

    def _versions(self) -> str:
        """CUDA versions of cuda-python and the driver, with a remedy if the driver is older."""
        runtime = self._cuda.cudaRuntimeGetVersion()[1]
        try:
            driver = self._cuda.cudaDriverGetVersion()[1]
        except RuntimeError:  # cuda-python 12.6 without libcuda
            driver = 0
        bindings = f"cuda-python is of CUDA {_version(runtime)}"
        if not driver:
            return f"{bindings}, and there is no driver"
        return f"{bindings}, the driver of {_version(driver)}" + (f": {BINDINGS}" if driver < runtime else "")

    def identity(self) -> tuple[int, str, str, int]:
        """Driver version (12060), compute capability ("8.7"), name, multiprocessors. Raises EngineFault."""
        properties = self._call("cudaGetDeviceProperties", self.device)
        name = properties.name.decode() if isinstance(properties.name, bytes) else properties.name
        driver, capability = self._call("cudaDriverGetVersion"), f"{properties.major}.{properties.minor}"
        return int(driver), capability, name.rstrip("\0"), int(properties.multiProcessorCount)

    @property
    def stream(self) -> int:
        return int(self._stream)

    def interrupt(self, on: bool) -> None:
        raise NotImplementedError("what a device was given cannot be taken back")

    def empty(self, shape: Sequence[int], dtype: str) -> DeviceTensor:
        """Allocate a tensor of zeros. Raises OutOfDeviceMemory, EngineFault."""
        kind = np.dtype(dtype)
        size = max(math.prod(shape) * kind.itemsize, 1)
        try:
            address = int(self._call("cudaMalloc", size))
        except EngineFault as fault:
            raise type(fault)(f"{fault}: {size} bytes for {tuple(shape)} {kind.name}") from fault
        self._allocations.append(address)
        self._call("cudaMemsetAsync", address, 0, size, self._stream)
        return DeviceTensor(address, tuple(shape), kind)

    def free(self, tensor: DeviceTensor) -> None:
        """Wait, and free a tensor from `empty`. Raises EngineFault."""
        self._allocations.remove(tensor.address)
        self._call("cudaFree", tensor.address)

    def view(self, tensor: Tensor, shape: Sequence[int], at: tuple[int, ...] = ()) -> DeviceTensor:
        """View of a tensor. Raises ValueError beyond the tensor's end."""
        whole = cast(DeviceTensor, tensor)
        first = sum(i * math.prod(whole.shape[axis + 1 :]) for axis, i in enumerate(at))
        if first < 0 or first + math.prod(shape) > math.prod(whole.shape):
            raise ValueError(f"cannot reshape: {tuple(shape)} at {at} does not fit into {whole.shape}")
        return DeviceTensor(whole.address + first * whole.dtype.itemsize, tuple(shape), whole.dtype)

    def upload(self, array: HostArray, to: Tensor) -> None:
        """Copy through pinned memory, without waiting."""
        target = cast(DeviceTensor, to)
        if array.shape != target.shape:
            raise ValueError(f"could not broadcast {array.shape} to {target.shape}")
        source = np.ascontiguousarray(array, target.dtype).reshape(-1).view(np.uint8)
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyHostToDevice
        for first in range(0, target.nbytes, STAGING_BYTES):
            piece = source[first : first + STAGING_BYTES]
            address, pinned = self._staging.take(len(piece))
            pinned[:] = piece
            self._call("cudaMemcpyAsync", target.address + first, address, len(piece), kind, self._stream)

    def copy(self, source: Tensor, to: Tensor) -> None:
        origin, target = cast(DeviceTensor, source), cast(DeviceTensor, to)
        if origin.shape != target.shape or origin.dtype != target.dtype:
            raise ValueError(f"cannot copy {origin.shape} {origin.dtype} to {target.shape} {target.dtype}")
        if origin.nbytes:
            kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToDevice
            self._call("cudaMemcpyAsync", target.address, origin.address, origin.nbytes, kind, self._stream)

    def download(self, tensor: Tensor) -> HostArray:
        source = cast(DeviceTensor, tensor)
        out = np.empty(source.nbytes, np.uint8)
        kind = self._cuda.cudaMemcpyKind.cudaMemcpyDeviceToHost
        for first in range(0, source.nbytes, STAGING_BYTES):
            piece = out[first : first + STAGING_BYTES]
            address, pinned = self._staging.take(len(piece))
            self._call("cudaMemcpyAsync", address, source.address + first, len(piece), kind, self._stream)
            self.wait()
            piece[:] = pinned
        return out.view(source.dtype).reshape(source.shape)

    def wait(self) -> None:
        self._call("cudaStreamSynchronize", self._stream)

    def capture(self, enqueue: Callable[[], None]) -> Any:
        """CUDA graph of the work that `enqueue` enqueues, without running it. Raises EngineFault.

        `enqueue` must not wait, allocate, or touch host memory.
        """
        # Thread-local: calls by other threads do not end the capture.
        mode = self._cuda.cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        self._call("cudaStreamBeginCapture", self._stream, mode)
        try:
            enqueue()
        except Exception:
            _, graph = self._cuda.cudaStreamEndCapture(self._stream)
            if graph is not None:
                self._cuda.cudaGraphDestroy(graph)
            raise
        graph = self._call("cudaStreamEndCapture", self._stream)
        try:
            return self._call("cudaGraphInstantiate", graph, 0)
        finally:
            self._cuda.cudaGraphDestroy(graph)

    def launch(self, captured: Any) -> None:
        """Enqueue a graph. Raises EngineFault."""
        self._call("cudaGraphLaunch", captured, self._stream)

    def drop(self, captured: Any) -> None:
        self._cuda.cudaGraphExecDestroy(captured)

    def close(self) -> None:
        # Statuses are ignored, because the device may have failed.
        self._cuda.cudaStreamSynchronize(self._stream)
        for address in self._allocations:
            self._cuda.cudaFree(address)
        self._allocations = []
        self._staging.close()
        self._cuda.cudaStreamDestroy(self._stream)

    def _call(self, name: str, *arguments: Any) -> Any:
        """Call the CUDA runtime; return its result without the status. Raises EngineFault."""
        status, *results = getattr(self._cuda, name)(*arguments)
        if int(status):
            message = self._cuda.cudaGetErrorString(status)[1]
            message = message.decode() if isinstance(message, bytes) else message
            raise fault_of(f"CUDA: {name}: {getattr(status, 'name', status)}: {message}", int(status))
        return results[0] if results else None


def _version(number: int) -> str:
    """Version of a number: 12060 → "12.6"."""
    return f"{number // 1000}.{number % 1000 // 10}"


@dataclass
class _Staging:
    """Two pinned buffers. One is reused when all copies from it have ended."""

    call: Callable[..., Any]
    stream: Any
    flags: int
    _half: int = 0
    _used: int = 0
    _events: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._address = int(self.call("cudaMallocHost", 2 * STAGING_BYTES))
        memory = (ctypes.c_uint8 * (2 * STAGING_BYTES)).from_address(self._address)
        self._bytes = np.ctypeslib.as_array(memory)
        self._events = [self.call("cudaEventCreateWithFlags", self.flags) for _ in range(2)]

    def take(self, size: int) -> tuple[int, HostArray]:
        """Address and memory of the next bytes, at most STAGING_BYTES."""
        if self._used + size > STAGING_BYTES:
            self.call("cudaEventRecord", self._events[self._half], self.stream)
            self._half, self._used = 1 - self._half, 0
            self.call("cudaEventSynchronize", self._events[self._half])
        first = self._half * STAGING_BYTES + self._used
        self._used += -(-size // 64) * 64
        return self._address + first, self._bytes[first : first + size]

    def close(self) -> None:
        with contextlib.suppress(EngineFault):  # the device may be lost
            for event in self._events:
                self.call("cudaEventDestroy", event)
            self.call("cudaFreeHost", self._address)
