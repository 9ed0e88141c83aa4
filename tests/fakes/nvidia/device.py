"""The device: memory poisoned until written, streams that run when waited for, a list of wrong uses."""

from __future__ import annotations

import ctypes
import threading
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

POISON = 0xFF
"""NaN in every floating type, −1 in every integer."""
ALIGNMENT = 256
"""Alignment of the addresses that cudaMalloc returns."""


class WrongUse(AssertionError):
    """The program broke a rule of CUDA that a real device may or may not notice."""


@dataclass
class Block:
    """An allocation of device memory or pinned memory."""

    memory: NDArray[np.uint8]
    address: int
    size: int


@dataclass
class Event:
    """An event passes when all work enqueued before it has run."""

    stream: Stream | None = None
    """Stream that recorded it, or None."""
    has_passed: bool = False

    def set(self) -> None:
        self.has_passed = True


@dataclass
class Node:
    """Captured work, the check before each replay, and the context that it came from."""

    work: Callable[[], None]
    check: Callable[[str], None]
    """Called with the current action; raises WrongUse."""
    context: int = 0


@dataclass
class Capture:
    """Captured work of a stream, which does not run."""

    nodes: list[Node] = field(default_factory=list)
    is_spoilt: bool = False
    """True if work was tried that cannot be captured."""


class Stream:
    """Work in order, which runs only when something waits for it: a missing wait always shows."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self.capture: Capture | None = None
        self._work: deque[Callable[[], None]] = deque()
        self._running = threading.RLock()
        """Lock of the work: any thread may wait for the device."""

    def take(self, node: Node) -> None:
        node.check("")
        if self.capture is None:
            self.enqueue(node.work)
        else:
            self.capture.nodes.append(node)

    def enqueue(self, work: Callable[[], None]) -> None:
        self._work.append(work)

    def run(self, until: Callable[[], bool] = lambda: False) -> None:
        """Run the enqueued work, in order, until the condition holds."""
        with self._running:
            while self._work and not until():
                try:
                    self._work.popleft()()
                except BaseException as error:
                    self.failure = self.failure or error


class Device:
    def __init__(self, memory_bytes: int = 1 << 34) -> None:
        self.memory_bytes = memory_bytes
        self.name, self.compute_capability, self.driver = "Orin", (8, 7), 12060
        self.multiprocessors = 16
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        """Wrong uses, even if the caller ignored the error."""
        self._blocks: dict[str, dict[int, Block]] = {"device": {}, "pinned": {}}
        self._retired: list[Block] = []
        """Freed memory, which stays allocated so that no address is reused and stale addresses are
        recognised."""
        self.streams: dict[int, Stream] = {}
        self.events: dict[int, Event] = {}
        self.graphs: dict[int, list[Node]] = {}
        """CUDA graphs as they were captured."""
        self.executable: dict[int, list[Node]] = {}
        """CUDA graphs that can be launched."""
        self.workspaces: dict[int, tuple[int, int]] = {}
        """Address and size of the working memory of each execution context."""
        self.can_instantiate = True
        """True if the device has memory for another executable CUDA graph."""
        self._handles = iter(range(0x1000, 1 << 30, 0x10))

    def handle(self) -> int:
        return next(self._handles)

    def refuse(self, message: str) -> WrongUse:
        self.wrong.append(message)
        return WrongUse(message)

    def outside_a_capture(self, what: str) -> None:
        """Raises WrongUse if a stream is captured: a wait, an allocation or a release is forbidden then."""
        if any(stream.capture is not None for stream in [*self.streams.values()]):
            raise self.refuse(f"{what} while a stream is captured")

    def allocated(self, kind: str) -> int:
        return sum(block.size for block in [*self._blocks[kind].values()])

    def allocate(self, size: int, kind: str) -> int:
        """Address of poisoned memory; 0 if the device has too little left."""
        self.outside_a_capture(f"{kind} memory is allocated")
        if kind == "device" and size + self.allocated(kind) > self.memory_bytes:
            return 0
        memory = np.full(size + ALIGNMENT, POISON, np.uint8)
        address = -(-memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        self._blocks[kind][address] = Block(memory, address, size)
        self.counts[f"allocate {kind}"] += 1
        return address

    def free(self, address: int, kind: str) -> None:
        """Retire and poison an allocation. Raises WrongUse if nothing is allocated there."""
        block = self._blocks[kind].pop(address, None)
        if block is None:
            raise self.refuse(f"freed {kind} memory that is not allocated: {address:#x}")
        block.memory[:] = POISON
        self._retired.append(block)

    def is_in(self, address: int, size: int, kind: str) -> bool:
        blocks = self._blocks[kind]
        starts = sorted(blocks)
        at = bisect_right(starts, address) - 1
        return at >= 0 and address + size <= starts[at] + blocks[starts[at]].size

    def check(self, address: int, size: int, kind: str, what: str) -> None:
        """Raises WrongUse unless the bytes lie within one allocation of that kind."""
        if size == 0 or self.is_in(address, size, kind):
            return
        stale = any(b.address <= address < b.address + b.size for b in self._retired)
        where = "freed" if stale else "beyond an allocation, or not of it"
        raise self.refuse(f"{what}: {size} bytes at {address:#x} are {where} ({kind})")

    def stream(self, handle: int) -> Stream:
        """Stream of a handle. Raises WrongUse if there is none."""
        if handle not in self.streams:
            raise self.refuse(f"no stream {handle:#x}")
        return self.streams[handle]


def move(to: int, source: int, size: int) -> None:
    ctypes.memmove(to, source, size)
