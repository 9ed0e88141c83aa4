"""Order of calls, readers, ends, faults and changes of the engine. test_promises.py proves the whole."""

import contextlib
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from appliance import errors
from appliance.request import FloatArray, PassedOver, Priority, RequestCounts, Segment, SegmentAudio, Terms
from appliance.scheduler.job import Job, Result
from appliance.scheduler.loop import HORIZON_S, Scheduler
from tests.harness.engine import CALL_S, EVEN, FakeEngine, raising, samples_of
from tests.harness.patience import PATIENCE_S, scaled, until
from tests.harness.scheduler import Bench
from tests.harness.segments import pieces

SPOKEN = SegmentAudio


def once(act: Callable[[], object], step: int = 1) -> Callable[[], None]:
    """Hook for `on_step` that acts in the step of that number alone."""
    steps = itertools.count(1)

    def on_step() -> None:
        if next(steps) == step:
            act()

    return on_step


def test_segments_in_order_and_timings(bench: Bench) -> None:
    job = bench.admit("a", 2, nfe=2)
    bench.serve()
    first, second = bench.results["a"]
    assert isinstance(first, SegmentAudio) and isinstance(second, SegmentAudio)
    assert (first.segment, first.last, second.segment, second.last) == (0, False, 1, True)
    timings = job.timings
    assert (timings.segments, timings.nfe, timings.queue_s) == (2, 2, 0.0)
    assert timings.condition_s == pytest.approx(2 * CALL_S)
    assert timings.steps_s == pytest.approx(4 * CALL_S)
    assert timings.vocoder_s == pytest.approx(2 * CALL_S)
    assert bench.engine.lanes == 0
    assert bench.scheduler.load == RequestCounts()


def test_a_newcomer_with_an_earlier_deadline_goes_first_from_the_next_step_on(bench: Bench) -> None:
    bench.admit("long", 6, frames=200)
    bench.until("long")
    for _ in range(3):
        bench.scheduler.run_once()
    bench.admit("hello")
    bench.serve()
    assert bench.opened()[:4] == ["long0", "long1", "hello0", "long2"]
    made = [call for call in bench.engine.calls if not call.startswith("open")]
    assert made.index("finish hello0") < made.index("finish long1")


@pytest.mark.parametrize(
    ("lanes", "segments", "priority", "opened"),
    [
        (4, 4, Priority.REALTIME, ["book0", "word0", "book1"]),
        (1, 1, Priority.NORMAL, ["book0", "word0", "book0"]),
    ],
    ids=["goes first", "takes the only lane, which is made again"],
)
def test_a_word_next_to_bulk_work(lanes: int, segments: int, priority: Priority, opened: list[str]) -> None:
    bench = Bench(lanes=lanes)
    bench.admit("book", segments, priority=Priority.BULK)
    for _ in range(3):
        bench.scheduler.run_once()
    bench.admit("word", priority=priority)
    bench.serve()
    assert bench.opened()[:3] == opened
    assert bench.ends() == {"book": SPOKEN, "word": SPOKEN}


@pytest.mark.parametrize(("priority", "cancelled", "steps", "end"), [
    (Priority.BULK, False, 9, SPOKEN),
    (Priority.NORMAL, False, 8, SPOKEN),
    (Priority.BULK, True, 5, errors.Cancelled),
])  # fmt: skip
def test_a_call_for_bulk_work_is_stopped_for_a_promise_and_made_again(
    bench: Bench, priority: Priority, cancelled: bool, steps: int, end: type
) -> None:
    bench.engine.can_interrupt = True
    book = bench.admit("book", priority=priority)

    def interrupt() -> None:
        if cancelled:
            bench.scheduler.queue.cancel(book)
        bench.admit("word")

    bench.engine.on_step = once(interrupt)
    bench.work()
    assert bench.engine.calls.count("step") == steps
    assert bench.ends() == {"book": end, "word": SPOKEN}
    assert not bench.engine.interrupted and bench.engine.lanes == 0


def test_bulk_work_of_two_channels_shares_the_engine_by_weight() -> None:
    bench = Bench(weights={"a": 2.0})
    for number in range(6):
        bench.admit(f"a{number}", priority=Priority.BULK, channel="a")
        bench.admit(f"b{number}", priority=Priority.BULK, channel="b")
    for _ in range(6 * 6):
        bench.scheduler.run_once()
    spoken = [name for name, end in bench.ends().items() if end is SPOKEN]
    assert sorted(name[0] for name in spoken) == ["a"] * 4 + ["b"] * 2


