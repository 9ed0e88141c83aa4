"""Error of lossy arithmetic, relative to the error that few steps cause."""

from __future__ import annotations

import dataclasses

import numpy as np

from appliance.contract.schedule import time_grid
from appliance.engine.engine import Synthesizer
from appliance.request import FloatArray, Segment

NFE, FINE_NFE = 7, 32
ALLOWED = 0.25
"""Largest `share`: below it, most of a sample's error is that of its few steps."""


def share(engine: Synthesizer, exact: Synthesizer, segment: Segment) -> float:
    """Mean absolute difference of the generated log-mel between `engine` and `exact` at NFE 7, divided by
    that between NFE 7 and NFE 32 on `exact`. Raises ValueError, EngineFault."""
    expected = _sample(exact, segment, NFE)
    lossy = np.abs(_sample(engine, segment, NFE) - expected).mean()
    return float(lossy / np.abs(_sample(exact, segment, FINE_NFE) - expected).mean())


def _sample(engine: Synthesizer, segment: Segment, nfe: int) -> FloatArray:
    """(generated frames, M) log-mel."""
    defaults = engine.manifest.defaults
    times = time_grid(nfe, grid=defaults.grid, sway=defaults.sway)
    lane = engine.open(dataclasses.replace(segment, times=times))
    try:
        for _ in range(lane.steps_left):
            engine.step([lane.id])
        return engine.log_mel(lane.id)[len(segment.reference_log_mel) :]
    finally:
        engine.close(lane.id)
