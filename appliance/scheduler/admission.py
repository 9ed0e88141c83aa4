"""Admission: a proof that every promised deadline can be kept together with a new job's.

In flow matching the steps of a reply, the cost of each and the length of its audio are known before anything
runs. A job is planned at the earliest deadline at which, for its own deadlines and those promised before,

    for every deadline d:  call under way + bias · Σ(cost of what is due by d) + margin ≤ d − now

the processor-demand test for EDF of real-time theory, with one call of blocking, since a call for promised
work is never interrupted. If that is later than it may wait it is refused at once, with the time that is
missing. Each proof sorts the demands once. BULK work is promised nothing.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from appliance.errors import ApplianceError, DeadlineMissed, Overloaded, QueueFull, RateLimited
from appliance.request import Cost, Priority, Segment
from appliance.scheduler.playout import Demand, Job
from appliance.scheduler.workload import Workload

STRETCH: Mapping[Priority, float] = {Priority.REALTIME: 1.4, Priority.HIGH: 1.8, Priority.NORMAL: 2.2}
"""No target is shorter than this times the request's own cost on an idle box."""
INTERRUPT_S = 0.02
"""Time until an interrupted call has ended."""
APART_S = 1e-6
"""Least distance of a deadline that comes after another."""
FIRST_AUDIO_WEIGHT = 0.1
"""Weight of the newest request in the moving average of engine time until first audio."""


