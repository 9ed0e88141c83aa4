"""Memory of the rows of a lane: places and number of its bindings. The engine's tests prove its calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from appliance.contract.graphs import CONTEXT, Dimensions, signatures
from appliance.engine.host import HostMemory
from appliance.engine.rows import MOST_BOUND, SharedRows

pytestmark = pytest.mark.once

D = Dimensions(dim=2, depth=1, mels=3, inner=2)
LONGEST, LONGEST_REFERENCE = 256, 40
AFTER = ("step_keys", "step_reply")


class Memory(HostMemory):
    """A backend of padded rows that records bindings and computes nothing."""

    name = label = "memory"
    frame_multiple = 64

    def __init__(self) -> None:
        self.bound: list[Mapping[str, Any]] = []

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Memory:
        self.bound.append(inputs)
        return self

    def run(self, *, release: bool = False, capture: bool = False) -> None:
        pass


def rows_of(backend: Memory, *names: str, rows: int = 2) -> SharedRows:
    sizes = {"mod_table": (4, D.rows, D.dim), "latents": (LONGEST, D.mels), "condition": (LONGEST, D.dim)}
    shared = {name: backend.empty(shape, "float32") for name, shape in sizes.items()}
    capacity = {"R": rows, "N": LONGEST, "P": LONGEST_REFERENCE, "C": CONTEXT}
    specs = {name: signatures(D)[name] for name in names}
    return SharedRows(backend, specs, lambda name: backend, shared, capacity)  # type: ignore[arg-type]


def run(rows: SharedRows, *graphs: str, times: Sequence[int] = (0,)) -> None:
    for graph in graphs:
        rows.run(graph, times, release=False, capture=False)


def test_every_tensor_is_bound_where_its_allocation_begins() -> None:
    """TensorRT needs addresses at multiples of 256 bytes; an allocation starts at such an address."""
    backend = Memory()
    begins: set[int] = set()

    def empty(shape: Any, dtype: str) -> Any:
        array = HostMemory.empty(backend, shape, dtype)
        begins.add(array.ctypes.data)
        return array

    backend.empty = empty  # type: ignore[method-assign]
    plain, after = rows_of(backend, "step"), rows_of(backend, *AFTER, rows=1)
    plain.take([70, 70], 128)
    run(plain, "step", times=(0, 0))
    for reference in (11, 40):
        after.take([70], 128, reference)
        run(after, *AFTER)
    assert {array.ctypes.data for given in backend.bound for array in given.values()} <= begins


def test_recent_bindings_are_reused() -> None:
    backend = Memory()
    rows = rows_of(backend, *AFTER, rows=1)

    def bindings(frames: int, reference: int) -> int:
        before = len(backend.bound)
        rows.take([frames], -(-frames // 64) * 64, reference)
        run(rows, *AFTER)
        return len(backend.bound) - before

    assert [bindings(frames, 11) for frames in (70, 100, 150) * 3] == [2, 0, 2, *[0] * 6]
    latest = range(LONGEST_REFERENCE, LONGEST_REFERENCE - MOST_BOUND // 2, -1)
    for reference in range(1, LONGEST_REFERENCE + 1):
        bindings(64, reference)
    assert sum(bindings(64, reference) for reference in latest) == 0
    assert bindings(64, latest[-1] - 1) == 2
