"""The verbs on the queue, for moderators and callers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from appliance.errors import ApplianceError, Cancelled, QueueFull
from appliance.request import Terms
from appliance.scheduler.admission import Admission, target
from appliance.scheduler.deadlines import blocking, excesses_s
from appliance.scheduler.job import Job, Paused, State, Utterance
from appliance.scheduler.release import Delivery
from appliance.scheduler.workload import Decision, QueueState, Workload, digest_of

MAX_PAUSED = 1_000
"""Most channels that are paused, or moderated otherwise than configured."""


def next_change(present: Iterable[Utterance], now: float) -> float:
    """Time at which the next playout starts or ends."""
    times = (
        when
        for u in present
        if u.job.audible is not None
        for when in (u.starts, u.starts + u.job.audio_s)
        if when > now
    )
    return min(times, default=math.inf)


class Queue:
    """The requests of all channels: lists them, and ends, pauses, holds and approves them."""

    def __init__(self, workload: Workload, delivery: Delivery, admission: Admission) -> None:
        self._workload, self._delivery, self._admission = workload, delivery, admission

    # Reading.

    def watch(self, on_change: Callable[[], None]) -> None:
        """Set the function to call when the queue changes."""
        self._workload.on_change = on_change

    def utterances(self, since: int = 0) -> tuple[list[Utterance], list[Utterance], int]:
        """Current utterances in order of playout; ended ones from number `since` on; the next number."""
        workload = self._workload
        with workload.changed:
            now = workload.clock()
            workload.forget_played(now)
            present = [one for channel in workload.channels.values() for one in channel.utterances(now)]
            ended = [utterance for number, utterance in workload.history if number > since]
            return present, ended, workload.remembered

    def position_of(self, job: Job) -> tuple[Utterance, list[Job]]:
        """The job's state, and the jobs before it."""
        workload = self._workload
        with workload.changed:
            now = workload.clock()
            workload.forget_played(now)
            before: list[Job] = []
            for utterance in job.channel.utterances(now):
                if utterance.job is job:
                    return utterance, before
                before.append(utterance.job)
            ended = (u for _, u in reversed(workload.history) if u.job.number == job.number)
            return next(ended, Utterance(job, State.ENDED, now)), []

    def mergeable(self, terms: Terms) -> Job | None:
        """Newest job of that merge scope that does not sound yet."""
        with self._workload.changed:
            return self._workload.mergeable(terms)

    # A caller's verbs.

    def cancel(self, job: Job, why: ApplianceError | None = None) -> None:
        """End a job; its lane is free after the call under way. May be called twice."""
        with self._workload.changed:
            if not job.number:
                job.ended = True  # the job is not admitted yet, and this bars it
            elif not job.ended:
                self._delivery.end(job, why or Cancelled("the caller went away"))

    def sent(self, job: Job, seconds: float) -> None:
        """Note that the transport has taken more audio."""
        with self._workload.changed:
            had_room = job.has_room
            job.sent_s += seconds
            if job.has_room and not had_room:
                self._workload.notify()

    def stop_playout(self, job: Job) -> None:
        """Note that the caller has gone before reading all."""
        with self._workload.changed:
            if job.ended and job in job.channel.jobs:
                self._workload.take_off(job, Cancelled("the caller went away"))

    # A moderator's.

    def end(self, chosen: Callable[[Utterance], bool], why: ApplianceError) -> list[Utterance]:
        """End the chosen requests, and return them."""
        with self._workload.changed:
            ended = [utterance for utterance in self.utterances()[0] if chosen(utterance)]
            for utterance in ended:
                self._workload.decided.append((utterance.job.terms.key, Decision()))
                self._delivery.end(utterance.job, why)
            return ended

    def approve(self, chosen: Callable[[Utterance], bool]) -> list[Utterance]:
        """Approve chosen requests in the state HELD, and return them in their new state."""
        with self._workload.changed:
            held = [utterance for utterance in self.utterances()[0] if utterance.state is State.HELD]
            jobs = [utterance.job for utterance in held if chosen(utterance)]
            for job in jobs:
                self._workload.decided.append((job.terms.key, Decision(digest_of(job.request.written))))
                self._admission.approve(job)
            return [self.position_of(job)[0] for job in jobs]

    @property
    def moderated(self) -> list[str]:
        workload = self._workload
        with workload.changed:
            present = (channel.name for channel in workload.channels.values())
            names = {*workload.config.approval_channels, *workload.moderated, *present}
            return sorted(filter(workload.is_moderated, names))

    def moderate(self, name: str, on: bool) -> None:
        """Hold a channel's requests until somebody approves them. With `on` false, later requests need no
        approval. Raises QueueFull.
        """
        workload = self._workload
        with workload.changed:
            workload.moderated.pop(name, None)
            if workload.is_moderated(name) is not on:
                if len(workload.moderated) >= MAX_PAUSED:
                    raise QueueFull(f"{MAX_PAUSED} channels are moderated differently than configured")
                workload.moderated[name] = on
            workload.on_change()

    @property
    def paused(self) -> dict[str, float]:
        """Channel → Unix time of its pause, in the order of the names."""
        with self._workload.changed:
            return {name: paused.wall for name, paused in sorted(self._workload.paused.items())}

    def pause(self, name: str) -> None:
        """Hold the audio of a channel. Raises QueueFull."""
        workload = self._workload
        with workload.changed:
            if name in workload.paused:
                return
            if len(workload.paused) >= MAX_PAUSED:
                raise QueueFull(f"{MAX_PAUSED} channels are paused, which is the limit")
            workload.paused[name] = hold = Paused(workload.clock())
            for channel in workload.channels_named(name):
                channel.hold = hold
            workload.notify()
            workload.on_change()

    def resume(self, name: str) -> None:
        """Continue a channel. Waiting jobs get new deadlines, which may be late."""
        workload = self._workload
        with workload.changed:
            if workload.paused.pop(name, None) is None:
                return
            now, channels = workload.clock(), workload.channels_named(name)
            for channel in channels:
                channel.resume(now)
            jobs = [job for channel in channels for job in channel.jobs]
            self._promise_anew([job for job in jobs if not job.is_done and job.audible is None], now)
            self._delivery.release_all()
            workload.notify()
            workload.on_change()

    # State that outlives the process.

    def keep(self) -> QueueState:
        """State for the next process to `restore`."""
        with self._workload.changed:
            return self._workload.keep()

    def restore(self, state: QueueState) -> None:
        """Go on from the state that the process before left. Must be called before the first request."""
        workload = self._workload
        workload.earlier, now = state, workload.clock()
        workload.paused = {name: Paused(now, wall) for name, wall in state.paused.items()}
        workload.moderated = dict.fromkeys(state.moderated, True)

    def _promise_anew(self, jobs: Sequence[Job], now: float) -> None:
        """Give jobs new deadlines, later if needed, so that no admitted job misses its deadline."""
        workload = self._workload
        for job in jobs:
            if job.guaranteed:
                job.due = target(workload.config, job, job.terms.priority, job.audible_in_s(), now)
        # Earlier promises to others come first.
        for _ in range(3):
            table = workload.timetable(now)
            blocking_s = blocking(workload, now, table)
            late_s = max(excesses_s(workload, now, table, blocking_s), default=0.0)
            if late_s <= 0.0:
                break
            for job in jobs:
                job.late_s += late_s
