"""The scheduler, driven by a fake engine and a fake clock; test_promises.py proves the whole."""

from __future__ import annotations

import contextlib
import itertools
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import (
    Cancelled,
    DeadlineMissed,
    DeviceLost,
    EngineFault,
    InvalidRequest,
    Merged,
    Overloaded,
    QueueFull,
    RateLimited,
    Superseded,
    Unavailable,
)
from appliance.request import FloatArray, Playout, Priority, RequestCounts, Segment, SegmentAudio, Terms
from appliance.scheduler.job import Demand, Job, Result
from appliance.scheduler.loop import BIAS, HORIZON_S, MARGIN_S, Scheduler
from appliance.scheduler.proof import earliest, shortfall_s
from tests.fakes_engine import FakeEngine, samples_of, segment
from tests.patience import PATIENCE_S, scaled
from tests.scheduler.bench import CALL_S, Bench, pieces

MAIN = {"channel": "main", "playout": Playout.SERIAL}
"""A serial channel."""


@pytest.fixture
def bench() -> Bench:
    return Bench()


# The order of calls.


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
    while len(bench.results["long"]) < 1:
        bench.scheduler.run_once()
    for _ in range(3):
        bench.scheduler.run_once()
    bench.admit("hello")
    bench.serve()
    assert bench.opened()[:4] == ["long0", "long1", "hello0", "long2"]
    made = [call for call in bench.engine.calls if not call.startswith("open")]
    assert made.index("finish hello0") < made.index("finish long1")


def test_a_realtime_word_goes_before_bulk_work_at_once(bench: Bench) -> None:
    bench.admit("book", 4, priority=Priority.BULK)
    for _ in range(3):
        bench.scheduler.run_once()
    bench.admit("word", priority=Priority.REALTIME)
    bench.serve()
    assert bench.opened()[:3] == ["book0", "word0", "book1"]
    assert bench.ends() == {"book": SegmentAudio, "word": SegmentAudio}


@pytest.mark.parametrize("priority", [Priority.BULK, Priority.NORMAL])
def test_a_call_for_bulk_work_is_stopped_for_a_promise_and_made_again(
    bench: Bench, priority: Priority
) -> None:
    bench.engine.can_interrupt = True
    bench.admit("book", priority=priority)

    def on_step() -> None:
        bench.engine.on_step = lambda: None
        bench.admit("word")

    bench.engine.on_step = on_step
    while bench.scheduler.run_once():
        pass
    assert bench.engine.calls.count("step") == (9 if priority is Priority.BULK else 8)
    assert bench.ends() == {"book": SegmentAudio, "word": SegmentAudio}
    assert not bench.engine.interrupted and bench.engine.lanes == 0


def test_a_job_that_is_cancelled_in_a_call_that_is_stopped_keeps_no_lane(bench: Bench) -> None:
    bench.engine.can_interrupt = True
    book = bench.admit("book", priority=Priority.BULK)

    def on_step() -> None:
        bench.engine.on_step = lambda: None
        bench.scheduler.queue.cancel(book)
        bench.admit("word")

    bench.engine.on_step = on_step
    while bench.scheduler.run_once():
        pass
    assert bench.ends() == {"book": Cancelled, "word": SegmentAudio}
    assert bench.engine.lanes == 0


def test_bulk_work_of_two_channels_shares_the_engine_by_weight() -> None:
    bench = Bench(weights={"a": 2.0})
    for number in range(6):
        bench.admit(f"a{number}", priority=Priority.BULK, channel="a")
        bench.admit(f"b{number}", priority=Priority.BULK, channel="b")
    for _ in range(6 * 6):
        bench.scheduler.run_once()
    spoken = [name for name, end in bench.ends().items() if end is SegmentAudio]
    assert sorted(name[0] for name in spoken) == ["a"] * 4 + ["b"] * 2


def test_fifo_takes_one_request_after_the_other_and_refuses_none_for_its_deadline() -> None:
    bench = Bench(policy="fifo")
    for number in range(20):
        bench.admit(f"j{number}", 2, priority=Priority.REALTIME if number % 2 else Priority.BULK)
    bench.serve()
    assert bench.opened() == [f"j{number}{part}" for number in range(20) for part in range(2)]


def test_lanes_share_a_call_where_that_saves_work() -> None:
    bench = Bench(batch=4)
    for name in "abcd":
        bench.admit(name)
    bench.serve()
    assert bench.engine.calls.count("step") < 4 * 4
    alone = Bench(batch=1)
    for name in "abcd":
        alone.admit(name)
    alone.serve()
    assert alone.engine.calls.count("step") == 4 * 4


def test_lanes_that_are_due_together_share_a_call_however_late_both_are() -> None:
    bench = Bench(batch=4)
    a, b = bench.admit("a"), bench.admit("b")
    assert a.due == b.due
    bench.now = a.due
    bench.serve()
    assert bench.engine.calls.count("step") < 8


