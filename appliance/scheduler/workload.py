"""State of the scheduler, and its lock.

Locking. The engine's thread runs `Scheduler.run`; any thread may call the other public methods of Scheduler,
Queue and Engines, which take `Workload.changed`. All else runs under that lock, but for calls and tests of
the engine. `Job.deliver`, `on_change` and the observer are called under it: they return at once.
"""

from __future__ import annotations

import enum
import hashlib
import math
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import Literal

from appliance.audio.captions import heard_characters
from appliance.config import SchedulerConfig
from appliance.errors import ApplianceError, InvalidRequest, Rejected, Unavailable
from appliance.request import Segment, Terms
from appliance.scheduler.interface import Engine
from appliance.scheduler.job import GOING, Channel, Demand, Job, Paused, State, Unapproved, Utterance

ACTIVE_S = 60.0
"""Seconds for which a caller counts as active after its last request."""
HALVED_S = 10.0
"""Seconds in which the weight of a caller's past engine time halves."""
YOUNG_S = 3.0
"""Shortest window, in seconds, for estimating a caller's part of the engine's time."""
TYPICAL_WEIGHT = 0.1
HISTORY = 1_000
"""Ended requests, and places of held ones, that stay in memory."""
DECISIONS = 256
"""Decisions on single requests that the next process gets."""

Clock = Callable[[], float]
"""Monotonic seconds."""


@dataclass
class Activity:
    """Recent requests and engine time of a caller."""

    since: float = 0.0
    last_request: float = 0.0
    weight: float = 1.0
    """Weight of the caller's share: the weight of the channel of the caller's last request."""
    first_s: float = 0.0
    """Moving average of the engine time until the first audio of the caller's requests."""
    _spent_s: float = 0.0
    _spent: float = 0.0
    """Time of the last `spend`."""

    def learn(self, first_s: float) -> None:
        self.first_s += (first_s - self.first_s) * (TYPICAL_WEIGHT if self.first_s else 1.0)

    def spend(self, seconds: float, now: float) -> None:
        self._spent_s, self._spent = self.spent_s(now) + seconds, now

    def spent_s(self, now: float) -> float:
        """Engine time of the caller; it counts half after each HALVED_S."""
        return float(self._spent_s * 0.5 ** ((now - self._spent) / HALVED_S))

    def part(self, now: float) -> float:
        """Part of the engine's time that the caller had recently: in the last seconds, or since its first
        request.
        """
        age_s = max(now - self.since, YOUNG_S)
        halves = float(0.5 ** (age_s / HALVED_S))
        return self.spent_s(now) * math.log(2.0) / HALVED_S / (1.0 - halves)


@dataclass(frozen=True, eq=False)
class EngineCall:
    """A call of the engine, for one or more jobs."""

    kind: Literal["open", "step", "finish", "wake", "none"]
    """A wake, which loads an engine at rest, belongs to no job."""
    jobs: tuple[Job, ...] = ()
    begun: float = -math.inf
    """Time at which the call began; infinite for a wake that has not begun."""
    cost_s: float = 0.0
    due: float = math.inf
    preempted: Job | None = None
    """Job that gives up its lane before this call."""

    @property
    def engine(self) -> Engine:
        return self.jobs[0].engine

    @property
    def steps(self) -> list[tuple[Segment, int]]:
        return [(job.segment, job.steps) for job in self.jobs]

    def alone_s(self, job: Job) -> float:
        """Cost of one job's part of the call, if no other job shared it."""
        return job.cost.steps_s[job.steps] if self.kind == "step" else self.cost_s


NO_CALL = EngineCall("none")


