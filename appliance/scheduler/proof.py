"""The inequality behind every promise.

Steps, their cost and the length of the audio are known before anything runs. All promises are kept if

    for every deadline d:  call under way + bias · Σ(cost of what is due by d) + margin ≤ d − now

the processor-demand test for EDF, with one call of blocking: a call for promised work is never interrupted.
The wake of an engine at rest is a call, too.
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
"""Time that an interrupted call takes to end."""
APART_S = 1e-6
"""Seconds by which a deadline comes after another."""

Blocking = Callable[[float], float]
"""Deadline → delay by work that is due later."""


def unblocked(due: float) -> float:
    return 0.0


def promised(table: Timetable) -> list[Demand]:
    """Demands that have a deadline, job by job."""
    return [*chain.from_iterable(demands for demands in table.values() if demands[0].due < math.inf)]


def by_due(demands: Iterable[Demand]) -> list[Demand]:
    return sorted(demands, key=itemgetter(0))


def excesses_s(
    workload: Workload, now: float, table: Timetable, blocking_s: Blocking = unblocked
) -> Iterator[float]:
    """Seconds by which each deadline is missed, negative if it is kept; the earliest first."""
    work_s = 0.0
    for due, cost_s, _ in by_due(promised(table)):
        work_s += cost_s * workload.bias
        yield now + blocking_s(due) + work_s + workload.margin_s - due


def earliest(
    workload: Workload,
    job: Job,
    now: float,
    others: Iterable[Demand] = (),
    blocking_s: Blocking = unblocked,
) -> float:
    """Earliest deadline of first audio, from `job.due` on, with which all are kept.

    A deadline d of others has room for its first k segments, so the next is due after d; and each is done
    after what is due before it.
    """
    bias, start = workload.bias, now + workload.margin_s
    offsets: list[float] = []
    """Deadlines after the first."""
    own_s: list[float] = []
    """Work due by then."""
    for demand in job.demands(now, job.due, job.due):
        total_s = demand.cost_s * bias + (own_s[-1] if own_s else 0.0)
        if offsets and demand.due - job.due == offsets[-1]:
            own_s[-1] = total_s
        else:
            offsets.append(demand.due - job.due)
            own_s.append(total_s)
    dues, work_s = [], [0.0]
    found = job.due
    for due, cost_s, _ in by_due(others):
        dues.append(due)
        work_s.append(work_s[-1] + cost_s * bias)
        room_s = due - start - blocking_s(due) - work_s[-1]
        first_behind = bisect_right(own_s, room_s)
        if first_behind < len(own_s):
            found = max(found, due + APART_S - offsets[first_behind])
    ends = []
    for offset, own in zip(offsets, own_s, strict=True):
        due = found + offset
        ends.append(start + blocking_s(due) + work_s[bisect_right(dues, due)] + own - offset)
    return max(found, *ends)


def blocking(workload: Workload, now: float, table: Timetable) -> Blocking:
    call, bias = workload.call, workload.bias
    under_way_s, parts = 0.0, []
    if call is not None:
        under_way_s = max(min(call.begun, now) + call.cost_s * bias - now, 0.0)
        if workload.can_preempt(call):
            under_way_s = min(under_way_s, INTERRUPT_S)
        parts = [(table[job][0], call.alone_s(job) * bias) for job in call.jobs if job in table]
    # Without a free lane the most urgent segment under way has to end first, on each engine.
    firsts: list[Demand] = []
    for engine in workload.engines:
        held = [table[job][0] for job in workload.promised_lanes(engine) if job in table]
        if len(held) >= engine.max_lanes:
            firsts.append(min(held, key=workload.urgency))

    def delay_s(due: float) -> float:
        later = [first for first in firsts if due < first.due]
        # A call shared by several takes longer than what is counted of it in the cost of one.
        counted_s = sum(alone_s for demand, alone_s in parts if demand.due <= due or demand in later)
        return max(under_way_s - counted_s, 0.0) + sum(first.cost_s * bias for first in later)

    # It changes at these deadlines alone.
    steps = sorted({-math.inf, *(demand.due for demand, _ in parts), *(first.due for first in firsts)})
    delays_s = [delay_s(due) for due in steps]
    return lambda due: delays_s[bisect_right(steps, due) - 1]
