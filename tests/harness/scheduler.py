"""The daemon's scheduler on a virtual clock: an hour of chat in seconds, on devices that are cost tables.

Only clock, engine and listeners are fakes. Orin's table is DERIVED, not measured: F5TTS_v1_Base in FP16 at 45
% of the peak.
"""

import heapq
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from appliance.config import SchedulerConfig
from appliance.errors import ApplianceError
from appliance.request import FloatArray, Playout, Priority, Segment, SegmentAudio, Terms
from appliance.scheduler.job import Job, Result
from appliance.scheduler.loop import Scheduler
from appliance.scheduler.workload import Observer
from tests.harness.engine import CALL_S, EVEN, Device, FakeEngine, Table
from tests.harness.segments import pieces, segment

FRAMES_PER_S = 93.75
SILENCE: FloatArray = np.zeros(0, np.float32)
BESIDE = "beside"
TERMS = ("caller", "channel", "user", "supersede", "merge", "priority", "queue_timeout_s")


@dataclass(eq=False)
class Message:
    at: float
    pieces: tuple[tuple[float, ...], ...] = ()
    """Seconds of audio of the segments, for each way; the best way first."""
    planned: tuple[Sequence[Segment], ...] = ()
    """The segments; empty for segments of `pieces`."""
    reference_s: float = 5.0
    nfe: int = 7
    priority: Priority = Priority.NORMAL
    channel: str = ""
    stream: bool = True
    cancel_after_s: float = math.inf
    user: str = ""
    supersede: str = ""
    merge: str = ""
    queue_timeout_s: float | None = None
    caller: str = ""
    bundle: str = ""
    """Name of its engine: empty for the first engine, `BESIDE` for the second."""
    approve_after_s: float = math.inf
    """Seconds until a moderator approves it, on a moderated channel."""

    refused: str = ""
    job: Job | None = None
    heard: list[tuple[float, float]] = field(default_factory=list)
    """(time, seconds of audio) of each arrival."""
    ended: str = ""
    free_at: float = -math.inf
    """Time at which its channel became free for it, recorded at its delivery."""

    @property
    def promised(self) -> bool:
        """True if its deadlines were promised and it the engine finished it."""
        job = self.job
        return job is not None and job.guaranteed and not job.late_s and self.ended == "SegmentAudio"

    @property
    def promised_at(self) -> float:
        """Deadline of the first audio, or of the whole of a unary reply; on a serial channel at least the end
        of the previous reply."""
        assert self.job is not None
        return max(self.job.due, self.free_at)

    @property
    def first_s(self) -> float:
        return self.heard[0][0] - self.at

    @property
    def underrun_s(self) -> float:
        """Longest silence in a reply that is played from its first audio, or from `free_at` if that is
        later."""
        if not self.heard or not self.stream:
            return 0.0
        dry, worst = max(self.heard[0][0], self.free_at), 0.0
        for when, seconds in self.heard:
            worst = max(worst, when - dry)
            dry = max(dry, when) + seconds
        return worst


