"""The engine's thread: pick → make → settle, one call of the engine at a time."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from itertools import chain

from appliance.config import SchedulerConfig
from appliance.errors import (
    ApplianceError,
    DeadlineMissed,
    DeviceLost,
    EngineFault,
    Interrupted,
    Unavailable,
    engine_fault,
)
from appliance.request import FloatArray, Lane, RequestCounts, SegmentAudio
from appliance.scheduler.admission import Admission
from appliance.scheduler.engines import Engines
from appliance.scheduler.interface import Engine
from appliance.scheduler.job import GOING, Job, Ways
from appliance.scheduler.picking import next_call
from appliance.scheduler.queue import Queue
from appliance.scheduler.release import Delivery
from appliance.scheduler.workload import NO_CALL, CallOutcome, Clock, EngineCall, Life, Observer, Workload

logger = logging.getLogger(__name__)

BIAS = 1.1
"""Factor on cost estimates: a larger one refuses more requests, a smaller one breaks promises."""
MARGIN_S = 0.03
"""Time that a finished segment needs to travel from the engine to the caller."""
IDLE_WAIT_S = 1.0
"""Longest time between two heartbeats of the idle loop."""
HORIZON_S = 10.0
"""Window of `Scheduler.busy`, in seconds."""

CallResult = Lane | FloatArray | None | EngineFault | Interrupted
"""Result of "open", of "finish", of "step" (None), or the error."""


class Scheduler:
    """Runs the engine, one call at a time, on its own thread."""

    def __init__(
        self,
        config: SchedulerConfig | None = None,
        clock: Clock = time.monotonic,
        *,
        bias: float = BIAS,
        margin_s: float = MARGIN_S,
        call_at: Callable[[float, Callable[[], None]], None] = lambda when, act: None,
        observer: Observer | None = None,
    ) -> None:
        """`call_at` sets an alarm, and must run its callback on another thread than the engine's."""
        self._workload = workload = Workload(
            clock, config or SchedulerConfig(), bias, margin_s, observer or Observer()
        )
        self._delivery = delivery = Delivery(workload, call_at)
        self._admission = Admission(workload, delivery)
        self._heartbeat = math.inf
        self.queue = Queue(workload, delivery, self._admission)
        self.engines = Engines(workload)

    # The loop, on the engine's thread.

    def run(self) -> None:
        """Serve until drained. Raises EngineFault if the engine fails its test, and DeviceLost at once."""
        try:
            while self.run_once() or self._wait():
                pass
        finally:
            self._heartbeat = math.inf
            self.engines.stop()

    def run_once(self) -> bool:
        """Make one call of the engine, or run one test. Returns False if there is nothing to do."""
        workload = self._workload
        self.engines.rest_or_wake()
        with workload.changed:
            self._prepare()
            test = self.engines.next_test()
            call = None if test else self._pick()
        self.engines.give_back()
        if test is not None:
            self.engines.run_test(test)
            return True
        if call is None:
            return False
        result = self._make(call)
        with workload.changed:
            self._settle(call, result)
        if isinstance(result, DeviceLost):
            raise result
        self.engines.test_after_faults(call.engine)
        return True

    def _wait(self) -> bool:
        """Wait for something to do. Returns False once drained."""
        workload = self._workload
        with workload.changed:
            if workload.life is Life.DRAINING and not workload.jobs:
                return False
            deadlines = (job.deadline for job in workload.jobs.values())
            next_s = min(deadlines, default=math.inf) - workload.clock()
            workload.changed.wait_for(lambda: workload.has_news, min(max(next_s, 0.0), IDLE_WAIT_S))
            workload.has_news = False
        return True

    def _prepare(self) -> None:
        """End expired jobs, deliver held audio, close lanes, shut down old engines."""
        now, jobs = self._beat(), self._workload.jobs
        for job in [job for job in jobs.values() if job.deadline <= now]:
            stage = "the request was worked on" if job.begun else "the request waited for the engine"
            self._delivery.end(job, DeadlineMissed.passed(f"while {job.channel.hold.stage or stage}"))
        self._delivery.release_all()
        self.engines.close_lanes()
        self.engines.shut_down_idle()

    def _pick(self) -> EngineCall | None:
        """Pick the next call, and mark it as the current one. None if there is no work."""
        workload = self._workload
        call = None if self.engines.is_resting else next_call(workload)
        if call is None:
            workload.forget_played(workload.clock())
        else:
            workload.call = call
            if call.preempted is not None:
                workload.give_up_lane(call.preempted)
                self.engines.close_lanes()
            for job in call.jobs:
                if not job.begun:
                    job.begun = True
                    job.timings.queue_s = call.begun - job.arrived
        workload.observer.picked(call, workload)
        return call

    def _make(self, call: EngineCall) -> CallResult:
        """Call the engine, without the lock."""
        engine = call.engine
        lanes = [job.lane for job in call.jobs if job.lane is not None]
        if engine.can_interrupt:
            engine.interrupt(False)
        try:
            if call.kind == "open":
                return engine.open(call.jobs[0].segment)
            if call.kind == "step":
                engine.step(lanes)
                return None
            return engine.finish(lanes[0])
        except (Interrupted, EngineFault) as error:
            return error
        except Exception as error:
            logger.exception("engine call %s failed", call.kind)
            fault = engine_fault(f"the engine failed: {type(error).__name__}: {error}")
            fault.__cause__ = error
            return fault

    def _settle(self, call: EngineCall, result: CallResult) -> None:
        """Handle the result of a call: advance its jobs, or fail them. Restarted jobs lose their lane."""
        workload, now = self._workload, self._beat()
        workload.call = NO_CALL
        if isinstance(result, Interrupted):
            workload.observer.settled(call, CallOutcome.INTERRUPTED, now)
        elif isinstance(result, EngineFault):
            workload.observer.settled(call, CallOutcome.FAILED, now)
            self._fail(call, result)
        else:
            workload.observer.settled(call, CallOutcome.DONE, now)
            self._advance(call, result, now - call.begun)
        for job in call.jobs:
            if job.restarts:
                workload.give_up_lane(job)

    def _fail(self, call: EngineCall, fault: EngineFault) -> None:
        self.engines.failed(call.jobs[0].segment, fault)
        for job in call.jobs:
            logger.error("request %s: %s: %s", job.terms.request_id, call.kind, fault)
            if not job.ended:
                self._delivery.end(job, fault)

    def _advance(self, call: EngineCall, result: Lane | FloatArray | None, seconds: float) -> None:
        """Add a call's result and time to its jobs, and let the engine's costs learn from its duration."""
        steps, share_s = call.steps, seconds / len(call.jobs)
        for job in call.jobs:
            self._workload.spend(job, share_s, call.begun + seconds)
            if isinstance(result, Lane):
                job.lane = result.id
                job.timings.condition_s += share_s
            elif result is None:
                job.steps += 1
                job.timings.steps_s += share_s
            else:
                job.timings.vocoder_s += share_s
                self._finish(job, result)
        call.engine.costs.learn(call.kind, steps, seconds)

    def _finish(self, job: Job, samples: FloatArray) -> None:
        """Add a finished segment to its job, and release it if the channel allows."""
        segment = job.segment
        self.engines.finished(job.engine, segment)
        self._workload.give_up_lane(job)
        job.segments_done += 1
        if job.ended:
            return
        job.made_s += segment.audio_s
        job.unreleased.append(SegmentAudio(samples, segment.index, job.is_done, segment.pause_s))
        self._delivery.release(job)

    def _beat(self) -> float:
        self._heartbeat = now = self._workload.clock()
        return now

    # Any thread may call what follows.

    def start(self, engine: Engine) -> None:
        """Admit jobs from now on. `run` does so too."""
        workload = self._workload
        with workload.changed:
            workload.engine_of.setdefault("", engine)
            if workload.life is Life.STARTING:
                workload.life, workload.step = Life.RUNNING, ""

    def starting(self, step: str) -> None:
        """Note the daemon's current step before `start`. Unavailable names it."""
        self._workload.step = f": {step}"

    def check_open(self, key: str = "", *, is_taken: bool = False) -> None:
        with self._workload.changed:
            self._workload.check_running(key, is_taken=is_taken)

    def admit(
        self,
        job: Job,
        ways: Ways,
        merging: Job | None = None,
        generation: int | None = None,
        bundle: str = "",
    ) -> int | None:
        """Admit a job for the engine of a bundle ("": the first), in place of `merging`.

        Returns the index of the chosen way. None means that the job must be planned again, because `merging`
        has begun or the engine is no longer of `generation`. Raises Cancelled, Unavailable, InvalidRequest,
        QueueFull, RateLimited, Overloaded, DeadlineMissed.
        """
        workload = self._workload
        with workload.changed:
            try:
                return self._admission.enter(job, ways, merging, generation, bundle)
            except ApplianceError as error:
                workload.observer.refused(error)
                raise

    @property
    def config(self) -> SchedulerConfig:
        return self._workload.config

    @config.setter
    def config(self, config: SchedulerConfig) -> None:
        self._workload.config = config
        self._workload.on_change()

    @property
    def load(self) -> RequestCounts:
        with self._workload.changed:
            jobs = list(self._workload.jobs.values())
        return RequestCounts(
            waiting=sum(not job.begun for job in jobs),
            running=sum(job.begun for job in jobs),
            parked=sum(not job.has_room for job in jobs),
        )

    @property
    def busy(self) -> float:
        """Share of the next HORIZON_S seconds that the work due by then, or without a deadline, needs."""
        workload = self._workload
        with workload.changed:
            now = workload.clock()
            demands = chain.from_iterable(workload.timetable(now).values())
            taken_s = sum(d.cost_s for d in demands if d.due <= now + HORIZON_S or d.due == math.inf)
        return taken_s * workload.bias / HORIZON_S

    @property
    def silence_s(self) -> float:
        """Seconds since the last heartbeat of the engine's thread; 0 outside of `run`. Takes no lock."""
        return max(self._workload.clock() - self._heartbeat, 0.0)

    def drain(self) -> None:
        """Admit nothing more. `run` returns when all jobs have ended."""
        workload = self._workload
        with workload.changed:
            workload.life, workload.step = Life.DRAINING, ""
            self._put_off([job for job in workload.jobs.values() if job.channel.hold is not GOING])
            workload.notify()

    def cancel_all(self) -> None:
        with self._workload.changed:
            self._put_off(list(self._workload.jobs.values()))

    def _put_off(self, jobs: Sequence[Job]) -> None:
        """End jobs whose callers will send them again to the next process, and keep their order for that
        process.
        """
        state = self._workload.keep()
        for job in jobs:
            self._delivery.end(job, Unavailable("the daemon stopped before the request was finished"))
        self._workload.earlier = state
