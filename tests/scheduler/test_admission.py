"""Admission: accepted requests, their promises, refusals and reasons; on the fake engine and clock."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance import errors
from appliance.request import Playout, Priority, RequestCounts, SegmentAudio
from appliance.scheduler.admission import ROOM, STRETCH
from appliance.scheduler.deadlines import earliest, excesses_s
from appliance.scheduler.fairness import expected_newcomers, share_of
from appliance.scheduler.job import Channel, Demand, Job, Way
from appliance.scheduler.loop import BIAS, MARGIN_S
from tests.harness.engine import CALL_S, Device, raising, samples_of
from tests.harness.scheduler import Bench
from tests.harness.segments import pieces

MAIN: dict[str, Any] = {"channel": "main", "playout": Playout.SERIAL}
"""A serial channel."""
STATUS: dict[str, Any] = {**MAIN, "supersede": "score"}
BULK: dict[str, Any] = {"priority": Priority.BULK}
NOW_OR_NEVER: dict[str, Any] = {"queue_timeout_s": 0.0}
LATE = r"would come 0\.03 s too late"
TURN = "its turn on this channel is in"


def fill(bench: Bench, name: str, **terms: Any) -> list[Job]:
    """Admit requests until the scheduler refuses one as OVERLOADED."""
    jobs: list[Job] = []
    with pytest.raises(errors.Overloaded):
        while True:
            jobs.append(bench.admit(f"{name}{len(jobs)}", **terms))
    return jobs


def kept(bench: Bench, name: str, segments: int = 2, **terms: Any) -> Job:
    """Admit a job whose audio is cached."""
    job = bench.job(name, **terms)
    planned = pieces(name, segments, frames=400)
    job.cached = tuple(SegmentAudio(samples_of(one), one.index, one is planned[-1]) for one in planned)
    bench.scheduler.admit(job, [planned])
    return job


def made(bench: Bench, name: str) -> list[int]:
    return [result.segment for result in bench.results[name] if isinstance(result, SegmentAudio)]


def test_a_replaced_request_leaves_its_place_in_a_full_queue() -> None:
    bench = Bench(queue_length=1)
    for name in ("one nil", "two nil", "three nil"):
        bench.admit(name, channel="main", supersede="score")
    with pytest.raises(errors.QueueFull):
        bench.admit("beyond", channel="main")


def test_an_overload_is_refused_at_once_with_the_missing_time() -> None:
    bench = Bench(normal_s=0.2, patience_s=0.0)
    # A request has six calls of 10 ms, plus a tenth for wrong estimates: two fit into 0.2 s, the third does
    # not.
    assert len(fill(bench, "j")) == 2
    with pytest.raises(errors.Overloaded) as refused:
        bench.admit("more")
    assert refused.value.retry_s == pytest.approx(max(3 * 6 * CALL_S * 1.1 + MARGIN_S - 0.2, 0.1))
    bench.serve()
    assert [bench.ends()[name] for name in ("j0", "j1")] == [SegmentAudio] * 2


@pytest.mark.parametrize(("first", "second", "error", "message"), [
    ({}, {}, None, ""),
    ({}, {"channel": "main"}, None, ""),
    ({}, {"client": "ipv4:1", "playout": Playout.SERIAL}, None, ""),
    ({}, NOW_OR_NEVER, errors.Overloaded, LATE),
    ({}, {"channel": "main", **NOW_OR_NEVER}, errors.Overloaded, LATE),
    ({}, {"client": "ipv4:1", "playout": Playout.SERIAL, **NOW_OR_NEVER}, errors.Overloaded, LATE),
    ({}, {"priority": Priority.REALTIME}, errors.Overloaded, LATE),
    ({}, {"queue_timeout_s": 1.0}, None, ""),
    ({}, MAIN, None, ""),
    ({}, {**MAIN, "queue_timeout_s": 0.01}, errors.Overloaded, r"would come 0\.02 s too late"),
    ({}, {**MAIN, "queue_timeout_s": 0.1}, None, ""),
    ({}, {**MAIN, "deadline": 0.13}, errors.Overloaded, LATE),
    ({}, {"deadline": 0.05}, errors.DeadlineMissed, r"takes 0\.06 s and the deadline is in 0\.05 s"),
    ({"frames": 400, **MAIN}, {**MAIN, "queue_timeout_s": 1.0}, errors.Overloaded, TURN),
    ({"frames": 400, **MAIN}, {**MAIN, "queue_timeout_s": 9.0}, None, ""),
    ({}, {"name": "first"}, errors.InvalidRequest, "request_id"),
])  # fmt: skip
def test_a_second_request_if_one_fits_at_once(
    first: dict[str, Any], second: dict[str, Any], error: type[Exception] | None, message: str
) -> None:
    """On a serial channel the second waits for the engine. Elsewhere it waits as long as it says, or a
    minute; REALTIME never waits."""
    bench = Bench(normal_s=0.1, realtime_s=0.1)
    jobs = [bench.admit("first", **first)]
    given = {"name": "second", **second}
    if error is None:
        jobs.append(bench.admit(**given))
    else:
        with pytest.raises(error, match=message):
            bench.admit(**given)
        assert bench.scheduler.load == RequestCounts(waiting=1)
    bench.serve()
    assert all(job.audible is not None and job.audible <= job.due and not job.late_s for job in jobs)


@pytest.mark.parametrize("patience_s", [None, 60.0])
def test_a_line_that_may_wait_is_promised_no_later_than_need_be(patience_s: float | None) -> None:
    bench = Bench(normal_s=0.1)
    bench.admit("first")
    lines = [bench.admit(f"line{n}", queue_timeout_s=patience_s, **MAIN) for n in range(6)]
    assert lines[0].due == pytest.approx(bench.now + 2 * 6 * CALL_S * 1.1 + MARGIN_S)
    gaps = [later.due - earlier.due for earlier, later in itertools.pairwise(lines)]
    assert gaps == pytest.approx([lines[0].audio_s] * 5)


def test_a_whole_reply_is_due_later_by_the_time_that_it_sounds() -> None:
    stream, whole = (Bench(normal_s=9.0).admit("a", 3, stream=stream) for stream in (True, False))
    assert whole.due - stream.due == pytest.approx(whole.audio_s)


def test_a_full_line_does_not_keep_out_another_user() -> None:
    bench = Bench(normal_s=0.4, patience_s=0.0)
    # Spare time for newcomers makes no line late.
    assert not any(job.late_s for job in fill(bench, "ann", user="ann", queue_timeout_s=0.3))
    bench.admit("bob", user="bob")
    bench.serve()
    assert bench.ends()["bob"] is SegmentAudio


def test_the_first_request_of_a_caller_may_be_twice_as_late_next_to_a_flood() -> None:
    bench = Bench(normal_s=0.3, patience_s=0.0)
    many = fill(bench, "many", caller="many")
    assert len(many) > 1
    firsts: list[Job] = []
    with pytest.raises(errors.Overloaded):
        while True:
            firsts.append(bench.admit(f"first{len(firsts)}", caller=f"caller{len(firsts)}"))
    in_s = [job.due - bench.now for job in firsts]
    assert in_s == sorted(in_s) and 0.3 < 0.6 - 6 * CALL_S * BIAS < in_s[-1] <= 0.6
    for again in ("many", "caller0"):
        with pytest.raises(errors.Overloaded):
            bench.admit("again", caller=again)
    bench.serve()
    assert all(job.audible is not None and job.audible <= job.due for job in [*many, *firsts])


def test_a_caller_s_deadline_before_its_turn_is_no_reason_to_refuse(bench: Bench) -> None:
    """A caller's deadline concerns the reply, which the engine makes long before playback."""
    for number in range(9):
        bench.admit(f"line{number}", frames=400, deadline=bench.now + 10.0, **MAIN)
    bench.serve()
    assert list(bench.ends().values()) == [SegmentAudio] * 9