class Bench:
    """A scheduler with an engine whose calls move the clock; `serve` enters its loop in the test's thread."""

    def __init__(
        self,
        device: Table = EVEN,
        *,
        lanes: int = 0,
        noise: float = 0.0,
        factor: float = 1.0,
        oracle: bool = False,
        observer: Observer | None = None,
        beside: Table | None = None,
        **config: Any,
    ) -> None:
        """`noise` is the relative spread of call times, `factor` scales the estimates, `beside` is the table
        of a second bundle. An `oracle` has exact costs, no bias and no margin."""
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.results: dict[str, list[Result]] = {}
        self.scheduler = Scheduler(
            SchedulerConfig(**{"queue_length": 10_000, **config}),
            clock=lambda: self.now,
            call_at=self.at,
            observer=observer,
            **({"bias": 1.0, "margin_s": 0.0} if oracle else {}),
        )
        self.engine, *others = self.engines = [
            FakeEngine(table, lanes=lanes, noise=noise, factor=factor) for table in (device, beside) if table
        ]
        for engine in self.engines:
            engine.on_call = self.tick
        self.scheduler.start(self.engine)
        for other in others:
            self.scheduler.engines.add(BESIDE, other)

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), act))

    @property
    def alarms(self) -> list[tuple[float, Callable[[], None]]]:
        return [(when, act) for when, _, act in sorted(self._events)]

    def tick(self, seconds: float = CALL_S) -> None:
        self.advance(self.now + seconds)

    def advance(self, to: float) -> None:
        """Move the clock, and run the events in between."""
        while self._events and self._events[0][0] <= to:
            when, _, act = heapq.heappop(self._events)
            self.now = max(self.now, when)
            act()
        self.now = max(self.now, to)

    def job(
        self,
        name: str,
        *,
        stream: bool = True,
        deadline: float = math.inf,
        buffer_s: float = math.inf,
        **terms: object,
    ) -> Job:
        self.results[name] = []
        known = Terms(name, playout=Playout.OVERLAP)
        return Job(
            replace(known, **terms),  # type: ignore[arg-type]
            self.results[name].append,
            self.now,
            deadline=deadline,
            stream=stream,
            buffer_s=buffer_s,
        )

    def admit(
        self, name: str, segments: int = 1, *, nfe: int = 4, frames: int = 60, **options: object
    ) -> Job:
        job = self.job(name, **options)  # type: ignore[arg-type]
        self.scheduler.admit(job, [pieces(name, segments, nfe, frames)])
        return job

    def work(self) -> None:
        """Run until there is nothing to do."""
        while self.scheduler.run_once():
            pass

    def until(self, name: str, segments: int = 1) -> None:
        """Run until the job has delivered this number of segments."""
        while len(self.results[name]) < segments:
            assert self.scheduler.run_once()

    def serve(self) -> None:
        self.scheduler.drain()
        self.scheduler.start(self.engine)
        self.scheduler.run()

    def opened(self) -> list[str]:
        """Texts of the segments in the order of their lanes' opening."""
        return [call.removeprefix("open ") for call in self.engine.calls if call.startswith("open")]

    def ends(self) -> dict[str, type]:
        """End of each job: its last segment's class or its error's."""
        last = {name: results[-1] for name, results in self.results.items() if results}
        return {name: type(e) for name, e in last.items() if not isinstance(e, SegmentAudio) or e.last}

    def run(self, messages: Sequence[Message]) -> None:
        """Run from the first arrival to the last audio."""
        for engine in self.engines:
            engine.speak = lambda segment: SILENCE
        for number, message in enumerate(messages):
            self.at(message.at, lambda m=message, n=number: self._arrive(m, n))  # type: ignore[misc]
        while True:
            self.work()
            if not self._events:
                return
            self.advance(self._events[0][0])

    def _arrive(self, message: Message, number: int) -> None:
        def deliver(result: Result) -> None:
            if isinstance(result, SegmentAudio):
                free = {other: free for other, free, _ in job.channel.playing(self.now)}
                message.free_at = free[job]
                seconds = job.segments[result.segment].audio_s
                message.heard.append((self.now, seconds))
                # The reader takes everything at once, after this call of the scheduler.
                self.at(self.now, lambda: self.scheduler.queue.sent(job, seconds))
            if isinstance(result, ApplianceError) or result.last:
                message.ended = type(result).__name__

        message.job = job = self.job(
            str(number),
            stream=message.stream,
            buffer_s=20.0 if message.stream else math.inf,
            playout=Playout.SERIAL,
            **{name: getattr(message, name) for name in TERMS},
        )
        job.deliver = deliver
        merging = self.scheduler.queue.mergeable(job.terms)
        before = tuple(segment.audio_s for segment in merging.segments) if merging else ()
        ways = message.planned or [segments_of(message, (*before, *pieces)) for pieces in message.pieces]
        try:
            self.scheduler.admit(job, ways, merging, bundle=message.bundle)
        except ApplianceError as error:
            message.job, message.refused = None, type(error).__name__
            return
        queue = self.scheduler.queue
        for after_s, act in (
            (message.cancel_after_s, lambda: queue.cancel(job)),
            (message.approve_after_s, lambda: queue.approve(lambda utterance: utterance.job is job)),
        ):
            if math.isfinite(after_s):
                self.at(self.now + after_s, act)