def test_the_margin_is_part_of_what_a_promise_needs(bench: Bench) -> None:
    """As long as it takes to the caller's end of the connection."""
    bench.admit("a")
    workload, work_s = bench.scheduler._workload, 6 * CALL_S * BIAS
    for spare_s in (0.01, -0.01):
        now = bench.scheduler._workload.jobs["a"].due - work_s - MARGIN_S - spare_s
        assert shortfall_s(workload, now, list(workload.demands(now))) == pytest.approx(-spare_s)


def test_bulk_work_gives_up_its_lane_for_a_promise_and_is_made_again() -> None:
    bench = Bench(lanes=1)
    bench.admit("book", priority=Priority.BULK)
    bench.scheduler.run_once()
    bench.scheduler.run_once()
    bench.admit("word")
    bench.serve()
    assert bench.opened() == ["book0", "word0", "book0"]
    assert bench.ends() == {"book": SegmentAudio, "word": SegmentAudio}


# Admission.


def test_what_does_not_fit_is_refused_at_once_with_the_time_that_is_missing() -> None:
    bench = Bench(normal_s=0.2)
    admitted = []
    with pytest.raises(Overloaded) as refused:
        for number in itertools.count():
            bench.admit(f"j{number}")
            admitted.append(f"j{number}")
    # Six calls of 10 ms each, a tenth more for what estimates miss: two fit into 0.2 s, the third does not.
    assert admitted == ["j0", "j1"]
    wanted_s = 3 * 6 * CALL_S * 1.1 + MARGIN_S - 0.2
    assert refused.value.retry_s == pytest.approx(max(wanted_s, 0.1))
    bench.serve()
    assert set(bench.ends().values()) == {SegmentAudio}


def test_a_full_line_does_not_keep_out_another_channel() -> None:
    bench = Bench(normal_s=0.4)
    serial = {"playout": Playout.OVERLAP, "user": "ann"}
    with pytest.raises(Overloaded):
        for number in itertools.count():
            bench.admit(f"ann{number}", **serial)
    bench.admit("bob", user="bob")
    bench.serve()
    assert bench.ends()["bob"] is SegmentAudio


def test_queue_timeout_lets_a_request_wait_for_its_place() -> None:
    bench = Bench(normal_s=0.1)
    bench.admit("a")
    with pytest.raises(Overloaded):
        bench.admit("b")
    bench.admit("c", queue_timeout_s=1.0)
    bench.serve()
    assert bench.ends() == {"a": SegmentAudio, "c": SegmentAudio}


def chat_line(bench: Bench, name: str, ways: list[list[Segment]] | None = None, **terms: object) -> Job:
    """Admit a line on the serial channel `chat`."""
    known = {"channel": "chat", "playout": Playout.SERIAL, **terms}
    job = bench.job(name, **known)  # type: ignore[arg-type]
    bench.scheduler.admit(job, ways or [pieces(name, 1)])
    return job


def test_a_line_on_a_serial_channel_waits_for_the_engine_and_others_do_not() -> None:
    bench = Bench(normal_s=0.1)
    first = bench.admit("first")
    for refused in ({}, {"channel": "chat"}, {"client": "ipv4:1", "playout": Playout.SERIAL}):
        with pytest.raises(Overloaded, match=r"would come 0\.03 s too late"):
            bench.admit("other", **refused)
    line = chat_line(bench, "line")
    assert line.due == pytest.approx(bench.now + 2 * 6 * CALL_S * 1.1 + MARGIN_S) and not line.late_s
    bench.serve()
    assert first.audible is not None and first.audible <= first.due
    assert line.audible is not None and line.audible <= line.due


@pytest.mark.parametrize("patience_s", [None, 60.0])
def test_a_line_that_may_wait_is_promised_no_later_than_need_be(patience_s: float | None) -> None:
    bench = Bench(normal_s=0.1)
    bench.admit("first")
    lines = [chat_line(bench, f"line{n}", queue_timeout_s=patience_s) for n in range(6)]
    assert lines[0].due - bench.now < 0.2
    gaps = [later.due - earlier.due for earlier, later in itertools.pairwise(lines)]
    assert gaps == pytest.approx([lines[0].audio_s] * 5)


def test_a_line_is_refused_after_its_own_patience() -> None:
    bench = Bench(normal_s=0.1)
    bench.admit("first")
    with pytest.raises(Overloaded, match=r"would come 0\.02 s too late"):
        chat_line(bench, "hasty", queue_timeout_s=0.01)
    with pytest.raises(Overloaded, match=r"would come 0\.03 s too late"):
        chat_line(bench, "due", deadline=bench.now + 0.13)
    chat_line(bench, "patient", queue_timeout_s=0.1)


