"""What is heard before it goes out, and spoken again with another seed."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import Cancelled
from appliance.request import FloatArray, Playout, Priority, RequestCounts, SegmentAudio
from appliance.scheduler.job import Job
from appliance.scheduler.loop import IDLE_WAIT_S
from appliance.scheduler.release import SPARE_S
from appliance.scheduler.takes import MOST_TAKES
from tests.benchmarks.simulator import DEVICES, Message, World
from tests.fakes_engine import samples_of
from tests.scheduler.bench import CALL_S, Bench, pieces, raising
from tests.scheduler.test_promises import check_promises, workloads

FRAMES = 300
"""3.1 s of audio: time enough for some takes."""


@dataclass
class Ear:
    """A listener that answers when the test does."""

    sounds: list[tuple[str, FloatArray, Callable[[int | None], None]]] = field(default_factory=list)

    def hear(self, text: str, samples: FloatArray, heard: Callable[[int | None], None]) -> None:
        assert not self.sounds, "one sound at a time"
        self.sounds.append((text, samples, heard))

    def answer(self, wrong: int | None) -> str:
        text, _, heard = self.sounds.pop()
        heard(wrong)
        return text


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def bench(ear: Ear) -> Bench:
    return Bench(listener=ear)


def say(
    bench: Bench, name: str = "a", segments: int = 1, *, is_proven: bool = True, **options: object
) -> Job:
    job = bench.job(name, **options)  # type: ignore[arg-type]
    job.is_proven = is_proven
    bench.scheduler.admit(job, [pieces(name, segments, frames=FRAMES)])
    return job


def serial(bench: Bench, name: str, segments: int = 1, **options: object) -> Job:
    return say(bench, name, segments, channel="stage", playout=Playout.SERIAL, **options)


def takes_that_went_out(bench: Bench, name: str = "a") -> list[int]:
    """Number of the take of each segment that went out."""
    found = []
    for audio in bench.results[name]:
        assert isinstance(audio, SegmentAudio)
        segment = pieces(name, audio.segment + 1, frames=FRAMES)[-1]
        seeds = [segment.seed ^ count << 32 for count in range(MOST_TAKES)]
        made = [samples_of(replace(segment, seed=seed)) for seed in seeds]
        found.append(next(n for n, samples in enumerate(made, 1) if np.array_equal(samples, audio.samples)))
    return found


def test_only_what_waits_is_heard(bench: Bench, ear: Ear) -> None:
    say(bench, "alone")
    say(bench, "whole", 2, stream=False)
    say(bench, "seeded", 2, is_proven=False)
    bench.work()
    assert [len(bench.results[name]) for name in ("alone", "whole", "seeded")] == [1, 2, 2]
    assert not ear.sounds
    say(bench, "a", 3)
    bench.work()
    assert takes_that_went_out(bench) == [1]
    assert ear.answer(0) == "a1" and takes_that_went_out(bench) == [1, 1]
    assert ear.answer(0) == "a2" and takes_that_went_out(bench) == [1, 1, 1]
    assert bench.ends()["a"] is SegmentAudio and bench.scheduler.load == RequestCounts()


@pytest.mark.parametrize(
    ("wrong", "taken"),
    [([0], 1), ([2, 0], 2), ([2, 1, 1], 2), ([1, 1, 1], 1), ([2, 3, 1], 3), ([None], 1), ([1, None], 1)],
)
def test_the_best_of_three_takes_goes_out(
    bench: Bench, ear: Ear, wrong: list[int | None], taken: int
) -> None:
    job = say(bench, priority=Priority.BULK)
    for count in wrong:
        bench.work()
        assert not bench.results["a"]
        ear.answer(count)
    assert takes_that_went_out(bench) == [taken] and job.ended and not ear.sounds
    bench.work()
    assert bench.engine.lanes == 0 and bench.opened() == ["a0"] * len(wrong)
    takes = bench.scheduler.takes
    assert (takes.heard, takes.remade) == (sum(one is not None for one in wrong), len(wrong) - 1)
    assert takes.kept == (taken > 1)


@pytest.mark.parametrize("ends", ["heard", "cancelled"])
def test_replies_of_a_channel_go_out_in_their_order(bench: Bench, ear: Ear, ends: str) -> None:
    order: list[str] = []
    jobs = [serial(bench, name, is_proven=name in ("a", "b")) for name in ("first", "a", "b", "c")]
    for job in jobs:
        job.deliver = lambda _, name=job.terms.request_id: order.append(name)
    bench.work()
    assert ear.answer(1) == "a0" and ear.answer(0) == "b0"
    assert order == ["first"], "a is spoken again"
    if ends == "cancelled":
        bench.scheduler.queue.cancel(jobs[1])
    else:
        bench.work()
        assert ear.answer(0) == "a0"
    assert order == ["first", "a", "b", "c"]


def test_in_time_for_its_caller_it_does_not_wait_for_the_one_before(bench: Bench, ear: Ear) -> None:
    first = serial(bench, "first", is_proven=False)
    serial(bench, "a")
    job = serial(bench, "b", is_proven=False, deadline=bench.now + 1.0)
    bench.work()
    assert first.audible is not None and job.deadline < first.audible + first.audio_s
    assert ear.sounds and not bench.results["b"]
    while not bench.results["b"]:
        bench.alarms.sort(key=lambda alarm: alarm[0])
        bench.now, act = bench.alarms.pop(0)
        act()
    assert bench.now == pytest.approx(job.deadline - SPARE_S) and not bench.results["a"]


@pytest.mark.parametrize("is_remade", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_behind_another_it_goes_out_in_time_heard_or_not(
    bench: Bench, ear: Ear, stream: bool, is_remade: bool
) -> None:
    first = serial(bench, "first", is_proven=False)
    second = serial(bench, "a", 2, stream=stream)
    bench.work()
    assert first.audible is not None
    free = first.audible + first.audio_s
    if is_remade:
        assert ear.answer(3) == "a0"
        bench.work()
    while bench.alarms:
        bench.alarms.sort(key=lambda alarm: alarm[0])
        bench.now, act = bench.alarms.pop(0)
        act()
        assert bool(bench.results["a"]) == (bench.now >= free - SPARE_S)
        if bench.results["a"] and second.audible == bench.now:
            assert second.audible == pytest.approx(free - SPARE_S)
    assert takes_that_went_out(bench) == [1, 1] and second.ended
    while ear.sounds:
        ear.answer(0)
    assert bench.scheduler.takes.heard == is_remade, "what is heard too late counts no more"


def test_who_is_skipped_makes_the_next_needed_at_once(bench: Bench, ear: Ear) -> None:
    first = serial(bench, "first", is_proven=False)
    serial(bench, "a")
    bench.work()
    assert not bench.results["a"]
    bench.scheduler.queue.end(lambda utterance: utterance.job is first, Cancelled("skipped"))
    bench.work()
    assert takes_that_went_out(bench) == [1]


def test_a_take_yields_to_whatever_is_promised(ear: Ear) -> None:
    bench = Bench(lanes=1, listener=ear)
    bench.engine.can_interrupt = True
    say(bench, segments=2)
    bench.work()
    ear.answer(1)
    assert bench.scheduler.run_once()
    assert bench.opened() == ["a0", "a1", "a1"]
    admitted: list[Job] = []

    def arrive() -> None:
        if not admitted:
            admitted.append(say(bench, "promised"))
            assert bench.engine.interrupted

    bench.engine.on_step = arrive
    assert bench.scheduler.run_once()
    bench.until("promised")
    assert bench.opened() == ["a0", "a1", "a1", "promised0"]
    assert admitted[0].audible == pytest.approx(admitted[0].arrived + 6 * CALL_S)
    bench.work()
    ear.answer(0)
    assert takes_that_went_out(bench) == [1, 2]


def test_the_loop_sleeps_while_a_take_is_heard(
    bench: Bench, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(bench, segments=2)
    bench.work()
    bench.now += 1.0
    bench.scheduler.run_once()
    slept: list[float] = []

    def wait(condition: threading.Condition, timeout: float) -> None:
        slept.append(timeout)
        ear.answer(0)
        bench.scheduler.drain()

    monkeypatch.setattr(threading.Condition, "wait", wait)
    bench.scheduler.run()
    assert slept == [IDLE_WAIT_S]


def test_a_take_under_way_ends_with_its_request(bench: Bench, ear: Ear) -> None:
    job = say(bench, priority=Priority.BULK)
    bench.work()
    ear.answer(1)
    assert bench.scheduler.run_once() and bench.engine.lanes == 1
    bench.scheduler.queue.cancel(job)
    calls = len(bench.engine.calls)
    assert not bench.scheduler.run_once()
    assert bench.engine.lanes == 0 and len(bench.engine.calls) == calls


def test_a_take_that_fails_leaves_the_one_before(bench: Bench, ear: Ear) -> None:
    say(bench, priority=Priority.BULK)
    bench.work()
    bench.engine.finishing = raising(RuntimeError("no"))
    ear.answer(1)
    bench.work()
    assert takes_that_went_out(bench) == [1]


def test_takes_are_seen_by_nobody(bench: Bench, ear: Ear) -> None:
    say(bench, priority=Priority.BULK)
    bench.work()
    ear.answer(1)
    bench.scheduler.run_once()
    assert [u.job.terms.request_id for u in bench.scheduler.queue.utterances()[0]] == ["a"]
    assert bench.scheduler.load == RequestCounts(running=1)
    bench.work()
    ear.answer(0)
    _, ended, _ = bench.scheduler.queue.utterances()
    assert [u.job.terms.request_id for u in ended] == ["a"]


def test_approval_sends_what_there_is(bench: Bench, ear: Ear) -> None:
    bench.scheduler.queue.moderate("stage", True)
    serial(bench, "a", 2)
    bench.work()
    ear.answer(1)
    bench.work()
    assert not bench.results["a"]
    bench.scheduler.queue.approve(lambda utterance: True)
    assert takes_that_went_out(bench) == [1]


def test_a_drain_waits_for_no_proof(bench: Bench, ear: Ear) -> None:
    say(bench, "a", 2, priority=Priority.BULK)
    bench.work()
    bench.serve()
    assert takes_that_went_out(bench) == [1, 1]


def test_a_callers_deadline_is_the_latest(bench: Bench, ear: Ear) -> None:
    job = say(bench, priority=Priority.BULK, deadline=bench.now + 5.0)
    bench.work()
    (when, act), *_ = bench.alarms
    assert when == pytest.approx(job.deadline - SPARE_S)
    bench.now = when
    act()
    assert takes_that_went_out(bench) == [1]


@dataclass
class Listening:
    """A listener of the simulator's world: it takes its time, and finds words wrong at random."""

    world: World = field(init=False)
    draw: random.Random = field(default_factory=lambda: random.Random(0))

    def hear(self, text: str, samples: FloatArray, heard: Callable[[int | None], None]) -> None:
        wrong = self.draw.choice((0, 0, 1, 2, None))
        self.world.at(self.world.now + self.draw.expovariate(3.0), lambda: heard(wrong))


@pytest.mark.slow
@pytest.mark.once
@settings(max_examples=60)
@given(workloads(), st.sampled_from(sorted(DEVICES)), st.sampled_from((1, 3, 8)))
def test_no_promise_is_broken_by_a_proof(messages: list[Message], device: str, lanes: int) -> None:
    listening = Listening()
    listening.world = world = World(DEVICES[device], lanes=lanes, oracle=True, listener=listening)
    check_promises(world, messages)
    assert all(math.isfinite(message.first_s) for message in messages if message.promised)
