"""An engine that rests: a request wakes it, and the promise includes the wake."""

import pytest

from appliance.request import Priority
from tests.harness.engine import CALL_S, EVEN, FakeEngine
from tests.harness.scheduler import Bench

WAKE_S, IDLE_S = 3.0, 60.0


class Restful(FakeEngine):
    """An engine that refuses calls while it rests; its wake moves the clock."""

    idle_s, wake_s = IDLE_S, WAKE_S

    def __init__(self, bench: Bench) -> None:
        super().__init__(EVEN)
        self.bench, self.rests = bench, False
        self.on_call = self._work

    def _work(self, seconds: float) -> None:
        assert not self.rests
        self.bench.tick(seconds)

    def rest(self) -> None:
        assert not self.lanes and not self.rests
        self.rests = True

    def wake(self) -> None:
        if self.rests:
            self.rests = False
            self.bench.now += self.wake_s


@pytest.fixture
def engine(bench: Bench) -> Restful:
    """An engine that has spoken once and rests."""
    engine = Restful(bench)
    bench.engine = engine
    bench.scheduler.engines.replace(engine, lambda: None)
    bench.admit("before")
    bench.work()
    assert not bench.scheduler.run_once()
    bench.now += IDLE_S - CALL_S
    assert not bench.scheduler.run_once() and not engine.rests
    bench.now += 2 * CALL_S
    assert not bench.scheduler.run_once() and engine.rests
    return engine


@pytest.mark.parametrize("priority", [Priority.NORMAL, Priority.HIGH])
def test_the_first_promise_after_a_rest_includes_the_wake(
    bench: Bench, engine: Restful, priority: Priority
) -> None:
    asked = bench.now
    first = bench.admit("first", priority=priority)
    second = bench.admit("second", priority=priority)
    assert asked + WAKE_S < first.due < second.due < asked + 1.2 * WAKE_S + 1.0
    assert not first.late_s and engine.rests, "admission does not wait for the engine"
    bench.until("first")
    assert bench.now <= first.due
    bench.until("second")
    assert bench.now <= second.due
    later = bench.admit("later", priority=priority)
    assert later.due < bench.now + WAKE_S, "it is awake"


def test_a_request_during_a_wake_waits_for_its_end(bench: Bench, engine: Restful) -> None:
    engine.bench.admit("first")

    def wake() -> None:
        bench.now += 0.75 * WAKE_S
        job = bench.admit("meanwhile", priority=Priority.HIGH)
        assert bench.now + 0.25 * WAKE_S < job.due < bench.now + 0.6 * WAKE_S
        bench.now += 0.25 * WAKE_S
        engine.rests = False

    engine.wake = wake  # type: ignore[method-assign]
    bench.work()
    assert {"first", "meanwhile"} <= bench.ends().keys()


def test_no_newcomer_is_refused_for_the_wake(bench: Bench, engine: Restful) -> None:
    job = bench.admit("now", priority=Priority.REALTIME)
    bench.work()
    assert bench.ends()["now"].__name__ == "SegmentAudio" and job.late_s > 0


def test_a_test_wakes_it_and_it_rests_again(bench: Bench, engine: Restful) -> None:
    tested = bench.scheduler.engines.test()
    bench.work()
    assert tested.result(0) == pytest.approx(CALL_S) and not engine.rests
    bench.now += IDLE_S + 1.0
    assert not bench.scheduler.run_once() and engine.rests


def test_neither_a_test_nor_a_request_of_its_replacement_wakes_it(bench: Bench, engine: Restful) -> None:
    tested = bench.scheduler.engines.test(other := FakeEngine())
    bench.work()
    assert tested.result(0) == 0.0 and engine.rests
    bench.scheduler.engines.replace(other, lambda: None)
    bench.admit("after")
    bench.work()
    assert "after" in bench.ends() and engine.rests


def test_an_engine_is_not_freed_while_somebody_waits(bench: Bench, engine: Restful) -> None:
    bench.scheduler.queue.pause("chat")
    bench.admit("held", channel="chat")
    bench.work()
    bench.now += 10 * IDLE_S
    assert not bench.scheduler.run_once()
    bench.scheduler.queue.resume("chat")
    bench.work()
    assert "held" in bench.ends()
