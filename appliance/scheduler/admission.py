"""Admission of a job, if every promised deadline can be met together with the job's own.

The plan gives a job the earliest deadline at which the inequality in `deadlines` holds. If that is too late,
the job is refused. BULK work has no deadline. The plan changes a copy of the job's channel, so an error
leaves the scheduler as it was.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter

from appliance.config import SchedulerConfig
from appliance.errors import (
    ApplianceError,
    Cancelled,
    DeadlineMissed,
    Merged,
    Overloaded,
    QueueFull,
    RateLimited,
    Superseded,
)
from appliance.request import Cost, Priority
from appliance.scheduler import fairness
from appliance.scheduler.choice import Attempt, Window, choose, too_late
from appliance.scheduler.deadlines import blocking, earliest, promised
from appliance.scheduler.job import Channel, Demand, Job, Timetable, Way, Ways
from appliance.scheduler.release import Delivery
from appliance.scheduler.workload import Activity, Workload

STRETCH: Mapping[Priority, float] = {Priority.REALTIME: 1.4, Priority.HIGH: 1.8, Priority.NORMAL: 2.2}
"""Priority → shortest target for the first audio, as a multiple of the request's own engine time until then.
"""
MOST_RETRY_S = 300.0
"""Longest wait before a retry, in seconds, that a refusal names."""
LONE_NEWCOMERS = 2
"""Expected newcomers for which a caller's work leaves time while no other caller is active."""
ROOM = 1.5
"""Factor on the engine time that stays free for a newcomer, because estimates grow on a busy machine."""


def target(config: SchedulerConfig, job: Job, priority: Priority, own_s: float, now: float) -> float:
    """Deadline of first audio on a free channel; `own_s` is the engine time until then."""
    floor_s: float = getattr(config, f"{priority.name.lower()}_s")
    whole_s = 0.0 if job.stream else job.audio_s
    return min(now + max(floor_s, STRETCH[priority] * own_s) + whole_s, job.deadline)


