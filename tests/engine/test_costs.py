"""Estimates of an engine with exact call times: fitted, predicted for other lengths, learned, reset."""

import math
from collections.abc import Callable

import pytest

from appliance.contract.graphs import Dimensions
from appliance.contract.sampler import UPSTREAM
from appliance.engine.calls import calls_alone
from appliance.engine.costs import CLAMP, LEARNING, CostTable, StepCall, Steps
from appliance.request import Segment
from tests.engine.lanes import segment

pytestmark = pytest.mark.once

NFE = 4
DIT = Dimensions(dim=64, depth=2, mels=100, inner=48)
Seconds = Callable[[str, Steps], float]


def calls_of(steps: Steps) -> list[StepCall]:
    return [call for given, step in steps for call in calls_alone(given, step, 64, 2, UPSTREAM, DIT)]


def of_a_device(call: str, steps: Steps) -> float:
    """2 ms a call, 3 µs a frame, 1 ns a pair; opening and finishing 1 ms and 2 µs a frame."""
    if call == "step":
        return sum(2e-3 + 3e-6 * c.tokens + 1e-9 * c.pairs for c in calls_of(steps))
    given = steps[0][0]
    return 1e-3 + 2e-6 * (given.frames - (given.reference_frames if call == "finish" else 0))


def warm(seconds: Seconds = of_a_device) -> CostTable:
    table = CostTable(calls_of)
    for frames in (80, 160, 300, 560, 1000):
        for part in (4, 2):
            given = spoken(frames, frames // part)
            for call, steps in calls(given):
                table.measure(call, steps, seconds(call, steps))
    table.fit()
    return table


def spoken(frames: int, reference: int) -> Segment:
    return segment(frames, reference=reference, nfe=NFE, sampling="short-kv")


def calls(given: Segment) -> list[tuple[str, Steps]]:
    return [
        ("open", [(given, 0)]),
        *(("step", [(given, step)]) for step in range(NFE)),
        ("finish", [(given, NFE)]),
    ]


@pytest.mark.parametrize(("frames", "reference"), [(120, 40), (700, 469), (1254, 469), (2000, 900)])
def test_lengths_that_were_never_measured_are_predicted(frames: int, reference: int) -> None:
    given, table = spoken(frames, reference), warm()
    cost = table.of(given)
    found = [cost.open_s, *cost.steps_s, cost.finish_s]
    assert found == pytest.approx([of_a_device(call, steps) for call, steps in calls(given)], rel=1e-6)
    together = [(given, 0), (spoken(300, 100), 1)]
    assert table.together(together) == pytest.approx(of_a_device("step", together), rel=1e-6)


def test_short_calls_count_as_much_as_long_ones() -> None:
    """A disturbed length moves the estimates of shorter ones twice as far in a fit of absolute errors."""

    def disturbed(call: str, steps: Steps) -> float:
        return of_a_device(call, steps) * (1.3 if steps[0][0].frames == 300 else 1.0)

    given = spoken(80, 20)
    found, usual = (warm(seconds).of(given).whole_s for seconds in (disturbed, of_a_device))
    assert found == pytest.approx(usual, rel=0.04)


def test_a_measurement_moves_the_estimate_of_its_size_alone() -> None:
    table, steps, other = warm(), [(spoken(300, 100), 0)], [(spoken(900, 300), 0)]
    usual, unmoved = table.together(steps), table.together(other)
    table.learn("step", steps, 1.5 * usual)
    assert table.together(steps) == pytest.approx(usual * (1 + 0.5 * LEARNING))
    assert table.together(other) == unmoved
    for _ in range(200):
        table.learn("step", steps, 1.5 * usual)
    assert table.together(steps) == pytest.approx(1.5 * usual, rel=1e-3)
    assert table.measured_s == pytest.approx(201 * 1.5 * usual)
    assert usual * 201 < table.predicted_s < table.measured_s
    for wild in (100.0, 0.001):
        for _ in range(400):
            table.learn("step", steps, wild * usual)
        assert table.together(steps) == pytest.approx(usual * (CLAMP if wild > 1 else 1 / CLAMP), rel=1e-3)


def test_a_reset_forgets_measurements_and_keeps_the_warm_ups_scale() -> None:
    table, steps = warm(), [(spoken(300, 100), 0)]
    usual = table.together(steps)
    table.check(1.0, 1.2)
    assert table.together(steps) == pytest.approx(usual), "within what is trusted"
    table.check(1.0, 1.6)
    assert table.together(steps) == pytest.approx(1.6 * usual)
    table.learn("step", steps, 1.0 * usual)
    assert table.together(steps) < 1.6 * usual
    table.reset()
    assert table.together(steps) == pytest.approx(1.6 * usual)
    table.check(1.0, 50.0)
    assert table.together(steps) == pytest.approx(CLAMP * usual)


def test_nothing_is_estimated_before_the_warm_up() -> None:
    table, given = CostTable(calls_of), spoken(300, 100)
    table.learn("step", [(given, 0)], 1.0)
    assert table.of(given).whole_s == 0.0 and math.isfinite(table.measured_s)