def test_lanes_share_a_call_if_that_saves_work() -> None:
    lanes: dict[int, list[int]] = {1: [], 4: []}
    for batch, at_steps in lanes.items():
        bench = Bench(replace(EVEN, max_batch=batch))
        bench.engine.on_step = lambda at=at_steps, engine=bench.engine: at.append(engine.lanes)
        jobs = [bench.admit(name) for name in "abcd"]
        bench.serve()
        assert sum(job.timings.steps_s for job in jobs) == pytest.approx(len(at_steps) * CALL_S)
    assert len(lanes[4]) < len(lanes[1]) == 4 * 4
    # The last lane stays free for a more urgent job.
    assert max(lanes[4]) == EVEN.lanes - 1


def test_lanes_that_are_due_together_share_a_call_however_late_both_are() -> None:
    bench = Bench(replace(EVEN, max_batch=4))
    a, b = bench.admit("a"), bench.admit("b")
    assert a.due == b.due
    bench.now = a.due
    bench.serve()
    assert bench.engine.calls.count("step") < 8


def test_a_light_caller_precedes_a_heavy_one_if_all_are_in_time(bench: Bench) -> None:
    for number in range(3):
        bench.admit(f"much{number}", caller="much")
    bench.admit("little", caller="little")
    bench.serve()
    assert bench.opened() == ["little0", "much00", "much10", "much20"]


def test_a_reader_that_lags_is_set_aside_and_holds_up_nobody(bench: Bench) -> None:
    slow = bench.admit("slow", 3, buffer_s=0.5)
    while not slow.segments_done:
        bench.scheduler.run_once()
    bench.admit("next", priority=Priority.BULK)
    bench.work()
    assert bench.ends()["next"] is SPOKEN
    assert slow.segments_done == 1 and bench.scheduler.load == RequestCounts(running=1, parked=1)
    bench.scheduler.queue.sent(slow, 1.0)
    bench.serve()
    assert bench.ends()["slow"] is SPOKEN


@pytest.mark.parametrize("after", [1, 4])
def test_a_cancelled_job_stops_within_one_engine_call(bench: Bench, after: int) -> None:
    job = bench.admit("a", 2, caller="one")
    bench.engine.on_step = once(lambda: bench.scheduler.queue.cancel(job), after)
    bench.admit("b", caller="one")
    bench.serve()
    assert bench.engine.calls[: after + 2] == ["open a0", *["step"] * after, "open b0"]
    assert [type(result) for result in bench.results["a"]] == [errors.Cancelled]
    assert bench.ends()["b"] is SPOKEN
    assert bench.engine.lanes == 0


def test_a_job_that_is_cancelled_during_a_call_for_another_gives_its_lane_back(bench: Bench) -> None:
    job = bench.admit("a", priority=Priority.BULK)
    while "step" not in bench.engine.calls:
        bench.scheduler.run_once()
    bench.engine.on_step = lambda: bench.scheduler.queue.cancel(job)
    bench.admit("b")
    bench.serve()
    assert bench.ends() == {"a": errors.Cancelled, "b": SPOKEN} and bench.engine.lanes == 0


def test_cancel_during_finish_gives_no_audio_and_after_the_end_does_nothing(bench: Bench) -> None:
    job = bench.admit("a", 2)

    def speak(segment: Segment) -> FloatArray:
        bench.scheduler.queue.cancel(job)
        return samples_of(segment)

    bench.engine.speak = speak
    bench.serve()
    bench.scheduler.queue.cancel(job)
    assert [type(result) for result in bench.results["a"]] == [errors.Cancelled]


def test_cancel_before_admission_keeps_the_job_out(bench: Bench) -> None:
    job = bench.job("a")
    bench.scheduler.queue.cancel(job)
    with pytest.raises(errors.Cancelled):
        bench.scheduler.admit(job, [pieces("a", 1)])
    assert bench.scheduler.load == RequestCounts()


