"""State of the scheduler: jobs, channels, the call under way, the history.

Locking. One thread, the engine's, runs `Scheduler.run`; the other public methods of Scheduler, and those of
Queue and Engines, may be called from any thread, and hold `Workload.changed`. All else runs under that lock,
but for the engine's own calls and tests. `Job.deliver`, `on_change` and the observer are called under it, and
return at once.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from appliance.config import SchedulerConfig
from appliance.errors import ApplianceError, InvalidRequest, Unavailable
from appliance.request import Segment, Terms
from appliance.scheduler.interface import Engine
from appliance.scheduler.job import Channel, Demand, Job, State, Utterance

HISTORY = 1_000
"""Ended requests that are remembered for watchers."""

Clock = Callable[[], float]
"""Seconds on a scale that never goes back."""


@dataclass(frozen=True, eq=False)
class EngineCall:
    """One call of the engine, for one job or several that share a step."""

    kind: Literal["open", "step", "finish"]
    jobs: tuple[Job, ...]
    begun: float
    cost_s: float
    """Estimate."""
    due: float
    """Deadline of the most urgent job."""
    preempted: Job | None = None
    """BULK job that must give up its lane first."""

    @property
    def engine(self) -> Engine:
        return self.jobs[0].engine

    @property
    def steps(self) -> list[tuple[Segment, int]]:
        return [(job.segment, job.steps) for job in self.jobs]


class Outcome(enum.Enum):
    """How a call of the engine ended."""

    DONE = ""
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Observer:
    """What the scheduler tells a trace; this one ignores it."""

    def admitted(self, job: Job, now: float) -> None: ...

    def refused(self, error: ApplianceError) -> None: ...

    def picked(self, call: EngineCall | None, workload: Workload) -> None:
        """Called before the call, None if there is none to make."""

    def settled(self, call: EngineCall, outcome: Outcome, now: float) -> None:
        """Called before the call's jobs are changed."""

    def ended(self, job: Job, now: float) -> None:
        """Called when a job leaves the books, delivered or not."""


class Life(enum.Enum):
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"


@dataclass(eq=False)
class Workload:
    clock: Clock
    config: SchedulerConfig
    bias: float
    """Factor on every estimate."""
    margin_s: float
    observer: Observer
    on_change: Callable[[], None] = lambda: None
    """Called when the list of utterances has changed."""
    life: Life = Life.STARTING
    engine: Engine | None = None
    """Engine of new jobs."""
    generation: int = 0
    """Number of replacements of the engine."""
    call: EngineCall | None = None
    """Call under way."""
    jobs: dict[str, Job] = field(default_factory=dict)
    """Jobs that have not ended, by request id, in order of arrival."""
    channels: dict[str, Channel] = field(default_factory=dict)
    paused: dict[str, float] = field(default_factory=dict)
    """Start of the pause, by name of channel."""
    used_s: dict[str, float] = field(default_factory=dict)
    """Weighted engine time used without a promise, by payer."""
    unclosed: list[tuple[Engine, int]] = field(default_factory=list)
    """Lanes that were given up; the engine's thread closes them."""
    history: deque[tuple[int, Utterance]] = field(default_factory=lambda: deque(maxlen=HISTORY))
    changed: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))
    has_news: bool = False
    """True if there may be something to do for the engine's thread."""

    def notify(self) -> None:
        self.has_news = True
        self.changed.notify_all()

    def check_open(self, request_id: str = "", *, taken: bool = False) -> None:
        """Raise Unavailable if not running, InvalidRequest if a job or, says `taken`, a call has this id."""
        if self.life is not Life.RUNNING:
            raise Unavailable(f"the daemon is {self.life.value}")
        if taken or request_id in self.jobs:
            raise InvalidRequest("request_id", f"{request_id} is in use by a request that has not ended")

    def demands(self, now: float, trial: Channel | None = None) -> Iterator[Demand]:
        """Yield all remaining demands, with `trial` in place of the channel of its key."""
        channels = self.channels if trial is None else {**self.channels, trial.key: trial}
        for channel in channels.values():
            yield from channel.demands(now)

    def urgency(self, demand: Demand) -> tuple[float, bool, float, int]:
        """Sort key: deadline first; without one begun work before new, then by the payer's used time."""
        job = demand.job
        if self.config.policy == "fifo":
            return job.number, False, 0.0, 0
        if demand.due < float("inf"):
            return demand.due, False, 0.0, job.number
        return demand.due, job.lane is None, self.used_s.get(job.terms.payer, 0.0), job.number

    def can_preempt(self, call: EngineCall | None) -> bool:
        """True if promised work may interrupt this call: none of it is promised, and the engine can."""
        return (
            call is not None
            and call.engine.can_interrupt
            and self.config.policy != "fifo"
            and not any(job.guaranteed for job in call.jobs)
        )

    def holders(self, engine: Engine) -> list[Job]:
        return [job for job in self.jobs.values() if job.lane is not None and job.engine is engine]

    def give_up_lane(self, job: Job) -> None:
        if job.lane is not None:
            self.unclosed.append((job.engine, job.lane))
        job.lane, job.steps = None, 0

    def channel_of(self, terms: Terms) -> Channel:
        """Channel of a request: the one in use, else a new one."""
        kind = "channel" if terms.channel else "connection"
        key = f"{kind} {terms.line}" if terms.line else f"request {terms.request_id}"
        return self.channels.get(key) or Channel(key, terms.channel, paused=self.paused.get(terms.channel))

    def channels_named(self, name: str) -> list[Channel]:
        """The serial channel of that name, and one for each request that overlaps."""
        return [channel for channel in self.channels.values() if channel.name == name]

    def superseded_by(self, job: Job, now: float) -> list[Job]:
        """Earlier jobs with the same supersede scope that do not sound yet."""
        if not job.terms.supersede:
            return []
        sounding = {
            other
            for channel in self.channels.values()
            for other, _, starts in channel.playing(now)
            if other.audible is not None and starts <= now
        }
        return [
            other
            for other in self.jobs.values()
            if other.terms.supersede_scope == job.terms.supersede_scope and other not in sounding
        ]

    def stop_playout(self, job: Job, why: ApplianceError) -> None:
        """Remove a job from its channel; the next one may play."""
        job.channel.remove(job, self.clock())
        self._remember(job, why)

    def forget_played(self, now: float) -> None:
        """Move played jobs to the history; drop empty channels and idle payers."""
        for key, channel in list(self.channels.items()):
            for job in channel.settle(now):
                self._remember(job)
            if not channel.jobs and channel.free <= now:
                del self.channels[key]
        active = {job.terms.payer for job in self.jobs.values()}
        self.used_s = {payer: used_s for payer, used_s in self.used_s.items() if payer in active}

    def _remember(self, job: Job, why: ApplianceError | None = None) -> None:
        number = self.history[-1][0] + 1 if self.history else 1
        self.history.append((number, Utterance(job, State.ENDED, self.clock(), why)))
        self.on_change()
