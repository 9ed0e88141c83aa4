"""The scheduler, driven by a fake engine and a fake clock; most tests run its loop in their own thread."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from appliance.errors import Cancelled, DeadlineMissed, EngineFault, QueueFull, Unavailable
from appliance.job import FloatArray, Packet, Timings
from appliance.scheduler import Job, Load, Result, Scheduler
from tests.fakes_engine import FakeEngine, samples_of, segment


class Clock:
    """Time that moves by one second with every step of the engine."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def tick(self) -> None:
        self.now += 1.0


class Straight:
    """A join that passes samples through."""

    def push(self, samples: FloatArray, *, last: bool) -> FloatArray:
        return samples


class Bench:
    """A scheduler that is running but whose loop is entered by `serve`, in the test's own thread."""

    def __init__(self, queue_length: int = 8) -> None:
        self.clock = Clock()
        self.engine = FakeEngine(self.clock.tick)
        self.scheduler = Scheduler(queue_length=queue_length, clock=self.clock)
        self.scheduler._state = "running"
        self.results: dict[str, list[Result]] = {}

    def job(
        self,
        name: str,
        segments: int = 1,
        *,
        nfe: int = 4,
        deadline: float = float("inf"),
        has_room: Callable[[], bool] = lambda: True,
    ) -> Job:
        self.results[name] = []
        return Job(
            [segment(f"{name}{i}", index=i, nfe=nfe) for i in range(segments)],
            Straight(),
            self.results[name].append,
            rate_hz=24_000,
            arrived=self.clock(),
            deadline=deadline,
            has_room=has_room,
        )

    def submit(self, name: str, segments: int = 1, **options: object) -> Job:
        job = self.job(name, segments, **options)  # type: ignore[arg-type]
        self.scheduler.submit(job)
        return job

    def serve(self) -> None:
        self.scheduler.drain()
        self.scheduler.run(self.engine)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_first_come_first_served_one_after_the_other(bench: Bench) -> None:
    bench.submit("a", 2, nfe=2)
    bench.submit("b", 1, nfe=3)
    bench.serve()
    assert bench.engine.calls == [
        *("open a0", "step", "step", "finish a0"),
        *("open a1", "step", "step", "finish a1"),
        *("open b0", "step", "step", "step", "finish b0"),
    ]
    assert bench.engine.lanes == 0


def test_packets_then_timings(bench: Bench) -> None:
    bench.submit("a", 2, nfe=2)
    bench.submit("b", 1, nfe=3)
    bench.serve()
    first, second, timings = bench.results["a"]
    assert isinstance(first, Packet) and isinstance(second, Packet)
    assert (first.segment, first.last, second.segment, second.last) == (0, False, 1, True)
    np.testing.assert_array_equal(second.samples, samples_of(segment("a1", index=1, nfe=2)))
    audio_s = 2 * 49 * 256 / 24_000
    assert timings == Timings(
        queue_s=0.0, first_audio_s=2.0, steps_s=4.0, total_s=4.0, audio_s=audio_s, segments=2, nfe=2
    )
    waited = bench.results["b"][-1]
    assert isinstance(waited, Timings)
    assert (waited.queue_s, waited.first_audio_s, waited.total_s) == (4.0, 7.0, 7.0)


def test_a_full_line_refuses_at_once_and_takes_again_after_a_cancel() -> None:
    bench = Bench(queue_length=2)
    first = bench.submit("a")
    bench.submit("b")
    with pytest.raises(QueueFull, match="2 requests wait already"):
        bench.scheduler.check_room()
    with pytest.raises(QueueFull):
        bench.submit("c")
    assert bench.scheduler.load == Load(waiting=2, running=0)
    bench.scheduler.cancel(first)
    bench.submit("d")
    bench.serve()
    assert [call for call in bench.engine.calls if call.startswith("open")] == ["open b0", "open d0"]
    assert isinstance(bench.results["a"][0], Cancelled)
    assert len(bench.results["a"]) == 1


