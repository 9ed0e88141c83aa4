"""The engine's next call: earliest deadline first, shared by several lanes if that saves work.

The head is the most urgent job whose reader keeps up. The first segment of a caller with a smaller share of
the engine goes before the head if that misses no deadline. Once a deadline is lost, promised replies that
sound go before those that have not begun, because a later begin is better than silence within a reply. Before
them goes the first segment of a caller with less than half of the head's share. Another lane joins the head's
step if that saves WORTHWHILE of the lane's own step and misses no earlier deadline.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from operator import attrgetter

from appliance.request import WORTHWHILE
from appliance.scheduler.deadlines import blocking, by_due, promised
from appliance.scheduler.job import Demand, Job, Timetable
from appliance.scheduler.workload import EngineCall, Workload

LOST_S = 0.1
"""A deadline counts as lost if it will be missed by more than this, because calls took longer than estimated.
"""


def next_call(workload: Workload) -> EngineCall | None:
    """The next call of the engine; None if no job can use it.

    The head is the most urgent demand that has room, unless a modest caller's demand goes first. If it needs
    a lane and all are in use, it preempts a job that may wait, else the most urgent open job goes on.
    """
    now = workload.clock()
    table = workload.timetable(now)
    ready = sorted((demands[0] for job, demands in table.items() if job.has_room), key=workload.urgency)
    if not ready:
        return None
    outlook = _Outlook(workload, table, now)
    head = _of_the_modest(workload, ready, outlook) or min(ready, key=outlook.can_wait)
    job, engine = head.job, head.job.engine
    if job.lane is None:
        holders = workload.holders(engine)
        is_full = len(holders) >= engine.max_lanes
        jumps = head is not ready[0]
        spare = [
            other
            for other in holders
            if job.guaranteed and (not other.guaranteed or (jumps and outlook.has_less(job, other)))
        ]
        if spare or not is_full:
            preempted = max(spare, key=lambda one: workload.urgency(table[one][0])) if is_full else None
            return EngineCall("open", (job,), now, job.cost.open_s, head.due, preempted)
        job = next((demand.job for demand in ready if demand.job in holders), holders[0])
    if not job.steps_left:
        return EngineCall("finish", (job,), now, job.cost.finish_s, head.due)
    if engine.max_batch == 1 or job is not head.job:
        return EngineCall("step", (job,), now, job.cost.steps_s[job.steps], head.due)
    return _shared_step(workload, head, ready, outlook)


def _of_the_modest(workload: Workload, ready: Sequence[Demand], outlook: _Outlook) -> Demand | None:
    """Find the first segment of a caller with a smaller share than the head's caller.

    Returns None if that segment would miss a deadline and every earlier deadline can be met.
    """
    firsts: dict[str, Demand] = {}
    """Payer (see `Terms.payer`) → the payer's most urgent demand."""
    for demand in ready:
        firsts.setdefault(demand.job.terms.payer, demand)
    head, *others = firsts.values()
    lanes = Counter(id(job.engine) for job in workload.jobs.values() if job.lane is not None)
    for demand in others:
        job = demand.job
        if demand.due == math.inf:
            break
        is_modest = not job.segments_done and outlook.has_less(job, head.job)
        # If the job took the last lane, the head would wait for the end of a whole segment.
        has_room = job.lane is not None or lanes[id(job.engine)] < max(job.engine.max_lanes - 1, 1)
        slack_s = outlook.slack_s(demand.due)
        is_harmless = has_room and demand.cost_s * workload.bias <= slack_s
        is_lost = slack_s < -LOST_S and outlook.has_much_less(job, head.job)
        if is_modest and (is_harmless or is_lost):
            return demand
    return None


