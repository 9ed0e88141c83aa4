"""Release: when audio goes out, and how a job leaves the books.

A stream's first audio may be finished long before it is due. Its playout would pull all later deadlines
forward: while that would break a promise, it is held.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from copy import copy
from dataclasses import replace

from appliance.errors import ApplianceError
from appliance.scheduler.job import Job
from appliance.scheduler.proof import shortfall_s
from appliance.scheduler.workload import Workload


class ReleaseVerdict(enum.Enum):
    OUT = "out"
    PAUSED = "paused"
    UNFINISHED = "unfinished"
    """Not streamed, not whole."""
    EARLY = "early"
    """Held until due, or all finished."""


def verdict(job: Job, now: float, *, promised: bool, breaks_promise: Callable[[], bool]) -> ReleaseVerdict:
    """Decide on a job's finished audio; `breaks_promise` if its playout started now."""
    if job.channel.paused is not None:
        return ReleaseVerdict.PAUSED
    if job.audible is not None or job.made:
        return ReleaseVerdict.OUT
    if not job.stream:
        return ReleaseVerdict.UNFINISHED
    if promised and now < job.due and breaks_promise():
        return ReleaseVerdict.EARLY
    return ReleaseVerdict.OUT


class Delivery:
    def __init__(self, workload: Workload, call_at: Callable[[float, Callable[[], None]], None]) -> None:
        self._workload, self._call_at = workload, call_at

    def release(self, job: Job, now: float | None = None) -> None:
        """Deliver what may go out; complete the job if that is all."""
        workload = self._workload
        now = workload.clock() if now is None else now
        decision = verdict(
            job,
            now,
            promised=job.guaranteed and not job.late_s,
            breaks_promise=lambda: self._breaks_promise(job, now),
        )
        if decision is ReleaseVerdict.EARLY and job.alarm != job.due:
            job.alarm = due = job.due
            self._call_at(due, lambda: self._on_alarm(job, due))
        if decision is not ReleaseVerdict.OUT:
            return
        if job.audible is None:
            job.audible = workload.clock()
            workload.on_change()
        for audio in job.held:
            job.deliver(audio)
        job.held.clear()
        if job.made:
            self._leave(job)
            workload.forget_played(workload.clock())
            workload.on_change()

    def end(self, job: Job, why: ApplianceError) -> None:
        """End a job before it is done."""
        workload = self._workload
        self._leave(job)
        workload.take_off(job, why)
        if workload.call is None or job not in workload.call.jobs:
            workload.give_up_lane(job)
        workload.forget_played(workload.clock())
        job.deliver(why)
        workload.notify()

    def _leave(self, job: Job) -> None:
        self._workload.observer.ended(job, self._workload.clock())
        job.ended = True
        del self._workload.jobs[job.terms.request_id]

    def _breaks_promise(self, job: Job, now: float) -> bool:
        sounding = copy(job)
        sounding.audible = now
        jobs = [sounding if other is job else other for other in job.channel.jobs]
        demands = self._workload.demands(now, replace(job.channel, jobs=jobs))
        return shortfall_s(self._workload, now, demands) > 0.0

    def _on_alarm(self, job: Job, due: float) -> None:
        with self._workload.changed:
            if job.held and not job.ended:
                # An alarm may come a moment before its time.
                self.release(job, max(self._workload.clock(), due))