def segments_of(message: Message, pieces: Sequence[float]) -> list[Segment]:
    reference = round(message.reference_s * FRAMES_PER_S)
    return [
        segment(
            index=index,
            frames=reference + max(round(seconds * FRAMES_PER_S), 1),
            reference_frames=reference,
            nfe=message.nfe,
            audio_s=seconds,
        )
        for index, seconds in enumerate(pieces)
    ]


def cut(seconds: float, first_s: float = 1.5, longest_s: float = 8.0) -> tuple[tuple[float, ...], ...]:
    """The ways of a stream: whole, or a short first segment followed by growing ones."""
    pieces, budget = [], first_s
    while sum(pieces) < seconds - 1e-9:
        pieces.append(min(budget, seconds - sum(pieces)))
        budget = min(2.0 * budget, longest_s)
    return ((seconds,), tuple(pieces)) if len(pieces) > 1 and seconds <= longest_s else (tuple(pieces),)


def line_s(draw: random.Random) -> float:
    """Seconds of a chat line, 1 to 12."""
    return min(max(draw.lognormvariate(math.log(3.4), 0.6), 1.0), 12.0)


def chat(
    seconds: float, load: float, device: Device, seed: int = 0, queue_timeout_s: float | None = 0.0
) -> list[Message]:
    """Poisson arrivals of chat lines of 1 to 12 s, at `load` times the device's capacity."""
    draw = random.Random(seed)
    mean_s = 4.0
    sample = segments_of(Message(0.0, ((mean_s,),)), (mean_s,))[0]
    rate = load / device.of(sample).whole_s
    messages, at = [], 0.0
    while (at := at + draw.expovariate(rate)) < seconds:
        messages.append(Message(at, cut(line_s(draw)), queue_timeout_s=queue_timeout_s))
    return messages


def report(bench: Bench, messages: Sequence[Message], seconds: float) -> dict[str, float]:
    """Figures of a run: first audio, underruns, goodput, refusals."""
    promised = [m for m in messages if m.promised]
    refused = [m for m in messages if m.refused]
    firsts = sorted(m.first_s for m in messages if m.heard) or [math.nan]
    good = [m for m in promised if m.underrun_s <= 0.1]
    idle_s = bench.engine.device.of(segments_of(Message(0.0, ()), (3.4,))[0]).whole_s
    return {
        "messages": len(messages),
        "refused": len(refused) / max(len(messages), 1),
        "first audio P50 s": firsts[len(firsts) // 2],
        "first audio P95 s": firsts[int(0.95 * (len(firsts) - 1))],
        "P95 of idle": firsts[int(0.95 * (len(firsts) - 1))] / idle_s,
        "C0": sum(m.underrun_s <= 1e-6 for m in promised) / max(len(promised), 1),
        "C100": len(good) / max(len(promised), 1),
        "worst underrun s": max((m.underrun_s for m in promised), default=0.0),
        "worst first audio after its promise s": max(
            (m.heard[0][0] - m.job.due for m in promised if m.job and m.stream), default=0.0
        ),
        "goodput": sum(sum(s for _, s in m.heard) for m in good) / seconds,
        "spoken": sum(sum(s for _, s in m.heard) for m in messages) / seconds,
        "utilisation": bench.engine.busy_s / bench.now,
        "lanes per step": bench.engine.lane_steps / max(bench.engine.calls.count("step"), 1),
    }


def refused_by_oracle(device: Table, messages: Sequence[Message]) -> float:
    """Share of these messages that a scheduler with exact costs refuses."""
    unsent = {"refused": "", "job": None, "ended": "", "free_at": -math.inf}
    again = [replace(message, **unsent, heard=[]) for message in messages]
    bench = Bench(device, oracle=True)
    bench.run(again)
    return sum(bool(m.refused) for m in again) / max(len(again), 1)