def test_fewer_steps_precede_a_wait_or_a_refusal() -> None:
    bench = Bench(normal_s=0.3)
    ways = [pieces("a", 1, nfe) for nfe in (12, 11, 4)]
    nfes = []
    for number in range(4):
        job = bench.job(f"j{number}", channel=f"c{number}", playout=Playout.SERIAL)
        bench.scheduler.admit(job, ways)
        nfes.append((job.timings.nfe, job.due <= bench.now + 2.2 * 14 * CALL_S))
    assert nfes == [(12, True), (4, True), (4, False), (4, False)]

    bench = Bench(normal_s=0.3, patience_s=0.0)
    jobs = [bench.job(f"j{number}") for number in range(3)]
    assert [bench.scheduler.admit(job, ways) for job in jobs[:2]] == [0, 2]
    with pytest.raises(errors.Overloaded):
        bench.scheduler.admit(jobs[2], ways)
    bench.serve()
    assert [job.timings.nfe for job in jobs[:2]] == [12, 4]


def test_a_serial_channel_of_a_slow_box_begins_late_and_then_plays_without_a_gap(bench: Bench) -> None:
    line = bench.job("line", **MAIN)
    bench.scheduler.admit(line, [[replace(piece, audio_s=0.01) for piece in pieces("line", 5)]])
    assert not line.late_s
    heard = []
    line.deliver = lambda result: heard.append(bench.now)
    bench.work()
    assert heard[0] <= line.due
    assert all(at <= heard[0] + 0.01 * number + 1e-9 for number, at in enumerate(heard))


