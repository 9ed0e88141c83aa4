"""The scheduler on a virtual clock: an hour of chat in seconds, on devices that are a table of costs.

    python -m tests.benchmarks.simulator [--device orin|launch-bound|zipvoice] [--load 3]
    python -m tests.benchmarks.simulator --replay TRACE [--bundle DIR] [--voice WAV] [--threads N]

The scheduler is the daemon's own; only clock, engine and listeners are not. Orin's table is DERIVED, not
measured: F5TTS_v1_Base in FP16 at 45 % of the peak.

TRACE is what `appliance bench storm --trace` wrote of a real daemon. Its requests are planned again and
offered to a scheduler that knows what each costs, with the costs that this machine's warm-up measures, scaled
to what the storm's requests took: what it serves and the daemon refused could have been served.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from appliance.config import EngineConfig, SchedulerConfig
from appliance.contract import bundle as bundles
from appliance.engine.costs import CostTable
from appliance.engine.loading import load_for
from appliance.errors import ApplianceError
from appliance.plan import Planner
from appliance.request import (
    Cost,
    FloatArray,
    Lane,
    Playout,
    Priority,
    Reference,
    Request,
    Segment,
    Segmentation,
    SegmentAudio,
    Terms,
)
from appliance.scheduler import Scheduler
from appliance.scheduler.job import Job, Result
from appliance.scheduler.workload import Observer
from appliance.text.tokens.tokenizers import maker
from appliance.voices.reference import prepare
from appliance.voices.rules import RULES
from tests.benchmarks import devices
from tests.daemons import SPEECH

FRAMES_PER_S = 93.75
SILENCE: FloatArray = np.zeros(0, np.float32)
DEMO = Path("appliance/demo")
NO_IDS = np.zeros(1, np.int32)


Steps = Sequence[tuple[Segment, int]]


class Table(Protocol):
    @property
    def max_batch(self) -> int: ...

    def step_s(self, steps: Steps) -> float:
        """One call that does these steps, each the given one of its segment."""
        ...

    def of(self, segment: Segment) -> Cost: ...


@dataclass(frozen=True)
class Device:
    """Costs of a model on a device, in seconds: a step's are launch + rows · (token · N + pair · N²)."""

    launch_s: float
    token_s: float
    pair_s: float
    condition_s: float
    vocoder_frame_s: float
    max_batch: int = 1
    """Lanes in one call."""
    rows: int = 2
    """Rows of a lane: a guided and an unguided one."""

    def step_s(self, steps: Steps) -> float:
        frames = [segment.frames for segment, _ in steps]
        return self.launch_s + sum(self.rows * (self.token_s * n + self.pair_s * n * n) for n in frames)

    def of(self, segment: Segment) -> Cost:
        steps = (self.step_s([(segment, 0)]),) * segment.nfe
        made = segment.frames - segment.reference_frames
        return Cost(self.launch_s + self.condition_s, steps, self.launch_s + self.vocoder_frame_s * made)


ORIN = Device(
    launch_s=0.5e-3,
    token_s=devices.seconds(devices.FRAME),
    pair_s=devices.seconds(devices.PAIR),
    condition_s=2e-3,
    vocoder_frame_s=devices.seconds(29e6),
    max_batch=4,
)
LAUNCH_BOUND = Device(6e-3, ORIN.token_s / 10, ORIN.pair_s / 10, 1e-3, ORIN.vocoder_frame_s / 10, max_batch=8)
ZIPVOICE = replace(ORIN, launch_s=1.9e-3, token_s=8.9e-6, pair_s=3.5e-9, rows=1)
"""ZipVoice-LibriTTS-Distill on the same Orin: its 16.6 ms a step at 1,253 frames and 28 ms of four at 609, as
tests/records/limit.md models them, and 677 launches of 2.8 µs."""
DEVICES = {"orin": ORIN, "launch-bound": LAUNCH_BOUND, "zipvoice": ZIPVOICE}


@dataclass(frozen=True)
class Measured:
    """Costs of a bundle on this machine, times a factor."""

    table: CostTable
    max_batch: int
    factor: float = 1.0

    def step_s(self, steps: Steps) -> float:
        return self.table.together(steps) * self.factor

    def of(self, segment: Segment) -> Cost:
        return scaled(self.table.of(segment), self.factor)


def scaled(cost: Cost, factor: float) -> Cost:
    return Cost(cost.open_s * factor, tuple(s * factor for s in cost.steps_s), cost.finish_s * factor)