def test_a_deadline_that_passes_on_the_way(bench: Bench) -> None:
    bench.engine.on_step = lambda: setattr(bench, "now", bench.now + 1.0)
    bench.admit("a", nfe=5, deadline=bench.now + 2.5)
    bench.serve()
    assert bench.engine.calls == ["open a0", "step", "step", "step"]
    assert bench.ends() == {"a": errors.DeadlineMissed}
    assert bench.engine.lanes == 0


def test_cancel_all_tells_each_job_that_the_daemon_stopped(bench: Bench) -> None:
    bench.admit("a")
    bench.admit("b")
    bench.engine.on_step = bench.scheduler.cancel_all
    bench.serve()
    assert bench.engine.calls == ["open a0", "step"]
    assert bench.ends() == {"a": errors.Unavailable, "b": errors.Unavailable}


FAIL, LOSE = raising(errors.EngineFault("odd")), raising(errors.DeviceLost("gone"))


def test_a_fault_fails_its_own_call_and_nothing_else(bench: Bench) -> None:
    bench.engine.on_step = once(raising(MemoryError("out of it")))
    bench.admit("a", 2, caller="one")
    bench.admit("b", caller="one")
    bench.serve()
    (fault,) = bench.results["a"]
    assert isinstance(fault, errors.OutOfDeviceMemory) and "MemoryError: out of it" in str(fault)
    assert bench.ends()["b"] is SPOKEN
    assert bench.engine.lanes == 0


@pytest.mark.parametrize(("on_step", "on_self_test", "error", "message", "failed"), [
    (FAIL, None, None, "", 4),
    (FAIL, FAIL, errors.EngineFault, "the engine fails every call: EngineFault: odd", 3),
    (FAIL, LOSE, errors.DeviceLost, "gone", 3),
    (LOSE, FAIL, errors.DeviceLost, "gone", 1),
    (raising(MemoryError()), FAIL, None, "", 4),
])  # fmt: skip
def test_an_engine_that_fails_three_times_in_a_row_has_to_prove_itself_and_a_lost_device_ends_at_once(
    on_step: Callable[[], None],
    on_self_test: Callable[[], None] | None,
    error: type[Exception] | None,
    message: str,
    failed: int,
) -> None:
    bench = Bench()
    bench.engine.on_step = on_step
    bench.engine.on_self_test = on_self_test or bench.engine.on_self_test
    for name in "abcd":
        bench.admit(name)
    with pytest.raises(error, match=message) if error else contextlib.nullcontext():
        bench.serve()
    assert sum(issubclass(end, errors.EngineFault) for end in bench.ends().values()) == failed
    tests = ["self_test c0"] * (on_step is FAIL)
    assert [call for call in bench.engine.calls if "self_test" in call] == tests
    assert ("open d0" in bench.engine.calls) is (failed == 4)


def test_the_engine_is_tested_with_a_lane_that_is_free() -> None:
    bench = Bench(lanes=1)

    def on_self_test() -> None:
        assert bench.engine.lanes == 0
        bench.engine.on_step = lambda: None

    bench.engine.on_step, bench.engine.on_self_test = FAIL, on_self_test
    for name in "abcd":
        bench.admit(name)
    bench.serve()
    assert bench.engine.calls.count("self_test c0") == 1 and bench.ends()["d"] is SPOKEN


def test_a_finished_segment_makes_good_for_faults(bench: Bench) -> None:
    turns = itertools.count()
    bench.engine.on_step = lambda: FAIL() if next(turns) % 6 < 2 else None
    for number in range(12):
        bench.admit(f"j{number:02}", priority=Priority.BULK)
    bench.serve()
    assert not any("self_test" in call for call in bench.engine.calls)


@pytest.mark.parametrize("all_texts", [False, True])
def test_if_the_failed_segment_fails_again_the_longest_spoken_one_decides(all_texts: bool) -> None:
    bench = Bench(lanes=1)
    bench.admit("short", frames=30)
    bench.admit("good", frames=60)
    bench.work()
    bench.engine.on_step = lambda: FAIL() if all_texts or "bad" in bench.opened()[-1] else None
    bench.engine.on_self_test = lambda: FAIL() if all_texts or "bad" in bench.engine.calls[-1] else None
    for number in range(3):
        bench.admit(f"bad{number}")
    bench.admit("later")
    if all_texts:
        with pytest.raises(errors.EngineFault, match="the engine fails every call"):
            bench.serve()
    else:
        bench.serve()
        assert bench.ends()["later"] is SPOKEN
    tests = [call for call in bench.engine.calls if call.startswith("self_test")]
    assert tests == ["self_test bad20", "self_test good0"]


