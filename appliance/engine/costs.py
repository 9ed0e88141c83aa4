"""Estimates of the engine's calls, in seconds: measured at warm-up, corrected by every call since.

A call is modelled as c0·(runtime calls) + c1·tokens + c2·(token pairs): launches, linear layers, attention.
The three are fitted to the warm-up's calls. What calls of one size really take then corrects the estimate of
that size, within a factor of two, by a moving average.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from appliance.job import Cost, Segment

logger = logging.getLogger(__name__)

LEARNING = 0.1
"""Weight of the newest call in the moving average."""
CLAMP = 2.0
MOST_KEPT = 10_000
"""Shapes of calls whose work is remembered."""
TRUSTED = 1.3
"""A request that takes so much longer than predicted at start makes every estimate as much longer."""

Steps = Sequence[tuple[Segment, int]]
Work = tuple[float, float, float]
"""Runtime calls, tokens, token pairs."""


@dataclass(frozen=True)
class StepCall:
    """One call of the runtime: rows of one size through one step graph."""

    graph: str
    frames: int
    reference: int
    rows: int

    @property
    def tokens(self) -> int:
        """Positions that are computed."""
        return self.rows * (self.frames + (self.reference if self.graph != "step_reply" else 0))

    @property
    def pairs(self) -> int:
        """Positions times those that each attends to."""
        return self.tokens * (self.frames + self.reference)


class CostTable:
    """Estimates by kind and size of call."""

    def __init__(self, calls_of: Callable[[Steps], list[StepCall]], *, exact_shapes: bool) -> None:
        """`calls_of` gives the runtime's calls of a step. Without exact shapes each bucket and number of rows
        is an entry of its own."""
        self._calls_of, self._exact_shapes = calls_of, exact_shapes
        self._works: dict[Hashable, tuple[Work, Hashable]] = {}
        self._measured: dict[str, list[tuple[Work, float, Hashable]]] = {}
        self._fit: dict[str, Work] = {}
        self._warm: dict[Hashable, float] = {}
        self._factors: dict[Hashable, float] = {}
        self._scale = 1.0
        self.predicted_s = 0.0
        self.measured_s = 0.0
        """Sum over all calls so far, as `predicted_s` is, for the metrics."""

    def of(self, segment: Segment) -> Cost:
        """One segment alone."""
        steps = tuple(self._estimate("step", [(segment, step)]) for step in range(segment.nfe))
        return Cost(self._estimate("open", [(segment, 0)]), steps, self._estimate("finish", [(segment, 0)]))

    def together(self, steps: Steps) -> float:
        """One call of the engine that does all these steps."""
        return self._estimate("step", steps)

    def learn(self, call: str, steps: Steps, seconds: float) -> None:
        """Correct the estimate of such a call by one that was made."""
        work, size = self._work(call, steps)
        estimate = self._of_fit(call, work)
        self.predicted_s += estimate * self._factor(size)
        self.measured_s += seconds
        if estimate > 0.0:
            ratio = min(max(seconds / estimate, 1.0 / CLAMP), CLAMP)
            before = self._factors.get(size, self._scale)
            self._factors[size] = before + LEARNING * (ratio - before)

    def measure(self, call: str, steps: Steps, seconds: float) -> None:
        """Take a call of the warm-up into the fit."""
        work, size = self._work(call, steps)
        self._measured.setdefault(call, []).append((work, seconds, size))

    def fit(self) -> None:
        """Fit to what was measured; call once the warm-up is over."""
        for call, measured in self._measured.items():
            self._fit[call] = fitted([(work, seconds) for work, seconds, _ in measured])
            for work, seconds, size in measured:
                ratio = seconds / self._of_fit(call, work)
                logger.debug("%s %s: %.4f s, %.2f of the fit", call, work, seconds, ratio)
                # A bucket's own entry; the fit serves what was not measured.
                if not self._exact_shapes:
                    self._warm[size] = min(ratio, self._warm.get(size, math.inf))
        self._measured.clear()
        self.reset()

    def check(self, predicted_s: float, measured_s: float) -> None:
        """Compare a whole request with its prediction; estimates that are far too short are made longer."""
        ratio = measured_s / predicted_s
        logger.info("a request of the warm-up took %.3f s, predicted %.3f s", measured_s, predicted_s)
        if ratio > TRUSTED:
            logger.warning("estimates of the engine's time are raised by %.2f", ratio)
            self._scale = min(ratio, CLAMP)
            self.reset()

    def reset(self) -> None:
        """Back to what the warm-up measured, since clocks have changed."""
        self._factors = {size: factor * self._scale for size, factor in self._warm.items()}

    def _estimate(self, call: str, steps: Steps) -> float:
        work, size = self._work(call, steps)
        return self._of_fit(call, work) * self._factor(size)

    def _factor(self, size: Hashable) -> float:
        return self._factors.get(size, self._scale)

    def _of_fit(self, call: str, work: Work) -> float:
        if call not in self._fit:
            return 0.0
        c0, c1, c2 = self._fit[call]
        return c0 * work[0] + c1 * work[1] + c2 * work[2]

    def _work(self, call: str, steps: Steps) -> tuple[Work, Hashable]:
        """Work of a call, and the key of its correction."""
        # Kept: an estimate is asked for at each turn of the scheduler, between two calls of the engine.
        shapes = (call, *(_shape(segment, step) for segment, step in steps))
        if shapes not in self._works:
            if len(self._works) >= MOST_KEPT:
                self._works.clear()
            self._works[shapes] = self._count(call, steps)
        return self._works[shapes]

    def _count(self, call: str, steps: Steps) -> tuple[Work, Hashable]:
        if call != "step":
            segment = steps[0][0]
            frames = segment.frames - (segment.reference_frames if call == "finish" else 0)
            return (1.0, float(frames), 0.0), (call, round(2.0 * math.log2(frames)))
        calls = self._calls_of(steps)
        tokens = sum(c.tokens for c in calls)
        work = (float(len(calls)), float(tokens), float(sum(c.pairs for c in calls)))
        if self._exact_shapes:
            return work, (call, round(2.0 * math.log2(tokens)))
        return work, (call, frozenset(Counter(calls).items()))


def _shape(segment: Segment, step: int) -> Hashable:
    """All of a segment's step that its cost depends on."""
    return (
        segment.frames,
        segment.reference_frames,
        len(segment.reference_log_mel),
        segment.guidance,
        segment.sampling,
        step in segment.key_steps,
    )


def fitted(measured: Sequence[tuple[Work, float]]) -> Work:
    """Coefficients of calls, tokens and pairs, none below 0: least squares of the relative errors.

    Of three unknowns, the best solution without negative ones is the best of those over all subsets.
    """
    features = np.array([work for work, _ in measured])
    seconds = np.array([s for _, s in measured])
    best, least = np.zeros(3), math.inf
    for size in (1, 2, 3):
        for subset in map(list, itertools.combinations(range(3), size)):
            scaled = features[:, subset] / seconds[:, None]
            solution, *_ = np.linalg.lstsq(scaled, np.ones(len(seconds)), rcond=None)
            error = float(np.square(scaled @ solution - 1.0).sum())
            if (solution >= 0.0).all() and error < least:
                best, least = np.zeros(3), error
                best[subset] = solution
    return float(best[0]), float(best[1]), float(best[2])