class Costs:
    """A device's costs as the scheduler sees them: exact, or off by `factor`."""

    def __init__(self, device: Table, factor: float = 1.0) -> None:
        self._device, self._factor = device, factor

    def of(self, segment: Segment) -> Cost:
        return scaled(self._device.of(segment), self._factor)

    def together(self, steps: Steps) -> float:
        return self._device.step_s(steps) * self._factor

    def learn(self, call: str, steps: Steps, seconds: float) -> None:
        """Nothing: what is tested is the scheduler, not the estimate."""

    def reset(self) -> None:
        """Nothing to forget."""


class Engine:
    """Takes the time that its device takes, while events of that time happen."""

    backend = "simulated"

    def __init__(self, world: World, device: Table, lanes: int, noise: float, factor: float) -> None:
        self._world, self._device = world, device
        self.max_lanes, self.max_batch = lanes, device.max_batch
        self.costs = Costs(device, factor)
        self._draw, self._noise = random.Random(1), noise
        self._open: dict[int, tuple[Segment, int]] = {}
        """Each lane's segment and the steps that it has done."""
        self._ids = itertools.count(1)
        self.busy_s = 0.0
        self.calls = self.lane_steps = 0

    @property
    def lanes(self) -> int:
        return len(self._open)

    def open(self, segment: Segment) -> Lane:
        assert self.lanes < self.max_lanes
        self._take(self._device.of(segment).open_s)
        lane = Lane(next(self._ids), segment.nfe)
        self._open[lane.id] = segment, 0
        return lane

    def step(self, lane_ids: Sequence[int]) -> None:
        assert len(lane_ids) <= self.max_batch
        self.calls += 1
        self.lane_steps += len(lane_ids)
        steps = [self._open[lane] for lane in lane_ids]
        for lane, (segment, done) in zip(lane_ids, steps, strict=True):
            self._open[lane] = segment, done + 1
        self._take(self._device.step_s(steps))

    def finish(self, lane_id: int) -> FloatArray:
        self._take(self._device.of(self._open[lane_id][0]).finish_s)
        return SILENCE

    def close(self, lane_id: int) -> None:
        del self._open[lane_id]

    can_interrupt = False

    def interrupt(self, on: bool) -> None:
        raise AssertionError("no simulated call is interrupted")

    def prove(self) -> None:
        raise AssertionError("no simulated call fails")

    def _take(self, seconds: float) -> None:
        seconds *= self._draw.uniform(1.0 - self._noise, 1.0 + self._noise) if self._noise else 1.0
        self.busy_s += seconds
        self._world.advance(self._world.now + seconds)


@dataclass(eq=False)
class Message:
    at: float
    pieces: tuple[tuple[float, ...], ...] = ()
    """Seconds of audio of the segments, for each way in which it may be made; the best first."""
    planned: tuple[Sequence[Segment], ...] = ()
    """The segments themselves, where they are known."""
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
    """BESIDE: for the engine beside the first."""
    approve_after_s: float = math.inf
    """On a channel that is moderated."""

    refused: str = ""
    job: Job | None = None
    heard: list[tuple[float, float]] = field(default_factory=list)
    """(when, seconds of audio) of what came."""
    ended: str = ""
    free_at: float = -math.inf
    """Time at which its channel was free for it, as known when it was delivered."""

    @property
    def promised(self) -> bool:
        """True if its deadlines were promised and it was spoken to its end."""
        return (
            self.job is not None
            and self.job.guaranteed
            and not self.job.late_s
            and self.ended == "SegmentAudio"
        )

    @property
    def promised_at(self) -> float:
        """Deadline of the first audio, or of the whole of a reply that is not streamed; on a serial channel
        not before the reply before it has ended."""
        assert self.job is not None
        return max(self.job.due, self.free_at)

    @property
    def first_s(self) -> float:
        return self.heard[0][0] - self.at

    @property
    def underrun_s(self) -> float:
        """Longest silence in a reply that is played from its first audio on, or from `free_at` if later."""
        if not self.heard or not self.stream:
            return 0.0
        dry, worst = max(self.heard[0][0], self.free_at), 0.0
        for when, seconds in self.heard:
            worst = max(worst, when - dry)
            dry = max(dry, when) + seconds
        return worst


BESIDE = "beside"