def test_a_box_that_is_too_slow_serves_late_rather_than_never() -> None:
    bench = Bench(Device(1.0), patience_s=0.0)
    assert bench.admit("a", 3).late_s > 0.0
    with pytest.raises(errors.Overloaded):
        bench.admit("b")
    bench.serve()
    assert bench.ends() == {"a": SegmentAudio}


def test_a_promise_includes_the_margin(bench: Bench) -> None:
    """The margin is the time to the caller's end of the connection."""
    job = bench.admit("a")
    workload = bench.scheduler._workload
    for spare_s in (0.01, -0.01):
        now = job.due - 6 * CALL_S * BIAS - MARGIN_S - spare_s
        [excess_s] = excesses_s(workload, now, workload.timetable(now))
        assert excess_s == pytest.approx(-spare_s)


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
    job.channel = Channel("")
    segments = [replace(piece, audio_s=s) for piece, s in zip(pieces("own", len(audio)), audio, strict=True)]
    costs = tuple(map(bench.engine.costs.of, segments))
    busy = [Demand(now + due, cost_s, bench.job("other")) for due, cost_s in others]
    for count in (1, len(segments)):  # ways in the order in which a choice tries them
        job.take(Way(0, tuple(segments[:count]), costs[:count]), now + soonest_s)
        found = earliest(bench.scheduler._workload, job, now, busy)

    def broken(demands: list[tuple[float, float]]) -> set[float]:
        """Deadlines that are missed if the work is done in the order of the list."""
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


def test_places_in_the_line_are_shared() -> None:
    bench = Bench(queue_length=8)
    for number in range(4):
        bench.admit(f"a{number}", caller="a", **BULK)
    with pytest.raises(errors.QueueFull, match="4 requests of this caller wait already, which is its share"):
        bench.admit("a4", caller="a", **BULK)
    for number in range(4):
        bench.admit(f"b{number}", caller=f"b{number}", **BULK)
    with pytest.raises(errors.QueueFull, match="8 requests wait already, which is the limit"):
        bench.admit("c", caller="c", **BULK)


def test_the_pages_example_of_shares(bench: Bench) -> None:
    jobs = [bench.job(f"chat{number}", channel="chat") for number in range(8)]
    work_s = dict.fromkeys([*jobs, bench.job("alert", channel="alerts")], 0.6)
    newcomer_s = ROOM * 0.4
    share = share_of(jobs[-1], "channel", work_s, newcomer_s, {})
    assert share is not None and share.is_exceeded
    expected = expected_newcomers(share.owners, 9 * 0.6, newcomer_s, BIAS, most=len(work_s))
    first_s = STRETCH[Priority.NORMAL] * newcomer_s
    last_s = (expected.count - 1) * expected.apart_s
    page = (Path(__file__).parents[2] / "appliance/scheduler/README.md").read_text("utf-8")
    for line in (
        f"newcomer = 1.5 · 0.4 s = {newcomer_s:.1f} s\n",
        f"used     = 8 · 0.6 s = {share.used_s:.1f} s\n",
        f"allowed  = 1 / (1 + 1 + 1) · (9 · 0.6 s + 0.6 s) = {share.allowed_s:.1f} s\n",
        f"count    = ⌈{share.all_s:.1f} s / 0.6 s / 2⌉ = {expected.count}\n",
        f"apart    = (2 + 1) · 0.6 s · 1.1 = {expected.apart_s:.2f} s\n",
        f"the first due in {first_s:.2f} s (2.2 · 0.6 s), the last {last_s:.2f} s later.",
    ):
        assert line in page
    lighter = share_of(jobs[-1], "channel", work_s, newcomer_s, {"chat": 8.0})
    assert lighter is not None and lighter.allowed_s == pytest.approx(8 / 10 * 6.0)
    assert not lighter.is_exceeded
    assert share_of(jobs[-1], "user", work_s, newcomer_s, {}) is None