class Admission:
    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._rates: dict[str, float] = {}
        """User → time at which its requests no longer count."""
        self._typical_s = 0.0
        """Moving average of a new request's engine time until its first audio."""

    def admit(
        self,
        job: Job,
        ways: Sequence[Sequence[Segment]],
        replaced: Sequence[Job],
        merging: Job | None,
        now: float,
    ) -> int:
        """Put a job on its channel; return the index of the cheapest way that keeps every promise.

        It takes the place of `merging`; `replaced` jobs do not count, and the caller ends them. Raises
        QueueFull, RateLimited, Overloaded, DeadlineMissed, and then changes nothing.
        """
        workload = self._workload
        if not job.kept:
            self._check_places(job, without=len(replaced))
        rate = self._check_rate(job, now)
        job.channel = channel = workload.channel_of(job.terms)
        before = channel.jobs
        place = before.index(merging) if merging in before else len(before)
        channel.jobs = [other for other in before[:place] if other not in replaced]
        after = [other for other in before[place:] if other not in replaced]
        try:
            free = self._check_backlog(job, now)
            channel.jobs += [job, *after]
            way = self._choose_way(job, ways, free, now)
        except ApplianceError:
            channel.jobs = before
            workload.forget_played(now)
            raise
        channel.jobs = [*before[:place], job, *before[place:]]
        self._rates.update(rate)
        return way

    def _check_places(self, job: Job, without: int) -> None:
        """Raise QueueFull if the queue is full, or half full by the job's client, channel or user."""
        most = self._workload.config.queue_length
        waiting = [other.terms for other in self._workload.jobs.values() if not other.begun]
        if len(waiting) - without >= most:
            raise QueueFull(f"{most} requests wait already, which is the limit", retry_s=self._typical_s)
        share = max(most // 2, 1)
        for scope in ("client", "channel", "user"):
            own = getattr(job.terms, scope)
            if own and sum(getattr(terms, scope) == own for terms in waiting) - without >= share:
                reason = f"{share} requests of this {scope} wait already, which is its share"
                raise QueueFull(reason, retry_s=self._typical_s)

    def _check_rate(self, job: Job, now: float) -> dict[str, float]:
        """Return the user's new entry of `_rates`, if there is a limit. Raises RateLimited."""
        per_minute, user = self._workload.config.user_rate, job.terms.user
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

    def _check_backlog(self, job: Job, now: float) -> float:
        """Return when the channel is free for the job. Raises QueueFull if too much speech waits on it."""
        free, waiting_s = job.channel.free_from(now), job.channel.waiting_s(now)
        most_s = self._workload.config.backlog_s
        if waiting_s > most_s:
            reason = f"{waiting_s:.0f} s of speech wait on this channel already; at most {most_s:g} s may"
            raise QueueFull(reason, retry_s=free - now - most_s)
        return free

    def _choose_way(self, job: Job, ways: Sequence[Sequence[Segment]], free: float, now: float) -> int:
        """Plan the job in the first way that is on time, else in the one that waits least, if it may."""
        engine = self._workload.engine
        assert engine is not None
        is_promised = job.guaranteed and job.channel.paused is None
        if job.kept:
            job.take(ways[0], [Cost(0.0, (), 0.0) for _ in ways[0]])
            soonest, _, _ = self._window(job, 0.0, free, now)
            if is_promised:
                job.due = soonest
            return 0
        costs = [[engine.costs.of(segment) for segment in segments] for segments in ways]
        totals = [sum(cost.left_s(False, 0) for cost in known) for known in costs]
        nfes = [segments[0].nfe for segments in ways]
        # Every segment works through its reference again: as many steps as may be, then what costs least.
        order = sorted(range(len(ways)), key=lambda way: (-nfes[way], totals[way]))
        own_s = math.inf
        for way in order:
            job.take(ways[way], costs[way])
            if nfes[way] == max(nfes):
                own_s = min(own_s, job.audible_in_s())
        soonest, usual, latest = self._window(job, own_s, free, now)
        blocking_s = self.blocking_s(now)
        plans: list[tuple[float, int]] = []
        for way in order:
            job.take(ways[way], costs[way])
            if now + totals[way] > job.deadline:
                continue
            if self._workload.config.policy == "fifo" or not is_promised:
                return way
            job.due, job.late_s = soonest, 0.0
            plans.append((self.earliest(job, now, self._others(job, now), blocking_s), way))
            if plans[-1][0] <= usual:
                break
        if not plans:
            raise DeadlineMissed.too_soon(min(totals), job.deadline - now)
        best, way = min(plans, key=lambda plan: plan[0])
        job.take(ways[way], costs[way])
        due = best
        if best > latest:
            # A box that is too slow for it even when idle serves it late rather than never.
            due, way = plans[-1]
            job.take(ways[way], costs[way])
            if due > self.earliest(job, now):
                reason = f"would come {best - latest:.2f} s too late beside what was admitted before"
                raise Overloaded(reason, retry_s=max(best - latest, 0.1))
        elif best > max(usual, self.earliest(job, now)):
            # It waits for others, and others will for it: it is made by the way that costs least.
            due, way = min((plan for plan in plans if plan[0] <= latest), key=lambda plan: totals[plan[1]])
            job.take(ways[way], costs[way])
        job.late_s = max(due - latest, 0.0)
        job.due = due - job.late_s
        weight = FIRST_AUDIO_WEIGHT if self._typical_s else 1.0
        self._typical_s += (job.audible_in_s() - self._typical_s) * weight
        return way

    def target(self, job: Job, priority: Priority, own_s: float, now: float) -> float:
        """Deadline of first audio for a priority, on a free channel.

        `own_s`: engine time until its first audio on an idle box.
        """
        config = self._workload.config
        floor_s = {
            Priority.REALTIME: config.realtime_s,
            Priority.HIGH: config.high_s,
            Priority.NORMAL: config.normal_s,
        }[priority]
        whole_s = 0.0 if job.stream else job.audio_s
        return min(now + max(floor_s, STRETCH[priority] * own_s) + whole_s, job.deadline)

    def _window(self, job: Job, own_s: float, free: float, now: float) -> tuple[float, float, float]:
        """Return the deadline that a job is given if it can be, the latest on time, and the latest of all.

        A job on a named serial channel waits for the engine as for its turn, without a queue timeout as long
        as need be. A caller's deadline before its turn is no limit: replies are made long before their turn.
        Raises Overloaded if its turn comes after the last.
        """
        timeout_s = job.terms.queue_timeout_s
        usual = self.target(job, Priority.NORMAL, own_s, now)
        soonest = self.target(job, max(job.terms.priority, Priority.NORMAL), own_s, now)
        if timeout_s is not None:
            latest = usual + timeout_s
            if free > latest:
                reason = (
                    f"its turn on this channel is in {free - now:.1f} s, and queue_timeout is {timeout_s:g} s"
                )
                raise Overloaded(reason, retry_s=free - latest)
        else:
            latest = math.inf if job.terms.takes_turns else max(usual, free)
        if job.deadline > free:
            latest = min(latest, job.deadline)
        return max(soonest, free), max(usual, free), latest

    def earliest(
        self,
        job: Job,
        now: float,
        others: Iterable[Demand] = (),
        blocking_s: Callable[[float], float] = lambda due: 0.0,
    ) -> float:
        """Return the earliest deadline of its first audio, from `job.due` on, with which all can be kept.

        The deadlines of its segments move with the first one's. A deadline d of others has room for the first
        k of the segments, so that the next one is due after d; and each segment is done after what is due
        before it. Later ones hold too: a schedule that keeps a deadline keeps a later one.
        """
        bias, start = self._workload.bias, now + self._workload.margin_s
        offsets: list[float] = []
        """Deadlines of its segments, from the first one's on."""
        own_s: list[float] = []
        """Its work that is due by then."""
        for demand in job.demands(now, job.due, job.due):
            total_s = demand.cost_s * bias + (own_s[-1] if own_s else 0.0)
            if offsets and demand.due - job.due == offsets[-1]:
                own_s[-1] = total_s
            else:
                offsets.append(demand.due - job.due)
                own_s.append(total_s)
        dues, work_s = [], [0.0]
        earliest = job.due
        for demand in sorted(others, key=lambda demand: demand.due):
            if demand.due == math.inf:
                break
            dues.append(demand.due)
            work_s.append(work_s[-1] + demand.cost_s * bias)
            room_s = demand.due - start - blocking_s(demand.due) - work_s[-1]
            first_behind = bisect_right(own_s, room_s)
            if first_behind < len(own_s):
                earliest = max(earliest, demand.due + APART_S - offsets[first_behind])
        ends = []
        for offset, own in zip(offsets, own_s, strict=True):
            due = earliest + offset
            ends.append(start + blocking_s(due) + work_s[bisect_right(dues, due)] + own - offset)
        return max(earliest, *ends)

    def shortfall_s(
        self,
        now: float,
        demands: Iterable[Demand],
        blocking_s: Callable[[float], float] = lambda due: 0.0,
    ) -> float:
        """Return the excess over the worst deadline; 0 or less if all can be kept."""
        work_s, worst_s = 0.0, -math.inf
        for demand in sorted(demands, key=lambda demand: demand.due):
            if demand.due == math.inf:
                break
            work_s += demand.cost_s * self._workload.bias
            done = now + blocking_s(demand.due) + work_s + self._workload.margin_s
            worst_s = max(worst_s, done - demand.due)
        return worst_s

    def _others(self, job: Job, now: float) -> Iterator[Demand]:
        """Yield the demands of other jobs; if its channel or user has its share, also newcomers'.

        One newcomer after the other, as often as their share of the engine allows.
        """
        workload = self._workload
        yield from (demand for demand in workload.demands(now) if demand.job is not job)
        if not self._typical_s:
            return
        weights = workload.config.weights
        work_s = {
            other: sum(other.cost_s(i) for i in range(other.done, len(other.segments)))
            for other in [*workload.jobs.values(), job]
            if other.guaranteed and other.channel.paused is None
        }
        active = {other.terms.channel or other.terms.request_id for other in work_s}
        total = sum(weights.get(channel, 1.0) for channel in active) + 1.0
        all_s = sum(work_s.values()) + self._typical_s
        share_s = {
            "channel": weights.get(job.terms.channel, 1.0) / total * all_s,
            "user": all_s / (len({other.terms.user or other.terms.request_id for other in work_s}) + 1),
        }
        for scope, most_s in share_s.items():
            own = getattr(job.terms, scope)
            others = [other for other in work_s if other is not job and getattr(other.terms, scope) == own]
            if own and others and work_s[job] + sum(work_s[other] for other in others) > most_s:
                due = now + max(workload.config.normal_s, STRETCH[Priority.NORMAL] * self._typical_s)
                apart_s = (len(active) + 1) * self._typical_s * workload.bias
                count = min(math.ceil(all_s / self._typical_s / len(active)), len(work_s))
                yield from (Demand(due + number * apart_s, self._typical_s, job) for number in range(count))
                return

    def blocking_s(self, now: float) -> Callable[[float], float]:
        """Return a function: deadline → seconds for which work that is due later may delay it."""
        engine, call, bias = self._workload.engine, self._workload.call, self._workload.bias
        assert engine is not None
        under_way_s = max(call.begun + call.cost_s * bias - now, 0.0) if call else 0.0
        if self._workload.can_preempt(call):
            under_way_s = min(under_way_s, INTERRUPT_S)
        call_due = call.due if call else -math.inf
        opening = call.jobs if call and call.kind == "open" else ()
        current = {demand.job: demand for demand in reversed(list(self._workload.demands(now)))}
        held = [
            demand
            for job, demand in current.items()
            if job.guaranteed and job.engine is engine and (job.lane is not None or job in opening)
        ]
        # Without a free lane the most urgent segment under way has to end first.
        first = min(held, key=self._workload.urgency) if len(held) >= engine.max_lanes else None

        def blocking_s(due: float) -> float:
            blocked_s = under_way_s if due < call_due else 0.0
            if first is not None and due < first.due:
                return first.cost_s * bias + (0.0 if call and first.job in call.jobs else blocked_s)
            return blocked_s

        return blocking_s
