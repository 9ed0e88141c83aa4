"""Jobs, and the channels that play them: when each segment of a reply is due.

A stream's first segment is due at its target, or when the reply before it on its channel ends. Segment j is
due when the listener's buffer would run empty: start of playout + audio of the segments before it. Until
playout has started, its start is taken to be the first segment's deadline. A reply that is not streamed is
due as a whole.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from appliance.errors import ApplianceError
from appliance.request import Cost, Priority, Segment, SegmentAudio, Terms, Timings
from appliance.scheduler.interface import Engine

Result = SegmentAudio | ApplianceError
"""Delivered by a job: audio, until its last segment or an error."""


@dataclass(frozen=True)
class Demand:
    """Work of one segment."""

    due: float
    cost_s: float
    """Remaining engine time."""
    job: Job


@dataclass(eq=False)
class Job:
    """One request in the scheduler. Times are of the scheduler's clock."""

    terms: Terms
    deliver: Callable[[Result], None]
    """Must return at once, and not call the scheduler."""
    arrived: float
    deadline: float = math.inf
    """The caller's."""
    stream: bool = True
    buffer_s: float = math.inf
    """Finished audio that may wait for the reader before the job is parked."""

    voice: str = ""
    text: str = ""
    """Text as spoken."""
    merged: int = 1
    """Requests merged into this one, itself included."""
    kept: tuple[SegmentAudio, ...] = ()
    """All of its audio, if it is cached."""

    # Set at admission.
    engine: Engine = field(init=False)
    channel: Channel = field(init=False)
    segments: tuple[Segment, ...] = ()
    costs: tuple[Cost, ...] = ()
    due: float = math.inf
    """Deadline of the first audio; of the whole reply if it is not streamed."""
    late_s: float = 0.0
    """Added to every deadline on a box that is too slow for this job even when idle."""
    number: int = 0
    """Order of admission; 0 before."""

    done: int = 0
    """Finished segments."""
    lane: int | None = None
    """Lane of the present segment."""
    steps: int = 0
    """Finished steps of the present segment."""
    begun: bool = False
    """True from the engine's first call on."""
    audible: float | None = None
    """Delivery of the first audio; of the whole reply if it is not streamed."""
    held: list[SegmentAudio] = field(default_factory=list)
    """Finished, not delivered yet."""
    alarm: float | None = None
    """Time at which held audio is released at the latest."""
    made_s: float = 0.0
    """Finished audio."""
    written_s: float = 0.0
    """Audio that the transport has taken."""
    ended: bool = False
    timings: Timings = field(default_factory=Timings)

    def take(self, segments: Sequence[Segment], costs: Sequence[Cost]) -> None:
        self.segments, self.costs = tuple(segments), tuple(costs)
        self.timings = Timings(segments=len(segments), nfe=segments[0].nfe if segments else 0)

    @property
    def made(self) -> bool:
        """True if the engine has finished it; its audio may still be held."""
        return self.number > 0 and self.done == len(self.segments)

    @property
    def segment(self) -> Segment:
        return self.segments[self.done]

    @property
    def steps_left(self) -> int:
        return self.segment.nfe - self.steps

    @property
    def guaranteed(self) -> bool:
        """True if its deadlines are promised."""
        return self.terms.priority is not Priority.BULK

    @property
    def has_room(self) -> bool:
        """False while more than `buffer_s` waits for its reader."""
        return self.made_s - self.written_s <= self.buffer_s

    @property
    def audio_s(self) -> float:
        return sum(segment.audio_s for segment in self.segments)

    def cost_s(self, index: int) -> float:
        if index == self.done:
            return self.costs[index].left_s(self.lane is not None, self.steps)
        return self.costs[index].left_s(False, 0)

    def starts(self, now: float) -> float:
        """Start of its playout on a free channel."""
        if self.audible is not None:
            return self.audible
        return self.due if self.due < math.inf else now + self.audible_in_s()

    def audible_in_s(self) -> float:
        """Remaining engine time until it can be audible."""
        last = 1 if self.stream else len(self.segments)
        return sum(self.cost_s(index) for index in range(self.done, last))

    def demands(self, now: float, free: float, starts: float) -> Iterator[Demand]:
        """Yield its remaining demands if its channel is free at `free` and its playout starts at `starts`."""
        # A reader cannot have played more than it was given.
        empty = max(starts, now - self.written_s) if self.audible is not None else starts
        empty += sum(segment.audio_s for segment in self.segments[: self.done])
        for index in range(self.done, len(self.segments)):
            if not self.guaranteed:
                due = math.inf
            elif index and self.stream:
                due = empty + self.late_s
            else:
                due = max(self.due, free) + self.late_s
            yield Demand(due, self.cost_s(index), self)
            empty += self.segments[index].audio_s


