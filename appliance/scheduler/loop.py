"""The engine's thread and its loop: admit → pick → one call of the engine → settle.

`admission.py` decides who is let in, `picking.py` which call is next; `workload.py` is their state. Here are
the lock, the thread and the effects: lanes, deliveries, ends of jobs, faults, a moderator's verbs.

One thread runs `Scheduler.run`; any thread may call the other public methods.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

from appliance.config import SchedulerConfig
from appliance.errors import (
    ApplianceError,
    Cancelled,
    DeadlineMissed,
    DeviceLost,
    EngineFault,
    Interrupted,
    InvalidRequest,
    Merged,
    OutOfDeviceMemory,
    QueueFull,
    Superseded,
    Unavailable,
)
from appliance.request import FloatArray, PassedOver, RequestCounts, Segment, SegmentAudio, Terms
from appliance.scheduler.admission import Admission
from appliance.scheduler.calls import Engine, EngineCall, EngineLane
from appliance.scheduler.picking import next_call
from appliance.scheduler.playout import Job, Utterance
from appliance.scheduler.workload import Clock, Workload

logger = logging.getLogger(__name__)

BIAS = 1.1
"""Factor on estimates: a larger one refuses more, a smaller one breaks promises."""
MARGIN_S = 0.03
"""Time from the engine to the caller's end of the connection."""
IDLE_WAIT_S = 1.0
"""Longest time between heartbeats of the idle loop."""
FAULTS_IN_A_ROW = 3
"""Failed calls without a finished segment in between, after which the engine is tested."""
MAX_PAUSED = 1_000
HORIZON_S = 10.0
"""Window of `Scheduler.busy`: longer than one reply needs until its first audio."""