def test_the_rate_of_one_user_and_a_refused_request_replaces_nothing() -> None:
    bench = Bench(user_rate=2.0)
    bench.admit("a", user="ann", **STATUS)
    bench.admit("b", user="ann", **BULK)
    with pytest.raises(errors.RateLimited, match="2 requests a minute") as refused:
        bench.admit("c", user="ann", **STATUS)
    assert refused.value.retry_s == pytest.approx(30.0)
    bench.admit("d", user="bob", **BULK)
    bench.now += 30.1
    bench.admit("e", user="ann", **BULK)
    bench.serve()
    assert bench.ends()["a"] is SegmentAudio


def state_of(bench: Bench) -> object:
    """State that an admission may change, without the new job."""
    workload, admission = bench.scheduler._workload, bench.scheduler._admission
    channels = [(key, list(channel.jobs), channel.free) for key, channel in workload.channels.items()]
    jobs = [(job, job.due, job.late_s, job.ended, job.channel) for job in workload.jobs.values()]
    known = dict(admission._rates), admission._typical.first_s, admission._admitted
    return channels, jobs, dict(workload.used_s), list(workload.history), known


@pytest.mark.parametrize("channel", ["main", "new"])
@pytest.mark.parametrize("kind", [RuntimeError, errors.Overloaded])
def test_an_error_on_the_way_leaves_everything_as_it_was(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, channel: str, kind: type[Exception]
) -> None:
    """The error may be unexpected, and comes within the proof, with jobs to replace and a job to merge
    with."""
    serial = {"playout": Playout.SERIAL, "supersede": "score", "merge": "rose", "user": "ann"}
    for number in range(3):
        bench.admit(f"j{number}", channel="main", **(serial if number == 1 else {"playout": Playout.SERIAL}))
    merging = bench.scheduler._workload.jobs["j1"] if channel == "main" else None
    before = state_of(bench)
    job = bench.job("new", channel=channel, **serial)
    monkeypatch.setattr("appliance.scheduler.choice.earliest", raising(kind("odd")))
    with pytest.raises(kind, match="odd"):
        bench.scheduler.admit(job, [pieces("new", 1)], merging)
    assert state_of(bench) == before
    assert bench.scheduler.load == RequestCounts(waiting=3) and bench.results["j1"] == []
    monkeypatch.undo()
    assert bench.scheduler.admit(job, [pieces("new", 1)], merging) == 0
    bench.serve()
    assert bench.ends()["new"] is SegmentAudio
    assert bench.ends()["j1"] is (errors.Merged if channel == "main" else SegmentAudio)


def test_replies_of_a_channel_are_due_one_after_the_other(bench: Bench) -> None:
    jobs = [bench.admit(name, 2, frames=400, **MAIN) for name in "abc"]
    gaps = [later.due - earlier.due for earlier, later in itertools.pairwise(jobs)]
    assert gaps == pytest.approx([jobs[0].audio_s] * 2)
    bench.serve()
    assert bench.opened() == ["a0", "a1", "b0", "b1", "c0", "c1"]


def test_cached_audio_is_delivered_at_once_and_plays_in_its_turn(bench: Bench) -> None:
    before = bench.admit("before", frames=400, **MAIN)
    again = kept(bench, "again", **MAIN)
    behind = bench.admit("behind", frames=400, **MAIN)
    assert made(bench, "again") == [0, 1]
    assert again.due == pytest.approx(before.due + before.audio_s)
    assert behind.due == pytest.approx(again.due + again.audio_s)
    assert bench.engine.calls == [] and bench.scheduler.load.waiting == 2
    bench.scheduler.queue.cancel(again)
    bench.scheduler.queue.sent(again, 1.0)
    bench.serve()
    assert bench.opened() == ["before0", "behind0"]
    assert set(bench.ends().values()) == {SegmentAudio}
    assert again.timings.steps_s == 0.0


def test_cached_audio_sounds_until_its_end(bench: Bench) -> None:
    again = kept(bench, "again", **MAIN)
    bench.now += 1.0
    behind = bench.admit("behind", **MAIN)
    assert behind.due == pytest.approx(bench.now - 1.0 + again.audio_s)
    bench.now += 60.0
    assert kept(bench, "soon", **MAIN, **BULK).due == math.inf


