"""Release of finished audio, and the end of a job.

Two holds name the time until which a job's audio stays: the channel's (a pause, or a missing approval) and
`Early`. The later time counts, and one alarm is set for the next such time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace

from appliance.errors import ApplianceError
from appliance.scheduler.deadlines import excesses_s
from appliance.scheduler.job import GOING, Hold, Job
from appliance.scheduler.workload import Workload


@dataclass(frozen=True, eq=False)
class Early:
    """Hold of an unfinished reply that is not streamed, and of a stream's first audio that is finished before
    it is due.

    An early playout would move all later deadlines forward, so the audio waits while that would break a
    promise.
    """

    workload: Workload

    def until(self, job: Job, now: float) -> float:
        if job.audible is not None or job.is_done:
            return -math.inf
        if not job.stream:
            return math.inf
        is_early = job.guaranteed and not job.late_s and now < job.due
        return job.due if is_early and self._breaks_promise(job, now) else -math.inf

    def _breaks_promise(self, job: Job, now: float) -> bool:
        sounding = copy(job)
        sounding.audible = now
        jobs = [sounding if other is job else other for other in job.channel.jobs]
        table = self.workload.timetable(now, replace(job.channel, jobs=jobs))
        return any(excess_s > 0.0 for excess_s in excesses_s(self.workload, now, table))


class Delivery:
    """Releases finished segments to callers as soon as their channel allows."""

    def __init__(self, workload: Workload, call_at: Callable[[float, Callable[[], None]], None]) -> None:
        self._workload, self._call_at = workload, call_at
        self._early: Hold = Early(workload)
        self._alarm = math.inf
        """Time of the next alarm."""

    def release(self, job: Job, now: float = -math.inf) -> None:
        """Deliver audio that no hold keeps at `now` or, if it is later, at the clock's time. Ends a job whose
        last segment went out.
        """
        workload = self._workload
        now = max(now, workload.clock())
        until = max(hold.until(job, now) for hold in (job.channel.hold, self._early))
        if until > now:
            self._look_at(until)
            return
        if job.audible is None:
            job.audible = workload.clock()
        for audio in job.unreleased:
            job.deliver(audio)
        job.unreleased.clear()
        if job.is_done:
            self._leave(job)
            workload.forget_played(workload.clock())
        workload.on_change()

    def release_all(self, now: float = -math.inf) -> None:
        """Release the finished audio of all channels whose hold has ended."""
        jobs = [job for job in self._workload.jobs.values() if job.unreleased and job.channel.hold is GOING]
        for job in jobs:
            self.release(job, now)

    def end(self, job: Job, why: ApplianceError) -> None:
        """End a job before it is done, or before its audio is played."""
        workload = self._workload
        if job.ended:
            workload.take_off(job, why)
            return
        self._leave(job)
        workload.take_off(job, why)
        workload.give_up_lane(job)
        workload.forget_played(workload.clock())
        job.deliver(why)
        workload.notify()

    def _leave(self, job: Job) -> None:
        workload, name = self._workload, job.terms.key
        workload.observer.ended(job, workload.clock())
        job.end()
        del workload.jobs[name]
        workload.earlier.order.pop(name, None)

    def _look_at(self, when: float) -> None:
        if when < self._alarm:
            self._alarm = when
            self._call_at(when, lambda: self._on_alarm(when))

    def _on_alarm(self, when: float) -> None:
        with self._workload.changed:
            self._alarm = math.inf
            # An alarm may come a moment before its time.
            self.release_all(when)
