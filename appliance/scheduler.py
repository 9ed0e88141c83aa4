"""Who gets the engine: first come first served, one segment after the other, by the engine's step.

One thread runs `Scheduler.run` and with it the engine; any thread may submit and cancel. Results leave
through each job's `deliver`, which is called on the engine's thread and must not block.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from appliance.errors import (
    ApplianceError,
    Cancelled,
    DeadlineMissed,
    EngineFault,
    QueueFull,
    Unavailable,
)
from appliance.job import FloatArray, Packet, Segment, Timings

logger = logging.getLogger(__name__)

IDLE_TURN_S = 1.0
"""How long the loop rests at most before it shows a sign of life."""

Clock = Callable[[], float]
"""Seconds on a scale that never goes back."""
Result = Packet | Timings | ApplianceError
"""What a job delivers: packets, then timings or an error, always one of the two and always last."""


class Lane(Protocol):
    """A segment that the engine works on."""

    @property
    def id(self) -> int: ...

    @property
    def steps_left(self) -> int: ...


class Engine(Protocol):
    """What the scheduler drives, from one thread only."""

    def open(self, segment: Segment) -> Lane: ...

    def step(self, lane_ids: Sequence[int]) -> None: ...

    def finish(self, lane_id: int) -> FloatArray:
        """(samples,) at the model's rate."""
        ...

    def close(self, lane_id: int) -> None: ...


class Join(Protocol):
    """Joins the segments of one request and brings them to its rate; lives for that request."""

    def push(self, samples: FloatArray, *, last: bool) -> FloatArray:
        """(samples,) of one segment → the samples that can leave now."""
        ...


