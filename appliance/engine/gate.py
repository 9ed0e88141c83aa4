"""Comparison of a backend's numbers with the CPU's float32, at every size that its graphs were built for.

TensorRT's engines have been silently wrong for this very model at sizes off those they were optimised for
(its issue 4450), and fused attention at single batch sizes (4837): so each number of frames is compared at
both its ends, at each number of rows, and one whole sample beside them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.contract.bundle import Precision, Sampling
from appliance.contract.schedule import time_grid
from appliance.contract.tokens import Vocabulary
from appliance.engine import agreement
from appliance.engine.cases import Speech
from appliance.engine.synthesizer import Synthesizer
from appliance.errors import DeviceLost, EngineFault, OutOfDeviceMemory
from appliance.job import FloatArray, Segment

BOUNDS: dict[Precision, float] = {"fp32": 1e-3, "fp16": 3e-2, "int8": 1e-1, "int8-qdq": 1e-1}
"""Largest ‖a − b‖ / ‖b‖ of a graph's output. Half precision is 4e-3 off on a CPU; blank or broken audio is
off by 1. Chosen, not measured: no device has been seen."""
WHOLE = "sample"
"""Stands for all graphs together: a reply's log-mel at 7 steps, as `agreement` measures it."""
LENGTHS = (16, 128, 512, 1280)
"""Frames at which condition and vocoder are compared, beside the bundle's longest."""
TIMES = np.array([0.3, 0.45, 0.6])
"""Times of the compared steps, between noise and speech; only the first computes keys and values anew."""
USUAL = (400, 350)
"""Frames of the reply and of the reference in the whole sample."""


@dataclass(frozen=True)
class Comparison:
    """One output of a graph at one size."""

    graph: str
    frames: int
    reference: int
    rows: int
    error: float
    """Infinite where a number is not finite, or the engine failed."""
    bound: float

    @property
    def holds(self) -> bool:
        """True if the error is within its bound."""
        return self.error <= self.bound

    def __str__(self) -> str:
        place = f" after {self.reference}" if self.reference else ""
        rows = f" in {self.rows} rows" if self.rows > 1 else ""
        return (
            f"{self.graph} at {self.frames} frames{place}{rows}: {self.error:.1e} off, {self.bound:g} allowed"
        )


def graphs_of(sampling: Sampling) -> tuple[str, ...]:
    """The graphs that a bundle of this sampling runs on a backend of fixed shapes, but for `modulation`."""
    steps = {
        "exact": ("step",),
        "short": ("step", "step_keys"),
        "short-kv": ("step", "step_keys", "step_reply"),
    }
    return ("condition", "vocoder", "update", *steps[sampling])