def test_a_caller_s_deadline_before_its_turn_is_no_reason_to_refuse(bench: Bench) -> None:
    """It is for the reply, which is made long before it is played."""
    for number in range(9):
        chat_line(bench, f"line{number}", [pieces(f"line{number}", 1, frames=400)], deadline=bench.now + 10.0)
    bench.serve()
    assert list(bench.ends().values()) == [SegmentAudio] * 9


def test_fewer_steps_are_taken_before_a_line_waits_for_the_engine() -> None:
    bench = Bench(normal_s=0.3)
    ways = [pieces("a", 1, nfe) for nfe in (12, 4)]
    nfes = []
    for number in range(4):
        job = chat_line(bench, f"j{number}", ways, channel=f"c{number}")
        nfes.append((job.timings.nfe, job.due <= bench.now + 2.2 * 14 * CALL_S))
    assert nfes == [(12, True), (4, True), (4, False), (4, False)]


def test_a_serial_channel_of_a_box_that_is_too_slow_begins_late_and_then_plays_without_a_gap() -> None:
    bench = Bench()
    line = bench.job("line", channel="chat", playout=Playout.SERIAL)
    bench.scheduler.admit(line, [[replace(piece, audio_s=0.01) for piece in pieces("line", 5)]])
    assert not line.late_s
    heard = []
    line.deliver = lambda result: heard.append(bench.now)
    while bench.scheduler.run_once():
        if line.held and bench.now >= line.due:
            bench.alarms.pop()[1]()
    assert heard[0] <= line.due
    assert all(at <= heard[0] + 0.01 * number + 1e-9 for number, at in enumerate(heard))


DUES = st.floats(0.0, 5.0)


@settings(max_examples=300)
@given(
    st.lists(st.tuples(DUES, st.floats(0.01, 1.0)), max_size=8),
    st.lists(st.floats(0.0, 2.0), min_size=1, max_size=4),
    DUES,
    st.booleans(),
)
def test_the_earliest_deadline_is_the_least_with_which_every_one_holds(
    others: list[tuple[float, float]], audio: list[float], soonest_s: float, stream: bool
) -> None:
    bench = Bench()
    now, job = bench.now, bench.job("own", stream=stream)
    segments = [replace(piece, audio_s=s) for piece, s in zip(pieces("own", len(audio)), audio, strict=True)]
    job.take(segments, [bench.engine.costs.of(piece) for piece in segments])
    job.due = now + soonest_s
    busy = [Demand(now + due, cost_s, bench.job("other")) for due, cost_s in others]
    found = earliest(bench.scheduler._workload, job, now, busy)

    def broken(demands: list[tuple[float, float]]) -> set[float]:
        """Deadlines that are missed if all work is done in their order."""
        done, missed = now + MARGIN_S, set()
        for due, cost_s in sorted(demands):
            done += cost_s * BIAS
            if done > due + 1e-5:
                missed.add(due)
        return missed

    given_before = [(demand.due, demand.cost_s) for demand in busy]
    lost = broken(given_before)

    def holds(first: float) -> bool:
        starts = [first + (sum(audio[:n]) if stream else 0.0) for n in range(len(audio))]
        own = [(start, 6 * CALL_S) for start in starts]
        delayed = {due for due in lost if due > first}
        return not delayed and broken(given_before + own) <= lost

    assert found >= job.due and holds(found)
    earlier = found - 1e-3
    assert earlier < job.due or not holds(earlier)


def test_fewer_steps_are_taken_rather_than_refuse_where_the_request_allows_it() -> None:
    bench = Bench(normal_s=0.3)
    ways = [pieces("a", 1, nfe) for nfe in (12, 11, 4)]
    taken, jobs = [], []
    with pytest.raises(Overloaded):
        for number in itertools.count():
            job = bench.job(f"j{number}")
            taken.append(bench.scheduler.admit(job, ways))
            jobs.append(job)
    assert taken == [0, 2]
    bench.serve()
    assert [job.timings.nfe for job in jobs] == [12, 4]


def test_a_box_that_is_too_slow_serves_late_rather_than_never(bench: Bench) -> None:
    bench.engine.costs.call_s = 1.0
    job = bench.admit("a", 3)
    assert job.late_s > 0.0
    with pytest.raises(Overloaded):
        bench.admit("b")
    bench.serve()
    assert bench.ends() == {"a": SegmentAudio}


def test_what_cannot_be_done_by_the_callers_deadline_is_not_begun(bench: Bench) -> None:
    with pytest.raises(DeadlineMissed, match=r"takes 0\.06 s and the deadline is in 0\.05 s"):
        bench.admit("a", deadline=bench.now + 0.05)
    assert bench.engine.calls == []


