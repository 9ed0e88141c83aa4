"""Due times of a reply's segments: jobs, and the channels that play them one after the other.

A stream's first segment is due at its target, or when what plays before it on its channel ends; segment j
when the listener would run dry: start of playout + audio of the segments before it. Until it has started, the
start is the first segment's deadline: it starts earlier only when that leaves every promise standing, and is
held back until then, since the first sound pulls all later deadlines forward. A reply that is not streamed is
due as a whole.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from appliance.errors import ApplianceError
from appliance.job import Cost, Priority, Segment, SegmentAudio, Terms, Timings

Result = SegmentAudio | ApplianceError
"""Deliveries of a job: audio, until its last segment or an error."""


@dataclass(frozen=True)
class Demand:
    """Engine time that a segment still needs, and until when."""

    due: float
    cost_s: float
    job: Job


@dataclass(eq=False)
class Job:
    """One request on its way through the engine. Times are of the scheduler's clock."""

    terms: Terms
    deliver: Callable[[Result], None]
    """Called under the scheduler's lock: must return at once and must not call the scheduler."""
    arrived: float
    deadline: float = math.inf
    """The caller's: after it nobody wants the reply."""
    stream: bool = True
    """True if audio is sent while it is made."""
    buffer_s: float = math.inf
    """Made audio that may wait for the reader before the job is set aside."""

    voice: str = ""
    text: str = ""
    """Text as it is spoken; both are for watchers of the queue."""
    merged: int = 1
    """Requests that this one speaks for."""
    kept: tuple[SegmentAudio, ...] = ()
    """All of its audio, where that was made for an earlier request: it needs neither engine nor line."""

    engine: Any = None
    """Engine that computes it; set by the scheduler at admission."""
    channel: Channel = field(init=False)
    segments: tuple[Segment, ...] = ()
    costs: tuple[Cost, ...] = ()
    due: float = math.inf
    """Promised for the first audio, or for the whole of a reply that is not streamed."""
    late_s: float = 0.0
    """Seconds added to every deadline on a box that is too slow for this job even when idle."""
    number: int = 0
    """Order of arrival."""

    done: int = 0
    """Finished segments."""
    lane: int | None = None
    """The engine's, of the segment under way."""
    steps: int = 0
    """Steps done of that segment."""
    begun: bool = False
    """True if the engine has worked on it."""
    audible: float | None = None
    """Time at which the first audio, or the whole of a reply that is not streamed, was delivered."""
    held: list[SegmentAudio] = field(default_factory=list)
    """Segments of a stream that does not sound yet."""
    made_s: float = 0.0
    written_s: float = 0.0
    """Audio that the transport has taken."""
    ended: bool = False
    timings: Timings = field(default_factory=Timings)

    def take(self, segments: Sequence[Segment], costs: Sequence[Cost]) -> None:
        """Set what is to be made."""
        self.segments, self.costs = tuple(segments), tuple(costs)
        self.timings = Timings(segments=len(segments), nfe=segments[0].nfe if segments else 0)

    @property
    def made(self) -> bool:
        """True if the engine has finished it; on a paused channel it may still be held."""
        return self.number > 0 and self.done == len(self.segments)

    @property
    def segment(self) -> Segment:
        """The one under way."""
        return self.segments[self.done]

    @property
    def steps_left(self) -> int:
        """Steps left of the segment under way."""
        return self.segment.nfe - self.steps

    @property
    def guaranteed(self) -> bool:
        """True if its deadlines are promised."""
        return self.terms.priority is not Priority.BULK

    @property
    def has_room(self) -> bool:
        """True if its reader has kept up."""
        return self.made_s - self.written_s <= self.buffer_s

    @property
    def audio_s(self) -> float:
        """Length of the whole reply."""
        return sum(segment.audio_s for segment in self.segments)

    def cost_s(self, index: int) -> float:
        """Remaining cost of a segment."""
        if index == self.done:
            return self.costs[index].left_s(self.lane is not None, self.steps)
        return self.costs[index].left_s(False, 0)

    def starts(self, now: float) -> float:
        """Time at which it can be heard on a free channel."""
        if self.audible is not None:
            return self.audible
        return self.due if self.due < math.inf else now + self.audible_in_s()

    def audible_in_s(self) -> float:
        """Engine time until something of it can be heard."""
        last = 1 if self.stream else len(self.segments)
        return sum(self.cost_s(index) for index in range(self.done, last))

    def demands(self, now: float, free: float, starts: float) -> Iterator[Demand]:
        """Yield its remaining demands if the channel is free from `free` on and it plays from `starts` on."""
        # A reader that has been given little cannot have played more.
        dry = max(starts, now - self.written_s) if self.audible is not None else starts
        dry += sum(segment.audio_s for segment in self.segments[: self.done])
        for index in range(self.done, len(self.segments)):
            if not self.guaranteed:
                due = math.inf
            elif index and self.stream:
                due = dry + self.late_s
            else:
                due = max(self.due, free) + self.late_s
            yield Demand(due, self.cost_s(index), self)
            dry += self.segments[index].audio_s