@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_a_cancelled_job_stops_within_one_engine_call(bench: Bench, after: int) -> None:
    steps = itertools.count(1)
    job = bench.job("a", 2)

    def on_step() -> None:
        if next(steps) == after:
            bench.scheduler.cancel(job)

    bench.engine.on_step = on_step
    bench.scheduler.submit(job)
    bench.submit("b")
    bench.serve()
    assert bench.engine.calls[: after + 2] == ["open a0", *["step"] * after, "open b0"]
    assert [type(result) for result in bench.results["a"]] == [Cancelled]
    assert isinstance(bench.results["b"][-1], Timings)
    assert bench.engine.lanes == 0


def test_cancel_during_finish_gives_no_packet(bench: Bench) -> None:
    job = bench.job("a", 2)

    def finishing(samples: FloatArray) -> FloatArray:
        bench.scheduler.cancel(job)
        return samples

    bench.engine.finishing = finishing
    bench.scheduler.submit(job)
    bench.serve()
    assert [type(result) for result in bench.results["a"]] == [Cancelled]


def test_cancel_after_the_end_does_nothing(bench: Bench) -> None:
    job = bench.submit("a")
    bench.serve()
    before = list(bench.results["a"])
    bench.scheduler.cancel(job)
    bench.scheduler.cancel(job)
    assert bench.results["a"] == before


def test_a_deadline_that_passes_in_the_line(bench: Bench) -> None:
    bench.submit("a", nfe=5)
    bench.submit("b", deadline=bench.clock() + 3.0)
    bench.submit("c")
    bench.serve()
    assert "open b0" not in bench.engine.calls
    assert [type(result) for result in bench.results["b"]] == [DeadlineMissed]
    assert isinstance(bench.results["c"][-1], Timings)


def test_a_deadline_that_passes_on_the_way(bench: Bench) -> None:
    bench.submit("a", nfe=5, deadline=bench.clock() + 2.5)
    bench.serve()
    assert bench.engine.calls == ["open a0", "step", "step", "step"]
    assert [type(result) for result in bench.results["a"]] == [DeadlineMissed]
    assert bench.engine.lanes == 0


def test_a_deadline_that_has_passed_is_refused(bench: Bench) -> None:
    with pytest.raises(DeadlineMissed):
        bench.submit("a", deadline=bench.clock())


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_audio_that_is_not_finite_never_leaves(bench: Bench, poison: float) -> None:
    def finishing(samples: FloatArray) -> FloatArray:
        samples[7] = poison
        return samples

    bench.engine.finishing = finishing
    bench.submit("a")
    bench.serve()
    (fault,) = bench.results["a"]
    assert isinstance(fault, EngineFault)
    assert "not finite" in str(fault)


def test_whatever_the_engine_raises_the_next_job_is_served(bench: Bench) -> None:
    def fail_once() -> None:
        bench.engine.on_step = bench.clock.tick
        raise MemoryError("out of it")

    bench.engine.on_step = fail_once
    bench.submit("a", 2)
    bench.submit("b")
    bench.serve()
    (fault,) = bench.results["a"]
    assert isinstance(fault, EngineFault)
    assert "MemoryError: out of it" in str(fault)
    assert isinstance(bench.results["b"][-1], Timings)
    assert bench.engine.lanes == 0


def test_a_reader_that_lags_is_set_aside_and_holds_up_nobody(bench: Bench) -> None:
    room = False

    def has_room() -> bool:
        return room or not bench.results["a"]

    def finishing(samples: FloatArray) -> FloatArray:
        nonlocal room
        room = bench.engine.calls[-1] == "finish b0"
        return samples

    bench.engine.finishing = finishing
    bench.submit("a", 2, has_room=has_room)
    bench.submit("b")
    bench.serve()
    opened = [call for call in bench.engine.calls if call.startswith("open")]
    assert opened == ["open a0", "open b0", "open a1"]
    assert isinstance(bench.results["a"][-1], Timings)


