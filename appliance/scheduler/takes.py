"""Takes: a segment is heard while it has time, and spoken with other seeds if words are wrong.

It has time until shortly before its sound is needed: behind other replies of its channel, behind earlier
segments of its own, without a deadline, paused or held for approval. Then its best take goes out, heard or
not. Further takes are made as BULK is, and known to the engine's loop alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol

from appliance.request import FloatArray, Priority, Segment, SegmentAudio
from appliance.scheduler.job import Job, Result, Take
from appliance.scheduler.release import Delivery
from appliance.scheduler.workload import Life, Workload

MOST_TAKES = 3
"""A recogniser errs on some names whatever is said."""


class Listener(Protocol):
    def hear(self, text: str, samples: FloatArray, heard: Callable[[int | None], None]) -> None:
        """Have `heard` called on another thread, with the count of wrong words; None: it could not be heard.

        Returns at once. One sound at a time.
        """


class Takes:
    def __init__(self, workload: Workload, delivery: Delivery, listener: Listener | None) -> None:
        self._workload, self._delivery, self._listener = workload, delivery, listener
        self._unheard: list[Take] = []
        self._hears = False
        self.heard = 0
        self.remade = 0
        self.kept = 0
        """Later takes that were better."""

    # Under the lock.

    def prove(self, job: Job, segment: Segment, samples: FloatArray) -> None:
        """Have a segment heard that was just made, if it has time; its audio is the last of `job.held`."""
        if self._listener is None or not job.is_proven:
            return
        now = self._workload.clock()
        if self._delivery.needed(job, segment.index, now) > now:
            job.takes[segment.index] = take = Take(job, segment, samples)
            self._listen(take)

    def _listen(self, *takes: Take) -> None:
        """Hear what is needed first, once the listener is free."""
        self._unheard = [take for take in (*self._unheard, *takes) if take.is_open]
        if self._listener and self._unheard and not self._hears:
            now, needed = self._workload.clock(), self._delivery.needed
            take = min(self._unheard, key=lambda take: needed(take.job, take.segment.index, now))
            self._unheard.remove(take)
            self._hears = True
            self._listener.hear(take.segment.text, take.samples, partial(self._on_heard, take))

    def _on_heard(self, take: Take, wrong: int | None) -> None:
        with self._workload.changed:
            self._hears = False
            if take.is_open:
                self._judge(take, wrong)
            self._listen()

    def _judge(self, take: Take, wrong: int | None) -> None:
        if wrong is not None:
            self.heard += 1
            if wrong < take.wrong:
                take.wrong = wrong
                self.kept += take.count > 1
                take.choose()
        if wrong and self._make_another(take):
            return
        self._delivery.close(take)

    def _make_another(self, take: Take) -> bool:
        """False if there is no time for it."""
        workload, job, segment = self._workload, take.job, take.segment
        now, cost = workload.clock(), job.costs[segment.index]
        left_s = self._delivery.needed(job, segment.index, now) - now
        if (
            take.count == MOST_TAKES
            or workload.life is not Life.RUNNING
            or getattr(job, "engine", None) is not workload.engine
            or workload.wake_s
            or cost.whole_s * workload.bias > left_s
        ):
            return False
        take.another = another = Job(
            replace(job.terms, priority=Priority.BULK), partial(self._on_made, take), now, number=job.number
        )
        another.engine, another.channel = job.engine, job.channel
        # No seed that is drawn for a request, and exact in every client's numbers as those are.
        another.take([replace(segment, seed=segment.seed ^ take.count << 32)], [cost])
        take.count += 1
        self.remade += 1
        workload.retakes.append(another)
        workload.notify()
        return True

    def _on_made(self, take: Take, result: Result) -> None:
        if isinstance(result, SegmentAudio):
            take.samples = result.samples
            self._listen(take)
        else:
            self._delivery.close(take)