@dataclass(eq=False)
class Channel:
    """Replies that are played one after the other."""

    key: str
    name: str = ""
    """Empty for a connection: kept in order, but its playout is unknown."""
    jobs: list[Job] = field(default_factory=list)
    """Jobs not played to their end, in order of playout."""
    free: float = -math.inf
    """End of playout of earlier jobs."""
    paused: float | None = None
    """Start of the present pause."""

    def playing(self, now: float) -> Iterator[tuple[Job, float, float]]:
        """Yield each job, when the channel is free for it, and the start of its playout."""
        free = self.free
        for job in self.jobs:
            starts = max(free, job.starts(now))
            yield job, free, starts
            free = starts + job.audio_s

    def utterances(self, now: float) -> Iterator[Utterance]:
        """Yield the state of each job; while it is paused, that of the pause's start."""
        now = self.paused or now
        for job, _, starts in self.playing(now):
            sounds = job.audible is not None and starts <= now
            yield Utterance(job, State.SOUNDING if sounds else State.WAITING, starts)

    def free_from(self, now: float) -> float:
        """End of playout of all its jobs."""
        free = self.free
        for job, _, starts in self.playing(now):
            free = starts + job.audio_s
        return free

    def waiting_s(self, now: float) -> float:
        """Speech of its jobs that has not been played yet."""
        at = now if self.paused is None else self.paused
        return sum(
            min(max(starts + job.audio_s - at, 0.0), job.audio_s) for job, _, starts in self.playing(at)
        )

    def demands(self, now: float) -> Iterator[Demand]:
        """Yield remaining demands; while it is paused they have no deadline."""
        for job, free, starts in self.playing(now):
            if not job.ended:
                for demand in job.demands(now, free, starts):
                    yield demand if self.paused is None else replace(demand, due=math.inf)

    def remove(self, job: Job, now: float) -> None:
        """Remove a job; if it was sounding, the next may play at once."""
        now = now if self.paused is None else self.paused
        for other, _, starts in self.playing(now):
            if other is job:
                if job.audible is not None and starts <= now:
                    self.free = max(self.free, min(now, starts + job.audio_s))
                break
        self.jobs.remove(job)

    def settle(self, now: float) -> Iterator[Job]:
        """Remove and yield the jobs that have been played to their end."""
        while self.paused is None and self.jobs and (job := self.jobs[0]).ended:
            played = max(self.free, job.audible or 0.0) + job.audio_s
            if self.name and played > now:
                return
            if self.name:
                self.free = played
            yield self.jobs.pop(0)

    def resume(self, now: float) -> None:
        """End the pause: playout is later by its length."""
        assert self.paused is not None
        later_s = now - self.paused
        for job, _, starts in list(self.playing(self.paused)):
            if job.audible is not None and starts <= self.paused < starts + job.audio_s:
                # It may have been sent long before it sounded; the start of the next follows from it.
                job.audible = starts + later_s
        if self.free >= self.paused:
            self.free += later_s
        self.paused = None


class State(enum.Enum):
    WAITING = "waiting"
    SOUNDING = "sounding"
    """Assumed to be playing: its audio was sent, and the reply before it has ended."""
    ENDED = "ended"


@dataclass(frozen=True)
class Utterance:
    """State of a job as watchers see it."""

    job: Job
    state: State
    starts: float
    """Start of its playout; the present time for one that has ended."""
    why: ApplianceError | None = None
    """Reason why it ended before it was spoken."""