def test_places_in_the_line_are_shared() -> None:
    bench = Bench(queue_length=8)
    for number in range(4):
        bench.admit(f"a{number}", caller="a", priority=Priority.BULK)
    with pytest.raises(QueueFull, match="4 requests of this caller wait already, which is its share"):
        bench.admit("a4", caller="a", priority=Priority.BULK)
    for number in range(4):
        bench.admit(f"b{number}", caller=f"b{number}", priority=Priority.BULK)
    with pytest.raises(QueueFull, match="8 requests wait already, which is the limit"):
        bench.admit("c", caller="c", priority=Priority.BULK)


def test_the_rate_of_one_user() -> None:
    bench = Bench(user_rate=2.0)
    bulk = {"priority": Priority.BULK}
    bench.admit("a", user="ann", **bulk)
    bench.admit("b", user="ann", **bulk)
    with pytest.raises(RateLimited, match="2 requests a minute") as refused:
        bench.admit("c", user="ann", **bulk)
    assert refused.value.retry_s == pytest.approx(30.0)
    bench.admit("d", user="bob", **bulk)
    bench.now += 30.1
    bench.admit("e", user="ann", **bulk)


def state_of(bench: Bench) -> object:
    """All that an admission may change, but for the new job."""
    workload, admission = bench.scheduler._workload, bench.scheduler._admission
    channels = [(key, list(channel.jobs), channel.free) for key, channel in workload.channels.items()]
    jobs = [(job, job.due, job.late_s, job.ended, job.channel) for job in workload.jobs.values()]
    known = dict(admission._rates), admission._typical.first_s, admission._admitted
    return channels, jobs, dict(workload.used_s), list(workload.history), known


@pytest.mark.parametrize("channel", ["main", "new"])
@pytest.mark.parametrize("kind", [RuntimeError, Overloaded])
def test_an_error_on_the_way_leaves_everything_as_it_was(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, channel: str, kind: type[Exception]
) -> None:
    """Also one that nobody expects: in the midst of the proof, with jobs to replace and one to merge with."""
    serial = {"playout": Playout.SERIAL, "supersede": "score", "merge": "rose", "user": "ann"}
    for number in range(3):
        bench.admit(f"j{number}", channel="main", **(serial if number == 1 else {"playout": Playout.SERIAL}))
    merging = bench.scheduler._workload.jobs["j1"]
    before = state_of(bench)
    job = bench.job("new", channel=channel, **serial)

    def fail(*given: object) -> float:
        raise kind("odd")

    monkeypatch.setattr("appliance.scheduler.admission.earliest", fail)
    with pytest.raises(kind, match="odd"):
        bench.scheduler.admit(job, [pieces("new", 1)], merging)
    assert state_of(bench) == before
    assert bench.scheduler.load == RequestCounts(waiting=3) and bench.results["j1"] == []
    monkeypatch.undo()
    assert bench.scheduler.admit(job, [pieces("new", 1)], merging) == 0
    bench.serve()
    assert bench.ends()["new"] is SegmentAudio and bench.ends()["j1"] is Merged


def test_a_request_id_is_used_once_at_a_time(bench: Bench) -> None:
    bench.admit("a")
    with pytest.raises(InvalidRequest, match="request_id"):
        bench.admit("a")
    bench.serve()


# Channels.


def test_replies_of_a_channel_are_due_one_after_the_other(bench: Bench) -> None:
    jobs = [bench.admit(name, 2, frames=400, **MAIN) for name in "abc"]
    gaps = [later.due - earlier.due for earlier, later in itertools.pairwise(jobs)]
    assert gaps == pytest.approx([jobs[0].audio_s] * 2)
    bench.serve()
    assert bench.opened() == ["a0", "a1", "b0", "b1", "c0", "c1"]


def kept(bench: Bench, name: str, segments: int = 2, **terms: object) -> Job:
    """Admit a job whose audio is there already."""
    job = bench.job(name, **terms)  # type: ignore[arg-type]
    planned = pieces(name, segments, frames=400)
    job.kept = tuple(SegmentAudio(samples_of(one), one.index, one is planned[-1]) for one in planned)
    bench.scheduler.admit(job, [planned])
    return job


def test_what_is_made_already_is_delivered_at_once_and_plays_in_its_turn(bench: Bench) -> None:
    before = bench.admit("before", frames=400, **MAIN)
    again = kept(bench, "again", **MAIN)
    behind = bench.admit("behind", frames=400, **MAIN)
    assert [made.segment for made in bench.results["again"]] == [0, 1]  # type: ignore[union-attr]
    assert again.due == pytest.approx(before.due + before.audio_s)
    assert behind.due == pytest.approx(again.due + again.audio_s)
    assert bench.engine.calls == [] and bench.scheduler.load.waiting == 2
    bench.scheduler.queue.cancel(again)
    bench.scheduler.queue.written(again, 1.0)
    bench.serve()
    assert bench.opened() == ["before0", "behind0"]
    assert set(bench.ends().values()) == {SegmentAudio}
    assert again.timings.steps_s == 0.0


