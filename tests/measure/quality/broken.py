"""Steps broken on purpose, each a mistake that a change to the engine could make without raising anything."""

import numpy as np

from appliance.engine.flow import LaneState
from tests.measure.quality.mouth import Damage


def guidance_exchanged(lane: LaneState) -> None:
    """The guided and the unguided row have changed places."""
    lane.weights = lane.weights[:, ::-1].copy()


def time_stands_still(lane: LaneState) -> None:
    """Every step reads the modulation rows of the first."""
    lane.times = np.full_like(lane.times, lane.times[0])


def half_steps(lane: LaneState) -> None:
    """Every step goes half as far as it should."""
    lane.weights = lane.weights / 2


BROKEN: dict[str, Damage] = {d.__name__: d for d in (guidance_exchanged, time_stands_still, half_steps)}
