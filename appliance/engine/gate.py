"""Comparison of a backend with the CPU's float32, at every size that its graphs were built for.

TensorRT's engines have been silently wrong for this model at sizes other than those they were optimised for
(its issue 4450), and fused attention at single batch sizes (4837). So each bucket is compared at both ends
and with each number of rows, and one whole sample besides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from appliance.contract.bundle import Precision, Sampling
from appliance.contract.schedule import time_grid
from appliance.contract.tokens import Vocabulary
from appliance.engine import agreement
from appliance.engine.cases import DemoSpeech
from appliance.engine.synthesizer import Synthesizer
from appliance.errors import DeviceLost, EngineFault, OutOfDeviceMemory
from appliance.job import FloatArray, Segment

BOUNDS: dict[Precision, float] = {"fp32": 1e-3, "fp16": 3e-2, "int8": 1e-1, "int8-qdq": 1e-1}
"""Largest ‖a − b‖ / ‖b‖ of a graph's output. Half precision has 4e-3 on a CPU, blank or broken audio 1.
Chosen, not measured on a GPU."""
WHOLE = "sample"
"""Stands in for a graph's name: a whole log-mel at 7 steps, measured by `agreement.share`."""
LENGTHS = (16, 128, 512, 1280)
"""Frames at which condition and vocoder are compared, besides the bundle's longest."""
TIMES = np.array([0.3, 0.45, 0.6])
"""Times of the compared steps; only the first computes the reference's keys and values."""
USUAL = (400, 350)
"""Frames of the reply and of the reference in the whole sample."""
FAILED: NDArray[np.generic] = np.full(1, np.nan, np.float32)

T = TypeVar("T")


@dataclass(frozen=True)
class Comparison:
    graph: str
    frames: int
    reference: int
    rows: int
    error: float
    """Infinite where a number is not finite, or the engine failed."""
    bound: float

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
    """Graphs that a bundle of this sampling runs on a backend of fixed shapes, without `modulation`."""
    steps = {
        "exact": ("step",),
        "short": ("step", "step_keys"),
        "short-kv": ("step", "step_keys", "step_reply"),
    }
    return ("condition", "vocoder", "update", *steps[sampling])


def compare(
    engine: Synthesizer, exact: Synthesizer, vocabulary: Vocabulary, buckets: Sequence[int], rows: int
) -> Iterator[Comparison]:
    """Compare every graph of `engine`, which needs `rows` lanes, with `exact`, the CPU's float32."""
    manifest = engine.manifest
    bound, speech = BOUNDS[manifest.precision], DemoSpeech(manifest, vocabulary)
    grid = time_grid(agreement.NFE, grid=manifest.defaults.grid, sway=manifest.defaults.sway)
    for frames in sorted({n for n in LENGTHS if n < manifest.max_frames} | {manifest.max_frames}):
        segment = speech.segment(frames - frames // 3, frames // 3, grid, "exact", guidance=0.0)
        found, expected = (_or_failed(partial(one.condition, segment), FAILED) for one in (engine, exact))
        yield Comparison("condition", frames, 0, 1, distance(found, expected), bound)
        mel = speech.log_mel(frames)
        found, expected = (_or_failed(partial(one.decode, mel), FAILED) for one in (engine, exact))
        yield Comparison("vocoder", frames, 0, 1, distance(found, expected), bound)
    yield from compare_steps(engine, exact, speech, buckets, rows)
    reply, reference = (min(n, manifest.max_frames // 2) for n in USUAL)
    defaults = manifest.defaults
    whole = speech.segment(reply, reference, grid, defaults.sampling, guidance=defaults.guidance)
    share = _or_failed(partial(agreement.share, engine, exact, whole), math.inf)
    yield Comparison(WHOLE, reply, reference, 1, share, agreement.ALLOWED)


def compare_steps(
    engine: Synthesizer, exact: Synthesizer, speech: DemoSpeech, buckets: Sequence[int], rows: int
) -> Iterator[Comparison]:
    """Compare the step graphs alone, as in `compare`."""
    manifest = engine.manifest
    bound, used = BOUNDS[manifest.precision], graphs_of(manifest.defaults.sampling)
    for ends in _exact_ends(buckets):
        # Without guidance each lane is one row, so both ends of a bucket share calls.
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


def distance(found: NDArray[np.generic], expected: NDArray[np.generic]) -> float:
    """‖a − b‖ / ‖b‖, infinite where a number is not finite."""
    if not np.isfinite(found).all():
        return math.inf
    a, b = found.astype(np.float64), expected.astype(np.float64)
    return float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-12))


def _exact_ends(buckets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Shortest and longest row of each bucket, from two frames on."""
    least = 2
    for bucket in buckets:
        yield min(least, bucket), bucket
        least = bucket + 1


def _reply_ends(buckets: Sequence[int], longest_reference: int) -> Iterator[list[tuple[int, int]]]:
    """(reply, reference) frames at opposite ends of each pair of buckets that a segment can have."""
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
    """Compare velocities of segments whose successive steps run these graphs, alone and batched."""
    expected = [_velocities(exact, [segment])[0] for segment in segments]
    for count in range(1, rows + 1):
        for first in range(len(segments) if count == 1 else 1):
            order = [(first + n) % len(segments) for n in range(count)]
            found = _velocities(engine, [segments[n] for n in order])
            for step, graph in enumerate(graphs):
                errors = [distance(f[step], expected[n][step]) for n, f in zip(order, found, strict=True)]
                worst = int(np.argmax(errors))
                segment = segments[order[worst]]
                known = len(segment.reference_log_mel)
                # With `exact` a row holds the reference too.
                frames = (
                    (segment.frames, 0) if segment.sampling == "exact" else (segment.frames - known, known)
                )
                yield Comparison(graph, *frames, count, errors[worst], bound)


def _velocities(engine: Synthesizer, segments: Sequence[Segment]) -> list[list[FloatArray]]:
    """Change of the generated frames by segment and step, stepped together; NaN after a fault."""
    lanes = [engine.open(segment) for segment in segments]
    moved: list[list[FloatArray]] = [[] for _ in segments]
    before = [
        segment.noise[len(segment.reference_log_mel) :] for segment in segments if segment.noise is not None
    ]

    def step() -> None:
        for _ in range(lanes[0].steps_left):
            engine.step([lane.id for lane in lanes])
            for n, (lane, segment) in enumerate(zip(lanes, segments, strict=True)):
                after = engine.log_mel(lane.id)[len(segment.reference_log_mel) :]
                moved[n].append(after - before[n])
                before[n] = after

    try:
        _or_failed(step, None)
        for steps, start in zip(moved, before, strict=True):
            steps += [np.full_like(start, np.nan)] * (lanes[0].steps_left - len(steps))
    finally:
        for lane in lanes:
            engine.close(lane.id)
    return moved


def _or_failed(compute: Callable[[], T], failed: T) -> T:
    """The result, or `failed` on an EngineFault other than a lost or full device, which it raises."""
    try:
        return compute()
    except (DeviceLost, OutOfDeviceMemory):
        raise
    except EngineFault:
        return failed
