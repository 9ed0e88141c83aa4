"""Jobs and channels: when each segment of a reply is due.

A stream's first segment is due at its target, or when the reply before it on its channel ends; segment j when
the listener's buffer would run empty: start of playout + audio of the segments before. Until playout has
started, its start is the first segment's deadline. A reply that is not streamed is due as a whole.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import ClassVar, NamedTuple, Protocol

from appliance.errors import ApplianceError
from appliance.request import Cost, Priority, Request, Segment, Segmentation, SegmentAudio, Terms, Timings
from appliance.scheduler.interface import Engine

Result = SegmentAudio | ApplianceError
Ways = Sequence[Sequence[Segment]]
"""Segments of each way to serve a request, the best first."""


class Demand(NamedTuple):
    """Deadline of a segment, and the engine time that the segment still takes."""

    due: float
    cost_s: float
    job: Job


@dataclass(frozen=True, eq=False)
class Way:
    """Segmentation of a reply with a number of steps, and the costs of the segments."""

    index: int = 0
    """Index among the ways that the request allows."""
    segments: tuple[Segment, ...] = ()
    costs: tuple[Cost, ...] = ()

    @property
    def nfe(self) -> int:
        return self.segments[0].nfe

    @property
    def total_s(self) -> float:
        return sum(cost.whole_s for cost in self.costs)


UNREAD = Request(text="", voice="", nfe=1, seed=0, guidance=0.0, segmentation=Segmentation.UPSTREAM)
UNPLANNED: tuple[object, tuple[Demand, ...]] = None, ()


@dataclass(eq=False)
class Job:
    """A request in the scheduler. Times are of the scheduler's clock."""

    terms: Terms
    deliver: Callable[[Result], None]
    """Called with each result: segments, and the end or an error."""
    arrived: float
    """Time at which the request arrived."""
    deadline: float = math.inf
    """Time at which the caller's call times out."""
    stream: bool = True
    """True if the caller gets audio while it is synthesised."""
    buffer_s: float = math.inf
    """Seconds of audio that may wait for the reader."""

    request: Request = UNREAD
    merged: int = 1
    """Requests that the job stands for."""
    cached: tuple[SegmentAudio, ...] = ()
    """Cached audio of the reply."""

    # Set at admission.
    engine: Engine = field(init=False, repr=False)
    channel: Channel = field(init=False, repr=False)
    way: Way = Way()
    """Segments and their costs, at the chosen number of steps."""
    audio_s: float = 0.0
    """Length of the whole reply, in seconds."""
    due: float = math.inf
    """Deadline of the first audio, or of the whole reply if it is not streamed."""
    late_s: float = 0.0
    """Delay of every deadline, if the box is too slow for the job even when idle."""
    number: int = 0
    """Number in order of admission; 0 before admission."""

    segments_done: int = 0
    """Finished segments."""
    lane: int | None = None
    """Lane of the engine that has the current segment; None if the job has no lane."""
    steps: int = 0
    """Steps done of the current segment."""
    restarts: bool = False
    """True if the job gives up its lane after the call under way."""
    begun: bool = False
    """True once the engine has worked for the job."""
    audible: float | None = None
    """Time of the first audio's delivery; None before."""
    unreleased: list[SegmentAudio] = field(default_factory=list)
    """Finished segments that wait for the release of their channel."""
    made_s: float = 0.0
    """Seconds of audio that are finished."""
    sent_s: float = 0.0
    """Seconds of audio that the transport has taken."""
    ended: bool = False
    timings: Timings = field(default_factory=Timings)
    _planned: tuple[object, tuple[Demand, ...]] = UNPLANNED
    """Values that demands were computed from, and these demands."""

    def take(self, way: Way, due: float, late_s: float = 0.0) -> None:
        self.way, self.due, self.late_s = way, due, late_s
        self.audio_s = sum(segment.audio_s for segment in way.segments)
        self.timings = Timings(segments=len(way.segments), nfe=way.nfe)

    def past(self) -> Job:
        """Copy with terms and figures only, which holds no engine, audio or caller in memory."""
        return replace(self, deliver=_nobody, cached=(), unreleased=[], way=Way(), _planned=UNPLANNED)

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.way.segments

    @property
    def segment(self) -> Segment:
        """Current segment."""
        return self.way.segments[self.segments_done]

    @property
    def cost(self) -> Cost:
        """Cost of the whole current segment."""
        return self.way.costs[self.segments_done]

    @property
    def is_done(self) -> bool:
        return self.number > 0 and self.segments_done == len(self.way.segments)

    @property
    def steps_left(self) -> int:
        return self.segment.nfe - self.steps

    @property
    def guaranteed(self) -> bool:
        """True if the job has a deadline once nothing holds its channel."""
        return self.terms.priority is not Priority.BULK and not self.channel.unapproved

    @property
    def promised(self) -> bool:
        """True if the job has a deadline now."""
        return self.terms.priority is not Priority.BULK and self.channel.hold is GOING

    @property
    def has_room(self) -> bool:
        return self.made_s - self.sent_s <= self.buffer_s

    def cost_s(self, index: int) -> float:
        """Engine time that a segment still takes."""
        has_lane = index == self.segments_done and self.lane is not None and not self.restarts
        cost = self.way.costs[index]
        return cost.left_s(self.steps) if has_lane else cost.whole_s

    def starts(self, now: float) -> float:
        """Start of the playout on a free channel."""
        if self.audible is not None:
            return self.audible
        return self.due if self.due < math.inf else now + self.audible_in_s()

    def audible_in_s(self) -> float:
        """Engine time until the first audio."""
        last = 1 if self.stream else len(self.way.segments)
        return sum(self.cost_s(index) for index in range(self.segments_done, last))

    def demands(self, now: float, free: float, starts: float) -> Sequence[Demand]:
        """Demands of the unfinished segments, if the channel is free at `free` and the playout starts at
        `starts`.

        Without a promise the demands have no deadline. They are cached, and computed again after a change.
        """
        first = dry = math.inf
        if self.promised:
            first = max(self.due, free) + self.late_s
            # A reader cannot have played more than was sent.
            dry = starts if self.audible is None else max(starts, now - self.sent_s)
        values = first, dry, self.late_s, self.segments_done, self.cost_s(self.segments_done), self.way
        if values != self._planned[0]:
            empty = list(accumulate((segment.audio_s for segment in self.segments), initial=dry))
            self._planned = (
                values,
                tuple(
                    Demand(
                        empty[index] + self.late_s if index and self.stream else first,
                        self.cost_s(index),
                        self,
                    )
                    for index in range(self.segments_done, len(self.segments))
                ),
            )
        return self._planned[1]

    def end(self) -> None:
        self.ended, self._planned = True, UNPLANNED


