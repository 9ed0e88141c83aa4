"""Synthesise with the tiny bundle on this machine's processor: `python -m tests.arm64.tensors OUT.npz`."""

import sys

import numpy as np

from appliance.contract import bundle
from appliance.engine.engine import Synthesizer
from appliance.engine.ort import OrtBackend
from tests.engine.lanes import MIXED, SAMPLINGS, FloatArray, moved
from tests.harness.daemons import BUNDLE


def tensors() -> dict[str, FloatArray]:
    """Log-mel and samples, one segment of each sampling."""
    engine = Synthesizer(bundle.read(BUNDLE), OrtBackend(1))
    found = {}
    for sampling in SAMPLINGS:
        given = next(segment for segment in MIXED if segment.sampling == sampling)
        lane = engine.open(given)
        for _ in range(lane.steps_left):
            engine.step([lane.id])
        found[f"log-mel, {sampling}"] = moved(engine, lane.id, given)
        found[f"samples, {sampling}"] = engine.finish(lane.id)
        engine.close(lane.id)
    return found


if __name__ == "__main__":
    np.savez(sys.argv[1], **tensors())  # type: ignore[arg-type]