class CallOutcome(enum.Enum):
    DONE = ""
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class Observer:
    """Observer that ignores all events. A trace overrides the methods."""

    def admitted(self, job: Job, now: float) -> None: ...

    def refused(self, error: ApplianceError) -> None: ...

    def picked(self, call: EngineCall | None, workload: Workload) -> None:
        """Note the next call before the engine makes it; None if there is no work."""

    def settled(self, call: EngineCall, outcome: CallOutcome, now: float) -> None:
        """Note a call's outcome, before its jobs change."""

    def ended(self, job: Job, now: float) -> None:
        """Note the end of a job, whether its reply was delivered or not."""


class Life(enum.Enum):
    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"


@dataclass(frozen=True)
class Decision:
    """A moderator's decision on a request."""

    approved: str = ""
    """Digest of the text that was approved; "" if the request was ended."""
    wall: float = field(default_factory=time.time)
    """Unix time of the decision."""


@dataclass(frozen=True)
class QueueState:
    """State for the next process: decisions of moderators, and the order of held requests."""

    paused: dict[str, float] = field(default_factory=dict)
    """Channel → Unix time of the pause."""
    moderated: tuple[str, ...] = ()
    order: dict[str, bool] = field(default_factory=dict)
    """Request id → True if it waits for approval; in order of their turns."""
    decisions: dict[str, Decision] = field(default_factory=dict)
    """Request id → decision, the latest last."""
    is_lost: bool = False
    """True if the file is damaged. Then every named channel is moderated."""