@contextlib.contextmanager
def looping(clock: Callable[[], float] = time.monotonic) -> Iterator[Scheduler]:
    """A scheduler with its loop on a separate thread; at the end of the block it drains."""
    scheduler = Scheduler(clock=clock)
    scheduler.start(FakeEngine())
    thread = threading.Thread(target=scheduler.run, daemon=True)
    thread.start()
    yield scheduler
    scheduler.drain()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only an event wake an idle loop."""
    monkeypatch.setattr("appliance.scheduler.loop.IDLE_WAIT_S", 600.0)


def test_requests_before_the_start_and_during_a_drain_are_refused() -> None:
    scheduler = Scheduler()
    with pytest.raises(errors.Unavailable, match="starting"):
        scheduler.check_open()
    scheduler.drain()
    with pytest.raises(errors.Unavailable, match="draining"):
        scheduler.check_open()
    scheduler.start(FakeEngine())
    scheduler.run()


@pytest.mark.parametrize("what", ["a job of another thread", "a deadline", "a reader that catches up"])
def test_an_idle_loop_wakes(asleep: None, what: str) -> None:
    ended: queue.Queue[Result] = queue.Queue()
    now = time.monotonic()
    limits = {
        "a deadline": {"deadline": now + scaled(0.5), "buffer_s": -1.0},
        "a reader that catches up": {"buffer_s": 0.1},
    }
    parts = 2 if "reader" in what else 1

    def deliver(result: Result) -> None:
        if not isinstance(result, SegmentAudio) or result.last:
            ended.put(result)

    job = Job(Terms("a"), deliver, now, **limits.get(what, {}))
    with looping() as scheduler:
        scheduler.admit(job, [pieces("a", parts)])
        if parts == 2:
            until(lambda: scheduler.load.parked and not scheduler._workload.has_news)
            scheduler.queue.sent(job, 10.0)
        result = ended.get(timeout=PATIENCE_S)
    assert isinstance(result, errors.DeadlineMissed if what == "a deadline" else SegmentAudio)


def test_an_idle_loop_shows_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.scheduler.loop.IDLE_WAIT_S", 0.01)
    now = [100.0]
    with looping(clock=lambda: now[0]) as scheduler:
        for _ in range(2):
            now[0] += 60.0
            until(lambda: not scheduler.silence_s)


def test_a_sign_of_life_before_and_after_each_call_of_the_engine(bench: Bench) -> None:
    """Silence has no meaning before the loop starts and after it ends."""
    silences: list[float] = []

    def on_call(seconds: float) -> None:
        silences.append(bench.scheduler.silence_s)
        bench.now += 60.0
        assert bench.scheduler.silence_s == 60.0, "a call that hangs is heard of by its silence"

    bench.engine.on_call = on_call
    bench.now += 1000.0
    assert bench.scheduler.silence_s == 0.0
    bench.admit("a", 2, nfe=3)
    bench.admit("b", nfe=1)
    bench.serve()
    assert silences == [0.0] * len(bench.engine.calls)
    assert len(silences) == 2 * (1 + 3 + 1) + 3
    bench.now += 1000.0
    assert bench.scheduler.silence_s == 0.0


def test_the_engine_that_passed_a_backend_over_is_reported(bench: Bench) -> None:
    engines, other = bench.scheduler.engines, FakeEngine()
    other.backend, other.passed_over = "ort-cpu", (PassedOver("tensorrt", "no memory"),)
    before = engines.backend
    engines.add("/de", other)
    assert before != engines.backend == "ort-cpu" and engines.passed_over == other.passed_over
    assert (engines.of(""), engines.of("/de")) == (bench.engine, other)
    assert engines.current is bench.engine
    bench.serve()
    assert (bench.engine.calls, other.calls) == ([], ["shutdown"])


def test_new_jobs_use_the_new_engine_and_old_ones_keep_theirs(bench: Bench) -> None:
    old = bench.engine
    first = bench.admit("a", 2, frames=90)
    planned = bench.scheduler.engines.generation
    while "step" not in old.calls:
        bench.scheduler.run_once()
    new = FakeEngine(EVEN)
    new.on_call = bench.tick
    switched: list[None] = []
    bench.scheduler.engines.replace(new, lambda: switched.append(None))
    assert switched and bench.scheduler.engines.current is new
    late = bench.job("late")
    assert bench.scheduler.admit(late, [pieces("late", 1)], generation=planned) is None
    present = bench.scheduler.engines.generation
    assert bench.scheduler.admit(late, [pieces("late", 1)], generation=present) == 0
    while not (first.ended and late.ended):
        bench.scheduler.run_once()
        assert "shutdown" not in old.calls or first.ended
    bench.scheduler.run_once()
    assert [c for c in old.calls if c.startswith("open")] == ["open a0", "open a1"]
    assert [c for c in new.calls if c.startswith("open")] == ["open late0"]
    assert old.calls[-1] == "shutdown" and "shutdown" not in new.calls
    # The old engine's segments do not serve as a test of the new engine.
    assert bench.scheduler.engines._longest is late.segments[0]


def test_a_finished_reply_that_waits_keeps_no_old_engine(bench: Bench) -> None:
    job = bench.admit("a")
    bench.scheduler.queue.pause("")
    bench.work()
    bench.scheduler.engines.replace(FakeEngine(), lambda: None)
    bench.scheduler.run_once()
    assert bench.engine.calls[-1] == "shutdown" and job.is_done and not job.ended
    assert job.engine is bench.scheduler.engines.current
    bench.scheduler.queue.resume("")
    assert bench.ends() == {"a": SPOKEN}


def test_the_engine_is_tested_between_calls_and_its_error_returned(bench: Bench) -> None:
    bench.admit("a")
    tested = bench.scheduler.engines.test()
    bench.scheduler.run_once()
    assert tested.result(0) == pytest.approx(CALL_S)
    fault = errors.EngineFault("odd")
    bench.engine.on_self_test = raising(fault)
    tested = bench.scheduler.engines.test()
    assert not tested.cancel(), "the caller's end does not end the test"
    bench.serve()
    assert tested.exception(0) is fault and bench.ends()["a"] is SPOKEN
    with pytest.raises(errors.Unavailable):
        bench.scheduler.engines.test()


def test_an_engine_is_tested_before_it_takes_the_place_of_another() -> None:
    """The test runs on the engine's thread, which `FakeEngine` asserts, between the calls of the present
    engine."""
    scheduler, speaking, other = Scheduler(), FakeEngine(), FakeEngine()
    scheduler.start(speaking)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(scheduler.run)
        assert isinstance(scheduler.engines.test(other).result(PATIENCE_S), float)
        assert (speaking.calls, other.calls) == ([], ["self_test"])
        scheduler.engines.replace(other, lambda: None)
        assert isinstance(scheduler.engines.test().result(PATIENCE_S), float)
        assert other.calls == ["self_test", "self_test"]
        scheduler.drain()
        running.result(PATIENCE_S)
    assert speaking.calls == ["shutdown"]


def test_a_test_of_an_engine_ends_with_the_loop(bench: Bench) -> None:
    results = []

    def lose(seconds: float) -> None:
        results.append(bench.scheduler.engines.test())
        LOSE()

    bench.admit("a")
    bench.engine.on_call = lose
    with pytest.raises(errors.DeviceLost):
        bench.scheduler.run()
    assert isinstance(results[0].exception(0), errors.Unavailable)


def test_busy_is_the_promised_share_of_the_next_seconds(bench: Bench) -> None:
    assert bench.scheduler.busy == 0.0
    piece_s = 6 * CALL_S * 1.1  # open, four steps, finish
    bench.admit("a")
    assert bench.scheduler.busy == pytest.approx(piece_s / HORIZON_S)
    job = bench.admit("later", 40, priority=Priority.BULK)
    assert bench.scheduler.busy == pytest.approx(41 * piece_s / HORIZON_S)
    bench.scheduler.queue.cancel(job)
    # A long reply counts only the part that its listener needs within the horizon.
    job = bench.admit("long", 40)
    audio_s = job.segments[0].audio_s
    within = sum(job.due + index * audio_s <= bench.now + HORIZON_S for index in range(40))
    assert 0 < within < 40
    assert bench.scheduler.busy == pytest.approx((1 + within) * piece_s / HORIZON_S)
    bench.serve()
    assert bench.scheduler.busy == 0.0
