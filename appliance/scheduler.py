"""Admission and order of the engine's work: admit → pick → one call of the engine → settle.

In flow matching the steps of a reply, the cost of each and the length of its audio are known before anything
runs. So a newcomer is admitted only when every deadline, its own and those promised before, can be kept:

    for every deadline d:  call under way + bias · Σ(cost of what is due by d) + margin ≤ d − now

and from then on calls are made in order of deadline, earliest first: the processor-demand test for EDF of
real-time theory, with one call of blocking, since a call for promised work is never interrupted. What does
not fit is refused at once, with the time after which it would have fitted. BULK work is promised nothing.

One thread runs `Scheduler.run` and with it the engine; any thread may admit and cancel.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

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
    Overloaded,
    QueueFull,
    RateLimited,
    Superseded,
    Unavailable,
)
from appliance.job import WORTHWHILE, Cost, FloatArray, Load, Priority, Segment, SegmentAudio, Terms
from appliance.playout import Channel, Demand, Job, State, Utterance

logger = logging.getLogger(__name__)

BIAS = 1.1
"""Estimates are multiplied by this: one that is too long refuses too much, one too short breaks promises."""
MARGIN_S = 0.03
"""Time from the engine to the caller's end of the connection."""
STRETCH: Mapping[Priority, float] = {Priority.REALTIME: 1.4, Priority.HIGH: 1.8, Priority.NORMAL: 2.2}
"""No target is shorter than this times the request's own cost on an idle box."""
IDLE_TURN_S = 1.0
"""Longest rest of the loop before it records a heartbeat."""
INTERRUPT_S = 0.02
"""Time until an interrupted call has ended."""
FAULTS_IN_A_ROW = 3
"""Segments that fail without one that is finished in between, before the engine has to prove itself."""

HISTORY = 1_000
"""Ended requests that are remembered for those who watch."""
MAX_PAUSED = 1_000
"""Channels that may be paused at a time."""
HORIZON_S = 10.0
"""Horizon of `Scheduler.busy`: so far that the first sound of one reply does not fill it."""

Clock = Callable[[], float]
"""Seconds on a scale that never goes back."""


class Lane(Protocol):
    """A segment that the engine works on."""

    @property
    def id(self) -> int: ...


class Costs(Protocol):
    """Estimates of the engine's calls, in seconds."""

    def of(self, segment: Segment) -> Cost:
        """One segment alone."""
        ...

    def together(self, steps: Sequence[tuple[Segment, int]]) -> float:
        """One call that does these steps, each the given one of its segment."""
        ...

    def learn(self, call: str, steps: Sequence[tuple[Segment, int]], seconds: float) -> None:
        """Correct the estimate of such a call ("open", "step", "finish") by one that was made."""
        ...

    def reset(self) -> None:
        """Forget what was learnt."""
        ...


class Engine(Protocol):
    """Interface of the engine that the scheduler drives, from one thread only."""

    @property
    def backend(self) -> str:
        """Label of what computes."""
        ...

    @property
    def max_lanes(self) -> int: ...

    @property
    def max_batch(self) -> int:
        """Lanes that may share a call; 1 where a bundle's numbers depend on what else is in the batch."""
        ...

    @property
    def costs(self) -> Costs: ...

    def open(self, segment: Segment) -> Lane: ...

    def step(self, lane_ids: Sequence[int]) -> None: ...

    def finish(self, lane_id: int) -> FloatArray:
        """(samples,) at the model's rate, all finite."""
        ...

    def close(self, lane_id: int) -> None: ...

    @property
    def can_interrupt(self) -> bool:
        """True if `interrupt` ends a call under way."""
        ...

    def interrupt(self, on: bool) -> None:
        """Make the call under way, and all until this is called with False, raise Interrupted.

        No lane is lost by it. Any thread may call it.
        """
        ...

    def prove(self) -> None:
        """Synthesise something. Raises what is wrong."""
        ...

    def shutdown(self) -> None:
        """Release everything."""
        ...


@dataclass(frozen=True, eq=False)
class Call:
    """One call of the engine."""

    kind: Literal["open", "step", "finish"]
    jobs: tuple[Job, ...]
    begun: float
    cost_s: float
    due: float
    """Deadline of the job that it is made for."""

    @property
    def steps(self) -> list[tuple[Segment, int]]:
        """Segments and steps that the call works on."""
        return [(job.segment, job.steps) for job in self.jobs]


