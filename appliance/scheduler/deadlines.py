"""The inequality behind every promise.

The scheduler knows the number of steps, the cost of each and the length of the audio before a request runs.
It meets all deadlines if

    for every deadline d:  call under way + bias · Σ(cost of the work due by d) + margin ≤ d − now

This is the processor-demand test of earliest-deadline-first scheduling, with one call of blocking: nothing
interrupts a call for promised work. The wake of an engine at rest is such a call.

Why a test instead of a queue with a length limit: a listener hears a gap if one segment is late, so a request
must be refused before its first sound, not dropped after it. If earliest deadline first misses a deadline, so
does every other order (but for the one call), so sums decide and no order has to be tried. One pass over the
demands in order of their deadlines computes `earliest` directly, at the cost of sorting them; nothing
simulates the engine's calls. The test ignores that lanes which share a call need less time, so it may refuse
work that would have fit.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import itemgetter

from appliance.scheduler.job import Demand, Job, Timetable
from appliance.scheduler.workload import Workload

INTERRUPT_S = 0.02
"""Time within which an interrupted call ends."""
APART_S = 1e-6
"""Smallest distance between two deadlines, in seconds: a deadline this much later comes after the other."""

Blocking = Callable[[float], float]
"""Deadline → seconds by which work that is due later may delay work due by then."""


def unblocked(due: float) -> float:
    return 0.0


def promised(table: Timetable) -> list[Demand]:
    """Demands that have a deadline, in the order of the jobs."""
    return [*chain.from_iterable(demands for demands in table.values() if demands[0].due < math.inf)]


def by_due(demands: Iterable[Demand]) -> list[Demand]:
    return sorted(demands, key=itemgetter(0))


def excesses_s(
    workload: Workload, now: float, table: Timetable, blocking_s: Blocking = unblocked
) -> Iterator[float]:
    """Seconds by which each deadline will be missed (negative: met), from the earliest deadline on."""
    work_s = 0.0
    for due, cost_s, _ in by_due(promised(table)):
        work_s += cost_s * workload.bias
        yield now + blocking_s(due) + work_s + workload.margin_s - due


def earliest(
    workload: Workload, job: Job, now: float, others: Iterable[Demand] = (), blocking_s: Blocking = unblocked
) -> float:
    """Earliest deadline of a job's first audio, from `job.due` on, at which every deadline is met.

    Before a deadline d of another job there is time for the first k segments of this job, so segment k + 1 is
    due after d. Each segment is finished after all work that is due before it.
    """
    bias, start = workload.bias, now + workload.margin_s
    total_s, own = 0.0, dict[float, float]()
    """Deadline, in seconds after the job's first → seconds of the job's work due by then."""
    for demand in job.demands(now, job.due, job.due):
        total_s += demand.cost_s * bias
        own[demand.due - job.due] = total_s
    offsets, own_s = [*own], [*own.values()]
    dues, work_s = [], [0.0]
    first = job.due
    for due, cost_s, _ in by_due(others):
        dues.append(due)
        work_s.append(work_s[-1] + cost_s * bias)
        room_s = due - start - blocking_s(due) - work_s[-1]
        first_behind = bisect_right(own_s, room_s)
        if first_behind < len(own_s):
            first = max(first, due + APART_S - offsets[first_behind])
    ends = []
    for offset, needed_s in own.items():
        due = first + offset
        ends.append(start + blocking_s(due) + work_s[bisect_right(dues, due)] + needed_s - offset)
    return max(first, *ends)


def blocking(workload: Workload, now: float, table: Timetable) -> Blocking:
    """How long work that cannot be preempted delays demands, as a function of their deadline.

    Such work is the call under way, and on engines without a free lane the most urgent open segment.
    """
    call, bias = workload.call, workload.bias
    under_way_s = max(min(call.begun, now) + call.cost_s * bias - now, 0.0)
    if workload.can_preempt(call):
        under_way_s = min(under_way_s, INTERRUPT_S)
    parts = [(table[job][0], call.alone_s(job) * bias) for job in call.jobs if job in table]
    # On an engine without a free lane, the most urgent open segment has to end first.
    firsts: list[Demand] = []
    for engine in workload.engines:
        demands = [table[job][0] for job in workload.promised_lanes(engine) if job in table]
        if len(demands) >= engine.max_lanes:
            firsts.append(min(demands, key=workload.urgency))

    def delay_s(due: float) -> float:
        later = [first for first in firsts if due < first.due]
        # A shared call takes longer than the cost of one job alone: only the rest is a delay.
        counted_s = sum(alone_s for demand, alone_s in parts if demand.due <= due or demand in later)
        return max(under_way_s - counted_s, 0.0) + sum(first.cost_s * bias for first in later)

    # The delay changes at these deadlines only.
    steps = sorted({-math.inf, *(demand.due for demand, _ in parts), *(first.due for first in firsts)})
    delays_s = [delay_s(due) for due in steps]
    return lambda due: delays_s[bisect_right(steps, due) - 1]
