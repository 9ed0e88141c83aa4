"""Choice of the way in which a job is served, and of the deadline that it is promised."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

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


@dataclass(frozen=True)
class Promise:
    way: Way
    due: float
    late_s: float = 0.0


@dataclass(frozen=True, eq=False)
class Rivals:
    """Work that a job is planned beside."""

    workload: Workload
    now: float
    others: Sequence[Demand]
    blocking_s: Blocking
    newcomers: Callable[[], Sequence[Demand]]
    """Requests for which the job leaves room, as it is at the call."""


@dataclass(frozen=True, eq=False)
class Attempt:
    """Way to serve a job; its earliest deadlines, each beside more."""

    job: Job
    way: Way
    soonest: float
    rivals: Rivals

    @cached_property
    def alone(self) -> float:
        """Deadline on an idle box, whose engine may have to wake."""
        rivals, call = self.rivals, self.rivals.workload.call
        is_waking = call is not None and call.kind == "wake"
        return self._earliest((), rivals.blocking_s if is_waking else unblocked)

    @cached_property
    def beside(self) -> float:
        return self._earliest(self.rivals.others, self.rivals.blocking_s)

    @cached_property
    def with_newcomers(self) -> float:
        self._try()
        return self._earliest([*self.rivals.others, *self.rivals.newcomers()], self.rivals.blocking_s)

    def _try(self) -> None:
        self.job.take(self.way)
        self.job.due, self.job.late_s = self.soonest, 0.0

    def _earliest(self, others: Iterable[Demand], blocking_s: Blocking) -> float:
        self._try()
        return earliest(self.rivals.workload, self.job, self.rivals.now, others, blocking_s)


def choose(job: Job, ways: Iterable[Way], window: Window, rivals: Rivals) -> Promise:
    """Take the first way on time, else the one that waits least, if it may. Raises Overloaded."""
    tried: list[Attempt] = []
    for way in ways:
        tried.append(Attempt(job, way, window.soonest, rivals))
        if tried[-1].with_newcomers <= window.usual:
            break
    best = min(tried, key=lambda one: one.with_newcomers)
    due, last = best.with_newcomers, tried[-1]
    if due <= window.latest:
        if due <= window.usual or due <= best.alone:
            return Promise(best.way, due)
        # The job waits for others, and others will for it: the cheapest way makes it.
        chosen = _cheapest([one for one in tried if one.with_newcomers <= window.latest])
        return Promise(chosen.way, chosen.with_newcomers)
    # Newcomers who have not come change the turn, but refuse no job that may wait.
    may_wait = window.latest > window.usual
    dues = {one: one.beside if may_wait else one.with_newcomers for one in tried}
    if in_time := [one for one in tried if dues[one] <= window.latest]:
        limit = job.deadline if job.terms.queue_timeout_s is None else window.latest
        return _late(_cheapest(in_time).way, min(due, limit), window)
    # A box that is too slow for it even when idle serves it late rather than never.
    if last.with_newcomers <= last.alone:
        return _late(last.way, last.with_newcomers, window)
    raise too_late(min(dues.values()) - window.latest)


def _cheapest(attempts: Sequence[Attempt]) -> Attempt:
    return min(attempts, key=lambda one: one.way.total_s)


def _late(way: Way, due: float, window: Window) -> Promise:
    late_s = max(due - window.latest, 0.0)
    return Promise(way, due - late_s, late_s)


def too_late(late_s: float) -> Overloaded:
    reason = f"would come {late_s:.2f} s too late beside what was admitted before"
    return Overloaded(reason, retry_s=max(late_s, 0.1))
