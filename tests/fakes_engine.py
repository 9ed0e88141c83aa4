"""An engine without a model: it counts its calls, and its samples say which segment they were made of."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from appliance.errors import Interrupted
from appliance.request import Cost, FloatArray, Lane, PassedOver, Segment

HOP = 256
RATE_HZ = 24_000


@dataclass
class FakeCosts:
    """Every call takes the same, and longer by `frame_s` for each frame."""

    call_s: float = 0.002
    frame_s: float = 0.0

    def of(self, segment: Segment) -> Cost:
        call_s = self.call_s + self.frame_s * segment.frames
        return Cost(call_s, (call_s,) * segment.nfe, call_s)

    def together(self, steps: Sequence[tuple[Segment, int]]) -> float:
        return self.call_s + self.frame_s * sum(segment.frames for segment, _ in steps)

    def learn(self, call: str, steps: Sequence[tuple[Segment, int]], seconds: float) -> None:
        assert call in ("open", "step", "finish") and steps and seconds >= 0.0

    def reset(self) -> None:
        """Nothing was learnt."""


class FakeEngine:
    """Refuses to be used wrongly: more lanes than there are, steps that are not left, closed lanes, a second
    thread."""

    backend = "fake (f64)"
    passed_over: Sequence[PassedOver] = ()

    def __init__(
        self, on_step: Callable[[], None] = lambda: None, *, max_lanes: int = 4, max_batch: int = 1
    ) -> None:
        self.max_lanes, self.max_batch = max_lanes, max_batch
        self.costs = FakeCosts()
        self.can_interrupt = self.interrupted = False
        self.calls: list[str] = []
        self.on_step = on_step
        self.on_call: Callable[[], None] = lambda: None
        self.finishing: Callable[[FloatArray], FloatArray] = lambda samples: samples
        self.proving: Callable[[], None] = lambda: None
        self._open: dict[int, tuple[Segment, int]] = {}
        self._ids = itertools.count(1)
        self._thread: int | None = None

    @property
    def lanes(self) -> int:
        return len(self._open)

    def open(self, segment: Segment) -> Lane:
        self._call(f"open {segment.text}")
        assert self.lanes < self.max_lanes
        lane = Lane(next(self._ids), len(segment.times) - 1)
        self._open[lane.id] = (segment, lane.steps_left)
        return lane

    def step(self, lane_ids: Sequence[int]) -> None:
        self._call("step")
        assert 1 <= len(set(lane_ids)) == len(lane_ids) <= self.max_batch
        for lane_id in lane_ids:
            segment, left = self._open[lane_id]
            assert left > 0
        self.on_step()
        if self.interrupted:
            raise Interrupted
        for lane_id in lane_ids:
            segment, left = self._open[lane_id]
            self._open[lane_id] = (segment, left - 1)

    def finish(self, lane_id: int) -> FloatArray:
        segment, left = self._open[lane_id]
        assert left == 0
        self._call(f"finish {segment.text}")
        return self.finishing(samples_of(segment))

    def close(self, lane_id: int) -> None:
        del self._open[lane_id]

    def interrupt(self, on: bool) -> None:
        assert self.can_interrupt
        self.interrupted = on

    def prove(self, segment: Segment | None = None) -> None:
        self._call("prove" if segment is None else f"prove {segment.text}")
        self.proving()

    def shutdown(self) -> None:
        assert not self._open, "lanes are open"
        self.calls.append("shutdown")

    def _call(self, name: str) -> None:
        self._thread = self._thread or threading.get_ident()
        assert self._thread == threading.get_ident()
        self.calls.append(name)
        self.on_call()


def samples_of(segment: Segment) -> FloatArray:
    """(samples,) a level of its own for each segment, changed by its seed."""
    count = (segment.frames - segment.reference_frames - 1) * HOP
    level = np.float32(0.1 * (segment.index + 1))
    drawn = np.random.default_rng([segment.seed, segment.index]).standard_normal(dtype=np.float32)
    samples: FloatArray = np.full(count, level, np.float32) + np.float32(1e-3) * drawn
    return samples


def segment(text: str = "a", *, index: int = 0, nfe: int = 4, frames: int = 60, seed: int = 0) -> Segment:
    """One that a planner could have made."""
    return Segment(
        index=index,
        text=text,
        ids=np.arange(3, dtype=np.int32),
        frames=frames,
        reference_log_mel=np.zeros((11, 8), np.float32),
        reference_frames=10,
        times=np.linspace(0.0, 1.0, nfe + 1),
        guidance=2.0,
        seed=seed,
        audio_s=(frames - 11) * HOP / RATE_HZ,
    )
