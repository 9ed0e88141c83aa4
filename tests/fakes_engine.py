"""An engine without a model: it counts its calls, and its samples say which segment they were made of."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from appliance.job import FloatArray, Segment

HOP = 256


@dataclass(frozen=True)
class FakeLane:
    id: int
    steps_left: int


class FakeEngine:
    """Refuses to be used wrongly: steps that are not left, closed lanes, a second thread."""

    def __init__(self, on_step: Callable[[], None] = lambda: None) -> None:
        self.calls: list[str] = []
        self.on_step = on_step
        self.finishing: Callable[[FloatArray], FloatArray] = lambda samples: samples
        self._open: dict[int, tuple[Segment, int]] = {}
        self._ids = itertools.count(1)
        self._thread: int | None = None

    @property
    def lanes(self) -> int:
        return len(self._open)

    def open(self, segment: Segment) -> FakeLane:
        self._call(f"open {segment.text}")
        lane = FakeLane(next(self._ids), len(segment.times) - 1)
        self._open[lane.id] = (segment, lane.steps_left)
        return lane

    def step(self, lane_ids: Sequence[int]) -> None:
        self._call("step")
        for lane_id in lane_ids:
            segment, left = self._open[lane_id]
            assert left > 0
            self._open[lane_id] = (segment, left - 1)
        self.on_step()

    def finish(self, lane_id: int) -> FloatArray:
        segment, left = self._open[lane_id]
        assert left == 0
        self._call(f"finish {segment.text}")
        return self.finishing(samples_of(segment))

    def close(self, lane_id: int) -> None:
        del self._open[lane_id]

    def _call(self, name: str) -> None:
        self._thread = self._thread or threading.get_ident()
        assert self._thread == threading.get_ident()
        self.calls.append(name)


def samples_of(segment: Segment) -> FloatArray:
    """(samples,) a level of its own for each segment, changed by its noise."""
    count = (segment.frames - segment.reference_frames - 1) * HOP
    level = np.float32(0.1 * (segment.index + 1))
    samples: FloatArray = np.full(count, level, np.float32) + np.float32(1e-3) * segment.noise[0, 0]
    return samples


def segment(text: str = "a", *, index: int = 0, nfe: int = 4, frames: int = 60, seed: int = 0) -> Segment:
    """One that plan() could have made."""
    noise = np.random.default_rng([seed, index]).standard_normal((frames, 8), dtype=np.float32)
    return Segment(
        index=index,
        text=text,
        ids=np.arange(3, dtype=np.int32),
        frames=frames,
        reference_log_mel=np.zeros((11, 8), np.float32),
        reference_frames=10,
        noise=noise,
        times=np.linspace(0.0, 1.0, nfe + 1),
        guidance=2.0,
    )
