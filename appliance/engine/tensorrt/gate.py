"""Comparison of a backend with the CPU's float32.

TensorRT has been silently wrong for this model at sizes other than the optimum (its issue 4450), and in fused
attention at single batch sizes (4837). So lengths and rows vary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from appliance.contract.bundle import Precision, Sampling
from appliance.contract.tokens import Vocabulary
from appliance.engine.cases import DemoSpeech
from appliance.engine.engine import Synthesizer
from appliance.errors import DeviceLost, EngineFault, OutOfDeviceMemory
from appliance.request import FloatArray, Segment

BOUNDS: dict[Precision, float] = {"fp32": 1e-3, "fp16": 3e-2, "int8": 1e-1, "int8-qdq": 1e-1}
"""Largest ‖a − b‖ / ‖b‖ of an output.

The bounds are chosen: half precision has 4e-3 on a CPU, blank audio 1.
"""
WHOLE = "sample"
"""Name of the comparison of a whole log-mel by `share`."""
NFE, FINE_NFE = 7, 32
ALLOWED_SHARE = 0.25
"""Largest share. With it, most of a sample's error comes from its few steps."""
LENGTHS = (16, 150, 512, 530, 1280, 1300)
"""Frames, besides the longest: on both sides of the ends of `build.RANGES`, mostly padded."""
REFERENCES = (40, 480, 1126)
TIMES = np.array([0.3, 0.45, 0.6])
"""Times of the steps. Only the first computes the reference's keys and values."""
USUAL = (400, 350)
"""Frames of reply and reference."""
FAILED: NDArray[np.generic] = np.full(1, np.nan, np.float32)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Distance of one graph's results from the CPU's."""

    graph: str
    frames: int
    reference: int
    rows: int
    error: float
    """Infinite if a number is not finite."""
    bound: float
    """Largest error that is allowed."""

    @property
    def holds(self) -> bool:
        return self.error <= self.bound

    def __str__(self) -> str:
        place = f" after {self.reference}" if self.reference else ""
        rows = f" in {self.rows} rows" if self.rows > 1 else ""
        return (
            f"{self.graph} at {self.frames} frames{place}{rows}: {self.error:.1e} off, {self.bound:g} allowed"
        )


def graphs_of(sampling: Sampling) -> tuple[str, ...]:
    """Graphs that a sampling uses."""
    steps = {
        "exact": ("step",),
        "short": ("step", "step_keys"),
        "short-kv": ("step", "step_keys", "step_reply"),
        "short-once": ("step", "step_keys", "step_reply"),
    }
    return ("condition", "vocoder", "update", *steps[sampling])


def compare(engine: Synthesizer, exact: Synthesizer, vocabulary: Vocabulary) -> Iterator[Comparison]:
    """Compare every graph with `exact`, the CPU's float32."""
    manifest = engine.manifest
    bound, speech = BOUNDS[manifest.precision], DemoSpeech(manifest, vocabulary)
    grid = manifest.times(manifest.sampler.nearest(NFE))
    for frames in _lengths(manifest.max_frames):
        segment = speech.segment(frames - frames // 3, frames // 3, grid, "exact", guidance=0.0)
        actual, expected = (_or_failed(partial(one.condition, segment), FAILED) for one in (engine, exact))
        yield Comparison("condition", frames, 0, 1, distance(actual, expected), bound)
        mel = speech.log_mel(frames)
        actual, expected = (_or_failed(partial(one.decode, mel), FAILED) for one in (engine, exact))
        yield Comparison("vocoder", frames, 0, 1, distance(actual, expected), bound)
    yield from compare_steps(engine, exact, speech, _lengths(manifest.max_frames))
    reply, reference = (min(n, manifest.max_frames // 2) for n in USUAL)
    defaults = manifest.defaults
    whole = speech.segment(reply, reference, grid, defaults.sampling, guidance=defaults.guidance)
    error = _or_failed(partial(share, engine, exact, whole), math.inf)
    yield Comparison(WHOLE, reply, reference, 1, error, ALLOWED_SHARE)


def compare_steps(
    engine: Synthesizer, exact: Synthesizer, speech: DemoSpeech, lengths: Sequence[int]
) -> Iterator[Comparison]:
    """Compare velocities, for rows of these lengths in frames."""
    manifest = engine.manifest
    used = graphs_of(manifest.defaults.sampling)
    after = [name for name in ("step_keys", "step_reply") if name in used]
    sampling: Sampling = "short-kv" if "step_reply" in used else "short"
    for number, frames in enumerate(lengths):
        # Both rows of a guided lane share a call.
        for guidance in (0.0, 1.0)[: manifest.sampler.most_rows]:
            alone = speech.segment(frames - 1, 1, TIMES[:2], "exact", guidance=guidance, seed=frames)
            yield from _steps(engine, exact, alone, ["step"])
        reply = min(frames, manifest.max_frames - REFERENCES[0])
        room = min(engine.longest_reference, manifest.max_frames - reply)
        if after:
            reference, times = min(REFERENCES[number % len(REFERENCES)], room), TIMES[: len(after) + 1]
            lane = speech.segment(reply, reference, times, sampling, guidance=0.0, seed=frames)
            yield from _steps(engine, exact, lane, after)


def share(engine: Synthesizer, exact: Synthesizer, segment: Segment) -> float:
    """Error of lossy arithmetic, relative to the error of few steps.

    It is the mean absolute difference of log-mel between `engine` and `exact` at the segment's steps, over
    the difference between these steps and FINE_NFE on `exact`. Raises ValueError, EngineFault.
    """
    fine = dataclasses.replace(segment, times=exact.manifest.defaults.times(FINE_NFE))
    expected = _sample(exact, segment)
    lossy = np.abs(_sample(engine, segment) - expected).mean()
    return float(lossy / np.abs(_sample(exact, fine) - expected).mean())


def _sample(engine: Synthesizer, segment: Segment) -> FloatArray:
    """(generated frames, M) log-mel."""
    lane = engine.open(segment)
    try:
        for _ in range(lane.steps_left):
            engine.step([lane.id])
        return engine.log_mel(lane.id)[len(segment.reference_log_mel) :]
    finally:
        engine.close(lane.id)


def _lengths(longest: int) -> list[int]:
    return [*(n for n in LENGTHS if n < longest), longest]


def distance(actual: NDArray[np.generic], expected: NDArray[np.generic]) -> float:
    """‖a − b‖ / ‖b‖, infinite if a number is not finite."""
    if not np.isfinite(actual).all():
        return math.inf
    a, b = actual.astype(np.float64), expected.astype(np.float64)
    return float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-12))


def _steps(
    engine: Synthesizer, exact: Synthesizer, segment: Segment, graphs: Sequence[str]
) -> Iterator[Comparison]:
    """Compare a segment whose successive steps run these graphs."""
    reference, bound = len(segment.reference_log_mel), BOUNDS[engine.manifest.precision]
    # With `exact`, a row includes the reference.
    frames = (segment.frames, 0) if segment.sampling == "exact" else (segment.frames - reference, reference)
    rows = engine.manifest.sampler.rows(segment.guidance)
    moved = zip(graphs, _velocities(engine, segment), _velocities(exact, segment), strict=True)
    for graph, actual, expected in moved:
        yield Comparison(graph, *frames, rows, distance(actual, expected), bound)


def _velocities(engine: Synthesizer, segment: Segment) -> list[FloatArray]:
    """Change of the generated frames in each step; NaN after a fault."""
    assert segment.noise is not None
    start = len(segment.reference_log_mel)
    before = segment.noise[start:]
    moved: list[FloatArray] = []
    lane = engine.open(segment)

    def step() -> None:
        nonlocal before
        for _ in range(lane.steps_left):
            engine.step([lane.id])
            after = engine.log_mel(lane.id)[start:]
            moved.append(after - before)
            before = after

    try:
        _or_failed(step, None)
    finally:
        engine.close(lane.id)
    return moved + [np.full_like(before, np.nan)] * (segment.nfe - len(moved))


def _or_failed(compute: Callable[[], T], failed: T) -> T:
    """Result of `compute`, or `failed` after an EngineFault. Raises DeviceLost, OutOfDeviceMemory."""
    try:
        return compute()
    except (DeviceLost, OutOfDeviceMemory):
        raise
    except EngineFault:
        return failed