def test_what_is_made_already_sounds_until_it_has_been_played(bench: Bench) -> None:
    again = kept(bench, "again", **MAIN)
    bench.now += 1.0
    behind = bench.admit("behind", **MAIN)
    assert behind.due == pytest.approx(bench.now - 1.0 + again.audio_s)
    bench.now += 60.0
    soon = kept(bench, "soon", **MAIN, priority=Priority.BULK)
    assert soon.due == math.inf


def test_what_is_made_already_waits_on_a_paused_channel(bench: Bench) -> None:
    bench.scheduler.queue.pause("main")
    again, other = kept(bench, "again", **MAIN), kept(bench, "other", **MAIN)
    assert bench.results["again"] == []
    bench.scheduler.queue.cancel(other)
    bench.now += 3.0
    bench.scheduler.queue.resume("main")
    assert [made.segment for made in bench.results["again"]] == [0, 1]  # type: ignore[union-attr]
    assert (again.audible, bench.scheduler.load) == (bench.now, RequestCounts())
    assert bench.ends() == {"again": SegmentAudio, "other": Cancelled}


def test_what_is_made_already_keeps_to_the_limits() -> None:
    bench = Bench(backlog_s=10.0, user_rate=2.0, queue_length=1)
    with pytest.raises(QueueFull, match="s of speech wait on this channel already; at most 10 s may"):
        for number in itertools.count():
            kept(bench, f"j{number}", **MAIN)
    kept(bench, "elsewhere", channel="other", playout=Playout.SERIAL)
    for name in ("one", "two"):
        kept(bench, name, user="ann")
    with pytest.raises(RateLimited):
        kept(bench, "three", user="ann")
    bench.admit("waits")
    kept(bench, "full line")
    with pytest.raises(InvalidRequest, match="request_id"):
        kept(bench, "waits")
    job = bench.job("gone")
    bench.scheduler.queue.cancel(job)
    with pytest.raises(Cancelled):
        bench.scheduler.admit(job, [pieces("gone", 1)])
    bench.scheduler.drain()
    with pytest.raises(Unavailable):
        kept(bench, "late")


def test_what_is_made_already_replaces_what_waits(bench: Bench) -> None:
    status = {**MAIN, "supersede": "score"}
    waiting = bench.admit("waiting", **status)
    again = kept(bench, "again", **status)
    assert isinstance(bench.results["waiting"][-1], Superseded)
    assert waiting.ended and again.due < waiting.due + waiting.audio_s


def test_more_speech_than_a_channel_may_hold_is_refused() -> None:
    bench = Bench(backlog_s=10.0)
    with pytest.raises(QueueFull, match="s of speech wait on this channel already; at most 10 s may"):
        for number in itertools.count():
            bench.admit(f"j{number}", frames=400, **MAIN)
    bench.admit("elsewhere", channel="other", playout=Playout.SERIAL)


def test_a_turn_that_comes_after_the_queue_timeout_is_refused(bench: Bench) -> None:
    bench.admit("a", frames=400, **MAIN)
    with pytest.raises(Overloaded, match="its turn on this channel is in"):
        bench.admit("soon", queue_timeout_s=1.0, **MAIN)
    bench.admit("later", queue_timeout_s=9.0, **MAIN)


def test_a_later_request_replaces_an_earlier_one_that_does_not_sound(bench: Bench) -> None:
    status = {**MAIN, "supersede": "score"}
    bench.admit("sounding", frames=400, **status)
    while not bench.results["sounding"]:
        bench.scheduler.run_once()
    bench.admit("waiting", **status)
    bench.admit("other channel", channel="b", playout=Playout.SERIAL, supersede="score")
    bench.admit("newest", **status)
    bench.serve()
    assert isinstance(bench.results["waiting"][-1], Superseded)
    assert bench.ends() == {
        "sounding": SegmentAudio,
        "waiting": Superseded,
        "other channel": SegmentAudio,
        "newest": SegmentAudio,
    }


def test_a_refused_request_replaces_nothing() -> None:
    bench = Bench(user_rate=1.0)
    status = {**MAIN, "supersede": "score", "user": "ann"}
    bench.admit("waiting", **status)
    with pytest.raises(RateLimited):
        bench.admit("newest", **status)
    bench.serve()
    assert bench.ends()["waiting"] is SegmentAudio


# Readers.