class Scheduler:
    """Admits jobs and makes the engine's calls in the order that keeps their deadlines."""

    def __init__(
        self,
        config: SchedulerConfig | None = None,
        clock: Clock = time.monotonic,
        *,
        bias: float = BIAS,
        margin_s: float = MARGIN_S,
        at: Callable[[float, Callable[[], None]], None] = lambda when, act: None,
    ) -> None:
        """`at` has something done at a time of the clock, on another thread than the engine's."""
        self.config = config or SchedulerConfig()
        self._bias, self._margin_s, self._at = bias, margin_s, at
        self._clock = clock
        self._state: Literal["starting", "running", "draining"] = "starting"
        self._engine: Engine | None = None
        self._retired: list[Engine] = []
        """Engines that another has replaced, until their last job has ended."""
        self._trials: list[Callable[[float | Exception], None]] = []
        """Callbacks that wait for a test of the engine."""
        self.generation = 0
        """Number of times the engine has been replaced: jobs planned for an earlier one are planned again."""
        self._channels: dict[str, Channel] = {}
        self._jobs: dict[str, Job] = {}
        """Jobs by request id, in order of arrival."""
        self._call: Call | None = None
        self._leaving: list[tuple[Engine, int]] = []
        """Lanes of jobs that have ended."""
        self._used_s: dict[str, float] = {}
        """Weighted engine time used without a promise, by channel, else client."""
        self._rates: dict[str, float] = {}
        """Time at which a user's requests no longer count, by user."""
        self._typical_s = 0.0
        """Moving average of the engine time that a new request needs until its first sound."""
        self._faults = 0
        self._number = 0
        self._paused: dict[str, float] = {}
        """Named channels that play nothing, and since when."""
        self._history: deque[tuple[int, Utterance]] = deque(maxlen=HISTORY)
        self.on_change: Callable[[], None] = lambda: None
        """Called under the lock when what `utterances` returns has changed: must return at once."""
        self._heartbeat: float | None = None
        self._changed = threading.Condition(threading.RLock())
        self._news = False

    # What any thread may call.

    @property
    def load(self) -> Load:
        """Load, in requests."""
        with self._changed:
            jobs = list(self._jobs.values())
        return Load(
            waiting=sum(not job.begun for job in jobs),
            running=sum(job.begun for job in jobs),
            parked=sum(not job.has_room for job in jobs),
        )

    @property
    def busy(self) -> float:
        """Share of the engine's next HORIZON_S seconds that is taken; above 1 on a box that is late.

        Σ(bias · cost left) of all segments due within the horizon / horizon: what admission has promised, by
        the estimates that it decides with, and not a number of requests, which may differ in cost a
        hundredfold. Segments due later leave room for a newcomer and do not count; work without a deadline
        (BULK, paused channels, the policy fifo) does, since it is done as soon as there is room.
        """
        with self._changed:
            now = self._clock()
            taken_s = sum(
                d.cost_s for d in self._demands(now) if d.due <= now + HORIZON_S or d.due == math.inf
            )
        return taken_s * self._bias / HORIZON_S

    @property
    def backend(self) -> str:
        """Label of what computes; empty until there is an engine."""
        return "" if self._engine is None else self._engine.backend

    @property
    def silence_s(self) -> float:
        """Seconds since the last sign of life of the engine's thread; 0 when `run` is not under way.

        Takes no lock: who asks must not wait for the thread that is asked about.
        """
        last = self._heartbeat
        return 0.0 if last is None else self._clock() - last

    def check_open(self, request_id: str = "") -> None:
        """Raise Unavailable when not running, InvalidRequest for an id that is in use."""
        with self._changed:
            if self._state != "running":
                raise Unavailable(f"the daemon is {self._state}")
            if request_id in self._jobs:
                raise InvalidRequest("request_id", f"{request_id} is in use by a request that has not ended")

    def mergeable(self, terms: Terms) -> Job | None:
        """The waiting request that one with these terms may be merged with: none of it is made yet."""
        with self._changed:
            if not terms.merge:
                return None
            same = (
                job
                for job in reversed(self._jobs.values())
                if job.terms.merge_scope == terms.merge_scope and not job.begun
            )
            return next(same, None)

    def admit(
        self,
        job: Job,
        ways: Sequence[Sequence[Segment]],
        merging: Job | None = None,
        generation: int | None = None,
    ) -> int | None:
        """Let a job in, made in the cheapest of these ways that keeps every promise; returns which.

        With `merging` it takes the place of that one. None when it has to be planned again, since the engine
        has begun that one meanwhile, or is another than that of `generation`.

        Raises Cancelled when it was cancelled before, Unavailable, InvalidRequest, QueueFull, RateLimited,
        Overloaded, DeadlineMissed.
        """
        with self._changed:
            if job.ended:
                raise Cancelled("the caller went away")
            self.check_open(job.terms.request_id)
            engine = self._engine
            assert engine is not None
            now = self._clock()
            if merging is not None and (merging.begun or merging.ended):
                return None
            if generation is not None and generation != self.generation:
                return None
            job.engine = engine
            replaced = self._superseded(job)
            if merging is not None and merging not in replaced:
                replaced.append(merging)
            if not job.kept:
                self._check_places(job, without=len(replaced))
            free_again = self._check_rate(job, now)
            job.channel = channel = self._channel(job.terms)
            before = channel.jobs
            place = before.index(merging) if merging in before else len(before)
            channel.jobs = [other for other in before[:place] if other not in replaced]
            after = [other for other in before[place:] if other not in replaced]
            try:
                free = self._check_backlog(job, now)
                channel.jobs += [job, *after]
                way = self._place(job, ways, free, now)
            except ApplianceError:
                channel.jobs = before
                self._forget_idle(now)
                raise
            channel.jobs = [*before[:place], job, *before[place:]]
            self._rates.update(free_again)
            self._number += 1
            job.number = self._number
            for old in replaced:
                kind = Merged if old is merging else Superseded
                self._end(old, kind(f"replaced by {job.terms.request_id}"))
            self._jobs[job.terms.request_id] = job
            if job.kept:
                job.begun, job.done, job.made_s = True, len(job.segments), job.audio_s
                job.held = list(job.kept)
                self._release(job, math.inf)
                if not job.held:
                    self._complete(job)
                self.on_change()
                return way
            self._used_s.setdefault(job.terms.payer, min(self._used_s.values(), default=0.0))
            if job.guaranteed and self._call is not None and self._gives_way(self._call):
                self._call.jobs[0].engine.interrupt(True)
            self._notify()
            self.on_change()
            return way

    def try_out(self, done: Callable[[float | Exception], None]) -> None:
        """Let the engine synthesise a silence between two calls; `done` is told its seconds, or the error.

        It is called on the engine's thread and must return at once. Raises Unavailable when not running.
        """
        with self._changed:
            self.check_open()
            self._trials.append(done)
            self._notify()

    def exchange(self, engine: Engine, switch: Callable[[], None]) -> None:
        """Give new jobs to another engine; the one before is shut down once its jobs have ended.

        `switch` is called under the lock: whoever plans for the engine is to do so for the new one.
        Raises Unavailable when not running.
        """
        with self._changed:
            self.check_open()
            assert self._engine is not None
            self._retired.append(self._engine)
            self._engine = engine
            self.generation += 1
            switch()
            self._notify()

    def cancel(self, job: Job, why: ApplianceError | None = None) -> None:
        """End a job now; its lane is free after the engine's present call. Idempotent."""
        with self._changed:
            if not job.number:
                job.ended = True  # before it was admitted, which it will not be
            elif not job.ended:
                self._end(job, why or Cancelled("the caller went away"))

    def unread(self, job: Job) -> None:
        """The caller went away before it had read all of a finished job: nothing more of it is heard."""
        with self._changed:
            if job.ended and job in job.channel.jobs:
                self._silence(job, Cancelled("the caller went away"))

    def utterances(self, since: int = 0) -> tuple[list[Utterance], list[Utterance], int]:
        """Requests that wait or sound, channel by channel in order of playing; those that have ended since
        that number; and the number to ask with next time."""
        with self._changed:
            now = self._clock()
            self._forget_idle(now)
            present = [
                self._utterance(job, starts, channel.paused or now)
                for channel in self._channels.values()
                for job, _, starts in channel.playing(channel.paused or now)
            ]
            ended = [utterance for number, utterance in self._history if number > since]
            return present, ended, self._history[-1][0] if self._history else since

    def standing(self, job: Job) -> tuple[Utterance, list[Job]]:
        """Return the state of an admitted request, and what is played before it on its channel."""
        with self._changed:
            now = self._clock()
            self._forget_idle(now)
            channel, before = job.channel, list[Job]()
            for other, _, starts in channel.playing(channel.paused or now):
                if other is job:
                    return self._utterance(job, starts, channel.paused or now), before
                before.append(other)
            ended = (utterance for _, utterance in reversed(self._history) if utterance.job is job)
            return next(ended, Utterance(job, State.ENDED, now)), []

    @property
    def paused(self) -> list[str]:
        """Names of the channels that are paused."""
        with self._changed:
            return sorted(self._paused)

    def end(self, chosen: Callable[[Utterance], bool], why: ApplianceError) -> list[Utterance]:
        """End the requests that are chosen, and return them: nothing more of them is heard."""
        with self._changed:
            found = [utterance for utterance in self.utterances()[0] if chosen(utterance)]
            for utterance in found:
                job = utterance.job
                if not job.ended:
                    self._end(job, why)
                elif job in job.channel.jobs:
                    self._silence(job, why)
            return found

    def pause(self, channel: str) -> None:
        """Begin nothing more on a channel; what is made for it meanwhile is held. Raises QueueFull."""
        with self._changed:
            if channel in self._paused:
                return
            if len(self._paused) >= MAX_PAUSED:
                raise QueueFull(f"{MAX_PAUSED} channels are paused, which is the limit")
            self._paused[channel] = now = self._clock()
            for line in self._lines(channel):
                line.paused = now
            self._notify()
            self.on_change()

    def resume(self, channel: str) -> None:
        """Go on where a channel was paused. What waits on it is promised anew, late if need be."""
        with self._changed:
            if self._paused.pop(channel, None) is None:
                return
            now = self._clock()
            waiting: list[Job] = []
            for line in self._lines(channel):
                line.resume(now)
                waiting += [job for job in line.jobs if not job.made and job.audible is None]
            for job in waiting:
                if job.guaranteed:
                    job.due = self._targets(job, job.audible_in_s(), now)[0]
            # What others were promised comes first.
            for _ in range(3):
                late_s = self._shortfall_s(now, self._demands(now), self._blocking_s(now))
                if not 0.0 < late_s < math.inf:
                    break
                for job in waiting:
                    job.late_s += late_s
            for line in self._lines(channel):
                for job in [job for job in line.jobs if job.held]:
                    self._release(job, math.inf if job.made else now)
                    if job.made:
                        self._complete(job)
            self._notify()
            self.on_change()

    def written(self, job: Job, seconds: float) -> None:
        """The transport has taken so much more of a job's audio."""
        with self._changed:
            had_room = job.has_room
            job.written_s += seconds
            if job.has_room and not had_room:
                self._notify()

    def forget_costs(self) -> None:
        """Estimate from the warm-up's measurements again, since clocks have changed."""
        if self._engine is not None:
            self._engine.costs.reset()

    def drain(self) -> None:
        """Take no more jobs; `run` returns when the present ones are done."""
        with self._changed:
            self._state = "draining"
            for channel in self._paused:
                for line in self._lines(channel):
                    for job in [job for job in line.jobs if not job.ended]:
                        self._end(job, Unavailable("the daemon stops and the channel is paused"))
            self._notify()

    def cancel_all(self) -> None:
        """End every job, for a drain that took too long."""
        with self._changed:
            for job in list(self._jobs.values()):
                self._end(job, Unavailable("the daemon stopped before the request was finished"))

    # The engine's thread.

    def run(self, engine: Engine) -> None:
        """Serve jobs until drained.

        Raises EngineFault for an engine that fails again and again, DeviceLost at once.
        """
        self.start(engine)
        try:
            while True:
                if self.turn():
                    continue
                with self._changed:
                    if self._state == "draining" and not self._jobs:
                        return
                    if not self._news:
                        self._changed.wait(self._rest_s())
                    self._news = False
        finally:
            self._heartbeat = None
            for retired in self._retired:
                retired.shutdown()

    @property
    def engine(self) -> Engine | None:
        """The one that new jobs are given to."""
        return self._engine

    def start(self, engine: Engine) -> None:
        """Take jobs from now on, for this engine."""
        with self._changed:
            self._engine = engine
            if self._state == "starting":
                self._state = "running"

    def turn(self) -> bool:
        """Make one call of the engine; False when there is none to make."""
        with self._changed:
            self._beat()
            self._drop_expired()
            for job in self._jobs.values():
                if job.held:
                    self._release(job, self._clock())
            self._close_left()
            self._shut_down_retired()
            trial = self._trials.pop(0) if self._trials and self._has_free_lane() else None
            call = self._call = self._pick() if trial is None else None
            if call is None:
                self._forget_idle(self._clock())
        if trial is not None:
            trial(self._tried_s())
            return True
        if call is None:
            return False
        engine: Engine = call.jobs[0].engine
        if engine.can_interrupt:
            engine.interrupt(False)
        result: Lane | FloatArray | None = None
        fault: EngineFault | None = None
        try:
            result = self._make(engine, call)
        except Interrupted:
            with self._changed:
                self._beat()
                self._call = None
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
            self._call = None
            if fault is None:
                self._settle(engine, call, result, now)
            else:
                self._fail(call, fault)
        if isinstance(fault, DeviceLost):
            raise fault
        if self._faults >= FAULTS_IN_A_ROW:
            self._prove(engine)
        return True

    # admit, under the lock.

    def _place(self, job: Job, ways: Sequence[Sequence[Segment]], free: float, now: float) -> int:
        """Choose a way and a deadline that keep every promise; the channel is free at `free`."""
        engine = self._engine
        assert engine is not None
        if job.kept:
            job.take(ways[0], [Cost(0.0, (), 0.0) for _ in ways[0]])
            if job.guaranteed and job.channel.paused is None:
                job.due = max(self._targets(job, 0.0, now)[0], free)
            return 0
        costs = [[engine.costs.of(segment) for segment in segments] for segments in ways]
        totals = [sum(cost.left_s(False, 0) for cost in known) for known in costs]
        nfes = [segments[0].nfe for segments in ways]
        # Every segment works through its reference again: as many steps as may be, then what costs least.
        order = sorted(range(len(ways)), key=lambda way: (-nfes[way], totals[way]))
        short_s = own_s = math.inf
        for way in order:
            job.take(ways[way], costs[way])
            if nfes[way] == max(nfes):
                own_s = min(own_s, job.audible_in_s())
        for way in order:
            job.take(ways[way], costs[way])
            if now + totals[way] > job.deadline:
                continue
            if self.config.policy == "fifo" or not job.guaranteed or job.channel.paused is not None:
                return way
            targets = self._targets(job, own_s, now)
            for due in targets:
                job.due, job.late_s = max(due, free), 0.0
                # A box that is too slow for it even when idle serves it late rather than never.
                late_s = self._shortfall_s(now, job.demands(now, free, job.due))
                if late_s > 0.0 and (way != order[-1] or due < targets[-1]):
                    short_s = min(short_s, late_s)
                    continue
                job.late_s = max(late_s, 0.0)
                missed_s = self._shortfall_s(now, self._with_newcomer(job, now), self._blocking_s(now), job)
                if missed_s <= 0.0:
                    self._typical_s += (job.audible_in_s() - self._typical_s) * (
                        0.1 if self._typical_s else 1.0
                    )
                    return way
                short_s = min(short_s, missed_s)
        if short_s == math.inf:
            left_s = job.deadline - now
            raise DeadlineMissed(f"takes {min(totals):.2f} s and the deadline is in {left_s:.2f} s")
        reason = f"would come {short_s:.2f} s too late beside what was admitted before"
        raise Overloaded(reason, retry_s=max(short_s, 0.1))

    def _check_backlog(self, job: Job, now: float) -> float:
        """Return when the channel is free for this job. Raises QueueFull, Overloaded if that is too late."""
        free = job.channel.free_from(now)
        wait_s, timeout_s = free - now, job.terms.queue_timeout_s
        if wait_s > self.config.backlog_s:
            most_s = self.config.backlog_s
            reason = f"{wait_s:.0f} s of speech wait on this channel already; at most {most_s:g} s may"
            raise QueueFull(reason, retry_s=wait_s - most_s)
        if timeout_s is not None and wait_s > timeout_s + self.config.normal_s:
            reason = f"its turn on this channel is in {wait_s:.1f} s, and queue_timeout is {timeout_s:g} s"
            raise Overloaded(reason, retry_s=wait_s - timeout_s)
        return free

    def _targets(self, job: Job, own_s: float, now: float) -> list[float]:
        """Return due times of its first audio: by its priority, by lower ones, then as late as it allows."""
        floors = {
            Priority.REALTIME: self.config.realtime_s,
            Priority.HIGH: self.config.high_s,
            Priority.NORMAL: self.config.normal_s,
        }
        whole_s = 0.0 if job.stream else job.audio_s
        targets = [
            now + max(floors[priority], STRETCH[priority] * own_s) + whole_s
            for priority in sorted(floors, reverse=True)
            if priority <= job.terms.priority
        ]
        if job.terms.queue_timeout_s:
            targets.append(targets[-1] + job.terms.queue_timeout_s)
        return [min(target, job.deadline) for target in targets]

    def _shortfall_s(
        self,
        now: float,
        demands: Iterator[Demand],
        blocking_s: Callable[[float], float] = lambda due: 0.0,
        newcomer: Job | None = None,
    ) -> float:
        """Return the excess over the worst deadline; 0 or less if all can be kept.

        With a newcomer only those from its first on: it delays nothing that is due earlier.
        """
        known = sorted(demands, key=lambda demand: demand.due)
        since = next((demand.due for demand in known if demand.job is newcomer), -math.inf)
        work_s, worst_s = 0.0, -math.inf
        for demand in known:
            if demand.due == math.inf:
                break
            work_s += demand.cost_s * self._bias
            if demand.due < since:
                continue
            worst_s = max(worst_s, now + blocking_s(demand.due) + work_s + self._margin_s - demand.due)
        return worst_s

    def _demands(self, now: float) -> Iterator[Demand]:
        for channel in self._channels.values():
            yield from channel.demands(now)

    def _with_newcomer(self, job: Job, now: float) -> Iterator[Demand]:
        """All demands, and room for one more newcomer where this job's channel or user has its share already.

        So no load takes from a channel that has little under way the place for its next reply.
        """
        yield from self._demands(now)
        if not self._typical_s:
            return
        weights = self.config.weights
        work_s = {
            other: sum(other.cost_s(i) for i in range(other.done, len(other.segments)))
            for other in [*self._jobs.values(), job]
            if other.guaranteed and other.channel.paused is None
        }
        active = {other.terms.channel or other.terms.request_id for other in work_s}
        total = sum(weights.get(channel, 1.0) for channel in active) + 1.0
        all_s = sum(work_s.values()) + self._typical_s
        share_s = {
            "channel": weights.get(job.terms.channel, 1.0) / total * all_s,
            "user": all_s / (len({other.terms.user or other.terms.request_id for other in work_s}) + 1),
        }
        for what, most_s in share_s.items():
            own = getattr(job.terms, what)
            others = [other for other in work_s if other is not job and getattr(other.terms, what) == own]
            if own and others and work_s[job] + sum(work_s[other] for other in others) > most_s:
                due = now + max(self.config.normal_s, STRETCH[Priority.NORMAL] * self._typical_s)
                yield Demand(due, self._typical_s, job)
                return

    def _gives_way(self, call: Call | None) -> bool:
        """True if promised work interrupts this call: the engine can, and nothing in it is promised."""
        return (
            call is not None
            and call.jobs[0].engine.can_interrupt
            and self.config.policy != "fifo"
            and not any(job.guaranteed for job in call.jobs)
        )

    def _blocking_s(self, now: float) -> Callable[[float], float]:
        """Deadline → how long work that is due later may hold it up."""
        engine, call = self._engine, self._call
        assert engine is not None
        under_way_s = max(call.begun + call.cost_s * self._bias - now, 0.0) if call else 0.0
        if self._gives_way(call):
            under_way_s = min(under_way_s, INTERRUPT_S)
        call_due = call.due if call else -math.inf
        opening = call.jobs if call and call.kind == "open" else ()
        current = {demand.job: demand for demand in reversed(list(self._demands(now)))}
        held = [
            demand
            for job, demand in current.items()
            if job.guaranteed and job.engine is engine and (job.lane is not None or job in opening)
        ]
        # Without a free lane the most urgent segment under way has to end first.
        first = min(held, key=self._urgency) if len(held) >= engine.max_lanes else None

        def blocking_s(due: float) -> float:
            blocked_s = under_way_s if due < call_due else 0.0
            if first is not None and due < first.due:
                return first.cost_s * self._bias + (0.0 if call and first.job in call.jobs else blocked_s)
            return blocked_s

        return blocking_s

    def _superseded(self, job: Job) -> list[Job]:
        """Earlier jobs that this one replaces: of its channel, with its key, and not to be heard yet."""
        if not job.terms.supersede:
            return []
        now = self._clock()
        sounding = {
            other
            for channel in self._channels.values()
            for other, _, starts in channel.playing(now)
            if other.audible is not None and starts <= now
        }
        return [
            other
            for other in self._jobs.values()
            if other.terms.supersede_scope == job.terms.supersede_scope and other not in sounding
        ]

    def _check_places(self, job: Job, without: int) -> None:
        """Raise QueueFull when the line is full, or the job's client, channel or user has its share of it."""
        most = self.config.queue_length
        waiting = [other.terms for other in self._jobs.values() if not other.begun]
        if len(waiting) - without >= most:
            raise QueueFull(f"{most} requests wait already, which is the limit", retry_s=self._typical_s)
        share = max(most // 2, 1)
        for what in ("client", "channel", "user"):
            own = getattr(job.terms, what)
            if own and sum(getattr(terms, what) == own for terms in waiting) - without >= share:
                reason = f"{share} requests of this {what} wait already, which is its share"
                raise QueueFull(reason, retry_s=self._typical_s)

    def _check_rate(self, job: Job, now: float) -> dict[str, float]:
        """Return the time at which the user's requests no longer count. Raises RateLimited."""
        per_minute, user = self.config.user_rate, job.terms.user
        if not per_minute or not user:
            return {}
        # Generic cell rate algorithm: a burst of as many as a minute allows, then one by one.
        spacing_s = 60.0 / per_minute
        forgotten = max(self._rates.get(user, now), now) + spacing_s
        if forgotten - now > 60.0 + 1e-9:
            wait_s = forgotten - now - 60.0
            raise RateLimited(f"{per_minute:g} requests a minute are allowed of one user", retry_s=wait_s)
        if len(self._rates) > 10_000:
            self._rates = {name: when for name, when in self._rates.items() if when > now}
        return {user: forgotten}

    def _channel(self, terms: Terms) -> Channel:
        kind = "channel" if terms.channel else "connection"
        name = f"{kind} {terms.line}" if terms.line else f"request {terms.request_id}"
        if name not in self._channels:
            self._channels[name] = Channel(terms.channel, paused=self._paused.get(terms.channel))
        return self._channels[name]

    # pick, under the lock.

    def _pick(self) -> Call | None:
        now = self._clock()
        demands = sorted(self._demands(now), key=self._urgency)
        current = {demand.job: demand for demand in reversed(demands) if demand.job.has_room}
        ready = sorted(current.values(), key=self._urgency)
        if not ready:
            return None
        job, due = ready[0].job, ready[0].due
        if job.lane is None:
            job = self._with_room_for(job, ready)
        engine: Engine = job.engine
        if job.lane is None:
            return self._call_of("open", (job,), job.costs[job.done].open_s, due, now)
        if not job.steps_left:
            return self._call_of("finish", (job,), job.costs[job.done].finish_s, due, now)
        if engine.max_batch == 1 or job is not ready[0].job or self.config.policy == "fifo":
            return self._call_of("step", (job,), job.costs[job.done].steps_s[job.steps], due, now)
        return self._step(job, engine, demands, ready, due, now)

    def _urgency(self, demand: Demand) -> tuple[float, bool, float, int]:
        """Deadline first; work without one is finished once begun, then by what its payer has had."""
        job = demand.job
        if self.config.policy == "fifo":
            return job.number, False, 0.0, 0
        if demand.due < math.inf:
            return demand.due, False, 0.0, job.number
        return demand.due, job.lane is None, self._used_s.get(job.terms.payer, 0.0), job.number

    def _with_room_for(self, job: Job, ready: Sequence[Demand]) -> Job:
        """The job, if a lane is free or can be taken from BULK work; else the first that has one."""
        engine: Engine = job.engine
        holders = [o for o in self._jobs.values() if o.lane is not None and o.engine is engine]
        if len(holders) < engine.max_lanes:
            return job
        if job.guaranteed and (bulk := [other for other in holders if not other.guaranteed]):
            self._give_up_lane(bulk[-1])
            self._close_left()
            return job
        return next((demand.job for demand in ready if demand.job in holders), holders[0])

    def _step(
        self,
        head: Job,
        engine: Engine,
        demands: Sequence[Demand],
        ready: Sequence[Demand],
        due: float,
        now: float,
    ) -> Call:
        """A step of the head's lane, with others where that saves work and makes nothing earlier late."""
        batch, costs = [head], engine.costs
        steps = [(head.segment, head.steps)]
        cost_s = costs.together(steps)
        lanes = sum(job.lane is not None and job.engine is engine for job in self._jobs.values())
        for demand in ready:
            job = demand.job
            if job is head or job.engine is not engine or len(batch) == engine.max_batch:
                continue
            if job.lane is not None and not job.steps_left:
                continue
            own = (job.segment, job.steps)
            longer_s = costs.together([*steps, own]) - cost_s
            alone_s = costs.together([own])
            if alone_s - longer_s <= WORTHWHILE * alone_s:
                continue
            spare_s = (
                self._spare_s(demands, demand.due, now) - (cost_s - costs.together(steps[:1])) * self._bias
            )
            if job.lane is None:
                open_s = job.costs[job.done].open_s
                if lanes < engine.max_lanes - 1 and open_s * self._bias <= spare_s:
                    return self._call_of("open", (job,), open_s, demand.due, now)
            elif longer_s * self._bias <= spare_s:
                batch.append(job)
                steps.append(own)
                cost_s += longer_s
        return self._call_of("step", tuple(batch), cost_s, due, now)

    def _spare_s(self, demands: Sequence[Demand], before: float, now: float) -> float:
        """Return the slack of all that is due before then."""
        work_s, spare_s = 0.0, math.inf
        for demand in demands:
            if demand.due >= before:
                break
            work_s += demand.cost_s * self._bias
            spare_s = min(spare_s, demand.due - self._margin_s - now - work_s)
        return spare_s

    def _call_of(
        self,
        kind: Literal["open", "step", "finish"],
        jobs: tuple[Job, ...],
        cost_s: float,
        due: float,
        now: float,
    ) -> Call:
        for job in jobs:
            if not job.begun:
                job.begun = True
                job.timings.queue_s = now - job.arrived
        return Call(kind, jobs, now, cost_s, due)

    # The call, without the lock.

    def _make(self, engine: Engine, call: Call) -> Lane | FloatArray | None:
        lanes = [job.lane for job in call.jobs]
        if call.kind == "open":
            return engine.open(call.jobs[0].segment)
        known = [lane for lane in lanes if lane is not None]
        if call.kind == "step":
            engine.step(known)
            return None
        return engine.finish(known[0])

    # settle, under the lock.

    def _settle(self, engine: Engine, call: Call, result: Lane | FloatArray | None, now: float) -> None:
        """Put what a call has done, which ended now, into the jobs that it was made for."""
        seconds, steps = now - call.begun, call.steps
        for job in call.jobs:
            share_s = seconds / len(call.jobs)
            if not job.guaranteed:
                weight = self.config.weights.get(job.terms.channel, 1.0)
                self._used_s[job.terms.payer] = self._used_s.get(job.terms.payer, 0.0) + share_s / weight
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
        """A segment is made: deliver it; the last ends its job."""
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

    def _complete(self, job: Job) -> None:
        """All of a job is made and delivered."""
        job.ended = True
        del self._jobs[job.terms.request_id]
        self._forget_idle(self._clock())
        self.on_change()

    def _release(self, job: Job, now: float) -> None:
        """Deliver what is made of a job, unless its channel is paused or its first sound would come too early
        for what follows."""
        if job.channel.paused is not None:
            return
        if job.audible is None:
            if not job.stream and job.done < len(job.segments):
                return
            job.audible = self._clock()
            is_early = job.stream and job.guaranteed and not job.late_s and self.config.policy != "fifo"
            if is_early and now < job.due and self._shortfall_s(now, self._demands(now)) > 0.0:
                job.audible = None
                if len(job.held) == 1:
                    self._at(job.due, partial(self._release_due, job))
                return
            self.on_change()
        for made in job.held:
            job.deliver(made)
        job.held.clear()

    def _release_due(self, job: Job) -> None:
        """Deliver what is held of a job whose time has come."""
        with self._changed:
            if job.held and not job.ended:
                self._release(job, math.inf)

    def _fail(self, call: Call, fault: EngineFault) -> None:
        """End the jobs of a call that failed."""
        self._faults += 1
        for job in call.jobs:
            logger.error("request %s: %s: %s", job.terms.request_id, call.kind, fault)
            if not job.ended:
                self._end(job, fault)
            self._give_up_lane(job)

    def _prove(self, engine: Engine) -> None:
        """Let an engine that fails again and again do something known. Raises EngineFault when it cannot.

        Not while others have all lanes: they finish, or fail and give theirs back.
        """
        with self._changed:
            self._close_left()
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

    def _end(self, job: Job, why: ApplianceError) -> None:
        """End a job before it is done. Its lane goes with the next turn."""
        job.ended = True
        del self._jobs[job.terms.request_id]
        self._silence(job, why)
        if self._call is None or job not in self._call.jobs:
            self._give_up_lane(job)
        self._forget_idle(self._clock())
        job.deliver(why)
        self._notify()

    def _silence(self, job: Job, why: ApplianceError) -> None:
        """Take a job off its channel: nothing more of it is heard."""
        now = self._clock()
        job.channel.remove(job, now if job.channel.paused is None else job.channel.paused)
        self._remember(job, why)

    def _remember(self, job: Job, why: ApplianceError | None = None) -> None:
        number = self._history[-1][0] + 1 if self._history else 1
        self._history.append((number, Utterance(job, State.ENDED, self._clock(), why)))
        self.on_change()

    def _utterance(self, job: Job, starts: float, now: float) -> Utterance:
        sounds = job.audible is not None and starts <= now
        return Utterance(job, State.SOUNDING if sounds else State.WAITING, starts)

    def _lines(self, channel: str) -> list[Channel]:
        """All that belongs to a named channel: its line, and each request that overlaps."""
        return [line for line in self._channels.values() if line.name == channel]

    def _give_up_lane(self, job: Job) -> None:
        if job.lane is not None:
            self._leaving.append((job.engine, job.lane))
        job.lane, job.steps = None, 0

    def _close_left(self) -> None:
        for engine, lane in self._leaving:
            engine.close(lane)
        self._leaving.clear()

    def _has_free_lane(self) -> bool:
        held = sum(job.lane is not None and job.engine is self._engine for job in self._jobs.values())
        return self._engine is not None and held < self._engine.max_lanes

    def _tried_s(self) -> float | Exception:
        engine, begun = self._engine, self._clock()
        assert engine is not None
        try:
            engine.prove()
        except Exception as error:
            return error
        return self._clock() - begun

    def _shut_down_retired(self) -> None:
        if self._retired:
            used = [job.engine for job in self._jobs.values()]
            for engine in [e for e in self._retired if e not in used]:
                self._retired.remove(engine)
                engine.shutdown()

    def _forget_idle(self, now: float) -> None:
        for name, channel in list(self._channels.items()):
            for job in channel.settle(now):
                self._remember(job)
            if not channel.jobs and channel.free <= now:
                del self._channels[name]
        active = {job.terms.payer for job in self._jobs.values()}
        self._used_s = {payer: used_s for payer, used_s in self._used_s.items() if payer in active}

    # Around it, under the lock.

    def _drop_expired(self) -> None:
        now = self._clock()
        for job in [job for job in self._jobs.values() if job.deadline <= now]:
            reason = "the request was worked on" if job.begun else "the request waited for the engine"
            if job.channel.paused is not None:
                reason = "its channel was paused"
            self._end(job, DeadlineMissed(f"the deadline passed while {reason}"))

    def _rest_s(self) -> float:
        soonest = min((job.deadline for job in self._jobs.values()), default=math.inf)
        held = [job for job in self._jobs.values() if job.held and job.channel.paused is None]
        soonest = min((job.due for job in held), default=soonest)
        return min(max(soonest - self._clock(), 0.0), IDLE_TURN_S)

    def _notify(self) -> None:
        self._news = True
        self._changed.notify_all()

    def _beat(self) -> float:
        self._heartbeat = now = self._clock()
        return now