class World:
    def __init__(
        self,
        device: Table,
        config: SchedulerConfig | None = None,
        *,
        lanes: int = 8,
        noise: float = 0.0,
        factor: float = 1.0,
        oracle: bool = False,
        observer: Observer | None = None,
        beside: Table | None = None,
    ) -> None:
        """`noise` is the relative spread of call times, `factor` that of estimates; an `oracle` knows all
        costs exactly and runs without bias and margin. `beside`: of a second bundle."""
        self.now = 0.0
        self.device = device
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        config = config or SchedulerConfig(queue_length=10_000)
        allowed = {"bias": 1.0, "margin_s": 0.0} if oracle else {}
        self.scheduler = Scheduler(
            config, clock=lambda: self.now, call_at=self.at, observer=observer, **allowed
        )
        self.engine = Engine(self, device, lanes, noise, factor)
        self.scheduler.start(self.engine)
        if beside is not None:
            self.scheduler.engines.add(BESIDE, Engine(self, beside, lanes, noise, factor))

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), act))

    def advance(self, to: float) -> None:
        """Move the clock, and run the events on the way."""
        while self._events and self._events[0][0] <= to:
            when, _, act = heapq.heappop(self._events)
            self.now = max(self.now, when)
            act()
        self.now = max(self.now, to)

    def run(self, messages: Sequence[Message]) -> None:
        """Run from the first arrival to the last audio."""
        for number, message in enumerate(messages):
            self.at(message.at, lambda m=message, n=number: self._arrive(m, n))  # type: ignore[misc]
        while True:
            if not self.scheduler.run_once():
                if not self._events:
                    return
                self.advance(self._events[0][0])

    def _arrive(self, message: Message, number: int) -> None:
        terms = Terms(
            request_id=str(number),
            caller=message.caller,
            channel=message.channel,
            user=message.user,
            supersede=message.supersede,
            merge=message.merge,
            priority=message.priority,
            playout=Playout.SERIAL,
            queue_timeout_s=message.queue_timeout_s,
        )

        def deliver(result: Result) -> None:
            if isinstance(result, SegmentAudio):
                assert message.job is not None
                free = {job: free for job, free, _ in message.job.channel.playing(self.now)}
                message.free_at = free[message.job]
                seconds = message.job.segments[result.segment].audio_s
                message.heard.append((self.now, seconds))
                # A reader that takes everything at once, after this call of the scheduler.
                self.at(self.now, lambda: self.scheduler.queue.sent(message.job, seconds))  # type: ignore[arg-type]
            if isinstance(result, ApplianceError) or result.last:
                message.ended = type(result).__name__

        message.job = job = Job(
            terms, deliver, self.now, stream=message.stream, buffer_s=20.0 if message.stream else math.inf
        )
        merging = self.scheduler.queue.mergeable(terms)
        before = tuple(segment.audio_s for segment in merging.segments) if merging else ()
        ways = message.planned or [segments_of(message, (*before, *pieces)) for pieces in message.pieces]
        try:
            self.scheduler.admit(job, ways, merging, bundle=message.bundle)
        except ApplianceError as error:
            message.job, message.refused = None, type(error).__name__
            return
        if math.isfinite(message.cancel_after_s):
            self.at(self.now + message.cancel_after_s, lambda: self.scheduler.queue.cancel(job))
        if math.isfinite(message.approve_after_s):
            self.at(
                self.now + message.approve_after_s,
                lambda: self.scheduler.queue.approve(lambda utterance: utterance.job is job),
            )


def segments_of(message: Message, pieces: Sequence[float]) -> list[Segment]:
    reference = round(message.reference_s * FRAMES_PER_S)
    return [
        Segment(
            index=index,
            text="",
            ids=NO_IDS,
            frames=reference + max(round(seconds * FRAMES_PER_S), 1),
            reference_log_mel=SILENCE,
            reference_frames=reference,
            times=np.linspace(0.0, 1.0, message.nfe + 1),
            guidance=2.0,
            audio_s=seconds,
        )
        for index, seconds in enumerate(pieces)
    ]


def cut(seconds: float, first_s: float = 1.5, longest_s: float = 8.0) -> tuple[tuple[float, ...], ...]:
    """The ways of a stream: whole, then a short first segment and growing ones."""
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
    """Poisson arrivals of chat lines of 1 to 12 s, at `load` times what the device can speak."""
    draw = random.Random(seed)
    mean_s = 4.0
    sample = segments_of(Message(0.0, ((mean_s,),)), (mean_s,))[0]
    rate = load / device.of(sample).whole_s
    messages, at = [], 0.0
    while (at := at + draw.expovariate(rate)) < seconds:
        messages.append(Message(at, cut(line_s(draw)), queue_timeout_s=queue_timeout_s))
    return messages