def test_a_reader_that_lags_is_set_aside_and_holds_up_nobody(bench: Bench) -> None:
    slow = bench.admit("slow", 3, buffer_s=0.5)
    while not slow.done:
        bench.scheduler.run_once()
    bench.admit("next", priority=Priority.BULK)
    while bench.scheduler.run_once():
        pass
    assert bench.ends()["next"] is SegmentAudio
    assert slow.done == 1 and bench.scheduler.load == RequestCounts(running=1, parked=1)
    bench.scheduler.queue.written(slow, 1.0)
    bench.serve()
    assert bench.ends()["slow"] is SegmentAudio


# Ends.


def test_a_caller_with_little_goes_before_one_with_much_where_all_are_in_time(bench: Bench) -> None:
    for number in range(3):
        bench.admit(f"much{number}", caller="much")
    bench.admit("little", caller="little")
    bench.serve()
    assert bench.opened() == ["little0", "much00", "much10", "much20"]


@pytest.mark.parametrize("after", [1, 4])
def test_a_cancelled_job_stops_within_one_engine_call(bench: Bench, after: int) -> None:
    steps = itertools.count(1)
    job = bench.admit("a", 2, caller="one")

    def on_step() -> None:
        if next(steps) == after:
            bench.scheduler.queue.cancel(job)

    bench.engine.on_step = on_step
    bench.admit("b", caller="one")
    bench.serve()
    assert bench.engine.calls[: after + 2] == ["open a0", *["step"] * after, "open b0"]
    assert [type(result) for result in bench.results["a"]] == [Cancelled]
    assert bench.ends()["b"] is SegmentAudio
    assert bench.engine.lanes == 0


def test_cancel_during_finish_gives_no_audio(bench: Bench) -> None:
    job = bench.admit("a", 2)

    def finishing(samples: FloatArray) -> FloatArray:
        bench.scheduler.queue.cancel(job)
        return samples

    bench.engine.finishing = finishing
    bench.serve()
    assert [type(result) for result in bench.results["a"]] == [Cancelled]


def test_cancel_before_admission_keeps_the_job_out(bench: Bench) -> None:
    job = bench.job("a")
    bench.scheduler.queue.cancel(job)
    with pytest.raises(Cancelled):
        bench.scheduler.admit(job, [pieces("a", 1)])
    assert bench.scheduler.load == RequestCounts()


def test_cancel_after_the_end_does_nothing(bench: Bench) -> None:
    job = bench.admit("a")
    bench.serve()
    before = list(bench.results["a"])
    bench.scheduler.queue.cancel(job)
    bench.scheduler.queue.cancel(job)
    assert bench.results["a"] == before


def test_a_deadline_that_passes_on_the_way(bench: Bench) -> None:
    bench.engine.on_step = lambda: setattr(bench, "now", bench.now + 1.0)
    bench.admit("a", nfe=5, deadline=bench.now + 2.5)
    bench.serve()
    assert bench.engine.calls == ["open a0", "step", "step", "step"]
    assert bench.ends() == {"a": DeadlineMissed}
    assert bench.engine.lanes == 0


def test_a_fault_fails_its_own_call_and_nothing_else(bench: Bench) -> None:
    def fail_once() -> None:
        bench.engine.on_step = lambda: None
        raise MemoryError("out of it")

    bench.engine.on_step = fail_once
    bench.admit("a", 2, caller="one")
    bench.admit("b", caller="one")
    bench.serve()
    (fault,) = bench.results["a"]
    assert isinstance(fault, EngineFault) and "MemoryError: out of it" in str(fault)
    assert bench.ends()["b"] is SegmentAudio
    assert bench.engine.lanes == 0


def test_an_engine_that_fails_three_times_in_a_row_has_to_prove_itself(bench: Bench) -> None:
    def fail() -> None:
        raise EngineFault("lost")

    bench.engine.on_step = fail
    for name in "abc":
        bench.admit(name)
    bench.serve()  # it passes its test
    assert [call for call in bench.engine.calls if "prove" in call] == ["prove c0"]

    worse = Bench()
    worse.engine.on_step = worse.engine.proving = fail
    for name in "abcd":
        worse.admit(name)
    with pytest.raises(EngineFault, match="the engine fails every call: EngineFault: lost"):
        worse.serve()
    assert "open d0" not in worse.engine.calls


def test_a_lost_device_ends_the_scheduler_at_once_and_in_the_test_of_the_engine() -> None:
    def fail() -> None:
        raise EngineFault("odd")

    def lose() -> None:
        raise DeviceLost("gone")

    for on_step, proving, served in ((lose, fail, 1), (fail, lose, 3)):
        bench = Bench()
        bench.engine.on_step, bench.engine.proving = on_step, proving
        for name in "abcd":
            bench.admit(name)
        with pytest.raises(DeviceLost, match="gone"):
            bench.serve()
        assert sum(issubclass(end, EngineFault) for end in bench.ends().values()) == served


