"""An engine without a model: it counts its calls and takes the time of a cost table. Its samples identify the
segment."""

import itertools
import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from appliance.errors import Interrupted
from appliance.request import Cost, FloatArray, Lane, PassedOver, Segment
from tests.harness.segments import HOP

Steps = Sequence[tuple[Segment, int]]


class Table(Protocol):
    """The seconds that each call takes."""

    @property
    def lanes(self) -> int:
        """Lanes that may be open at once."""

    @property
    def max_batch(self) -> int:
        """Lanes in one call."""

    def step_s(self, steps: Steps) -> float:
        """Seconds of a call: each pair is a segment and the number of its step."""

    def of(self, segment: Segment) -> Cost: ...


@dataclass(frozen=True)
class Device:
    """Costs of a model on a device, in seconds: a step's are launch + rows · (token · N + pair · N²)."""

    launch_s: float
    token_s: float = 0.0
    pair_s: float = 0.0
    condition_s: float = 0.0
    vocoder_frame_s: float = 0.0
    max_batch: int = 1
    rows: int = 2
    """Rows of a lane: a guided and an unguided one."""
    lanes: int = 8

    def step_s(self, steps: Steps) -> float:
        frames = [segment.frames for segment, _ in steps]
        return self.launch_s + sum(self.rows * (self.token_s * n + self.pair_s * n * n) for n in frames)

    def of(self, segment: Segment) -> Cost:
        steps = (self.step_s([(segment, 0)]),) * segment.nfe
        made = segment.frames - segment.reference_frames
        return Cost(self.launch_s + self.condition_s, steps, self.launch_s + self.vocoder_frame_s * made)


OPERATIONS_S = 0.45 * 8 * 8 * 512 * 1300.5e6
"""A Jetson AGX Orin 64 GB at MAXN in FP16: clusters · tensor cores of each · operations of a core a clock ·
clock. 45 % of them are assumed to be reached: torch F5 on Orin reaches 0.2, the best public engines on server
GPUs 0.5. The module's 170 sparse INT8 TOPS at 1.3 GHz, as NVIDIA gives them, are 42.6 in FP16: the same."""
FRAME, PAIR = 22 * 16.78e6 + 9.8e6, 22 * 4096
"""F5TTS_v1_Base, one row of one step of N frames: FRAME·N + PAIR·N² operations (22 blocks of width 1024,
convolutions and the two projections)."""
ORIN = Device(
    launch_s=0.5e-3,
    token_s=FRAME / OPERATIONS_S,
    pair_s=PAIR / OPERATIONS_S,
    condition_s=2e-3,
    vocoder_frame_s=29e6 / OPERATIONS_S,
    max_batch=4,
)
LAUNCH_BOUND = Device(6e-3, ORIN.token_s / 10, ORIN.pair_s / 10, 1e-3, ORIN.vocoder_frame_s / 10, max_batch=8)
ZIPVOICE = replace(ORIN, launch_s=1.9e-3, token_s=8.9e-6, pair_s=3.5e-9, rows=1)
"""ZipVoice-LibriTTS-Distill on the same Orin: its 16.6 ms a step at 1,253 frames and 28 ms of four at 609, as
tests/records/limit.md models them, and 677 launches of 2.8 µs."""
DEVICES = {"orin": ORIN, "launch-bound": LAUNCH_BOUND, "zipvoice": ZIPVOICE}
CALL_S = 0.01
EVEN = Device(CALL_S, lanes=4)
"""A device on which every call takes CALL_S."""


def scaled(cost: Cost, factor: float) -> Cost:
    return Cost(cost.open_s * factor, tuple(s * factor for s in cost.steps_s), cost.finish_s * factor)


@dataclass
class Costs:
    """A device's costs as the scheduler estimates them: exact, or wrong by `factor`."""

    device: Table
    factor: float = 1.0

    def of(self, segment: Segment) -> Cost:
        return scaled(self.device.of(segment), self.factor)

    def together(self, steps: Steps) -> float:
        return self.device.step_s(steps) * self.factor

    def learn(self, call: str, steps: Steps, seconds: float) -> None:
        """Do nothing: the tests are about the scheduler, not the estimate."""
        assert call in ("open", "step", "finish") and steps and seconds >= 0.0

    def reset(self) -> None:
        """Do nothing: there is nothing learnt to forget."""


