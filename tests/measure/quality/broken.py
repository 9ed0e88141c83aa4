"""Deliberately broken steps; each is a mistake that a change of the engine could make without an error."""

import numpy as np

from appliance.engine.flow import LaneState
from tests.measure.quality.mouth import Damage


def guidance_exchanged(lane: LaneState) -> None:
    """Exchange the guided and the unguided row."""
    lane.weights = lane.weights[:, ::-1].copy()


def time_stands_still(lane: LaneState) -> None:
    """Let every step read the modulation rows of the first."""
    lane.times = np.full_like(lane.times, lane.times[0])


def half_steps(lane: LaneState) -> None:
    """Let every step go half as far as it should."""
    lane.weights = lane.weights / 2


BROKEN: dict[str, Damage] = {d.__name__: d for d in (guidance_exchanged, time_stands_still, half_steps)}