def test_before_the_start_and_while_draining_nothing_is_taken() -> None:
    scheduler = Scheduler(queue_length=1)
    with pytest.raises(Unavailable, match="starting"):
        scheduler.check_room()
    scheduler.drain()
    with pytest.raises(Unavailable, match="draining"):
        scheduler.check_room()
    scheduler.run(FakeEngine())


def test_cancel_all_tells_each_job_that_the_daemon_stopped(bench: Bench) -> None:
    bench.submit("a")
    bench.submit("b")
    bench.engine.on_step = bench.scheduler.cancel_all
    bench.serve()
    assert bench.engine.calls == ["open a0", "step"]
    for name in "ab":
        assert [type(result) for result in bench.results[name]] == [Unavailable]


def test_the_loop_wakes_for_jobs_of_other_threads_and_ends_when_drained() -> None:
    scheduler = Scheduler(queue_length=4)
    engine, done = FakeEngine(), threading.Event()
    thread = threading.Thread(target=scheduler.run, args=(engine,), daemon=True)
    thread.start()
    results: list[Result] = []

    def deliver(result: Result) -> None:
        results.append(result)
        if isinstance(result, Timings):
            done.set()

    while scheduler._state != "running":
        pass
    scheduler.submit(Job([segment()], Straight(), deliver, rate_hz=24_000, arrived=0.0))
    assert done.wait(5.0)
    scheduler.drain()
    thread.join(5.0)
    assert not thread.is_alive()
    assert [type(result) for result in results] == [Packet, Timings]


def test_a_deadline_wakes_an_idle_loop() -> None:
    scheduler = Scheduler(queue_length=4)
    thread = threading.Thread(target=scheduler.run, args=(FakeEngine(),), daemon=True)
    thread.start()
    while scheduler._state != "running":
        pass
    missed = threading.Event()
    now = time.monotonic()
    job = Job(
        [segment()],
        Straight(),
        lambda result: missed.set(),
        rate_hz=24_000,
        arrived=now,
        deadline=now + 0.5,
        has_room=lambda: False,
    )
    scheduler.submit(job)
    assert missed.wait(5.0)
    scheduler.drain()
    thread.join(5.0)
    assert not thread.is_alive()


# Signs of life.


def test_a_sign_of_life_before_and_after_each_call_of_the_engine(bench: Bench) -> None:
    silences: list[float] = []

    class Watched(FakeEngine):
        def _call(self, name: str) -> None:
            super()._call(name)
            silences.append(bench.scheduler.silence_s)
            bench.clock.now += 60.0
            assert bench.scheduler.silence_s == 60.0, "a call that hangs is heard of by its silence"

    bench.engine = Watched()
    bench.submit("a", 2, nfe=3)
    bench.submit("b", nfe=1)
    bench.serve()
    assert silences == [0.0] * len(bench.engine.calls)
    assert len(silences) == 2 * (1 + 3 + 1) + 3


def test_silence_means_nothing_before_and_after_the_loop(bench: Bench) -> None:
    bench.clock.now += 1000.0
    assert bench.scheduler.silence_s == 0.0
    bench.submit("a")
    bench.serve()
    bench.clock.now += 1000.0
    assert bench.scheduler.silence_s == 0.0


def test_an_idle_loop_shows_signs_of_life() -> None:
    scheduler = Scheduler(queue_length=1)
    thread = threading.Thread(target=scheduler.run, args=(FakeEngine(),), daemon=True)
    thread.start()
    end, beats, last = time.monotonic() + 10.0, 0, 0.0
    while beats < 2:
        assert time.monotonic() < end
        time.sleep(0.02)
        silence_s = scheduler.silence_s
        beats, last = beats + (silence_s < last), silence_s
    scheduler.drain()
    thread.join(5.0)
    assert not thread.is_alive()
