"""The engine's next call: earliest deadline first, shared where that saves work.

The head is the most urgent job whose reader keeps up, or the first sound of a caller that has less, if
nothing is late by it. Another lane joins its step if that saves WORTHWHILE of its own and makes nothing late
that is due before.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import cached_property

from appliance.request import WORTHWHILE
from appliance.scheduler.job import Demand, Job
from appliance.scheduler.proof import blocking
from appliance.scheduler.workload import EngineCall, Workload


def next_call(workload: Workload) -> EngineCall | None:
    now = workload.clock()
    demands = sorted(workload.demands(now), key=workload.urgency)
    current = {demand.job: demand for demand in reversed(demands) if demand.job.has_room}
    ready = sorted(current.values(), key=workload.urgency)
    if not ready:
        return None
    slack = _Slack(workload, demands, now)
    if first := _of_the_modest(workload, demands, ready, slack, now):
        ready.remove(first)
        ready.insert(0, first)
    job, due = ready[0].job, ready[0].due
    holders = workload.holders(job.engine)
    if job.lane is None:
        preempted = None
        if len(holders) >= job.engine.max_lanes:
            bulk = [other for other in holders if not other.guaranteed]
            if job.guaranteed and bulk:
                preempted = bulk[-1]
            else:
                job = next((demand.job for demand in ready if demand.job in holders), holders[0])
        if job.lane is None:
            return EngineCall("open", (job,), now, job.costs[job.done].open_s, due, preempted)
    if not job.steps_left:
        return EngineCall("finish", (job,), now, job.costs[job.done].finish_s, due)
    if job.engine.max_batch == 1 or job is not ready[0].job:
        return EngineCall("step", (job,), now, job.costs[job.done].steps_s[job.steps], due)
    return _shared_step(workload, job, due, ready, slack, now)


def _of_the_modest(
    workload: Workload, demands: Sequence[Demand], ready: Sequence[Demand], slack: _Slack, now: float
) -> Demand | None:
    """First sound of a caller with less than the head's, if all others have the time.

    A caller has what it was given lately and what it is promised; of the head's own, a payer its promises.
    """
    share_s: defaultdict[tuple[str, str], float] = defaultdict(float)
    for caller, presence in workload.present.items():
        share_s["caller", caller] = presence.spent_s(now)
    for demand in demands:
        if demand.due < math.inf:
            for key in _keys(demand.job):
                share_s[key] += demand.cost_s
    head = ready[0].job
    seen = {head.terms.payer}
    lanes = Counter(id(job.engine) for job in workload.jobs.values() if job.lane is not None)
    for demand in ready[1:]:
        job = demand.job
        if demand.due == math.inf:
            break
        if job.terms.payer in seen:  # a payer's own come in their order
            continue
        seen.add(job.terms.payer)
        level = 0 if job.terms.caller != head.terms.caller else 1
        is_modest = share_s[_keys(job)[level]] < share_s[_keys(head)[level]]
        # With the last lane the head would wait for a segment of another.
        in_use = lanes[id(job.engine)]
        has_room = job.lane is not None or not in_use or in_use < job.engine.max_lanes - 1
        is_possible = not job.done and has_room
        needed_s = demand.cost_s * workload.bias
        if is_modest and is_possible and needed_s <= slack.before(demand.due):
            return demand
    return None


def _keys(job: Job) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("caller", job.terms.caller), ("payer", job.terms.payer)


def _shared_step(
    workload: Workload, head: Job, due: float, ready: Sequence[Demand], slack: _Slack, now: float
) -> EngineCall:
    """Step of the head and others that gain by it, or the opening of such a lane."""
    engine, bias, costs = head.engine, workload.bias, head.engine.costs
    batch = [head]
    steps = [(head.segment, head.steps)]
    cost_s = alone_head_s = costs.together(steps)
    lanes = len(workload.holders(engine))
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
        # Deadlines before that of the head, where it goes first, have not counted its own step.
        spare_s = min(
            slack.before(demand.due) - (cost_s - alone_head_s) * bias, slack.before(due) - cost_s * bias
        )
        if job.lane is None:
            open_s = job.costs[job.done].open_s
            if lanes < engine.max_lanes - 1 and open_s * bias <= spare_s:
                return EngineCall("open", (job,), now, open_s, demand.due)
        elif longer_s * bias <= spare_s:
            batch.append(job)
            steps.append(own)
            cost_s += longer_s
    return EngineCall("step", tuple(batch), now, cost_s, due)


class _Slack:
    """Time that deadlines leave."""

    def __init__(self, workload: Workload, demands: Sequence[Demand], now: float) -> None:
        """`demands` are in the order of their deadlines."""
        self._workload, self._demands, self._now = workload, demands, now

    def before(self, due: float) -> float:
        """Smallest slack of demands due before then."""
        dues, slacks_s = self._smallest
        count = bisect_left(dues, due)
        return slacks_s[count - 1] if count else math.inf

    @cached_property
    def _smallest(self) -> tuple[list[float], list[float]]:
        """Deadlines, and the smallest slack of all up to each; one may wait for a lane."""
        workload, work_s, slack_s = self._workload, 0.0, math.inf
        start = self._now + workload.margin_s
        blocking_s = blocking(workload, self._now, self._demands)
        dues: list[float] = []
        slacks_s: list[float] = []
        for demand in self._demands:
            if demand.due == math.inf:
                break
            work_s += demand.cost_s * workload.bias
            slack_s = min(slack_s, demand.due - start - work_s - blocking_s(demand.due))
            dues.append(demand.due)
            slacks_s.append(slack_s)
        return dues, slacks_s
