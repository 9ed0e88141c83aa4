"""Rows of a slab: which calls they make, what moves when one leaves, and what each call is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from appliance.contract.graphs import CONTEXT, Dimensions, signatures
from appliance.engine.backend import Bound, Tensor
from appliance.engine.ort import HostMemory
from appliance.engine.slab import Slab, SlabRow

pytestmark = pytest.mark.once

D = Dimensions(dim=2, depth=1, mels=3, inner=2)
SIZES = {"N": 64, "P": 40, "C": CONTEXT}
STEPS = ("step_keys", "step_reply")


class Memory(HostMemory):
    """A backend whose graphs note what they are given, and give each row's time as its velocity."""

    name = "memory"
    buckets: tuple[int, ...] = ()

    def __init__(self, *, exact: bool, max_batch: int) -> None:
        self.exact_shapes, self.max_batch = exact, max_batch
        self.bindings = 0
        self.calls: list[dict[str, Any]] = []
        self.copied = 0

    def copy(self, source: Tensor, to: Tensor) -> None:
        self.copied += np.asarray(source).nbytes
        super().copy(source, to)

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Bound:
        self.bindings += 1
        backend = self

        class Call:
            def run(self, *, release: bool = False) -> None:
                backend.calls.append({name: np.array(array) for name, array in inputs.items()})
                outputs["velocity"][:] = inputs["step_index"][:, None, None]

        return Call()


def slab(*, exact: bool = False, max_batch: int = 1, capacity: int = 8) -> tuple[Slab, Memory]:
    backend = Memory(exact=exact, max_batch=max_batch)
    specs = {name: signatures(D)[name] for name in STEPS}
    table = backend.empty((4, D.rows, D.dim), "float32")
    return Slab(backend, specs, lambda name: backend, SIZES, capacity, table), backend  # type: ignore[arg-type]


def joined(slab: Slab, lengths: Sequence[tuple[int, int]]) -> list[SlabRow]:
    return [slab.join(frames, reference) for frames, reference in lengths]


def content(row: SlabRow, *, exact: bool) -> dict[str, Any]:
    """All that the slab holds of a row; where shapes are exact, all that counts."""
    out = {}
    for name, tensor in row.slab.tensors.items():
        own = np.asarray(tensor)[row.place]
        if exact and own.ndim:
            axis = "N" if name in ("latents", "condition", "velocity") else "P"
            own = own[: row.slab.sizes_of(row)["C" if name.startswith("context") else axis]]
        if name != "step_index":
            out[name] = own.copy()
    return out


@pytest.mark.parametrize(
    ("max_batch", "places", "spans"),
    [
        (1, [0, 1, 2], [(0, 1), (1, 1), (2, 1)]),
        (4, [0, 1, 2], [(0, 3)]),
        (4, [0, 1, 2, 3, 4, 5], [(0, 4), (4, 2)]),
        (4, [0, 2, 3, 5], [(0, 1), (2, 2), (5, 1)]),
        (2, [1, 2, 3, 5, 6], [(1, 2), (3, 1), (5, 2)]),
        (8, [7], [(7, 1)]),
    ],
)
def test_neighbours_share_calls_and_gaps_part_them(
    max_batch: int, places: list[int], spans: list[tuple[int, int]]
) -> None:
    rows, backend = slab(max_batch=max_batch)
    members = joined(rows, [(8 + i, 4) for i in range(8)])
    rows.run("step_keys", [members[i] for i in places], [0] * len(places))
    found = [(int(call["lengths"][0]) - 8, len(call["lengths"])) for call in backend.calls]
    assert found == spans
    assert all(call["latents"].shape == (n, 64, 3) for call, (_, n) in zip(backend.calls, spans, strict=True))


def test_each_row_has_a_time_of_its_own_whatever_the_order() -> None:
    rows, backend = slab(max_batch=4)
    members = joined(rows, [(8, 4)] * 5)
    rows.run("step_reply", [members[i] for i in (3, 0, 1, 4)], [13, 10, 11, 14])
    assert [call["step_index"].tolist() for call in backend.calls] == [[10, 11], [13, 14]]
    rows.run("step_reply", members, [20, 21, 22, 23, 24])
    assert [call["step_index"].tolist() for call in backend.calls[2:]] == [[20, 21, 22, 23], [24]]
    assert np.asarray(rows.tensors["velocity"])[:5, 0, 0].tolist() == [20, 21, 22, 23, 24]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("leaving", [0, 1, 3])