def _shared_step(workload: Workload, head: Demand, ready: Sequence[Demand], outlook: _Outlook) -> EngineCall:
    """Step of the head together with lanes that save work in it, or the opening of such a lane."""
    now, bias, engine = outlook.now, workload.bias, head.job.engine
    batch = [head.job]
    steps = [(head.job.segment, head.job.steps)]
    cost_s = alone_head_s = engine.costs.together(steps)
    lanes = len(workload.holders(engine))
    for demand in ready:
        job = demand.job
        is_finished = job.lane is not None and not job.steps_left
        if job is head.job or job.engine is not engine or is_finished or len(batch) == engine.max_batch:
            continue
        own = (job.segment, job.steps)
        longer_s = engine.costs.together([*steps, own]) - cost_s
        alone_s = engine.costs.together([own])
        if alone_s - longer_s <= WORTHWHILE * alone_s:
            continue
        # If the head jumped the queue, slack before its deadline excludes its own step: subtract the step.
        spare_s = min(
            outlook.slack_s(demand.due) - (cost_s - alone_head_s) * bias,
            outlook.slack_s(head.due) - cost_s * bias,
        )
        if job.lane is None:
            open_s = job.cost.open_s
            if lanes < engine.max_lanes - 1 and open_s * bias <= spare_s:
                return EngineCall("open", (job,), now, open_s, demand.due)
        elif longer_s * bias <= spare_s:
            batch.append(job)
            steps.append(own)
            cost_s += longer_s
    return EngineCall("step", tuple(batch), now, cost_s, head.due)


class _Outlook:
    """Sums over the promised work in the order of deadlines, each computed when first needed."""

    def __init__(self, workload: Workload, table: Timetable, now: float) -> None:
        self._workload, self._table, self.now = workload, table, now

    def slack_s(self, due: float) -> float:
        """Smallest slack of the deadlines before `due`."""
        dues, slacks_s = self._slacks
        return slacks_s[bisect_left(dues, due)]

    def can_wait(self, demand: Demand) -> bool:
        """True if the demand goes behind promised replies that sound, because a deadline is lost."""
        return self._is_late and (demand.job.audible is None or demand.due == math.inf)

    def has_less(self, job: Job, other: Job) -> bool:
        """True if a job's share is below another's.

        The share of a caller is its recent engine time and its promised work. Jobs of the same caller compare
        the promised work of their payers.
        """
        if job.terms.caller != other.terms.caller:
            return self._of_callers[job.terms.caller] < self._of_callers[other.terms.caller]
        return self._of_payers[job.terms.payer] < self._of_payers[other.terms.payer]

    def has_much_less(self, job: Job, other: Job) -> bool:
        """True if the share of a job's caller is less than half of the other caller's."""
        return 2.0 * self._of_callers[job.terms.caller] < self._of_callers[other.terms.caller]

    @cached_property
    def _is_late(self) -> bool:
        return self.slack_s(math.inf) < -LOST_S

    @cached_property
    def _demands(self) -> list[Demand]:
        jobs = sorted(self._table, key=attrgetter("number"))
        return by_due(promised({job: self._table[job] for job in jobs}))

    @cached_property
    def _of_callers(self) -> Mapping[str, float]:
        shares_s = defaultdict[str, float](float)
        for caller, activity in self._workload.active.items():
            shares_s[caller] = activity.spent_s(self.now)
        for _, cost_s, job in self._demands:
            shares_s[job.terms.caller] += cost_s
        return shares_s

    @cached_property
    def _of_payers(self) -> Mapping[str, float]:
        shares_s = defaultdict[str, float](float)
        for _, cost_s, job in self._demands:
            shares_s[job.terms.payer] += cost_s
        return shares_s

    @cached_property
    def _slacks(self) -> tuple[list[float], list[float]]:
        """Deadlines, and the smallest slack before each and of all. A demand may have to wait for a lane."""
        workload, work_s, slacks_s = self._workload, 0.0, [math.inf]
        start = self.now + workload.margin_s
        blocking_s = blocking(workload, self.now, self._table)
        for due, cost_s, _ in self._demands:
            work_s += cost_s * workload.bias
            slacks_s.append(min(slacks_s[-1], due - start - work_s - blocking_s(due)))
        return [demand.due for demand in self._demands], slacks_s
