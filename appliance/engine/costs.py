"""Estimated seconds of calls: c0·(runtime calls) + c1·tokens + c2·(token pairs).

The terms stand for launches, linear layers and attention. They are fitted at warm-up; then a moving average
corrects each size.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from appliance.engine.calls import StepCall, Steps
from appliance.request import Cost, Segment

logger = logging.getLogger(__name__)

LEARNING = 0.1
"""Weight of the newest call."""
CLAMP = 2.0
MOST_KEPT = 10_000
"""Entries in the cache of work by shape."""
TRUSTED = 1.3
"""Ratio of a request's time to its estimate above which all estimates are raised."""

Work = tuple[float, float, float]
"""Runtime calls, tokens, token pairs."""


class CostTable:
    """Estimates the seconds of engine calls. It learns from each call's duration."""

    def __init__(self, calls_of: Callable[[Steps], list[StepCall]]) -> None:
        self._calls_of = calls_of
        self._works: dict[Hashable, tuple[Work, Hashable]] = {}
        self._measured: dict[str, list[tuple[Work, float]]] = {}
        self._fit: dict[str, Work] = {}
        self._factors: dict[Hashable, float] = {}
        self._scale = 1.0
        self.predicted_s = 0.0
        self.measured_s = 0.0

    def of(self, segment: Segment) -> Cost:
        steps = tuple(self._estimate("step", [(segment, step)]) for step in range(segment.nfe))
        return Cost(self._estimate("open", [(segment, 0)]), steps, self._estimate("finish", [(segment, 0)]))

    def together(self, steps: Steps) -> float:
        """Seconds of one call with all these steps."""
        return self._estimate("step", steps)

    def learn(self, call: str, steps: Steps, seconds: float) -> None:
        """Correct the estimate of calls of this size."""
        work, size = self._work(call, steps)
        estimate = self._of_fit(call, work)
        self.predicted_s += estimate * self._factor(size)
        self.measured_s += seconds
        if estimate > 0.0:
            ratio = min(max(seconds / estimate, 1.0 / CLAMP), CLAMP)
            before = self._factors.get(size, self._scale)
            self._factors[size] = before + LEARNING * (ratio - before)

    def measure(self, call: str, steps: Steps, seconds: float) -> None:
        self._measured.setdefault(call, []).append((self._work(call, steps)[0], seconds))

    def fit(self) -> None:
        """Fit the model, at the end of the warm-up."""
        for call, measured in self._measured.items():
            self._fit[call] = fitted(measured)
            for work, seconds in measured:
                ratio = seconds / self._of_fit(call, work)
                logger.debug("%s %s: %.4f s, %.2f of the fit", call, work, seconds, ratio)
        self._measured.clear()
        self.reset()

    def check(self, predicted_s: float, measured_s: float) -> None:
        """Raise all estimates if a request took TRUSTED times its estimate."""
        ratio = measured_s / predicted_s
        logger.info("a request of the warm-up took %.3f s, predicted %.3f s", measured_s, predicted_s)
        if ratio > TRUSTED:
            logger.warning("estimates of the engine's time are raised by %.2f", ratio)
            self._scale = min(ratio, CLAMP)
            self.reset()

    def reset(self) -> None:
        """Go back to the warm-up's estimates."""
        self._factors.clear()

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
        # Cached, because the scheduler estimates between any two calls of the engine.
        shapes = (call, *(_shape(segment, step) for segment, step in steps))
        if shapes in self._works:
            return self._works[shapes]
        size: Hashable
        if call == "step":
            calls = self._calls_of(steps)
            tokens = sum(c.tokens for c in calls)
            work = (float(len(calls)), float(tokens), float(sum(c.pairs for c in calls)))
            size = (len(calls), round(2.0 * math.log2(tokens)))
        else:
            segment = steps[0][0]
            frames = segment.frames - (segment.reference_frames if call == "finish" else 0)
            work = (1.0, float(frames), 0.0)
            size = round(2.0 * math.log2(frames))
        if len(self._works) >= MOST_KEPT:
            self._works.clear()
        self._works[shapes] = work, (call, size)
        return self._works[shapes]


def _shape(segment: Segment, step: int) -> Hashable:
    """Everything that a segment's calls depend on: the key of a cached estimate."""
    return (
        segment.frames,
        segment.reference_frames,
        len(segment.reference_log_mel),
        segment.guidance,
        segment.sampling,
        step in segment.key_steps,
    )


def fitted(measured: Sequence[tuple[Work, float]]) -> Work:
    """Coefficients by non-negative least squares of the relative errors, solved for every subset."""
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