@dataclass(eq=False)
class Channel:
    """Replies that are played one after the other, in order of arrival."""

    name: str = ""
    """Empty for a connection that names none: it is kept in order, but not known to play what it is given."""
    jobs: list[Job] = field(default_factory=list)
    """Those not finished, and those finished that have not been played."""
    free: float = -math.inf
    """Time at which the replies no longer in `jobs` have been played."""
    paused: float | None = None
    """Start of the present pause."""

    def playing(self, now: float) -> Iterator[tuple[Job, float, float]]:
        """Each job, when the channel is free for it, and the start of its playout, known or promised."""
        free = self.free
        for job in self.jobs:
            starts = max(free, job.starts(now))
            yield job, free, starts
            free = starts + job.audio_s

    def free_from(self, now: float) -> float:
        """Time at which all its replies have been played."""
        free = self.free
        for job, _, starts in self.playing(now):
            free = starts + job.audio_s
        return free

    def demands(self, now: float) -> Iterator[Demand]:
        """Remaining demands of the channel; while it is paused nothing is due."""
        for job, free, starts in self.playing(now):
            if not job.ended:
                for demand in job.demands(now, free, starts):
                    yield demand if self.paused is None else replace(demand, due=math.inf)

    def remove(self, job: Job, now: float) -> None:
        """Forget a job; what comes after it may play at once if it was sounding."""
        for other, _, starts in self.playing(now):
            if other is job:
                if job.audible is not None and starts <= now:
                    self.free = max(self.free, min(now, starts + job.audio_s))
                break
        self.jobs.remove(job)

    def settle(self, now: float) -> Iterator[Job]:
        """Forget the finished jobs that have been played, and give them back."""
        while self.paused is None and self.jobs and (job := self.jobs[0]).ended:
            played = max(self.free, job.audible or 0.0) + job.audio_s
            if self.name and played > now:
                return
            if self.name:
                self.free = played
            yield self.jobs.pop(0)

    def resume(self, now: float) -> None:
        """Go on where it was paused: what was not played by then is played as much later."""
        assert self.paused is not None
        later_s = now - self.paused
        for job, _, starts in list(self.playing(self.paused)):
            if job.audible is not None and starts <= self.paused < starts + job.audio_s:
                # It may have been sent long before it began to sound; what comes after it follows from it.
                job.audible = starts + later_s
        if self.free >= self.paused:
            self.free += later_s
        self.paused = None


class State(enum.Enum):
    """Progress of a request."""

    WAITING = "waiting"
    """No audio of it has begun to sound."""
    SOUNDING = "sounding"
    """Sounding as far as the daemon knows: its audio was sent, and what plays before it has ended."""
    ENDED = "ended"


@dataclass(frozen=True)
class Utterance:
    """A request as those see it who watch the queue."""

    job: Job
    state: State
    starts: float
    """Time at which it begins to sound; the present time for one that has ended."""
    why: ApplianceError | None = None
    """Why it ended before it was spoken, if it did."""


def next_change(present: Iterable[Utterance], now: float) -> float:
    """Time at which the next of them begins or ends to sound by itself; infinite if none does."""
    times = (
        when
        for u in present
        if u.job.audible is not None
        for when in (u.starts, u.starts + u.job.audio_s)
        if when > now
    )
    return min(times, default=math.inf)