class FakeEngine:
    """Asserts its correct use: open lanes up to its limit, remaining steps, a single thread."""

    backend = "fake (f64)"
    passed_over: Sequence[PassedOver] = ()

    def __init__(
        self,
        device: Table = Device(0.002, lanes=4),
        *,
        lanes: int = 0,
        noise: float = 0.0,
        factor: float = 1.0,
    ) -> None:
        """`noise` is the relative spread of call times, `factor` changes estimates."""
        self.max_lanes, self.max_batch = lanes or device.lanes, device.max_batch
        self.device, self.costs = device, Costs(device, factor)
        self.can_interrupt = self.interrupted = False
        self.calls: list[str] = []
        self.lane_steps, self.busy_s = 0, 0.0
        self.on_call: Callable[[float], None] = lambda seconds: None
        """Called at the begin of each call with its seconds."""
        self.on_step: Callable[[], None] = lambda: None
        self.speak: Callable[[Segment], FloatArray] = samples_of
        self.on_self_test: Callable[[], None] = lambda: None
        self._draw, self._noise = random.Random(1), noise
        self._open: dict[int, tuple[Segment, int]] = {}
        """Each lane's segment and the steps that it has done."""
        self._ids = itertools.count(1)
        self._thread: int | None = None

    @property
    def lanes(self) -> int:
        return len(self._open)

    def open(self, segment: Segment) -> Lane:
        self._call(f"open {segment.text}", self.device.of(segment).open_s)
        assert self.lanes < self.max_lanes
        lane = Lane(next(self._ids), segment.nfe)
        self._open[lane.id] = segment, 0
        return lane

    def step(self, lane_ids: Sequence[int]) -> None:
        assert 1 <= len(set(lane_ids)) == len(lane_ids) <= self.max_batch
        steps = [self._open[lane_id] for lane_id in lane_ids]
        assert all(done < segment.nfe for segment, done in steps)
        self._call("step", self.device.step_s(steps))
        self.on_step()
        if self.interrupted:
            raise Interrupted
        self.lane_steps += len(lane_ids)
        for lane_id, (segment, done) in zip(lane_ids, steps, strict=True):
            self._open[lane_id] = segment, done + 1

    def finish(self, lane_id: int) -> FloatArray:
        segment, done = self._open[lane_id]
        assert done == segment.nfe
        self._call(f"finish {segment.text}", self.device.of(segment).finish_s)
        return self.speak(segment)

    def close(self, lane_id: int) -> None:
        del self._open[lane_id]

    def interrupt(self, on: bool) -> None:
        assert self.can_interrupt
        self.interrupted = on

    def self_test(self, segment: Segment | None = None) -> None:
        self._call("self_test" if segment is None else f"self_test {segment.text}", self.device.step_s([]))
        self.on_self_test()

    def shutdown(self) -> None:
        assert not self._open, "lanes are open"
        self.calls.append("shutdown")

    def _call(self, name: str, seconds: float) -> None:
        self._thread = self._thread or threading.get_ident()
        assert self._thread == threading.get_ident()
        self.calls.append(name)
        seconds *= self._draw.uniform(1.0 - self._noise, 1.0 + self._noise) if self._noise else 1.0
        self.busy_s += seconds
        self.on_call(seconds)


def samples_of(segment: Segment) -> FloatArray:
    """(samples,) a level for each segment, changed by its seed."""
    count = (segment.frames - segment.reference_frames - 1) * HOP
    level = np.float32(0.1 * (segment.index + 1))
    drawn = np.random.default_rng([segment.seed, segment.index]).standard_normal(dtype=np.float32)
    samples: FloatArray = np.full(count, level, np.float32) + np.float32(1e-3) * drawn
    return samples


def raising(error: Exception) -> Callable[..., Any]:
    def act(*_: object, **__: object) -> None:
        raise error

    return act