def test_the_engine_is_tested_with_a_lane_that_is_free() -> None:
    bench = Bench(lanes=1)

    def fail() -> None:
        raise EngineFault("lost")

    def proving() -> None:
        assert bench.engine.lanes == 0
        bench.engine.on_step = lambda: None

    bench.engine.on_step, bench.engine.proving = fail, proving
    for name in "abcd":
        bench.admit(name)
    bench.serve()
    assert bench.engine.calls.count("prove c0") == 1 and bench.ends()["d"] is SegmentAudio


def test_a_finished_segment_makes_good_for_faults(bench: Bench) -> None:
    turns = itertools.count()

    def fail_two_of_three() -> None:
        if next(turns) % 6 < 2:
            raise EngineFault("now and then")

    bench.engine.on_step = fail_two_of_three
    for number in range(12):
        bench.admit(f"j{number:02}", priority=Priority.BULK)
    bench.serve()
    assert not any("prove" in call for call in bench.engine.calls)


@pytest.mark.parametrize("all_texts", [False, True])
def test_where_the_failed_segment_fails_again_the_longest_that_was_spoken_decides(all_texts: bool) -> None:
    bench = Bench(lanes=1)
    bench.admit("short", frames=30)
    bench.admit("good", frames=60)

    def fail() -> None:
        opened = [call for call in bench.engine.calls if call.startswith("open")]
        if all_texts or "bad" in opened[-1]:
            raise EngineFault("odd")

    def prove() -> None:
        if all_texts or "bad" in bench.engine.calls[-1]:
            raise EngineFault("odd")

    while bench.scheduler.run_once():
        pass
    bench.engine.on_step, bench.engine.proving = fail, prove
    for number in range(3):
        bench.admit(f"bad{number}")
    bench.admit("later")
    if all_texts:
        with pytest.raises(EngineFault, match="the engine fails every call"):
            bench.serve()
    else:
        bench.serve()
        assert bench.ends()["later"] is SegmentAudio
    proofs = [call for call in bench.engine.calls if call.startswith("prove")]
    assert proofs == ["prove bad20", "prove good0"]


# Starting, draining, living.


@contextlib.contextmanager
def looping(clock: Callable[[], float] = time.monotonic) -> Iterator[Scheduler]:
    """A scheduler whose loop runs on a thread of its own; at the end it is drained."""
    scheduler = Scheduler(clock=clock)
    scheduler.start(FakeEngine())
    thread = threading.Thread(target=scheduler.run, daemon=True)
    thread.start()
    yield scheduler
    scheduler.drain()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_before_the_start_and_while_draining_nothing_is_taken() -> None:
    scheduler = Scheduler()
    with pytest.raises(Unavailable, match="starting"):
        scheduler.check_open()
    scheduler.drain()
    with pytest.raises(Unavailable, match="draining"):
        scheduler.check_open()
    scheduler.start(FakeEngine())
    scheduler.run()


def test_cancel_all_tells_each_job_that_the_daemon_stopped(bench: Bench) -> None:
    bench.admit("a")
    bench.admit("b")
    bench.engine.on_step = bench.scheduler.cancel_all
    bench.serve()
    assert bench.engine.calls == ["open a0", "step"]
    assert bench.ends() == {"a": Unavailable, "b": Unavailable}


def test_the_loop_wakes_for_jobs_of_other_threads_and_ends_when_drained() -> None:
    results: list[Result] = []
    done = threading.Event()

    def deliver(result: Result) -> None:
        results.append(result)
        done.set()

    with looping() as scheduler:
        scheduler.admit(Job(Terms("a"), deliver, time.monotonic()), [[segment()]])
        assert done.wait(PATIENCE_S)
    assert [type(result) for result in results] == [SegmentAudio]


def test_a_deadline_wakes_an_idle_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.scheduler.loop.IDLE_WAIT_S", 600.0)
    missed = threading.Event()
    now = time.monotonic()
    job = Job(
        Terms("a"),
        lambda result: missed.set() if isinstance(result, DeadlineMissed) else None,
        now,
        deadline=now + scaled(0.5),
        buffer_s=-1.0,
    )
    with looping() as scheduler:
        scheduler.admit(job, [[segment()]])
        assert missed.wait(PATIENCE_S)


def test_a_reader_that_catches_up_wakes_an_idle_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.scheduler.loop.IDLE_WAIT_S", 600.0)
    done = threading.Event()
    job = Job(
        Terms("a"),
        lambda result: done.set() if isinstance(result, SegmentAudio) and result.last else None,
        time.monotonic(),
        buffer_s=0.1,
    )
    with looping() as scheduler:
        scheduler.admit(job, [pieces("a", 2)])
        end = time.monotonic() + PATIENCE_S
        while not scheduler.load.parked or scheduler._workload.has_news:
            assert time.monotonic() < end
        scheduler.queue.written(job, 10.0)
        assert done.wait(PATIENCE_S)


