"""`cuda.bindings.runtime`: the appliance's part of it, with the signatures of cuda-python 12.6 to 13.5."""

import ctypes
import enum
from functools import partial
from types import SimpleNamespace

from tests.fakes.nvidia.device import Capture, Device, Event, Node, Stream, move


class cudaError_t(enum.IntEnum):
    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorMemoryAllocation = 2
    cudaErrorInsufficientDriver = 35
    cudaErrorDevicesUnavailable = 46
    cudaErrorNoDevice = 100
    cudaErrorIllegalAddress = 700
    cudaErrorLaunchFailure = 719
    cudaErrorStreamCaptureInvalidated = 901
    cudaErrorUnknown = 999


cudaMemcpyKind = enum.IntEnum(
    "cudaMemcpyKind",
    [f"cudaMemcpy{way}" for way in ("HostToHost", "HostToDevice", "DeviceToHost", "DeviceToDevice")],
    start=0,
)
cudaStreamCaptureMode = enum.IntEnum(
    "cudaStreamCaptureMode",
    [f"cudaStreamCaptureMode{mode}" for mode in ("Global", "ThreadLocal", "Relaxed")],
    start=0,
)


OK = cudaError_t.cudaSuccess
SIDES = {
    cudaMemcpyKind.cudaMemcpyHostToDevice: ("device", "pinned"),
    cudaMemcpyKind.cudaMemcpyDeviceToHost: ("pinned", "device"),
    cudaMemcpyKind.cudaMemcpyDeviceToDevice: ("device", "device"),
}
"""Memory that each kind of copy writes and reads. Host memory must be pinned, otherwise the copy would
block."""


