"""`cuda.bindings.runtime` over the counting libraries, and their counts."""

import ctypes
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fakes.nvidia.cudart import cudaError_t, cudaMemcpyKind, cudaStreamCaptureMode

HANDLE, SIZE, INT = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
STATUS_ONLY: dict[str, Sequence[Any]] = {
    "cudaSetDevice": (INT,),
    "cudaFree": (HANDLE,),
    "cudaFreeHost": (HANDLE,),
    "cudaMemsetAsync": (HANDLE, INT, SIZE, HANDLE),
    "cudaMemcpyAsync": (HANDLE, HANDLE, SIZE, INT, HANDLE),
    "cudaStreamSynchronize": (HANDLE,),
    "cudaStreamDestroy": (HANDLE,),
    "cudaStreamBeginCapture": (HANDLE, INT),
    "cudaGraphLaunch": (HANDLE, HANDLE),
    "cudaGraphDestroy": (HANDLE,),
    "cudaGraphExecDestroy": (HANDLE,),
    "cudaEventRecord": (HANDLE, HANDLE),
    "cudaEventSynchronize": (HANDLE,),
    "cudaEventDestroy": (HANDLE,),
}
"""Functions → types of their arguments."""
MAKING: dict[str, Sequence[Any]] = {
    "cudaMalloc": (SIZE,),
    "cudaMallocHost": (SIZE,),
    "cudaStreamCreateWithFlags": (INT,),
    "cudaEventCreateWithFlags": (INT,),
    "cudaGraphInstantiate": (HANDLE, ctypes.c_ulonglong),
    "cudaGetDeviceCount": (),
    "cudaDriverGetVersion": (),
    "cudaRuntimeGetVersion": (),
}
"""Functions that write an address, a handle or a number by their first argument → types of the others."""
MEMORY_BYTES, GRAPH_BYTES = 64 << 30, 2 << 20


@dataclass(frozen=True)
class Card:
    """Properties of a GPU by which libraries choose kernels."""

    capability: int
    """Compute capability, for example 87 for 8.7."""
    multiprocessors: int
    shared_kib: int
    """On-chip memory of a multiprocessor."""
    threads: int
    """Most threads of a multiprocessor."""


ORIN = Card(87, 16, 164, 1536)
HOPPER = Card(90, 132, 228, 2048)
BLACKWELL = Card(120, 170, 100, 1536)


class Runtime(types.ModuleType):
    """The fake module: like cuda-python's, functions return a tuple that begins with the status."""

    cudaError_t = cudaError_t
    cudaMemcpyKind = cudaMemcpyKind
    cudaStreamCaptureMode = cudaStreamCaptureMode
    cudaStreamNonBlocking = 1
    cudaEventDisableTiming = 2

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__("cuda.bindings.runtime")
        self._library = library
        self._card = ORIN
        library.counted.restype = ctypes.c_long
        library.wrong_uses.restype = library.recorded.restype = ctypes.c_char_p

    def __getattr__(self, name: str) -> Any:
        if name in STATUS_ONLY:
            return lambda *given: (self._called(name, STATUS_ONLY[name], given),)
        if name in MAKING:
            return lambda *given: self._made(name, given)
        raise AttributeError(name)

    def cudaStreamEndCapture(self, stream: int) -> tuple[cudaError_t, int]:
        graph = HANDLE()
        status = self._library.cudaStreamEndCapture(HANDLE(stream), ctypes.byref(graph))
        return cudaError_t(status), graph.value or 0

    def cudaGetDeviceProperties(self, device: int) -> tuple[cudaError_t, types.SimpleNamespace]:
        major, minor = divmod(self._card.capability, 10)
        sizes = {"major": major, "minor": minor, "multiProcessorCount": self._card.multiprocessors}
        about = types.SimpleNamespace(name=b"counting device", integrated=self._card is ORIN, **sizes)
        return cudaError_t(0), about

    def cudaMemGetInfo(self) -> tuple[cudaError_t, int, int]:
        """Free and total memory; a driver reserves some for each graph."""
        taken = self.counted("live") + GRAPH_BYTES * self.counted("captures")
        return cudaError_t(0), MEMORY_BYTES - taken, MEMORY_BYTES

    def cudaGetErrorString(self, status: cudaError_t) -> tuple[cudaError_t, bytes]:
        return cudaError_t(0), status.name.encode()

    def _called(self, name: str, kinds: Sequence[Any], given: Sequence[Any]) -> cudaError_t:
        converted = [kind(int(value)) for kind, value in zip(kinds, given, strict=True)]
        return cudaError_t(getattr(self._library, name)(*converted))

    def _made(self, name: str, given: Sequence[Any]) -> tuple[cudaError_t, int]:
        out = HANDLE()
        converted = [kind(int(value)) for kind, value in zip(MAKING[name], given, strict=True)]
        status = getattr(self._library, name)(ctypes.byref(out), *converted)
        return cudaError_t(status), out.value or 0

    # Results for the tests

    def use(self, card: Card) -> None:
        self._card = card
        self._library.device_is(card.capability, card.multiprocessors, card.shared_kib << 10, card.threads)

    def counted(self, name: str) -> int:
        """A count of `cudart.c`."""
        found: int = self._library.counted(name.encode())
        assert found >= 0, f"cudart.c does not count {name}"
        return found

    def wrong_uses(self) -> list[str]:
        """Uses since the process began that CUDA forbids or leaves undefined, in order."""
        text: bytes = self._library.wrong_uses()
        return text.decode().splitlines()

    @contextmanager
    def recording(self) -> Iterator[list[str]]:
        """Record the names of the kernels and functions that the block launches; the list fills at its
        end."""
        names: list[str] = []
        self._library.record(1)
        yield names
        self._library.record(0)
        names += self._library.recorded().decode().splitlines()


def install(libraries: Sequence[Path]) -> Runtime:
    """Load libraries, libcudart first, and put the module in cuda-python's place for the rest of the process.

    If a library of a name is loaded, the loader returns it for every later request of the name.
    """
    loaded = [ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL) for path in libraries]
    runtime = Runtime(loaded[0])
    bindings: Any = types.ModuleType("cuda.bindings")
    cuda: Any = types.ModuleType("cuda")
    cuda.bindings, bindings.runtime = bindings, runtime
    sys.modules |= {"cuda": cuda, "cuda.bindings": bindings, "cuda.bindings.runtime": runtime}
    return runtime