def test_a_sign_of_life_before_and_after_each_call_of_the_engine(bench: Bench) -> None:
    silences: list[float] = []

    def on_call() -> None:
        silences.append(bench.scheduler.silence_s)
        bench.now += 60.0
        assert bench.scheduler.silence_s == 60.0, "a call that hangs is heard of by its silence"

    bench.engine.on_call = on_call
    bench.admit("a", 2, nfe=3)
    bench.admit("b", nfe=1)
    bench.serve()
    assert silences == [0.0] * len(bench.engine.calls)
    assert len(silences) == 2 * (1 + 3 + 1) + 3


def test_silence_means_nothing_before_and_after_the_loop(bench: Bench) -> None:
    bench.now += 1000.0
    assert bench.scheduler.silence_s == 0.0
    bench.admit("a")
    bench.serve()
    bench.now += 1000.0
    assert bench.scheduler.silence_s == 0.0


def test_an_idle_loop_shows_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.scheduler.loop.IDLE_WAIT_S", 0.01)
    now = [100.0]
    with looping(clock=lambda: now[0]) as scheduler:
        for _ in range(2):
            now[0] += 60.0
            end = time.monotonic() + PATIENCE_S
            while scheduler.silence_s:
                assert time.monotonic() < end


# Another engine.


def test_new_jobs_go_to_the_new_engine_and_old_ones_end_where_they_began(bench: Bench) -> None:
    old = bench.engine
    first = bench.admit("a", 2)
    planned = bench.scheduler.engines.generation
    while "step" not in old.calls:
        bench.scheduler.run_once()
    new = FakeEngine(max_lanes=4)
    new.costs.call_s, new.on_call = CALL_S, bench.tick
    switched: list[None] = []
    bench.scheduler.engines.replace(new, lambda: switched.append(None))
    assert switched and bench.scheduler.engines.present is new
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


def test_the_engine_is_tested_between_calls_and_its_error_is_given(bench: Bench) -> None:
    results: list[float | Exception] = []
    bench.admit("a")
    bench.scheduler.engines.test(results.append)
    bench.scheduler.run_once()
    assert results == [pytest.approx(CALL_S)]
    fault = EngineFault("odd")

    def fail() -> None:
        raise fault

    bench.engine.proving = fail
    bench.scheduler.engines.test(results.append)
    bench.serve()
    assert results[1] is fault and bench.ends()["a"] is SegmentAudio
    with pytest.raises(Unavailable):
        bench.scheduler.engines.test(results.append)


def test_an_engine_is_tested_before_it_takes_the_place_of_another() -> None:
    """On the engine's thread, which `FakeEngine` insists on, between the calls of the present one."""
    scheduler, speaking, other = Scheduler(), FakeEngine(), FakeEngine()
    tested: queue.Queue[float | Exception] = queue.Queue()
    scheduler.start(speaking)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(scheduler.run)
        scheduler.engines.test(tested.put, other)
        assert isinstance(tested.get(timeout=PATIENCE_S), float)
        assert (speaking.calls, other.calls) == ([], ["prove"])
        scheduler.engines.replace(other, lambda: None)
        scheduler.engines.test(tested.put)
        assert isinstance(tested.get(timeout=PATIENCE_S), float)
        assert other.calls == ["prove", "prove"]
        scheduler.drain()
        running.result(PATIENCE_S)
    assert speaking.calls == ["shutdown"]


def test_a_test_of_an_engine_ends_with_the_loop(bench: Bench) -> None:
    results: list[float | Exception] = []

    def lose() -> None:
        bench.scheduler.engines.test(results.append)
        raise DeviceLost("gone")

    bench.admit("a")
    bench.engine.on_call = lose
    with pytest.raises(DeviceLost):
        bench.scheduler.start(bench.engine)
        bench.scheduler.run()
    assert isinstance(results[0], Unavailable)


def test_busy_is_the_promised_share_of_the_next_seconds(bench: Bench) -> None:
    assert bench.scheduler.busy == 0.0
    piece_s = 6 * CALL_S * 1.1  # open, four steps, finish
    bench.admit("a")
    assert bench.scheduler.busy == pytest.approx(piece_s / HORIZON_S)
    job = bench.admit("later", 40, priority=Priority.BULK)
    assert bench.scheduler.busy == pytest.approx(41 * piece_s / HORIZON_S)
    bench.scheduler.queue.cancel(job)
    # Of a long reply only what its listener needs within the horizon.
    job = bench.admit("long", 40)
    audio_s = job.segments[0].audio_s
    within = sum(job.due + index * audio_s <= bench.now + HORIZON_S for index in range(40))
    assert 0 < within < 40
    assert bench.scheduler.busy == pytest.approx((1 + within) * piece_s / HORIZON_S)
    bench.serve()
    assert bench.scheduler.busy == 0.0
