"""Release: when audio goes out, and how a job leaves the books.

A stream's first audio may be finished long before it is due. Its playout would pull all later deadlines
forward: while that would break a promise, it is held. So is what is not proven yet (takes.py), until it is
needed.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from itertools import takewhile

from appliance.errors import ApplianceError
from appliance.request import SegmentAudio
from appliance.scheduler.job import Channel, Job, Result, Take
from appliance.scheduler.proof import shortfall_s
from appliance.scheduler.workload import Life, Workload

SPARE_S = 0.25
"""Time before its sound is needed at which a segment goes out unproven."""


class Verdict(enum.Enum):
    OUT = "out"
    PAUSED = "paused"
    UNFINISHED = "unfinished"
    """Not streamed, not whole."""
    BEHIND = "behind"
    """Held until its turn, or the first sound of one before it."""
    EARLY = "early"
    """Held until due, or all finished."""


def verdict(
    job: Job, now: float, *, turn: float, promised: bool, breaks_promise: Callable[[], bool]
) -> Verdict:
    """Decide on a job's finished audio; `breaks_promise` if its playout started now."""
    if job.channel.paused is not None:
        return Verdict.PAUSED
    if now < turn:
        return Verdict.BEHIND
    if job.audible is not None or job.made:
        return Verdict.OUT
    if not job.stream:
        return Verdict.UNFINISHED
    if promised and now < job.due and breaks_promise():
        return Verdict.EARLY
    return Verdict.OUT


class Delivery:
    def __init__(self, workload: Workload, call_at: Callable[[float, Callable[[], None]], None]) -> None:
        self._workload, self._call_at = workload, call_at

    def release(self, job: Job, now: float | None = None) -> None:
        """Deliver what may go out; complete the job if that is all."""
        workload = self._workload
        now = workload.clock() if now is None else now
        again, turn = self._close_takes(job, now), self._turn(job, now)
        decision = verdict(
            job,
            now,
            turn=turn,
            promised=job.guaranteed and not job.late_s,
            breaks_promise=lambda: self._breaks_promise(job, now),
        )
        if decision is Verdict.EARLY:
            again = min(again, job.due)
        elif decision is Verdict.BEHIND:
            again = min(again, turn)
        if again < math.inf and not now < job.alarm <= again:
            job.alarm = again
            self._call_at(again, lambda: self._on_alarm(job, again))
        proven = _proven(job)
        if decision is not Verdict.OUT or not proven:
            return
        is_first = job.audible is None
        if is_first:
            job.audible = workload.clock()
            workload.on_change()
        for audio in proven:
            job.deliver(audio)
        del job.held[: len(proven)]
        if job.made and not job.held:
            self._leave(job)
            workload.forget_played(workload.clock())
            workload.on_change()
        if is_first:
            self._release_next(job.channel)

    def end(self, job: Job, why: ApplianceError) -> None:
        """End a job before it is done."""
        workload = self._workload
        if job in workload.retakes:
            self.end_retake(job, why)
            return
        self._leave(job)
        workload.take_off(job, why)
        workload.retire(job)
        workload.forget_played(workload.clock())
        job.deliver(why)
        self._release_next(job.channel)
        workload.notify()

    def _release_next(self, channel: Channel) -> None:
        """Release the first reply that waited for the proof of one before it; it releases the next."""
        waiting = (job for job in channel.jobs if job.audible is None and job.held and not job.ended)
        if (job := next(waiting, None)) is not None:
            self.release(job)

    def _leave(self, job: Job) -> None:
        self._workload.observer.ended(job, self._workload.clock())
        job.ended = True
        for take in job.takes.values():
            self._drop(take.another)
        job.takes.clear()
        del self._workload.jobs[job.terms.request_id]

    def _breaks_promise(self, job: Job, now: float) -> bool:
        sounding = copy(job)
        sounding.audible = now
        jobs = [sounding if other is job else other for other in job.channel.jobs]
        demands = self._workload.demands(now, replace(job.channel, jobs=jobs))
        return shortfall_s(self._workload, now, demands) > 0.0

    # Takes.

    def _turn(self, job: Job, now: float) -> float:
        """Time until which it waits for the first sound of one before it that is under proof."""
        if job.audible is not None or not job.held:
            return -math.inf
        before = takewhile(lambda other: other is not job, job.channel.jobs)
        if not any(other.takes and other.audible is None for other in before):
            return -math.inf
        return self.needed(job, job.held[0].segment, now)

    def needed(self, job: Job, index: int, now: float) -> float:
        """Time at which a finished segment goes out, proven or not."""
        if self._workload.life is Life.DRAINING:
            return -math.inf
        return job.channel.needed(job, index, now) - SPARE_S

    def close(self, take: Take) -> None:
        """Prove no further, and deliver what waited for it."""
        del take.job.takes[take.segment.index]
        self._drop(take.another)
        self.release(take.job)

    def _close_takes(self, job: Job, now: float) -> float:
        """Prove no longer what is needed by now; time at which the next is."""
        needed = {index: self.needed(job, index, now) for index in job.takes}
        for index in [index for index, when in needed.items() if when <= now]:
            del needed[index]
            self._drop(job.takes.pop(index).another)
        return min(needed.values(), default=math.inf)

    def end_retake(self, retake: Job, result: Result) -> None:
        self._drop(retake)
        retake.deliver(result)

    def _drop(self, retake: Job | None) -> None:
        if retake is not None and not retake.ended:
            self._workload.retakes.remove(retake)
            self._workload.retire(retake)

    def _on_alarm(self, job: Job, due: float) -> None:
        with self._workload.changed:
            if job.held and not job.ended:
                # An alarm may come a moment before its time.
                self.release(job, max(self._workload.clock(), due))


def _proven(job: Job) -> list[SegmentAudio]:
    """Held audio before the first take; if it is not streamed, all or nothing."""
    count = next((n for n, audio in enumerate(job.held) if audio.segment in job.takes), len(job.held))
    return job.held[:count] if job.stream or count == len(job.held) else []
