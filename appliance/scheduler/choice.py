"""Choice of the way in which a job is served, and of the deadline that it is promised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from appliance.errors import Overloaded
from appliance.scheduler.job import Demand, Job, Way
from appliance.scheduler.proof import Blocking, earliest, unblocked
from appliance.scheduler.workload import Workload


@dataclass(frozen=True)
class Window:
    """Deadlines of a job's first audio."""

    soonest: float
    """Aim."""
    usual: float
    """Latest that is on time."""
    latest: float
    """Latest that is accepted."""


@dataclass(frozen=True, eq=False)
class Attempt:
    """A job, tried in one way after the other beside work that is promised already."""

    job: Job
    soonest: float
    workload: Workload
    now: float
    others: Sequence[Demand]
    blocking_s: Blocking
    newcomers: Callable[[], Sequence[Demand]]
    """Requests for which the job, as it is then, leaves room."""

    def alone(self, way: Way) -> float:
        """Earliest deadline on an idle box, whose engine may have to wake."""
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
    """Promise the job the first way on time, else the one that waits least, if it may. Raises Overloaded."""
    job, latest, dues = attempt.job, window.latest, dict[Way, float]()
    for way in ways:
        dues[way] = attempt.with_newcomers(way)
        if dues[way] <= window.usual:
            break
    best, last = min(dues, key=dues.__getitem__), [*dues][-1]
    due = dues[best]
    if due <= latest:
        is_as_soon_as_can_be = due <= window.usual or due <= attempt.alone(best)
        # Else the job waits for others, and others will for it: the cheapest way makes it.
        way = best if is_as_soon_as_can_be else _cheapest(dues, latest)
        return job.take(way, dues[way])
    # Newcomers who have not come change the turn, but refuse no job that may wait.
    may_wait = latest > window.usual
    real = {way: attempt.beside_others(way) for way in dues} if may_wait else dues
    if min(real.values()) <= latest:
        limit = job.deadline if job.terms.queue_timeout_s is None else latest
        return _take_late(job, _cheapest(real, latest), min(due, limit), latest)
    # A box that is too slow for it even when idle serves it late rather than never.
    if dues[last] <= attempt.alone(last):
        return _take_late(job, last, dues[last], latest)
    raise too_late(min(real.values()) - latest)


def _cheapest(dues: Mapping[Way, float], latest: float) -> Way:
    return min((way for way, due in dues.items() if due <= latest), key=attrgetter("total_s"))


def _take_late(job: Job, way: Way, due: float, latest: float) -> None:
    late_s = max(due - latest, 0.0)
    job.take(way, due - late_s, late_s)


def too_late(late_s: float) -> Overloaded:
    reason = f"would come {late_s:.2f} s too late beside what was admitted before"
    return Overloaded(reason, retry_s=max(late_s, 0.1))