def test_where_rows_are_batched_the_last_one_moves_into_the_hole(exact: bool, leaving: int) -> None:
    rows, _ = slab(exact=exact)
    members = joined(rows, [(8, 4), (20, 0), (33, 11), (60, 40)])
    rng = np.random.default_rng(1)
    for name, tensor in rows.tensors.items():
        if name not in ("lengths", "reference_lengths"):
            array = np.asarray(tensor)
            array[:] = rng.integers(1, 99, array.shape)
    times = dict(zip(members, (5, 6, 7, 8), strict=True))
    rows.run("step_keys", members, list(times.values()))
    before = {row: content(row, exact=exact) for row in members}
    gone = members.pop(leaving)
    rows.leave(gone)
    assert rows.rows == 3
    if exact:
        assert [row.place for row in members] == [place for place in range(4) if place != leaving]
    else:
        assert sorted(row.place for row in members) == [0, 1, 2]
        if leaving < 3:
            assert members[-1].place == leaving
    for row in members:
        after = content(row, exact=exact)
        assert set(after) == set(before[row])
        for name, array in after.items():
            assert np.array_equal(array, before[row][name]), name
    assert before[members[-1]]["lengths"] == members[-1].frames
    rows.run("step_keys", members[:1], [9])
    index = np.asarray(rows.tensors["step_index"])
    assert [index[row.place] for row in members] == [9, *(times[row] for row in members[1:])]


def test_rows_of_exact_shapes_stay_where_they_are_and_a_hole_is_filled_next() -> None:
    rows, backend = slab(exact=True)
    first, second = joined(rows, [(60, 40), (2, 0)])
    rows.leave(first)
    assert backend.copied == 0 and second.place == 1
    assert rows.join(5, 0).place == 0


def test_a_row_of_exact_shapes_is_given_at_its_length_and_a_padded_one_whole() -> None:
    for exact, n, p, c in ((True, 50, 7, 7), (True, 50, 38, 30), (True, 50, 0, 0), (False, 64, 40, 30)):
        rows, backend = slab(exact=exact)
        (row,) = joined(rows, [(50, 38 if not exact else p)])
        rows.run("step_keys", [row], [0])
        rows.run("step_reply", [row], [0])
        keys, reply = backend.calls
        assert keys["latents"].shape == (1, n, 3) and keys["reference"].shape == (1, p, 3)
        assert reply["context"].shape == (1, c, 3) and reply["keys_0"].shape == (1, p, 2)


def test_the_reference_stands_at_the_end_of_its_frames() -> None:
    rows, backend = slab()
    (row,) = joined(rows, [(50, 11)])
    backend.upload(np.ones((11, 3), np.float32), row.view_reference("reference"))
    backend.upload(np.ones((4, 3), np.float32), row.view_reference("context", 4))
    assert np.asarray(rows.tensors["reference"])[0, :, 0].tolist() == [0] * 29 + [1] * 11
    assert np.asarray(rows.tensors["context"])[0, :, 0].tolist() == [0] * 26 + [1] * 4


def test_what_was_bound_is_not_bound_again() -> None:
    rows, backend = slab(max_batch=4)
    members = joined(rows, [(8, 4)] * 3)
    for _ in range(3):
        rows.run("step_keys", members, [0, 1, 2])
    assert backend.bindings == 1
    rows.leave(members[0])
    rows.run("step_keys", [members[2]], [0])
    rows.run("step_keys", joined(rows, [(9, 5)]), [0])
    rows.run("step_keys", members[1:], [0, 1])
    assert backend.bindings == 4


def test_a_full_slab_says_so() -> None:
    rows, _ = slab(capacity=2)
    members = joined(rows, [(8, 4)] * 2)
    with pytest.raises(RuntimeError, match="all 2 rows of a bucket are taken"):
        rows.join(8, 4)
    rows.leave(members[0])
    assert rows.join(8, 4).place == 1