def compare(
    engine: Synthesizer, exact: Synthesizer, vocabulary: Vocabulary, buckets: Sequence[int], rows: int
) -> Iterator[Comparison]:
    """Every graph of `engine` against `exact`, at each of the buckets and at up to `rows` rows.

    `exact` computes on the CPU in float32; `engine` needs as many lanes as there are rows.
    """
    manifest = engine.manifest
    bound, speech = BOUNDS[manifest.precision], Speech(manifest, vocabulary)
    grid = time_grid(agreement.NFE, grid=manifest.defaults.grid, sway=manifest.defaults.sway)
    for frames in sorted({n for n in LENGTHS if n < manifest.max_frames} | {manifest.max_frames}):
        given = speech.segment(frames - frames // 3, frames // 3, grid, "exact", guidance=0.0)
        found, wanted = (_condition(one, given) for one in (engine, exact))
        yield Comparison("condition", frames, 0, 1, distance(found, wanted), bound)
        found, wanted = (_decoded(one, speech.log_mel(frames)) for one in (engine, exact))
        yield Comparison("vocoder", frames, 0, 1, distance(found, wanted), bound)
    yield from compare_steps(engine, exact, speech, buckets, rows)
    reply, reference = (min(n, manifest.max_frames // 2) for n in USUAL)
    defaults = manifest.defaults
    whole = speech.segment(reply, reference, grid, defaults.sampling, guidance=defaults.guidance)
    try:
        share = agreement.share(engine, exact, whole)
    except (DeviceLost, OutOfDeviceMemory):
        raise
    except EngineFault:
        share = math.inf
    yield Comparison(WHOLE, reply, reference, 1, share, agreement.ALLOWED)


def compare_steps(
    engine: Synthesizer, exact: Synthesizer, speech: Speech, buckets: Sequence[int], rows: int
) -> Iterator[Comparison]:
    """The step graphs alone, as in `compare`."""
    manifest = engine.manifest
    bound, used = BOUNDS[manifest.precision], graphs_of(manifest.defaults.sampling)
    for ends in _exact_ends(buckets):
        # Without guidance each lane is one row, and the two ends of a bucket share its calls.
        segments = [speech.segment(n - 1, 1, TIMES[:2], "exact", guidance=0.0, seed=n) for n in ends]
        yield from _steps(engine, exact, segments, ["step"], rows, bound)
    if "step_keys" in used:
        graphs = [name for name in ("step_keys", "step_reply") if name in used]
        sampling: Sampling = "short-kv" if "step_reply" in used else "short"
        for pairs in _reply_ends(buckets, engine.longest_reference):
            segments = [
                speech.segment(n, p, TIMES[: len(graphs) + 1], sampling, guidance=0.0, seed=n)
                for n, p in pairs
            ]
            yield from _steps(engine, exact, segments, graphs, rows, bound)


def distance(found: NDArray[np.generic], wanted: NDArray[np.generic]) -> float:
    """‖a − b‖ / ‖b‖, infinite where a number is not finite."""
    if not np.isfinite(found).all():
        return math.inf
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    return float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-12))


def _exact_ends(buckets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The shortest and the longest row of each bucket; two frames are the least."""
    least = 2
    for bucket in buckets:
        yield min(least, bucket), bucket
        least = bucket + 1


def _reply_ends(buckets: Sequence[int], longest_reference: int) -> Iterator[list[tuple[int, int]]]:
    """Reply and reference frames at opposite ends of each pair of buckets that a segment can have."""
    longest = buckets[-1]
    for reply_least, reply_most in itertools.pairwise((0, *buckets)):
        for least, most in itertools.pairwise((0, *buckets)):
            pairs = [
                (reply_least + 1, min(most, longest_reference, longest - reply_least - 1)),
                (min(reply_most, longest - least - 1), least + 1),
            ]
            fitting = [(n, p) for n, p in pairs if reply_least < n and least < p <= longest_reference]
            if fitting:
                yield fitting


def _steps(
    engine: Synthesizer,
    exact: Synthesizer,
    segments: Sequence[Segment],
    graphs: Sequence[str],
    rows: int,
    bound: float,
) -> Iterator[Comparison]:
    """The velocities of segments whose successive steps run these graphs, alone and several in one call."""
    wanted = [_velocities(exact, [segment])[0] for segment in segments]
    for count in range(1, rows + 1):
        for first in range(len(segments) if count == 1 else 1):
            order = [(first + n) % len(segments) for n in range(count)]
            found = _velocities(engine, [segments[n] for n in order])
            for step, graph in enumerate(graphs):
                errors = [distance(f[step], wanted[n][step]) for n, f in zip(order, found, strict=True)]
                worst = int(np.argmax(errors))
                segment = segments[order[worst]]
                known = len(segment.reference_log_mel)
                # What is padded is the reply alone, but for `exact`, whose rows hold the reference too.
                frames = (
                    (segment.frames, 0) if segment.sampling == "exact" else (segment.frames - known, known)
                )
                yield Comparison(graph, *frames, count, errors[worst], bound)


def _velocities(engine: Synthesizer, segments: Sequence[Segment]) -> list[list[FloatArray]]:
    """Return the change of generated frames by segment and step, stepping together; NaN on a fault."""
    lanes = [engine.open(segment) for segment in segments]
    moved: list[list[FloatArray]] = [[] for _ in segments]
    before = [
        segment.noise[len(segment.reference_log_mel) :] for segment in segments if segment.noise is not None
    ]
    try:
        for _ in range(lanes[0].steps_left):
            engine.step([lane.id for lane in lanes])
            for n, (lane, segment) in enumerate(zip(lanes, segments, strict=True)):
                after = engine.log_mel(lane.id)[len(segment.reference_log_mel) :]
                moved[n].append(after - before[n])
                before[n] = after
    except (DeviceLost, OutOfDeviceMemory):
        raise
    except EngineFault:
        for steps, start in zip(moved, before, strict=True):
            steps += [np.full_like(start, np.nan)] * (lanes[0].steps_left - len(steps))
    finally:
        for lane in lanes:
            engine.close(lane.id)
    return moved


def _condition(engine: Synthesizer, segment: Segment) -> NDArray[np.generic]:
    try:
        return engine.condition(segment)
    except (DeviceLost, OutOfDeviceMemory):
        raise
    except EngineFault:
        return np.full(1, np.nan)


def _decoded(engine: Synthesizer, log_mel: FloatArray) -> FloatArray:
    try:
        return engine.decode(log_mel)
    except (DeviceLost, OutOfDeviceMemory):
        raise
    except EngineFault:
        return np.full(1, np.nan, np.float32)