class Runtime:
    """Replaces the module. Errors of a stream appear at its next synchronisation, as on a device."""

    cudaError_t = cudaError_t
    cudaMemcpyKind = cudaMemcpyKind
    cudaStreamCaptureMode = cudaStreamCaptureMode
    cudaStreamNonBlocking = 1
    cudaEventDisableTiming = 2

    def __init__(self, device: Device) -> None:
        self.device = device
        self.version = 12060
        self.start: cudaError_t = OK
        """Result of the first call: OK, no driver, or no device."""

    def cudaGetErrorString(self, error: cudaError_t) -> tuple[cudaError_t, bytes]:
        return OK, error.name.encode()

    def cudaGetDeviceCount(self) -> tuple[cudaError_t, int | None]:
        return (OK, 1) if self.start is OK else (self.start, None)

    def cudaSetDevice(self, device: int) -> tuple[cudaError_t]:
        return (OK if device == 0 else cudaError_t.cudaErrorInvalidValue,)

    def cudaGetDeviceProperties(self, device: int) -> tuple[cudaError_t, SimpleNamespace]:
        major, minor = self.device.compute_capability
        name, count = self.device.name.encode(), self.device.multiprocessors
        return OK, SimpleNamespace(name=name, major=major, minor=minor, multiProcessorCount=count)

    def cudaDriverGetVersion(self) -> tuple[cudaError_t, int]:
        return OK, self.device.driver

    def cudaRuntimeGetVersion(self) -> tuple[cudaError_t, int]:
        return OK, self.version

    def cudaMalloc(self, size: int) -> tuple[cudaError_t, int | None]:
        address = self.device.allocate(size, "device")
        return (OK, address) if address else (cudaError_t.cudaErrorMemoryAllocation, None)

    def cudaFree(self, address: int) -> tuple[cudaError_t]:
        return self._free(address, "device", "cudaFree")

    def cudaMallocHost(self, size: int) -> tuple[cudaError_t, int]:
        return OK, self.device.allocate(size, "pinned")

    def cudaFreeHost(self, address: int) -> tuple[cudaError_t]:
        return self._free(address, "pinned", "cudaFreeHost")

    def cudaMemsetAsync(self, address: int, value: int, size: int, stream: int) -> tuple[cudaError_t]:

        def check(now: str) -> None:
            self.device.check(address, size, "device", f"{now}cudaMemsetAsync")

        self.device.stream(stream).take(Node(partial(ctypes.memset, address, value, size), check))
        return (OK,)

    def cudaMemcpyAsync(
        self, to: int, source: int, size: int, kind: cudaMemcpyKind, stream: int
    ) -> tuple[cudaError_t]:
        into, out_of = SIDES[kind]

        def check(now: str) -> None:
            self.device.check(to, size, into, f"{now}{kind.name} writes")
            self.device.check(source, size, out_of, f"{now}{kind.name} reads")

        if max(to, source) < min(to, source) + size:
            raise self.device.refuse(f"{kind.name}: source and destination overlap")
        on = self.device.stream(stream)
        if on.capture is None:
            self.device.counts[kind.name.removeprefix("cudaMemcpy")] += 1
        elif kind is not cudaMemcpyKind.cudaMemcpyDeviceToDevice:
            # The staging memory has other contents at the time of the replay.
            raise self.device.refuse(f"{kind.name} while a stream is captured")
        before = ctypes.string_at(source, size) if out_of == "pinned" else b""

        def copy() -> None:
            if before and ctypes.string_at(source, size) != before:
                raise self.device.refuse(f"{kind.name}: the source was changed before it was copied")
            move(to, source, size)

        on.take(Node(copy, check))
        return (OK,)

    def cudaStreamCreateWithFlags(self, flags: int) -> tuple[cudaError_t, int]:
        handle = self.device.handle()
        self.device.streams[handle] = Stream()
        return OK, handle

    def cudaStreamSynchronize(self, stream: int) -> tuple[cudaError_t]:
        self.device.outside_a_capture("cudaStreamSynchronize")
        self.device.counts["synchronise"] += 1
        return (self._settle(self.device.stream(stream)),)

    def cudaStreamDestroy(self, stream: int) -> tuple[cudaError_t]:
        self.device.streams.pop(stream)
        return (OK,)

    def cudaStreamBeginCapture(self, stream: int, mode: cudaStreamCaptureMode) -> tuple[cudaError_t]:
        self.device.outside_a_capture("cudaStreamBeginCapture")
        self.device.stream(stream).capture = Capture()
        return (OK,)

    def cudaStreamEndCapture(self, stream: int) -> tuple[cudaError_t, int | None]:
        on = self.device.stream(stream)
        if on.capture is None:
            raise self.device.refuse("cudaStreamEndCapture of a stream that is not captured")
        captured, on.capture = on.capture, None
        if captured.is_spoilt:
            return cudaError_t.cudaErrorStreamCaptureInvalidated, None
        self.device.counts["capture"] += 1
        handle = self.device.handle()
        self.device.graphs[handle] = captured.nodes
        return OK, handle

    def cudaGraphInstantiate(self, graph: int, flags: int) -> tuple[cudaError_t, int | None]:
        self.device.outside_a_capture("cudaGraphInstantiate")
        if not self.device.can_instantiate:
            return cudaError_t.cudaErrorMemoryAllocation, None
        handle = self.device.handle()
        self.device.executable[handle] = list(self.device.graphs[graph])
        return OK, handle

    def cudaGraphDestroy(self, graph: int) -> tuple[cudaError_t]:
        del self.device.graphs[graph]
        return (OK,)

    def cudaGraphLaunch(self, graphExec: int, stream: int) -> tuple[cudaError_t]:
        self.device.outside_a_capture("cudaGraphLaunch")
        if graphExec not in self.device.executable:
            raise self.device.refuse(f"no executable graph {graphExec:#x}")
        nodes = self.device.executable[graphExec]
        for node in nodes:
            node.check("a graph is replayed: ")
        self.device.counts["replay"] += 1
        for node in nodes:
            self.device.stream(stream).enqueue(node.work)
        return (OK,)

    def cudaGraphExecDestroy(self, graphExec: int) -> tuple[cudaError_t]:
        if self.device.executable.pop(graphExec, None) is None:
            raise self.device.refuse(f"no executable graph {graphExec:#x}")
        return (OK,)

    def cudaEventCreateWithFlags(self, flags: int) -> tuple[cudaError_t, int]:
        handle = self.device.handle()
        self.device.events[handle] = Event()
        return OK, handle

    def cudaEventRecord(self, event: int, stream: int) -> tuple[cudaError_t]:
        self.device.outside_a_capture("cudaEventRecord")
        on = self.device.stream(stream)
        marked = self.device.events[event] = Event(on)
        on.enqueue(marked.set)
        return (OK,)

    def cudaEventSynchronize(self, event: int) -> tuple[cudaError_t]:
        self.device.outside_a_capture("cudaEventSynchronize")
        self.device.counts["event"] += 1
        marked = self.device.events[event]
        if marked.stream is not None:
            marked.stream.run(until=lambda: marked.has_passed)
        return (OK,)

    def cudaEventDestroy(self, event: int) -> tuple[cudaError_t]:
        del self.device.events[event]
        return (OK,)

    def _settle(self, stream: Stream) -> cudaError_t:
        stream.run()
        return OK if stream.failure is None else cudaError_t.cudaErrorLaunchFailure

    def _free(self, address: int, kind: str, call: str) -> tuple[cudaError_t]:
        """Free memory after all enqueued work has run."""
        self.device.outside_a_capture(call)
        for stream in [*self.device.streams.values()]:
            self._settle(stream)
        self.device.free(address, kind)
        return (OK,)