class Admission:
    """Accepts requests that can be on time, and refuses others. See `deadlines` and `fairness`."""

    def __init__(self, workload: Workload, delivery: Delivery) -> None:
        self._workload, self._delivery = workload, delivery
        self._admitted = 0
        self._rates: dict[str, float] = {}
        """User → time at which the user's earlier requests no longer count against the rate."""
        self._typical = Activity()
        """Typical request of all callers together."""
        self._retries: dict[tuple[str, str], float] = {}
        """Full scope and its name → time that the last refusal named for a retry."""

    def enter(
        self, job: Job, ways: Ways, merging: Job | None, generation: int | None, bundle: str
    ) -> int | None:
        """Admit a job; see `Scheduler.admit` for arguments, result and errors."""
        workload = self._workload
        if job.ended:
            raise Cancelled("the caller went away")
        workload.check_running(job.terms.key)
        needs_approval = workload.needs_approval(job.terms, job.request.written)
        is_current = generation in (None, workload.generation)
        if merging is not workload.mergeable(job.terms) or not is_current:
            return None
        job.engine, now = workload.engine_of[bundle], workload.clock()
        workload.see(job.terms, now)
        job.channel = channel = workload.channel_of(job.terms, unapproved=needs_approval)
        replaced: dict[Job, type[ApplianceError]] = dict.fromkeys(
            workload.superseded_by(job, now), Superseded
        )
        if merging is not None:
            replaced[merging] = Merged
        if not job.cached:
            self._check_places(job, replaced)
        rate = self._check_rate(job, now)
        place = channel.jobs.index(merging) if merging in channel.jobs else workload.place_of(job)
        try:
            self._plan(job, ways, place, replaced, now)
        except ApplianceError:
            workload.forget_played(now)
            raise
        # No refusal follows.
        job.channel = channel
        channel.jobs.insert(place, job)
        workload.channels[channel.key] = channel
        self._rates.update(rate)
        self._admitted += 1
        job.number = self._admitted
        for old, kind in replaced.items():
            self._delivery.end(old, kind(f"replaced by {job.terms.request_id}"))
        workload.jobs[job.terms.key] = job
        if job.cached:
            job.begun = True
            job.segments_done = len(job.segments)
            job.made_s = job.audio_s
            job.unreleased = list(job.cached)
            self._delivery.release(job)
        else:
            if job.due < math.inf:
                for one in (self._typical, workload.active[job.terms.caller]):
                    one.learn(job.audible_in_s())
            self._wake(job)
        workload.on_change()
        workload.observer.admitted(job, workload.clock())
        return job.way.index

    def approve(self, job: Job) -> None:
        """Append an approved job to its channel, at the earliest deadline that breaks no other job's
        deadline.

        The job ends as Overloaded if that deadline is beyond its queue_timeout.
        """
        workload, now = self._workload, self._workload.clock()
        job.channel.remove(job, now)
        job.channel = channel = workload.channel_of(job.terms)
        for old in workload.superseded_by(job, now):
            self._delivery.end(old, Superseded(f"replaced by {job.terms.request_id}"))
        free = channel.free_from(now)
        channel.jobs.append(job)
        workload.channels[channel.key] = channel
        if not job.is_done:
            job.way = replace(job.way, costs=tuple(map(job.engine.costs.of, job.segments)))
            workload.leave_lane(job)
        try:
            if job.promised:
                self._promise(job, free, now)
        except Overloaded as error:
            self._delivery.end(job, error)
            return
        self._delivery.release_all()
        self._wake(job)
        workload.on_change()

    def _promise(self, job: Job, free: float, now: float) -> None:
        """Set the deadline of an approved job. Raises Overloaded."""
        workload = self._workload
        table = workload.timetable(now)
        blocking_s = blocking(workload, now, table)
        window = self._window(job, job.audible_in_s(), free, now)
        job.due = window.soonest
        if job.is_done:
            return
        others = _others(job, table)
        job.due = earliest(workload, job, now, [*others, *self._newcomers(job, others, now)], blocking_s)
        if job.terms.queue_timeout_s is not None and job.due > window.latest:
            raise too_late(job.due - window.latest)

    def _wake(self, job: Job) -> None:
        workload, call = self._workload, self._workload.call
        workload.used_s.setdefault(job.terms.payer, min(workload.used_s.values(), default=0.0))
        if job.guaranteed and workload.can_preempt(call):
            call.engine.interrupt(True)
        workload.notify()

    # Limits.

    def _check_places(self, job: Job, replaced: Collection[Job]) -> None:
        """Raise QueueFull if no place is free, or if a caller, channel or user has as many as are free."""
        most, wait_s = self._workload.config.queue_length, self._typical.first_s
        now = self._workload.clock()
        jobs = self._workload.jobs.values()
        waiting = [other.terms for other in jobs if not other.begun and other not in replaced]
        if len(waiting) >= most:
            retry_s = self._retry_s(("", ""), wait_s, wait_s, now)
            raise QueueFull(f"{most} requests wait already, which is the limit", retry_s=retry_s)
        free = most - len(waiting)
        for scope in ("caller", "channel", "user"):
            own = getattr(job.terms, scope)
            count = sum(getattr(terms, scope) == own for terms in waiting)
            if own and count >= free:
                reason = f"{count} requests of this {scope} wait already, which is its share"
                raise QueueFull(reason, retry_s=self._retry_s((scope, own), wait_s, wait_s, now))

    def _check_rate(self, job: Job, now: float) -> dict[str, float]:
        """Changes of `_rates` for the time when the job is admitted. Raises RateLimited."""
        per_minute, user = self._workload.config.user_rate, job.terms.user
        if not per_minute or not user:
            return {}
        # Generic cell rate algorithm: a burst of as many as a minute allows, then one by one.
        spacing_s = 60.0 / per_minute
        forgotten = max(self._rates.get(user, now), now) + spacing_s
        if forgotten - now > 60.0 + 1e-9:
            wait_s = forgotten - now - 60.0
            raise RateLimited(f"{per_minute:g} requests a minute are allowed for one user", retry_s=wait_s)
        self._rates = {name: when for name, when in self._rates.items() if when > now}
        return {user: forgotten}

    def _retry_s(self, full: tuple[str, str], first_s: float, apart_s: float, now: float) -> float:
        """Seconds until a refused job may come again; refusals in one scope are `apart_s` apart."""
        last = self._retries.get(full, -math.inf)
        again = min(max(now + first_s, last + apart_s), now + MOST_RETRY_S)
        self._retries = {place: when for place, when in self._retries.items() if when > now}
        self._retries[full] = again
        return again - now

    def _check_backlog(self, channel: Channel, own_s: float, now: float) -> float:
        """Time at which the channel is free. Raises QueueFull. `own_s` is the length of the job's audio."""
        free = now if channel.unapproved else channel.free_from(now)
        waiting_s = channel.waiting_s(now)
        most_s = self._workload.config.backlog_s
        # The scheduler does not know when replies without a channel are played.
        if channel.name and waiting_s > most_s:
            reason = f"{waiting_s:.0f} s of speech wait on this channel already; at most {most_s:g} s may"
            # Held speech has no time yet, but takes at least its own length.
            first_s = max(free - now, waiting_s) - most_s
            retry_s = self._retry_s(("backlog", channel.key), first_s, own_s, now)
            raise QueueFull(reason, retry_s=retry_s)
        return free

    # The plan.

    def _plan(self, job: Job, ways: Ways, place: int, replaced: Collection[Job], now: float) -> None:
        """Plan a job at a place of its channel, and change nothing but the job."""
        ahead, behind = job.channel.jobs[:place], job.channel.jobs[place:]
        job.channel = trial = replace(job.channel, jobs=[one for one in ahead if one not in replaced])
        free = self._check_backlog(trial, sum(segment.audio_s for segment in ways[0]), now)
        trial.jobs += [job, *(one for one in behind if one not in replaced)]
        if not job.cached:
            return self._choose(job, ways, free, now)
        job.take(Way(0, tuple(ways[0]), (Cost(0.0, (), 0.0),) * len(ways[0])), math.inf)
        soonest = self._window(job, 0.0, free, now).soonest
        job.due = soonest if job.promised else math.inf

    def _choose(self, job: Job, ways: Ways, free: float, now: float) -> None:
        """Choose the way with the most steps that meets the deadlines of this and all admitted jobs.

        A job without a promise takes the best way that can meet its own deadline. Raises DeadlineMissed,
        Overloaded.
        """
        workload, cost_of = self._workload, job.engine.costs.of
        costed = [Way(i, tuple(segments), tuple(map(cost_of, segments))) for i, segments in enumerate(ways)]
        # The most steps first; then the cheapest, because each segment works through its reference again.
        costed.sort(key=lambda way: (-way.nfe, way.total_s))
        own_s = min(_first_s(job, way) for way in costed if way.nfe == costed[0].nfe)
        job.take(costed[-1], math.inf)
        window = self._window(job, own_s, free, now)
        possible = [way for way in costed if now + way.total_s <= job.deadline]
        if not possible:
            raise DeadlineMissed.too_soon(min(way.total_s for way in costed), job.deadline - now)
        if not job.promised:
            return job.take(possible[0], math.inf)
        table = workload.timetable(now, job.channel)
        others = _others(job, table)
        newcomers = partial(self._newcomers, job, others, now)
        blocking_s = blocking(workload, now, table)
        attempt = Attempt(job, window.soonest, workload, now, others, blocking_s, newcomers)
        choose(possible, window, attempt)

    def _window(self, job: Job, own_s: float, free: float, now: float) -> Window:
        """Window of a job on a channel that is `free` at that time. Raises Overloaded.

        Without a `queue_timeout`, a job that takes turns waits without limit, a REALTIME job not at all, any
        other for `patience_s`. A caller's deadline before the job's turn is no limit, because the engine
        finishes replies long before they are played.
        """
        config, timeout_s = self._workload.config, job.terms.queue_timeout_s
        usual = target(config, job, Priority.NORMAL, own_s, now)
        soonest = target(config, job, max(job.terms.priority, Priority.NORMAL), own_s, now)
        if timeout_s is not None:
            latest = usual + timeout_s
            if free > latest:
                reason = (
                    f"its turn on this channel is in {free - now:.1f} s, and queue_timeout is {timeout_s:g} s"
                )
                raise Overloaded(reason, retry_s=free - latest)
        else:
            latest = math.inf if job.terms.takes_turns else max(usual, free)
            if job.terms.priority is not Priority.REALTIME:
                latest += config.patience_s
            if self._is_first_beside_many(job):
                # The owner's share leaves time for the job, though not at that moment.
                latest += usual - now
        if job.deadline > free:
            latest = min(latest, job.deadline)
        return Window(max(soonest, free), max(usual, free), latest)

    def _newcomer_s(self, caller: str) -> float:
        """Engine time until the first audio of another caller's request."""
        others = (one.first_s for name, one in self._workload.active.items() if name != caller)
        return max(others, default=0.0) or self._typical.first_s

    def _is_first_beside_many(self, job: Job) -> bool:
        """True if the job's owner has no promised job while another has two or more.

        The owner is the finest name of the job, then its caller.
        """
        promised = [other.terms for other in self._workload.jobs.values() if other.guaranteed]
        for key in (fairness.finest_name, attrgetter("caller")):
            counts = Counter(map(key, promised))
            if counts[key(job.terms)] == 0 and any(count > 1 for count in counts.values()):
                return True
        return False

    def _newcomers(self, job: Job, promised: Sequence[Demand], now: float) -> Sequence[Demand]:
        """Demands of newcomers if the channel, user or caller of the job exceeds its share."""
        workload = self._workload
        newcomer_s = ROOM * self._newcomer_s(job.terms.caller)
        if not newcomer_s:
            return ()
        soon_s, is_alone = fairness.due_soon(job, promised, now), len(workload.active) == 1
        share = self._share_of_its_caller(job, soon_s, newcomer_s, is_alone=is_alone)
        most = len({demand.job for demand in promised}) + 1
        if share is None and is_alone:
            share, most = fairness.share_of(job, "caller", soon_s, newcomer_s, {}), LONE_NEWCOMERS
        elif share is None:
            share = fairness.caller_share(job, soon_s, newcomer_s, workload.active, now)
        if share is None or not share.is_exceeded:
            return ()
        promised_s = sum(demand.cost_s for demand in promised) + soon_s[job]
        expected = fairness.expected_newcomers(share.owners, promised_s, newcomer_s, workload.bias, most)
        if not is_alone:
            returning = fairness.returning_callers(
                job, promised, newcomer_s, workload.bias, workload.active, now
            )
            expected = max(expected, returning, key=attrgetter("work_s"))
        due = now + max(workload.config.normal_s, STRETCH[Priority.NORMAL] * newcomer_s)
        return [
            Demand(due + number * expected.apart_s, expected.cost_s, job) for number in range(expected.count)
        ]

    def _share_of_its_caller(
        self, job: Job, soon_s: Mapping[Job, float], newcomer_s: float, *, is_alone: bool
    ) -> fairness.Share | None:
        """First share of its caller's work that the job exceeds."""
        own_s = {one: work_s for one, work_s in soon_s.items() if one.terms.caller == job.terms.caller}
        weights = {"channel": self._workload.config.weights}
        for scope in fairness.SCOPES:
            share = fairness.share_of(job, scope, own_s, newcomer_s, weights.get(scope, {}))
            # The only channel of a caller among several has that caller's share.
            if share is not None and share.is_exceeded and (is_alone or share.owners > 1):
                return share
        return None


def _others(job: Job, table: Timetable) -> list[Demand]:
    """Promised demands of the other jobs."""
    return promised({other: demands for other, demands in table.items() if other is not job})


def _first_s(job: Job, way: Way) -> float:
    return way.costs[0].whole_s if job.stream else way.total_s
