"""The choice of a job's way and deadline, in four cases:

on time, or as soon as on an idle box   the best way
later, because others come first        the cheapest way that may wait
too late because of newcomers alone     the cheapest way that is in time without them
too late even on an idle box            the last way, late

Any other job is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from appliance.errors import Overloaded
from appliance.scheduler.deadlines import Blocking, earliest, unblocked
from appliance.scheduler.job import Demand, Job, Way
from appliance.scheduler.workload import Workload


@dataclass(frozen=True)
class Window:
    """Deadlines of a job's first audio."""

    soonest: float
    """Deadline to aim for."""
    usual: float
    """Latest deadline that is on time."""
    latest: float
    """Latest deadline that is accepted."""


@dataclass(frozen=True, eq=False)
class Attempt:
    """Earliest deadlines of a job in several ways, given the work that is promised already."""

    job: Job
    soonest: float
    """Earliest deadline that counts as on time."""
    workload: Workload
    now: float
    others: Sequence[Demand]
    """Demands of the jobs that are admitted already."""
    blocking_s: Blocking
    """Delay by work that cannot be preempted."""
    newcomers: Callable[[], Sequence[Demand]]
    """Returns the demands of requests for which the job leaves room if it takes a way."""

    def alone(self, way: Way) -> float:
        """Deadline on an idle box, including the wake of an engine at rest."""
        self.job.take(way, self.soonest)
        idle_s = self.blocking_s if self.workload.call.kind == "wake" else unblocked
        return earliest(self.workload, self.job, self.now, (), idle_s)

    def beside_others(self, way: Way) -> float:
        self.job.take(way, self.soonest)
        return earliest(self.workload, self.job, self.now, self.others, self.blocking_s)

    def with_newcomers(self, way: Way) -> float:
        self.job.take(way, self.soonest)
        beside = [*self.others, *self.newcomers()]
        return earliest(self.workload, self.job, self.now, beside, self.blocking_s)


def choose(ways: Sequence[Way], window: Window, attempt: Attempt) -> None:
    """Choose one of the ways, and store the way and its deadline in the job. Raises Overloaded."""
    job, latest, dues = attempt.job, window.latest, dict[Way, float]()
    for way in ways:
        dues[way] = attempt.with_newcomers(way)
        if dues[way] <= window.usual:
            break
    best, last = min(dues, key=dues.__getitem__), [*dues][-1]
    due = dues[best]
    if due <= latest:
        is_soonest = due <= window.usual or due <= attempt.alone(best)
        # A job that waits for others keeps others waiting, so it takes the cheapest way.
        way = best if is_soonest else _cheapest(dues, latest)
        return job.take(way, dues[way])
    # Newcomers delay a job, but are no reason to refuse a job that may wait.
    may_wait = latest > window.usual
    real = {way: attempt.beside_others(way) for way in dues} if may_wait else dues
    if min(real.values()) <= latest:
        limit = job.deadline if job.terms.queue_timeout_s is None else latest
        return _take_late(job, _cheapest(real, latest), min(due, limit), latest)
    # A box that is too slow even when idle serves a job late rather than never.
    if dues[last] <= attempt.alone(last):
        return _take_late(job, last, dues[last], latest)
    raise too_late(min(real.values()) - latest)


def _cheapest(dues: Mapping[Way, float], latest: float) -> Way:
    return min((way for way, due in dues.items() if due <= latest), key=attrgetter("total_s"))


def _take_late(job: Job, way: Way, due: float, latest: float) -> None:
    late_s = max(due - latest, 0.0)
    job.take(way, due - late_s, late_s)


def too_late(late_s: float) -> Overloaded:
    reason = f"would come {late_s:.2f} s too late, because of requests admitted before"
    return Overloaded(reason, retry_s=max(late_s, 0.1))
