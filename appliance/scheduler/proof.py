"""The inequality behind every promise.

Steps, their cost and the length of the audio are known before anything runs. All promises are kept if

    for every deadline d:  wake + call under way + bias · Σ(cost of what is due by d) + margin ≤ d − now

the processor-demand test for EDF, with one call of blocking: a call for promised work is never interrupted.
An engine that rests is awake after `wake`, else 0.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable

from appliance.scheduler.job import Demand, Job
from appliance.scheduler.workload import Workload

INTERRUPT_S = 0.02
"""Time that an interrupted call takes to end."""
APART_S = 1e-6
"""Seconds by which a deadline comes after another."""

Blocking = Callable[[float], float]
"""Deadline → delay by work that is due later."""


def unblocked(due: float) -> float:
    return 0.0


def shortfall_s(
    workload: Workload, now: float, demands: Iterable[Demand], blocking_s: Blocking = unblocked
) -> float:
    """Excess over the worst deadline."""
    work_s, worst_s = workload.ready_s(now), -math.inf
    for demand in sorted(demands, key=lambda demand: demand.due):
        if demand.due == math.inf:
            break
        work_s += demand.cost_s * workload.bias
        done = now + blocking_s(demand.due) + work_s + workload.margin_s
        worst_s = max(worst_s, done - demand.due)
    return worst_s


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
    bias, start = workload.bias, now + workload.ready_s(now) + workload.margin_s
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
    for demand in sorted(others, key=lambda demand: demand.due):
        if demand.due == math.inf:
            break
        dues.append(demand.due)
        work_s.append(work_s[-1] + demand.cost_s * bias)
        room_s = demand.due - start - blocking_s(demand.due) - work_s[-1]
        first_behind = bisect_right(own_s, room_s)
        if first_behind < len(own_s):
            found = max(found, demand.due + APART_S - offsets[first_behind])
    ends = []
    for offset, own in zip(offsets, own_s, strict=True):
        due = found + offset
        ends.append(start + blocking_s(due) + work_s[bisect_right(dues, due)] + own - offset)
    return max(found, *ends)


def blocking(workload: Workload, now: float, demands: Iterable[Demand]) -> Blocking:
    call, bias = workload.call, workload.bias
    under_way_s = max(call.begun + call.cost_s * bias - now, 0.0) if call else 0.0
    if workload.can_preempt(call):
        under_way_s = min(under_way_s, INTERRUPT_S)
    current = {demand.job: demand for demand in reversed(list(demands))}
    parts = [(current[job], call.alone_s(job) * bias) for job in call.jobs if job in current] if call else []
    # Without a free lane the most urgent segment under way has to end first, on each engine.
    firsts: list[Demand] = []
    for engine in workload.engines:
        held = [current[job] for job in workload.promised_lanes(engine) if job in current]
        if len(held) >= engine.max_lanes:
            firsts.append(min(held, key=workload.urgency))

    def blocking_s(due: float) -> float:
        later = [first for first in firsts if due < first.due]
        # A call shared by several takes longer than what is counted of it in the cost of one.
        counted_s = sum(alone_s for demand, alone_s in parts if demand.due <= due or demand in later)
        return max(under_way_s - counted_s, 0.0) + sum(first.cost_s * bias for first in later)

    return blocking_s
