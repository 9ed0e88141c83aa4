"""Seats and steps of the flow, on a graph whose arithmetic can be done in the head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.contract.graphs import Dimensions
from appliance.engine.flow import Flow, LaneState
from tests.engine.lanes import Watched

D = Dimensions(dim=2, depth=1, mels=3)
ROWS = 10


class Euler:
    """Velocity = Σ combine_g · (mean of condition_g) + the row's own number, wherever a frame is valid."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        x, seen = inputs["latents"], inputs["condition"]
        self.shapes.append(seen.shape)
        row = inputs["mod_table"][inputs["step_index"]][:, 0, 0]
        velocity = (inputs["combine"][:, :, None] * seen.mean(axis=3)).sum(axis=1) + row[:, None]
        valid = np.arange(x.shape[1]) < inputs["lengths"][:, None]
        outputs["latents_out"][:] = x + inputs["dt"][:, None, None] * (velocity * valid)[..., None]


@pytest.fixture
def backend() -> Watched:
    return Watched()


@pytest.fixture
def graph() -> Euler:
    return Euler()


@pytest.fixture
def flow(graph: Euler, backend: Watched) -> Flow:
    table = np.zeros((ROWS, D.rows, D.dim), np.float32)
    table[:, 0, 0] = np.arange(ROWS)
    return Flow(graph, backend, table, D)


def lane(start: float, frames: int, rows: list[int], dt: list[float], guidance: float = 0.0) -> LaneState:
    condition = np.zeros((2, frames, D.dim), np.float32)
    condition[0], condition[1] = 1.0, 4.0
    return LaneState(
        latents=np.full((frames, D.mels), start, np.float32),
        condition=condition,
        frames=frames,
        rows=np.array(rows, np.int32),
        dt=np.array(dt, np.float32),
        combine=(1.0 + guidance, -guidance) if guidance else (1.0,),
    )


def latents(state: LaneState) -> NDArray[np.float32]:
    return np.asarray(state.latents)


def test_each_lane_has_its_own_row_step_and_guidance(flow: Flow) -> None:
    one = lane(0.0, 4, [3, 5], [0.5, 0.25])
    two = lane(10.0, 6, [1, 2, 7], [0.1, 0.2, 0.4], guidance=2.0)
    flow.step([two], 6)
    flow.step([one, two], 6)
    flow.leave(one)
    # one: 1·1 + row 3, half a step; two: 3·1 − 2·4 + rows 1 and 2.
    assert latents(one) == pytest.approx(np.full((4, 3), 0.5 * (1 + 3)))
    assert latents(two) == pytest.approx(np.full((6, 3), 10 + 0.1 * (-5 + 1) + 0.2 * (-5 + 2)))
    assert (one.steps_left, two.steps_left) == (1, 1)


def test_a_batch_stays_seated_while_its_members_stay(flow: Flow, backend: Watched) -> None:
    members = [lane(0.0, 4, [1] * 6, [0.1] * 6), lane(0.0, 5, [1] * 6, [0.1] * 6)]
    flow.step(members, 5)
    before = len(backend.allocated), backend.copies
    for _ in range(4):
        flow.step(members, 5)
    assert (len(backend.allocated), backend.copies) == before
    flow.step(members[::-1], 5)  # another order is another batch
    assert len(backend.allocated) > before[0]
    flow.leave(members[0])
    for member in members:
        assert latents(member) == pytest.approx(np.full(latents(member).shape, 6 * 0.1 * 2), abs=1e-6)


def test_other_padding_is_another_batch(flow: Flow, graph: Euler) -> None:
    member = lane(0.0, 4, [1] * 3, [0.1] * 3)
    for frames in (4, 8, 8):
        flow.step([member], frames)
    flow.leave(member)
    assert graph.shapes == [(1, 1, 4, 2), (1, 1, 8, 2), (1, 1, 8, 2)]
    assert latents(member) == pytest.approx(np.full((4, 3), 0.6))


def test_one_guided_lane_makes_rows_for_all(flow: Flow, graph: Euler) -> None:
    plain, guided = lane(0.0, 3, [0], [1.0]), lane(0.0, 3, [0], [1.0], guidance=1.0)
    flow.step([plain, guided], 3)
    flow.leave(guided)
    assert graph.shapes == [(2, 2, 3, 2)]
    assert latents(plain) == pytest.approx(np.full((3, 3), 1.0))
    assert latents(guided) == pytest.approx(np.full((3, 3), 2.0 - 4.0))


def test_leaving_a_batch_that_one_does_not_sit_in_breaks_nothing_up(flow: Flow, backend: Watched) -> None:
    member, stranger = lane(0.0, 3, [1] * 3, [0.1] * 3), lane(5.0, 3, [1], [0.1])
    flow.step([member], 3)
    before = len(backend.allocated)
    flow.leave(stranger)
    flow.step([member], 3)
    assert len(backend.allocated) == before
    assert latents(stranger) == pytest.approx(np.full((3, 3), 5.0))


def test_what_is_forgotten_is_marked_as_lost(flow: Flow) -> None:
    member, other = lane(0.0, 3, [1] * 3, [0.1] * 3), lane(0.0, 3, [1], [0.1])
    flow.forget()
    flow.step([member], 3)
    flow.forget()
    assert member.lost and not other.lost
    flow.leave(member)
    flow.step([other], 3)
    flow.leave(other)
    assert latents(other) == pytest.approx(np.full((3, 3), 0.2))


def test_a_shorter_lane_is_followed_by_zeros(flow: Flow) -> None:
    short, long = lane(1.0, 2, [0], [0.0]), lane(1.0, 5, [0], [0.0])
    flow.step([short, long], 5)
    assert flow._batch is not None
    seated = np.asarray(flow._batch.inputs["latents"])
    assert not seated[0, 2:].any() and seated[1].all()
    assert not np.asarray(flow._batch.inputs["condition"])[0, :, 2:].any()