def report(world: World, messages: Sequence[Message], seconds: float) -> dict[str, float]:
    """Figures of a run: first audio, underruns, goodput, refusals."""
    promised = [m for m in messages if m.promised]
    refused = [m for m in messages if m.refused]
    firsts = sorted(m.first_s for m in messages if m.heard) or [math.nan]
    good = [m for m in promised if m.underrun_s <= 0.1]
    idle_s = world.device.of(segments_of(Message(0.0, ()), (3.4,))[0]).whole_s
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
        "utilisation": world.engine.busy_s / world.now,
        "lanes per step": world.engine.lane_steps / max(world.engine.calls, 1),
    }


def refused_by_oracle(device: Table, messages: Sequence[Message]) -> float:
    """Share of these messages that a scheduler with exact costs refuses."""
    unsent = {"refused": "", "job": None, "ended": "", "free_at": -math.inf}
    again = [replace(message, **unsent, heard=[]) for message in messages]
    world = World(device, oracle=True)
    world.run(again)
    return sum(bool(m.refused) for m in again) / max(len(again), 1)


def replay(trace: Path, folder: Path, voice: Path, threads: int) -> dict[str, float]:
    """Compare a real daemon's refusals in a storm with those of an oracle."""
    read = bundles.read(folder)
    engine = load_for(read, EngineConfig(backend="ort-cpu", threads=threads, lanes=4))
    lines = [json.loads(line) for line in trace.read_text("utf-8").splitlines()]
    nfe = next(line["nfe"] for line in lines if line["nfe"])
    engine.warm_up(nfe)
    rule, m = RULES[read.manifest.reference], read.manifest
    transcript = rule.complete(voice.with_suffix(".txt").read_text("utf-8").strip())
    features = prepare(voice.read_bytes(), m.mel, m.defaults.target_rms, rule=rule)
    planner = Planner(
        read.manifest,
        read.vocabulary(),
        lambda *_: Reference(transcript, features),
        maker(m.text.tokenizer, m.text.voice),
    )

    def planned(line: dict[str, Any]) -> Message:
        whole = Request(
            line["text"], "", nfe, 0, read.manifest.defaults.guidance, Segmentation.UPSTREAM, stream=True
        )
        ways = planner.ways([whole, replace(whole, segmentation=Segmentation.LOW_LATENCY)])
        priority = Priority[(line["priority"] or "normal").upper()]
        segments, channel = tuple(segments for _, segments in ways), line["channel"]
        patience_s = None if channel else 0.0
        return Message(
            line["at_s"], planned=segments, priority=priority, channel=channel, queue_timeout_s=patience_s
        )

    messages = [planned(line) for line in lines]
    taken_s = estimated_s = 0.0
    for line, message in zip(lines, messages, strict=True):
        if line["engine_s"]:
            taken_s += line["engine_s"]
            made = next(way for way in message.planned if len(way) == line["segments"])
            estimated_s += sum(engine.costs.of(segment).whole_s for segment in made)
    refused = sum(line["status"] == "RESOURCE_EXHAUSTED" for line in lines) / len(lines)
    device = Measured(engine.costs, engine.max_batch, taken_s / estimated_s)
    oracle = refused_by_oracle(device, messages)
    return {
        "messages": len(lines),
        "storm's time per estimate": device.factor,
        "refused": refused,
        "refused by the oracle": oracle,
        "refused but serveable": refused - oracle,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=tuple(DEVICES), default="orin")
    parser.add_argument("--load", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--batch", type=int, help="lanes in a call; absent: the device's")
    parser.add_argument("--replay", type=Path, metavar="TRACE", help="a storm's, instead of a made workload")
    parser.add_argument("--bundle", type=Path, default=DEMO / "bundle", help="of that storm (%(default)s)")
    parser.add_argument("--voice", type=Path, default=SPEECH, help="likewise (%(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="of the storm's engine")
    options = parser.parse_args()
    if options.replay:
        print(json.dumps(replay(options.replay, options.bundle, options.voice, options.threads), indent=2))
        return
    device = DEVICES[options.device]
    messages = chat(options.seconds, options.load, device)
    if options.batch:
        device = Device(**{**vars(device), "max_batch": options.batch})
    world = World(device, SchedulerConfig(queue_length=10_000), noise=options.noise)
    world.run(messages)
    figures = report(world, messages, options.seconds)
    figures["refused but serveable"] = figures["refused"] - refused_by_oracle(device, messages)
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