class Job:
    """One request on its way through the engine."""

    def __init__(
        self,
        segments: Sequence[Segment],
        join: Join,
        deliver: Callable[[Result], None],
        *,
        rate_hz: int,
        arrived: float,
        deadline: float = math.inf,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        """`arrived` and `deadline` are times of the scheduler's clock; `has_room` says whether the reader
        has kept up, asked between segments: a job without room is set aside and holds up nobody else."""
        self.segments = tuple(segments)
        self.join = join
        self.deliver = deliver
        self.rate_hz = rate_hz
        self.arrived = arrived
        self.deadline = deadline
        self.has_room = has_room
        self.stopped: ApplianceError | None = None
        """Why it is to stop, once somebody wants that."""
        self.begun = False
        """Whether the engine has touched it."""
        self.done = 0
        """Finished segments."""
        self.samples = 0
        """Delivered samples."""
        nfe = len(self.segments[0].times) - 1 if self.segments else 0
        self.timings = Timings(segments=len(self.segments), nfe=nfe)


@dataclass(frozen=True)
class Load:
    """How busy the scheduler is."""

    waiting: int
    running: int


class Scheduler:
    """A bounded line of jobs and the loop that serves it."""

    def __init__(self, *, queue_length: int, clock: Clock = time.monotonic) -> None:
        self._queue_length = queue_length
        self._clock = clock
        self._jobs: list[Job] = []
        self._current: Job | None = None
        self._state = "starting"
        self._heartbeat: float | None = None
        self._changed = threading.Condition()

    # What any thread may call.

    @property
    def load(self) -> Load:
        """Jobs that wait for their first step, and jobs begun."""
        with self._changed:
            waiting = self._waiting()
            return Load(waiting, len(self._jobs) - waiting)

    @property
    def silence_s(self) -> float:
        """Seconds since the last sign of life of the engine's thread; 0 when `run` is not under way.

        Takes no lock: who asks must not wait for the thread that is asked about.
        """
        last = self._heartbeat
        return 0.0 if last is None else self._clock() - last

    def check_room(self) -> None:
        """Raise what `submit` would: Unavailable when not running, QueueFull when the line is full."""
        with self._changed:
            self._check_room()

    def submit(self, job: Job) -> None:
        """Put a job at the end of the line. Raises Unavailable, QueueFull, DeadlineMissed."""
        with self._changed:
            self._check_room()
            if job.deadline <= self._clock():
                raise DeadlineMissed("the deadline passed before the request could wait for the engine")
            self._jobs.append(job)
            self._changed.notify_all()

    def cancel(self, job: Job, why: ApplianceError | None = None) -> None:
        """Stop a job: at once when it waits, after the engine's present call when it runs. Idempotent."""
        with self._changed:
            if job.stopped is None:
                job.stopped = why or Cancelled("the caller went away")
            if job in self._jobs and job is not self._current:
                self._jobs.remove(job)
                job.deliver(job.stopped)
            self._changed.notify_all()

    def wake(self) -> None:
        """Look again at jobs that had no room."""
        with self._changed:
            self._changed.notify_all()

    def drain(self) -> None:
        """Take no more jobs; `run` returns when the present ones are done."""
        with self._changed:
            self._state = "draining"
            self._changed.notify_all()

    def cancel_all(self) -> None:
        """Stop every job, for a drain that took too long."""
        with self._changed:
            jobs = tuple(self._jobs)
        for job in jobs:
            self.cancel(job, Unavailable("the daemon stopped before the request was finished"))

    # The engine's thread.

    def run(self, engine: Engine) -> None:
        """Serve jobs until drained. Whatever a job does wrong, the next one is served."""
        with self._changed:
            if self._state == "starting":
                self._state = "running"
        try:
            while (job := self._next()) is not None:
                self._serve_segment(engine, job)
        finally:
            self._heartbeat = None

    def _next(self) -> Job | None:
        """The first job in line that has room; waits for one; None when drained."""
        with self._changed:
            while True:
                self._beat()
                self._drop_expired()
                for job in self._jobs:
                    if job.has_room():
                        self._current = job
                        return job
                if self._state == "draining" and not self._jobs:
                    return None
                self._changed.wait(min(self._until_next_deadline(), IDLE_TURN_S))

    def _serve_segment(self, engine: Engine, job: Job) -> None:
        try:
            if job.done == len(job.segments):
                end: Result | None = self._timings(job)
            else:
                self._synthesise(engine, job)
                end = self._timings(job) if job.done == len(job.segments) else None
        except ApplianceError as error:
            end = error
        except Exception as error:
            logger.exception("the engine failed")
            end = EngineFault(f"the engine failed: {type(error).__name__}: {error}")
            end.__cause__ = error
        with self._changed:
            self._current = None
            if end is not None:
                self._jobs.remove(job)
                job.deliver(end)

    def _synthesise(self, engine: Engine, job: Job) -> None:
        segment = job.segments[job.done]
        begun = self._clock()
        if not job.begun:
            job.begun = True
            job.timings = replace(job.timings, queue_s=begun - job.arrived)
        self._go_on(job)
        lane = engine.open(segment)
        try:
            opened = self._clock()
            for _ in range(lane.steps_left):
                self._go_on(job)
                engine.step((lane.id,))
            stepped = self._clock()
            self._go_on(job)
            samples = engine.finish(lane.id)
        finally:
            engine.close(lane.id)
        if not np.isfinite(samples).all():
            raise EngineFault(f"segment {segment.index}: the engine made samples that are not finite")
        self._go_on(job)
        finished = self._clock()
        t = job.timings
        job.timings = replace(
            t,
            condition_s=t.condition_s + opened - begun,
            steps_s=t.steps_s + stepped - opened,
            vocoder_s=t.vocoder_s + finished - stepped,
        )
        self._deliver(job, samples, segment)

    def _deliver(self, job: Job, samples: FloatArray, segment: Segment) -> None:
        job.done += 1
        last = job.done == len(job.segments)
        joined = job.join.push(samples, last=last)
        if job.samples == 0 and len(joined):
            job.timings = replace(job.timings, first_audio_s=self._clock() - job.arrived)
        job.samples += len(joined)
        job.deliver(Packet(joined, segment.index, last))

    def _timings(self, job: Job) -> Timings:
        total_s = self._clock() - job.arrived
        return replace(job.timings, total_s=total_s, audio_s=job.samples / job.rate_hz)

    def _go_on(self, job: Job) -> None:
        """Between two calls of the engine: a sign of life, and an end to what nobody wants any more."""
        self._beat()
        if job.stopped is not None:
            raise job.stopped
        if job.deadline <= self._clock():
            raise DeadlineMissed("the deadline passed while the request was worked on")

    def _beat(self) -> None:
        self._heartbeat = self._clock()

    # Under the lock.

    def _check_room(self) -> None:
        if self._state != "running":
            raise Unavailable(f"the daemon is {'starting' if self._state == 'starting' else 'draining'}")
        if self._waiting() >= self._queue_length:
            raise QueueFull(f"{self._queue_length} requests wait already, which is the limit")

    def _waiting(self) -> int:
        return sum(1 for job in self._jobs if not job.begun and job is not self._current)

    def _drop_expired(self) -> None:
        now = self._clock()
        for job in [job for job in self._jobs if job.deadline <= now]:
            self._jobs.remove(job)
            job.deliver(DeadlineMissed("the deadline passed while the request waited for the engine"))

    def _until_next_deadline(self) -> float:
        soonest = min((job.deadline for job in self._jobs), default=math.inf)
        return max(soonest - self._clock(), 0.0)