def test_cached_audio_waits_on_a_paused_channel(bench: Bench) -> None:
    bench.scheduler.queue.pause("main")
    again, other = kept(bench, "again", **MAIN), kept(bench, "other", **MAIN)
    assert bench.results["again"] == []
    bench.scheduler.queue.cancel(other)
    bench.now += 3.0
    bench.scheduler.queue.resume("main")
    assert made(bench, "again") == [0, 1]
    assert (again.audible, bench.scheduler.load) == (bench.now, RequestCounts())
    assert bench.ends() == {"again": SegmentAudio, "other": errors.Cancelled}


def test_cached_audio_obeys_the_limits() -> None:
    bench = Bench(user_rate=2.0, queue_length=1)
    for name in ("one", "two"):
        kept(bench, name, user="ann")
    with pytest.raises(errors.RateLimited):
        kept(bench, "three", user="ann")
    bench.admit("waits")
    kept(bench, "full line")
    with pytest.raises(errors.InvalidRequest, match="request_id"):
        kept(bench, "waits")
    bench.scheduler.drain()
    with pytest.raises(errors.Unavailable):
        kept(bench, "late")


@pytest.mark.parametrize("enter", [kept, Bench.admit])
def test_more_speech_than_a_channel_may_hold_is_refused(enter: Callable[..., Job]) -> None:
    bench = Bench(backlog_s=10.0)
    with pytest.raises(errors.QueueFull, match="s of speech wait on this channel already; at most 10 s may"):
        for number in itertools.count():
            enter(bench, f"j{number}", 40, **MAIN)
    enter(bench, "elsewhere", channel="other", playout=Playout.SERIAL)
    bench.scheduler.queue.pause("main")
    bench.now += 1_000.0
    with pytest.raises(errors.QueueFull):
        enter(bench, "still waits", 40, **MAIN)


def test_a_full_channel_staggers_the_retries_of_refused_requests() -> None:
    """The retries succeed: no request is refused twice, and their order stays."""
    bench, retries, played_s = Bench(backlog_s=10.0), [], 0.0
    for number in range(24):
        try:
            played_s = bench.admit(f"j{number}", frames=400, **MAIN).audio_s
        except errors.QueueFull as full:
            retries.append((bench.now + full.retry_s, number))
    gaps = [later - earlier for (earlier, _), (later, _) in itertools.pairwise(retries)]
    assert len(gaps) >= 16 and gaps == pytest.approx([played_s] * len(gaps))
    for again, number in retries:
        bench.work()
        bench.now = max(bench.now, again)
        bench.admit(f"j{number} again", frames=400, **MAIN)


def test_a_later_request_replaces_one_that_does_not_sound_yet(bench: Bench) -> None:
    bench.admit("sounding", frames=400, **STATUS)
    bench.until("sounding")
    bench.admit("waiting", **STATUS)
    bench.admit("other channel", **{**STATUS, "channel": "b"})
    newest = bench.admit("newest", **STATUS)
    assert isinstance(bench.results["waiting"][-1], errors.Superseded)
    again = kept(bench, "made already", **STATUS)
    assert newest.ended and again.due < newest.due + newest.audio_s
    bench.serve()
    spoken = ("sounding", "other channel", "made already")
    ends = {"waiting": errors.Superseded, "newest": errors.Superseded, **dict.fromkeys(spoken, SegmentAudio)}
    assert bench.ends() == ends


@pytest.mark.parametrize(
    "terms", [{}, {"queue_timeout_s": 20.0}, {"channel": "main"}, {"playout": Playout.SERIAL}]
)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("first_audio_s", [0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 1.0])
def test_sixteen_at_once_of_one_caller_are_all_taken_and_in_time(
    first_audio_s: float, stream: bool, terms: dict[str, Any]
) -> None:
    """Open WebUI and an SDK's gather request an answer's sentences so: all at once, without a channel."""
    bench = Bench(Device(first_audio_s / 6), lanes=4)
    given = {"caller": "http 127.0.0.1", "client": "ipv4:1", "stream": stream, "frames": 900, **terms}
    jobs = [bench.admit(f"s{number}", **given) for number in range(16)]
    bench.serve()
    assert list(bench.ends().values()) == [SegmentAudio] * 16
    assert all(job.audible is not None and job.audible <= job.due + job.late_s for job in jobs)