def _nobody(result: Result) -> None:
    """Deliver nothing."""


class State(enum.Enum):
    WAITING = "waiting"
    HELD = "held"
    """A moderator has to approve the request."""
    SOUNDING = "sounding"
    """The transport has the reply's audio, and the reply before it on the channel has ended."""
    ENDED = "ended"


class Hold(Protocol):
    """Reason for which finished audio does not go out yet."""

    def until(self, job: Job, now: float) -> float:
        """Time from which a job's audio may go out: -inf for at once, inf until somebody decides."""


@dataclass(frozen=True)
class Going:
    """State of a channel without a hold: its audio goes out at once."""

    since: float = math.inf
    """Time at which the channel's playout stopped; inf while it runs."""
    wall: float = field(default_factory=time.time)
    """Unix time at which the hold began."""
    stage: ClassVar[str] = ""
    """Clause that describes a request under the hold, for error messages."""
    state: ClassVar[State] = State.WAITING

    def until(self, job: Job, now: float) -> float:
        return -math.inf


class Paused(Going):
    """Hold of a channel until Resume."""

    stage = "its channel was paused"

    def until(self, job: Job, now: float) -> float:
        return math.inf


class Unapproved(Paused):
    """Hold of a channel's waiting room, in which requests wait for a moderator's approval."""

    stage = "it was held for approval"
    state = State.HELD


