"""State of the scheduler, used under its lock: jobs, channels, the present call, the history.

Admission, picking and the loop decide from it; here are only the relations of jobs: which share a channel,
which replace each other, which are played first.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from appliance.config import SchedulerConfig
from appliance.errors import ApplianceError
from appliance.request import Terms
from appliance.scheduler.calls import Engine, EngineCall
from appliance.scheduler.playout import Channel, Demand, Job, State, Utterance

HISTORY = 1_000
"""Ended requests that are remembered for watchers."""

Clock = Callable[[], float]
"""Seconds on a scale that never goes back."""


@dataclass(eq=False)
class Workload:
    clock: Clock
    config: SchedulerConfig
    bias: float
    """Factor on every estimate."""
    margin_s: float
    on_change: Callable[[], None]
    """Called when the result of `utterances` has changed."""
    engine: Engine | None = None
    """Engine of new jobs."""
    call: EngineCall | None = None
    """Call under way."""
    jobs: dict[str, Job] = field(default_factory=dict)
    """Jobs that have not ended, by request id, in order of arrival."""
    channels: dict[str, Channel] = field(default_factory=dict)
    paused: dict[str, float] = field(default_factory=dict)
    """Start of the pause, by name of channel."""
    used_s: dict[str, float] = field(default_factory=dict)
    """Weighted engine time used without a promise, by payer."""
    history: deque[tuple[int, Utterance]] = field(default_factory=lambda: deque(maxlen=HISTORY))

    def demands(self, now: float) -> Iterator[Demand]:
        for channel in self.channels.values():
            yield from channel.demands(now)

    def urgency(self, demand: Demand) -> tuple[float, bool, float, int]:
        """Sort key: deadline first; without one begun work before new, then by the payer's used time."""
        job = demand.job
        if self.config.policy == "fifo":
            return job.number, False, 0.0, 0
        if demand.due < math.inf:
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

    def holders(self, engine: Engine | None) -> list[Job]:
        return [job for job in self.jobs.values() if job.lane is not None and job.engine is engine]

    def channel_of(self, terms: Terms) -> Channel:
        kind = "channel" if terms.channel else "connection"
        name = f"{kind} {terms.line}" if terms.line else f"request {terms.request_id}"
        if name not in self.channels:
            self.channels[name] = Channel(terms.channel, paused=self.paused.get(terms.channel))
        return self.channels[name]

    def channels_named(self, name: str) -> list[Channel]:
        """The serial channel of that name, and one for each request that overlaps."""
        return [channel for channel in self.channels.values() if channel.name == name]

    def mergeable(self, terms: Terms) -> Job | None:
        """Newest job that has not begun and has the same merge scope."""
        if not terms.merge:
            return None
        for job in reversed(self.jobs.values()):
            if job.terms.merge_scope == terms.merge_scope and not job.begun:
                return job
        return None

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

    def utterances(self) -> list[Utterance]:
        """Requests that wait or sound, channel by channel in order of playout."""
        now = self.clock()
        self.forget_played(now)
        return [
            utterance
            for channel in self.channels.values()
            for utterance in _utterances_of(channel, channel.paused or now)
        ]

    def position_of(self, job: Job) -> tuple[Utterance, list[Job]]:
        """State of a job, and the jobs played before it on its channel."""
        now = self.clock()
        self.forget_played(now)
        before: list[Job] = []
        for utterance in _utterances_of(job.channel, job.channel.paused or now):
            if utterance.job is job:
                return utterance, before
            before.append(utterance.job)
        ended = (utterance for _, utterance in reversed(self.history) if utterance.job is job)
        return next(ended, Utterance(job, State.ENDED, now)), []

    def stop_playout(self, job: Job, why: ApplianceError) -> None:
        """Remove a job from its channel; the next one may play."""
        now = self.clock()
        job.channel.remove(job, now if job.channel.paused is None else job.channel.paused)
        self._add_history(job, why)

    def forget_played(self, now: float) -> None:
        """Move played jobs to the history; drop empty channels and idle payers."""
        for name, channel in list(self.channels.items()):
            for job in channel.settle(now):
                self._add_history(job)
            if not channel.jobs and channel.free <= now:
                del self.channels[name]
        active = {job.terms.payer for job in self.jobs.values()}
        self.used_s = {payer: used_s for payer, used_s in self.used_s.items() if payer in active}

    def _add_history(self, job: Job, why: ApplianceError | None = None) -> None:
        number = self.history[-1][0] + 1 if self.history else 1
        self.history.append((number, Utterance(job, State.ENDED, self.clock(), why)))
        self.on_change()


def _utterances_of(channel: Channel, now: float) -> Iterator[Utterance]:
    for job, _, starts in channel.playing(now):
        is_sounding = job.audible is not None and starts <= now
        yield Utterance(job, State.SOUNDING if is_sounding else State.WAITING, starts)