@dataclass(eq=False)
class Workload:
    """All state of the scheduler: jobs, channels and callers."""

    clock: Clock
    config: SchedulerConfig
    bias: float
    """Factor by which all cost estimates are multiplied."""
    margin_s: float
    """Seconds by which every segment must be finished before its deadline."""
    observer: Observer
    on_change: Callable[[], None] = lambda: None
    life: Life = Life.STARTING
    """Whether the daemon is starting, running or draining."""
    step: str = ""
    """Clause about the current step of the start."""
    engine_of: dict[str, Engine] = field(default_factory=dict)
    """Key of a bundle → engine for its new jobs; "" is the first bundle's."""
    generation: int = 0
    """How often the first bundle's engine has been replaced."""
    call: EngineCall = NO_CALL
    """Call under way. While the engine rests: the wake that the next job will need."""
    jobs: dict[str, Job] = field(default_factory=dict)
    """Key of its request → job, until it ends."""
    channels: dict[str, Channel] = field(default_factory=dict)
    paused: dict[str, Paused] = field(default_factory=dict)
    """Channel → its pause."""
    moderated: dict[str, bool] = field(default_factory=dict)
    """Channel → True if its requests need approval; only channels that differ from the configuration."""
    earlier: QueueState = field(default_factory=QueueState)
    """State of the process before, whose callers may send held requests again."""
    decided: deque[tuple[str, Decision]] = field(default_factory=lambda: deque(maxlen=DECISIONS))
    """Request id and decision, the latest last."""
    used_s: dict[str, float] = field(default_factory=dict)
    """Payer (see `Terms.payer`) → weighted engine time for work without a promise."""
    active: dict[str, Activity] = field(default_factory=dict)
    """Callers with a request in the last ACTIVE_S."""
    unclosed: list[tuple[Engine, int]] = field(default_factory=list)
    """Lanes to close at the engine's next turn."""
    remembered: int = 0
    """Number of the last request in the history."""
    history: deque[tuple[int, Utterance]] = field(default_factory=lambda: deque(maxlen=HISTORY))
    """Ended requests with their numbers, for watchers that were away."""
    changed: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))
    """Notified when there is work, and when the scheduler should stop."""
    has_news: bool = False
    """True if something changed since the loop last looked."""

    def see(self, terms: Terms, now: float) -> None:
        """Note that a caller has sent a request, and forget callers that were silent for ACTIVE_S."""
        activity = self.active.setdefault(terms.caller, Activity(since=now))
        activity.last_request, activity.weight = now, self.config.weights.get(terms.channel, 1.0)
        self.active = {name: one for name, one in self.active.items() if now - one.last_request < ACTIVE_S}

    def spend(self, job: Job, seconds: float, now: float) -> None:
        """Charge engine time to a job's caller, and for work without a promise to its payer too."""
        self.active.get(job.terms.caller, Activity()).spend(seconds, now)
        if not job.guaranteed:
            weight = self.config.weights.get(job.terms.channel, 1.0)
            self.used_s[job.terms.payer] = self.used_s.get(job.terms.payer, 0.0) + seconds / weight

    def notify(self) -> None:
        self.has_news = True
        self.changed.notify_all()

    def check_running(self, key: str = "", *, is_taken: bool = False) -> None:
        """Raise Unavailable, or InvalidRequest if the key is in use: by a job, or because `is_taken`."""
        if self.life is not Life.RUNNING:
            raise Unavailable(f"the daemon is {self.life.value}{self.step}")
        if is_taken or key in self.jobs:
            request_id = key.rpartition(" ")[2]
            raise InvalidRequest("request_id", f"{request_id} is in use by a request that has not ended")

    def timetable(self, now: float, trial: Channel | None = None) -> dict[Job, Sequence[Demand]]:
        """Timetable of all channels, with `trial` in place of its original."""
        channels = self.channels if trial is None else {**self.channels, trial.key: trial}
        return dict(chain.from_iterable(channel.timetable(now) for channel in channels.values()))

    def urgency(self, demand: Demand) -> tuple[float, bool, float, int]:
        """Sort key: deadline; without one begun work first, then used time."""
        job = demand.job
        if demand.due < math.inf:
            return demand.due, False, 0.0, job.number
        return demand.due, job.lane is None, self.used_s.get(job.terms.payer, 0.0), job.number

    def can_preempt(self, call: EngineCall) -> bool:
        """True if promised work may interrupt this call."""
        own = [job.engine.can_interrupt and not job.guaranteed for job in call.jobs]
        return bool(own) and all(own)

    def holders(self, engine: Engine) -> list[Job]:
        return [job for job in self.jobs.values() if job.lane is not None and job.engine is engine]

    def give_up_lane(self, job: Job) -> None:
        """Close a job's lane; if the call under way is for the job, after that call."""
        job.restarts = job in self.call.jobs
        if job.lane is not None and not job.restarts:
            self.unclosed.append((job.engine, job.lane))
            job.lane, job.steps = None, 0

    @property
    def engines(self) -> list[Engine]:
        """Engines for new jobs, the first bundle's first."""
        return [self.engine_of[key] for key in sorted(self.engine_of)]

    def promised_lanes(self, engine: Engine) -> list[Job]:
        """Promised jobs that hold a lane of the engine to the end of a segment."""
        lanes = dict.fromkeys((*self.holders(engine), *self.call.jobs))
        return [job for job in lanes if job.engine is engine and job.guaranteed and not job.restarts]

    def leave_lane(self, job: Job) -> None:
        """Release the lane of a newly promised job if it is the last, and other promised jobs need a lane."""
        lanes = self.promised_lanes(job.engine)
        is_last = job in lanes and len(lanes) >= job.engine.max_lanes
        others = (one for one in self.jobs.values() if one.promised and not one.is_done and one not in lanes)
        if is_last and any(one.engine is job.engine for one in others):
            self.give_up_lane(job)

    def is_moderated(self, name: str) -> bool:
        usual = name in self.config.approval_channels or (self.earlier.is_lost and name != "")
        return self.moderated.get(name, usual)

    def needs_approval(self, terms: Terms, written: str = "") -> bool:
        """True if a moderator has to approve a request.

        Raises Rejected if one has ended it before the daemon was started again.
        """
        decision = self.earlier.decisions.get(terms.key)
        if decision is not None and not decision.approved:
            del self.earlier.decisions[terms.key]
            raise Rejected("a moderator ended it before the daemon restarted")
        was_held = self.earlier.order.get(terms.key, False)
        is_approved = decision is not None and not terms.merge and decision.approved == digest_of(written)
        return not is_approved and (was_held or self.is_moderated(terms.channel))

    def channel_of(self, terms: Terms, *, unapproved: bool = False) -> Channel:
        """Channel of a request. If `unapproved`: the channel's waiting room, in which requests wait for
        approval.
        """
        if unapproved:
            key = f"approval {terms.channel}"
            return self.channels.get(key, Channel(key, terms.channel, hold=Unapproved(self.clock())))
        kind = "channel" if terms.channel else "connection"
        key = f"{kind} {terms.line}" if terms.line else f"request {terms.key}"
        hold = self.paused.get(terms.channel, GOING)
        return self.channels.get(key) or Channel(key, terms.channel, hold=hold)

    def channels_named(self, name: str) -> list[Channel]:
        """Serial channel of a name, and the channels of requests that overlap."""
        return [one for one in self.channels.values() if one.name == name and not one.unapproved]

    def place_of(self, job: Job) -> int:
        """Index of the job on its channel: the last, or the old place of a request held before a restart."""
        ranks = {name: float(rank) for rank, name in enumerate(self.earlier.order)}
        begun, own = sum(other.audible is not None for other in job.channel.jobs), job.terms.key
        places = [ranks.get(other.terms.key, math.inf) for other in job.channel.jobs]
        return bisect_right(places, ranks.get(own, math.inf), begun)

    def unheard(self, now: float) -> Iterator[Job]:
        """Jobs whose audio has not begun to play, in order of playout."""
        for channel in self.channels.values():
            yield from (u.job for u in channel.utterances(now) if u.state is not State.SOUNDING)

    def mergeable(self, terms: Terms) -> Job | None:
        """Newest job of that merge scope that does not sound yet. Raises as `needs_approval`."""
        if not terms.merge:
            return None
        jobs, unapproved = self.unheard(self.clock()), self.needs_approval(terms)
        like = (job for job in jobs if terms.merges(job.terms) and job.channel.unapproved is unapproved)
        return max(like, key=attrgetter("number"), default=None)

    def superseded_by(self, job: Job, now: float) -> list[Job]:
        """Jobs of the same supersede scope that do not sound yet. A held job replaces only held ones."""
        if not job.terms.supersede:
            return []
        is_heard = not job.channel.unapproved
        return [
            other
            for other in self.unheard(now)
            if job.terms.supersedes(other.terms) and (other.channel.unapproved or is_heard)
        ]

    def keep(self) -> QueueState:
        """State for the next process."""
        held = [channel for channel in self.channels.values() if channel.hold is not GOING]
        waiting = {j.terms.key: c.unapproved for c in held for j in c.jobs if j.audible is None}
        order, decisions = {**self.earlier.order, **waiting}, {**self.earlier.decisions, **dict(self.decided)}
        paused = {name: pause.wall for name, pause in self.paused.items()}
        moderated = tuple(sorted(filter(self.moderated.get, self.moderated)))
        newest = dict([*order.items()][-HISTORY:]), dict([*decisions.items()][-DECISIONS:])
        return QueueState(paused, moderated, *newest)

    def take_off(self, job: Job, why: ApplianceError) -> None:
        was = job.channel.remove(job, self.clock())
        characters = heard_characters(job.request, job.segments, was.heard_s)
        self._remember(replace(was, why=why, heard_characters=characters))

    def forget_played(self, now: float) -> None:
        """Move played jobs to the history; drop empty channels."""
        for key, channel in list(self.channels.items()):
            for played in channel.settle(now):
                self._remember(played)
            if not channel.jobs and channel.free <= now:
                del self.channels[key]
        active = {job.terms.payer for job in self.jobs.values()}
        self.used_s = {payer: used_s for payer, used_s in self.used_s.items() if payer in active}

    def _remember(self, ended: Utterance) -> None:
        self.remembered += 1
        self.history.append((self.remembered, replace(ended, job=ended.job.past(), state=State.ENDED)))
        self.on_change()


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
