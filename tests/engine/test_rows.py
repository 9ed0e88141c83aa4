"""Rows of a lane: what each call is given, where it is bound, and what earlier rows leave behind."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from appliance.contract.graphs import CONTEXT, Dimensions, signatures
from appliance.engine.backend import Bound
from appliance.engine.host import HostMemory
from appliance.engine.rows import MOST_BOUND, PADDED, SharedRows

pytestmark = pytest.mark.once

D = Dimensions(dim=2, depth=1, mels=3, inner=2)
LONGEST, LONGEST_REFERENCE = 256, 40
AFTER = ("step_keys", "step_reply")


class Memory(HostMemory):
    """A backend whose graphs note what they are given, and give each row's time as its velocity."""

    name = label = "memory"

    def __init__(self, multiple: int = 64) -> None:
        self.frame_multiple = multiple
        self.bindings = 0
        self.calls: list[dict[str, Any]] = []
        self.given: list[Mapping[str, Any]] = []

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Bound:
        self.bindings += 1
        backend = self

        class Call:
            def run(self, *, release: bool = False, capture: bool = False) -> None:
                backend.given.append(inputs)
                backend.calls.append({name: np.array(array) for name, array in inputs.items()})
                outputs["velocity"][:] = inputs["step_index"][:, None, None]

        return Call()


def rows_of(backend: Memory, *names: str, rows: int = 2) -> SharedRows:
    shared: dict[str, Any] = {"mod_table": backend.empty((4, D.rows, D.dim), "float32")}
    if backend.frame_multiple > 1:
        shared["latents"] = backend.empty((LONGEST, D.mels), "float32")
        shared["condition"] = backend.empty((LONGEST, D.dim), "float32")
    capacity = {"R": rows, "N": LONGEST, "P": LONGEST_REFERENCE, "C": CONTEXT}
    specs = {name: signatures(D)[name] for name in names}
    return SharedRows(backend, specs, lambda name: backend, shared, capacity)  # type: ignore[arg-type, return-value]


def run(rows: SharedRows, *graphs: str, times: Sequence[int] = (0,)) -> None:
    for graph in graphs:
        rows.run(graph, times, release=False, capture=False)


def share(together: SharedRows, members: Sequence[SharedRows], *times: int) -> None:
    together.run_for(members, "step", times, release=False, capture=False)


def fill(rows: SharedRows, value: float, *names: str) -> None:
    """Write a value into the true frames of each row."""
    for name, (row, frames) in itertools.product(names, enumerate(rows.lengths)):
        np.asarray(rows.view(name, frames, row=row))[:] = value + row


def test_rows_lie_one_after_the_other_and_each_has_its_time() -> None:
    backend = Memory()
    rows = rows_of(backend, "step")
    rows.take([70, 70], 128)
    fill(rows, 5.0, "latents")
    run(rows, "step", times=(2, 3))
    (call,) = backend.calls
    assert call["latents"].shape == (2, 128, 3)
    assert call["latents"][:, :70].mean((1, 2)).tolist() == [5.0, 6.0]
    assert call["lengths"].tolist() == [70, 70] and call["step_index"].tolist() == [2, 3]
    assert np.asarray(rows.view("velocity", 70, row=1)).mean() == 3.0


@pytest.mark.parametrize(("reference", "context"), [(7, 7), (30, 30), (38, 30)])
@pytest.mark.parametrize(("multiple", "n"), [(1, 50), (64, 64)])
def test_a_reference_is_given_at_its_true_length(reference: int, context: int, multiple: int, n: int) -> None:
    backend = Memory(multiple)
    rows = rows_of(backend, *AFTER, rows=1)
    rows.take([50], n, reference)
    run(rows, *AFTER)
    keys, reply = backend.calls
    assert keys["latents"].shape == (1, n, 3) and keys["reference"].shape == (1, reference, 3)
    assert reply["context"].shape == (1, context, 3) and reply["keys_0"].shape == (1, reference, 2)
    assert keys["reference_lengths"].tolist() == [reference]


def test_every_tensor_is_bound_where_its_allocation_begins() -> None:
    """TensorRT needs addresses at multiples of 256 bytes, which those of allocations are."""
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
    assert {array.ctypes.data for given in backend.given for array in given.values()} <= begins


def test_what_earlier_rows_left_in_the_padding_is_blank() -> None:
    backend = Memory()
    rows, other = rows_of(backend, "step"), rows_of(backend, "step")
    for lengths in ([128, 128], [70, 3], [100, 127]):
        rows.take(lengths, 128)
        other.take([90], 128)
        fill(rows, np.nan, *PADDED)
        fill(other, 1.0, *PADDED)
    together = rows_of(backend, "step", rows=3)
    share(together, [rows, other], 0, 0, 0)
    rows.take([70, 65], 128)
    fill(rows, 1.0, *PADDED)
    run(rows, "step", times=(0, 0))
    share(together, [rows, other], 0, 0, 0)
    for call in backend.calls[1:]:
        for name in PADDED:
            for row, length in zip(call[name], call["lengths"], strict=True):
                assert (row[:length] >= 1.0).all() and (row[length:] == 0.0).all()


def test_rows_of_several_lanes_share_a_call_and_get_their_own_velocities() -> None:
    backend = Memory()
    one, two = rows_of(backend, "step"), rows_of(backend, "step")
    one.take([70, 70], 128)
    two.take([20], 64)
    fill(one, 5.0, "latents")
    fill(two, 8.0, "latents")
    together = rows_of(backend, "step", rows=4)
    share(together, [two, one], 9, 3, 4)
    (call,) = backend.calls
    assert call["latents"].shape == (3, 128, 3) and call["lengths"].tolist() == [20, 70, 70]
    means = [row[:length].mean() for row, length in zip(call["latents"], (20, 70, 70), strict=True)]
    assert means == [8, 5, 6]
    assert np.asarray(two.view("velocity", 20)).mean() == 9.0
    assert [np.asarray(one.view("velocity", 70, row=row)).mean() for row in (0, 1)] == [3.0, 4.0]


def test_what_was_bound_lately_is_not_bound_again() -> None:
    backend = Memory()
    rows = rows_of(backend, *AFTER, rows=1)

    def bindings(frames: int, reference: int) -> int:
        before = backend.bindings
        rows.take([frames], -(-frames // 64) * 64, reference)
        run(rows, *AFTER)
        return backend.bindings - before

    assert [bindings(frames, 11) for frames in (70, 100, 150) * 3] == [2, 0, 2, *[0] * 6]
    latest = range(LONGEST_REFERENCE, LONGEST_REFERENCE - MOST_BOUND // 2, -1)
    for reference in range(1, LONGEST_REFERENCE + 1):
        bindings(64, reference)
    assert sum(bindings(64, reference) for reference in latest) == 0
    assert bindings(64, latest[-1] - 1) == 2