GOING = Going()


Timetable = Mapping[Job, Sequence[Demand]]
"""Demands of each unfinished job, in the order of its segments."""


@dataclass(eq=False)
class Channel:
    """Replies played one after the other."""

    key: str
    name: str = ""
    """Empty for a connection, because its playout is unknown."""
    jobs: list[Job] = field(default_factory=list)
    """Jobs in order of playout. A job leaves the list once it is played."""
    free: float = -math.inf
    """Time at which the playout of earlier jobs ends."""
    hold: Going = GOING

    @property
    def unapproved(self) -> bool:
        return isinstance(self.hold, Unapproved)

    def at(self, now: float) -> float:
        """Time up to which the channel has played: now, or the beginning of its pause."""
        return min(now, self.hold.since)

    def playing(self, now: float, *, counts_bulk: bool = True) -> Iterator[tuple[Job, float, float]]:
        """(job, channel free for it, start of its playout)

        A BULK job that is not audible yet may come late or be cancelled, so no promise depends on its time.
        """
        free = self.free
        for job in self.jobs:
            starts = max(free, job.starts(now))
            yield job, free, starts
            if counts_bulk or job.guaranteed or job.audible is not None:
                free = starts + job.audio_s

    def utterances(self, now: float) -> Iterator[Utterance]:
        now = self.at(now)
        for job, _, starts in self.playing(now):
            sounds = job.audible is not None and starts <= now
            heard_s = max(min(now - starts, job.made_s), 0.0) * sounds
            yield Utterance(job, State.SOUNDING if sounds else self.hold.state, starts, heard_s)

    def free_from(self, now: float) -> float:
        free = self.free
        for job, _, starts in self.playing(now):
            free = starts + job.audio_s
        return free

    def waiting_s(self, now: float) -> float:
        """Seconds of speech that are not played yet."""
        at = self.at(now)
        return sum(
            min(max(starts + job.audio_s - at, 0.0), job.audio_s) for job, _, starts in self.playing(at)
        )

    def timetable(self, now: float) -> Iterator[tuple[Job, Sequence[Demand]]]:
        """(job, its demands) for each job that is not finished yet."""
        for job, free, starts in self.playing(now, counts_bulk=False):
            if not (job.ended or job.is_done):
                yield job, job.demands(now, free, starts)

    def remove(self, job: Job, now: float) -> Utterance:
        """Remove a job, and return it as it was. If it sounds, the next may play at once."""
        was = next(one for one in self.utterances(now) if one.job is job)
        if was.state is State.SOUNDING:
            self.free = max(self.free, min(self.at(now), was.starts + job.audio_s))
        self.jobs.remove(job)
        return was

    def settle(self, now: float) -> Iterator[Utterance]:
        """Remove and yield the jobs that are played."""
        while self.hold is GOING and self.jobs and (job := self.jobs[0]).ended:
            played = max(self.free, job.audible or 0.0) + job.audio_s
            if self.name and played > now:
                return
            if self.name:
                self.free = played
            characters = len(self.jobs.pop(0).request.written)
            yield Utterance(job, State.ENDED, played - job.audio_s, job.audio_s, heard_characters=characters)

    def resume(self, now: float) -> None:
        """End the pause: the reply that was playing goes on, and later ones move by its length."""
        paused, self.hold = self.hold.since, GOING
        later_s = now - paused
        for job, _, starts in list(self.playing(paused)):
            if job.audible is not None and starts <= paused < starts + job.audio_s:
                # The job may have been sent long before it sounded; the start of the next follows from it.
                job.audible = starts + later_s
        if self.free >= paused:
            self.free += later_s


@dataclass(frozen=True)
class Utterance:
    """A job's state in the queue, for listings."""

    job: Job
    state: State
    starts: float
    """Time at which its first audio is played, or is expected to be."""
    heard_s: float = 0.0
    """Seconds of audio that were played, if the player began with the first audio and never stopped."""
    why: ApplianceError | None = None
    heard_characters: int = 0
    """Characters that were played; set for an ended request, which keeps no segments."""