class Scheduler:
    def __init__(
        self,
        config: SchedulerConfig | None = None,
        clock: Clock = time.monotonic,
        *,
        bias: float = BIAS,
        margin_s: float = MARGIN_S,
        call_at: Callable[[float, Callable[[], None]], None] = lambda when, act: None,
    ) -> None:
        """`call_at` calls a function at a time of the clock, on another thread than the engine's."""
        self.on_change: Callable[[], None] = lambda: None
        """Called under the lock when the result of `utterances` has changed; must return at once."""
        self.generation = 0
        """Number of replacements of the engine."""
        self._clock, self._call_at = clock, call_at
        self._workload = Workload(
            clock, config or SchedulerConfig(), bias, margin_s, on_change=lambda: self.on_change()
        )
        self._admission = Admission(self._workload)
        self._state: Literal["starting", "running", "draining"] = "starting"
        self._number = 0
        """Jobs admitted so far."""
        self._retired: list[Engine] = []
        """Replaced engines whose last job has not ended."""
        self._tests: list[tuple[Engine | None, Callable[[float | Exception], None]]] = []
        """Engines to be tested, None for the present one, and what gets the seconds or the error."""
        self._unclosed: list[tuple[Engine, int]] = []
        """Lanes of ended jobs."""
        self._faults = 0
        self._heartbeat: float | None = None
        self._changed = threading.Condition(threading.RLock())
        self._has_news = False

    # The loop, on the engine's thread.

    def run(self, engine: Engine) -> None:
        """Serve until drained. Raises EngineFault for an engine that fails its test, DeviceLost at once."""
        self.start(engine)
        try:
            while True:
                if self.run_once():
                    continue
                with self._changed:
                    if self._state == "draining" and not self._workload.jobs:
                        return
                    if not self._has_news:
                        self._changed.wait(self._wait_s())
                    self._has_news = False
        finally:
            self._heartbeat = None
            for _, done in self._tests:
                done(Unavailable("the daemon stops"))
            for retired in self._retired:
                retired.shutdown()

    def start(self, engine: Engine) -> None:
        """Admit jobs from now on; `run` does it too. A second call has no effect."""
        with self._changed:
            if self._workload.engine is None:
                self._workload.engine = engine
            if self._state == "starting":
                self._state = "running"

    def run_once(self) -> bool:
        """Make one call of the engine; False if there is none to make."""
        with self._changed:
            self._prepare()
            test = self._next_test()
            call = self._workload.call = self._pick() if test is None else None
            if call is None:
                self._workload.forget_played(self._clock())
        if test is not None:
            engine, done = test
            done(self._test_s(engine or self._workload.engine))
            return True
        if call is None:
            return False
        engine, result, fault = call.engine, None, None
        if engine.can_interrupt:
            engine.interrupt(False)
        try:
            result = self._make(engine, call)
        except Interrupted:
            with self._changed:
                self._beat()
                self._workload.call = None
                for job in call.jobs:
                    if job.ended:
                        self._give_up_lane(job)
            return True
        except EngineFault as error:
            fault = error
        except Exception as error:
            logger.exception("engine call %s failed", call.kind)
            fault = EngineFault(f"the engine failed: {type(error).__name__}: {error}")
            fault.__cause__ = error
        with self._changed:
            now = self._beat()
            self._workload.call = None
            if fault is None:
                self._settle(engine, call, result, now)
            else:
                self._fail(call, fault)
        if isinstance(fault, DeviceLost):
            raise fault
        if self._faults >= FAULTS_IN_A_ROW:
            self._prove(engine)
        return True

    def _prepare(self) -> None:
        """End expired jobs, deliver held audio, close lanes, shut down old engines."""
        now = self._beat()
        jobs = self._workload.jobs
        for job in [job for job in jobs.values() if job.deadline <= now]:
            stage = "the request was worked on" if job.begun else "the request waited for the engine"
            if job.channel.paused is not None:
                stage = "its channel was paused"
            self._end(job, DeadlineMissed.passed(f"while {stage}"))
        for job in jobs.values():
            if job.held:
                self._release(job, self._clock())
        self._close_lanes()
        for engine in list(self._retired):
            if all(job.engine is not engine for job in jobs.values()):
                self._retired.remove(engine)
                engine.shutdown()

    def _pick(self) -> EngineCall | None:
        call = next_call(self._workload)
        if call is None:
            return None
        if call.preempted is not None:
            self._give_up_lane(call.preempted)
            self._close_lanes()
        for job in call.jobs:
            if not job.begun:
                job.begun = True
                job.timings.queue_s = call.begun - job.arrived
        return call

    def _make(self, engine: Engine, call: EngineCall) -> EngineLane | FloatArray | None:
        # Without the lock.
        if call.kind == "open":
            return engine.open(call.jobs[0].segment)
        lanes = [job.lane for job in call.jobs if job.lane is not None]
        if call.kind == "step":
            engine.step(lanes)
            return None
        return engine.finish(lanes[0])

    def _settle(
        self, engine: Engine, call: EngineCall, result: EngineLane | FloatArray | None, now: float
    ) -> None:
        """Record the result of a call that ended now."""
        seconds, steps = now - call.begun, call.steps
        share_s = seconds / len(call.jobs)
        for job in call.jobs:
            if not job.guaranteed:
                used_s = self._workload.used_s
                weight = self.config.weights.get(job.terms.channel, 1.0)
                used_s[job.terms.payer] = used_s.get(job.terms.payer, 0.0) + share_s / weight
            if call.kind == "open":
                job.lane = result.id  # type: ignore[union-attr]
                job.timings.condition_s += share_s
            elif call.kind == "step":
                job.steps += 1
                job.timings.steps_s += share_s
            else:
                job.timings.vocoder_s += share_s
                self._finished(job, result, now)  # type: ignore[arg-type]
            if job.ended:
                self._give_up_lane(job)
        engine.costs.learn(call.kind, steps, seconds)

    def _finished(self, job: Job, samples: FloatArray, now: float) -> None:
        self._faults = 0
        segment = job.segment
        self._give_up_lane(job)
        job.done += 1
        last = job.done == len(job.segments)
        if job.ended:
            return
        job.made_s += segment.audio_s
        job.held.append(SegmentAudio(samples, segment.index, last, segment.pause_s))
        self._release(job, math.inf if last else now)
        if last and not job.held:
            self._complete(job)

    def _release(self, job: Job, now: float) -> None:
        """Deliver a job's finished audio, unless its channel is paused.

        A stream's first audio is held until its deadline while it would pull later ones too far forward.
        """
        if job.channel.paused is not None:
            return
        if job.audible is None:
            if not job.stream and job.done < len(job.segments):
                return
            job.audible = self._clock()
            is_early = job.stream and job.guaranteed and not job.late_s and self.config.policy != "fifo"
            demands = self._workload.demands(now)
            if is_early and now < job.due and self._admission.shortfall_s(now, demands) > 0.0:
                job.audible = None
                if len(job.held) == 1:
                    self._call_at(job.due, lambda: self._release_due(job))
                return
            self.on_change()
        for audio in job.held:
            job.deliver(audio)
        job.held.clear()

    def _release_due(self, job: Job) -> None:
        with self._changed:
            if job.held and not job.ended:
                self._release(job, math.inf)

    def _complete(self, job: Job) -> None:
        job.ended = True
        del self._workload.jobs[job.terms.request_id]
        self._workload.forget_played(self._clock())
        self.on_change()

    def _end(self, job: Job, why: ApplianceError) -> None:
        """End a job before it is done; its lane is closed before the next call."""
        job.ended = True
        del self._workload.jobs[job.terms.request_id]
        self._workload.stop_playout(job, why)
        call = self._workload.call
        if call is None or job not in call.jobs:
            self._give_up_lane(job)
        self._workload.forget_played(self._clock())
        job.deliver(why)
        self._notify()

    def _give_up_lane(self, job: Job) -> None:
        if job.lane is not None:
            self._unclosed.append((job.engine, job.lane))
        job.lane, job.steps = None, 0

    def _close_lanes(self) -> None:
        for engine, lane in self._unclosed:
            engine.close(lane)
        self._unclosed.clear()

    def _has_free_lane(self) -> bool:
        engine = self._workload.engine
        return engine is not None and len(self._workload.holders(engine)) < engine.max_lanes

    # Faults of the engine.

    def _fail(self, call: EngineCall, fault: EngineFault) -> None:
        self._faults += 1
        for job in call.jobs:
            logger.error("request %s: %s: %s", job.terms.request_id, call.kind, fault)
            if not job.ended:
                self._end(job, fault)
            self._give_up_lane(job)

    def _prove(self, engine: Engine) -> None:
        """Test the engine once a lane is free. Raises EngineFault if it fails."""
        with self._changed:
            self._close_lanes()
            if not self._has_free_lane():
                return
        logger.error("the engine has failed %d times in a row; testing it", self._faults)
        try:
            engine.prove()
        except (DeviceLost, OutOfDeviceMemory):
            raise
        except Exception as error:
            raise EngineFault(f"the engine fails every call: {type(error).__name__}: {error}") from error
        logger.warning("the engine passes its test: what it was given was at fault")
        self._faults = 0

    def _next_test(self) -> tuple[Engine | None, Callable[[float | Exception], None]] | None:
        """Return the first test for which there is a lane."""
        for number, (engine, _) in enumerate(self._tests):
            if engine is not None or self._has_free_lane():
                return self._tests.pop(number)
        return None

    def _test_s(self, engine: Engine | None) -> float | Exception:
        """Return the seconds of a test of an engine, or its error."""
        assert engine is not None
        begun = self._clock()
        try:
            engine.prove()
        except Exception as error:
            return error
        return self._clock() - begun

    # Waking and heartbeat.

    def _notify(self) -> None:
        self._has_news = True
        self._changed.notify_all()

    def _wait_s(self) -> float:
        """Return the time until the next deadline or release."""
        jobs = self._workload.jobs.values()
        times = [job.deadline for job in jobs]
        times += [job.due for job in jobs if job.held and job.channel.paused is None]
        return min(max(min(times, default=math.inf) - self._clock(), 0.0), IDLE_WAIT_S)

    def _beat(self) -> float:
        self._heartbeat = now = self._clock()
        return now

    # Jobs: any thread may call what follows.

    def check_open(self, request_id: str = "") -> None:
        """Raise Unavailable if not running, InvalidRequest for an id that is in use."""
        with self._changed:
            if self._state != "running":
                raise Unavailable(f"the daemon is {self._state}")
            if request_id in self._workload.jobs:
                raise InvalidRequest("request_id", f"{request_id} is in use by a request that has not ended")

    def mergeable(self, terms: Terms) -> Job | None:
        """Return the waiting job with which a request with these terms may be merged."""
        with self._changed:
            return self._workload.mergeable(terms)

    def admit(
        self,
        job: Job,
        ways: Sequence[Sequence[Segment]],
        merging: Job | None = None,
        generation: int | None = None,
    ) -> int | None:
        """Admit a job; return the index of the cheapest way that keeps every promise.

        With `merging` it takes the place of that job. Returns None if it must be planned again: that job has
        begun, or the engine is another than that of `generation`. Raises Cancelled if it was cancelled
        before, Unavailable, InvalidRequest, QueueFull, RateLimited, Overloaded, DeadlineMissed.
        """
        with self._changed:
            if job.ended:
                raise Cancelled("the caller went away")
            self.check_open(job.terms.request_id)
            now, workload = self._clock(), self._workload
            if merging is not None and (merging.begun or merging.ended):
                return None
            if generation is not None and generation != self.generation:
                return None
            job.engine = workload.engine
            replaced = workload.superseded_by(job, now)
            if merging is not None and merging not in replaced:
                replaced.append(merging)
            way = self._admission.admit(job, ways, replaced, merging, now)
            self._number += 1
            job.number = self._number
            for old in replaced:
                kind = Merged if old is merging else Superseded
                self._end(old, kind(f"replaced by {job.terms.request_id}"))
            workload.jobs[job.terms.request_id] = job
            if job.kept:
                job.begun, job.done, job.made_s = True, len(job.segments), job.audio_s
                job.held = list(job.kept)
                self._release(job, math.inf)
                if not job.held:
                    self._complete(job)
            else:
                workload.used_s.setdefault(job.terms.payer, min(workload.used_s.values(), default=0.0))
                call = workload.call
                if job.guaranteed and call is not None and workload.can_preempt(call):
                    call.engine.interrupt(True)
                self._notify()
            self.on_change()
            return way

    def cancel(self, job: Job, why: ApplianceError | None = None) -> None:
        """End a job; its lane is free after the engine's present call. Idempotent."""
        with self._changed:
            if not job.number:
                job.ended = True  # not admitted yet, and so never
            elif not job.ended:
                self._end(job, why or Cancelled("the caller went away"))

    def written(self, job: Job, seconds: float) -> None:
        """Record that the transport has taken more of a job's audio."""
        with self._changed:
            had_room = job.has_room
            job.written_s += seconds
            if job.has_room and not had_room:
                self._notify()

    def stop_playout(self, job: Job) -> None:
        """Remove a finished job from its channel, since its caller has gone before reading all of it."""
        with self._changed:
            if job.ended and job in job.channel.jobs:
                self._workload.stop_playout(job, Cancelled("the caller went away"))

    # The queue, for watchers and moderators.

    def utterances(self, since: int = 0) -> tuple[list[Utterance], list[Utterance], int]:
        """Return present requests in order of playout, those ended since a number, and the next number."""
        with self._changed:
            present = self._workload.utterances()
            history = self._workload.history
            ended = [utterance for number, utterance in history if number > since]
            return present, ended, history[-1][0] if history else since

    def position_of(self, job: Job) -> tuple[Utterance, list[Job]]:
        """Return the state of a job, and the jobs played before it on its channel."""
        with self._changed:
            return self._workload.position_of(job)

    def end(self, chosen: Callable[[Utterance], bool], why: ApplianceError) -> list[Utterance]:
        """End the chosen requests, sounding ones too, and return them."""
        with self._changed:
            found = [utterance for utterance in self.utterances()[0] if chosen(utterance)]
            for utterance in found:
                job = utterance.job
                if not job.ended:
                    self._end(job, why)
                elif job in job.channel.jobs:
                    self._workload.stop_playout(job, why)
            return found

    @property
    def paused(self) -> list[str]:
        """Names of paused channels."""
        with self._changed:
            return sorted(self._workload.paused)

    def pause(self, name: str) -> None:
        """Hold the audio of a channel. Raises QueueFull."""
        with self._changed:
            paused = self._workload.paused
            if name in paused:
                return
            if len(paused) >= MAX_PAUSED:
                raise QueueFull(f"{MAX_PAUSED} channels are paused, which is the limit")
            paused[name] = now = self._clock()
            for channel in self._workload.channels_named(name):
                channel.paused = now
            self._notify()
            self.on_change()

    def resume(self, name: str) -> None:
        """Continue a paused channel; its waiting jobs get new deadlines, late ones if need be."""
        with self._changed:
            if self._workload.paused.pop(name, None) is None:
                return
            now, admission = self._clock(), self._admission
            channels = self._workload.channels_named(name)
            waiting: list[Job] = []
            for channel in channels:
                channel.resume(now)
                waiting += [job for job in channel.jobs if not job.made and job.audible is None]
            for job in waiting:
                if job.guaranteed:
                    job.due = admission.target(job, job.terms.priority, job.audible_in_s(), now)
            # Earlier promises to others come first.
            for _ in range(3):
                demands, blocking_s = self._workload.demands(now), admission.blocking_s(now)
                late_s = admission.shortfall_s(now, demands, blocking_s)
                if not 0.0 < late_s < math.inf:
                    break
                for job in waiting:
                    job.late_s += late_s
            for channel in channels:
                for job in [job for job in channel.jobs if job.held]:
                    self._release(job, math.inf if job.made else now)
                    if job.made:
                        self._complete(job)
            self._notify()
            self.on_change()

    # The engine and the daemon's state.

    @property
    def config(self) -> SchedulerConfig:
        return self._workload.config

    @config.setter
    def config(self, config: SchedulerConfig) -> None:
        self._workload.config = config

    @property
    def load(self) -> RequestCounts:
        with self._changed:
            jobs = list(self._workload.jobs.values())
        return RequestCounts(
            waiting=sum(not job.begun for job in jobs),
            running=sum(job.begun for job in jobs),
            parked=sum(not job.has_room for job in jobs),
        )

    @property
    def busy(self) -> float:
        """Share of the engine's next HORIZON_S seconds that is taken; above 1 on a box that is late.

        Σ(bias · cost left) of all segments that are due within the horizon or have no deadline / horizon.
        """
        with self._changed:
            now = self._clock()
            taken_s = sum(
                d.cost_s for d in self._workload.demands(now) if d.due <= now + HORIZON_S or d.due == math.inf
            )
        return taken_s * self._workload.bias / HORIZON_S

    @property
    def engine(self) -> Engine | None:
        return self._workload.engine

    @property
    def backend(self) -> str:
        """Empty until there is an engine."""
        return "" if self.engine is None else self.engine.backend

    @property
    def passed_over(self) -> Sequence[PassedOver]:
        return () if self.engine is None else self.engine.passed_over

    @property
    def silence_s(self) -> float:
        """Seconds since the last heartbeat of the engine's thread; 0 outside of `run`. Takes no lock."""
        last = self._heartbeat
        return 0.0 if last is None else self._clock() - last

    def test_engine(self, done: Callable[[float | Exception], None], engine: Engine | None = None) -> None:
        """Test an engine, else the present one, between two calls; `done` gets the seconds, or the error, on
        the engine's thread.

        Raises Unavailable.
        """
        with self._changed:
            self.check_open()
            self._tests.append((engine, done))
            self._notify()

    def replace_engine(self, engine: Engine, switch: Callable[[], None]) -> None:
        """Give new jobs to another engine; the old one is shut down once its jobs have ended.

        `switch` is called under the lock: it must make requests be planned for the new engine. Raises
        Unavailable.
        """
        with self._changed:
            self.check_open()
            assert self._workload.engine is not None
            self._retired.append(self._workload.engine)
            self._workload.engine = engine
            self.generation += 1
            switch()
            self._notify()

    def forget_costs(self) -> None:
        """Return to the warm-up's estimates, since clocks have changed."""
        if self.engine is not None:
            self.engine.costs.reset()

    def drain(self) -> None:
        """Admit no more jobs; `run` returns when the present ones are done."""
        with self._changed:
            self._state = "draining"
            for name in self._workload.paused:
                for channel in self._workload.channels_named(name):
                    for job in [job for job in channel.jobs if not job.ended]:
                        self._end(job, Unavailable("the daemon stops and the channel is paused"))
            self._notify()

    def cancel_all(self) -> None:
        """End every job."""
        with self._changed:
            for job in list(self._workload.jobs.values()):
                self._end(job, Unavailable("the daemon stopped before the request was finished"))
