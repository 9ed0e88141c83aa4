"""The rule of when finished audio is sent, row by row; and that it is sent once."""

import math
from dataclasses import replace
from typing import Any

import pytest

from appliance.request import Priority, RequestCounts, SegmentAudio
from appliance.scheduler.job import GOING, Job, Paused, Unapproved
from appliance.scheduler.release import Delivery, Early
from tests.harness.engine import CALL_S, Device
from tests.harness.scheduler import Bench
from tests.harness.segments import segment

OUT, LATER, EARLY = -math.inf, math.inf, "due"


@pytest.mark.parametrize(("until", "job", "rule"), [
    (EARLY, {}, {}),
    (OUT, {}, {"breaks": False}),
    (OUT, {"late_s": 1.0}, {}),
    (OUT, {}, {"in_s": 0.0}),
    (OUT, {"audible": 0.0}, {}),
    (OUT, {"segments_done": 2}, {}),
    (OUT, {"segments_done": 2, "stream": False}, {}),
    (LATER, {"stream": False}, {}),
    (LATER, {"stream": False, "late_s": 1.0}, {"breaks": False, "in_s": 0.0}),
    (LATER, {}, {"hold": Paused(0.0)}),
    (LATER, {"segments_done": 2, "audible": 0.0}, {"hold": Unapproved(0.0)}),
])  # fmt: skip
def test_the_rule(
    monkeypatch: pytest.MonkeyPatch, until: float | str, job: dict[str, object], rule: dict[str, Any]
) -> None:
    alarms: list[float] = []
    bench = Bench()
    known = bench.admit("a", 2)
    for name, value in {"done": 1, **job}.items():
        setattr(known, name, value)
    known.channel.hold = rule.get("hold", GOING)
    now = known.due - rule.get("in_s", 0.1)
    monkeypatch.setattr(Early, "_breaks_promise", lambda *_: rule.get("breaks", True))
    delivery = Delivery(bench.scheduler._workload, lambda when, act: alarms.append(when))
    delivery.release(known, now)
    assert (known.audible is not None and not known.channel.hold.stage) is (until == OUT)
    assert alarms == ([known.due] if until == EARLY else [])


@pytest.mark.parametrize("segments", [1, 2])
def test_a_finished_reply_is_sent_before_it_is_due_even_if_others_are_late(segments: int) -> None:
    """A finished reply cannot stall. Its held audio is sent too, and the reply leaves the workload."""
    bench = Bench(normal_s=1.0)
    early, behind = bench.admit("early", segments, frames=20), bench.admit("behind", nfe=60)
    bench.scheduler.run_once()
    bench.now = early.due - (6 * segments + 1) * CALL_S  # one call took far longer than estimated
    while not early.is_done:
        assert bench.results["early"] == []
        bench.scheduler.run_once()
    assert bench.now < early.due and bench.now + 62 * CALL_S > behind.due
    assert bench.ends() == {"early": SegmentAudio} and len(bench.results["early"]) == segments
    assert early.ended and bench.scheduler.load == RequestCounts(waiting=1)
    assert len(bench.alarms) == segments - 1
    for when, act in bench.alarms:
        bench.now = when
        act()
    assert len(bench.results["early"]) == segments


def held_first_piece() -> tuple[Bench, Job]:
    """A stream with a finished first piece on hold: it plays for 0.1 s, and the second takes longer."""
    bench = Bench(normal_s=1.0)
    job = bench.job("a")
    first, second = segment("a0", nfe=2), segment("a1", index=1, nfe=40)
    bench.scheduler.admit(job, [[replace(first, audio_s=0.1), replace(second, audio_s=9.0)]])
    while job.segments_done < 1:
        bench.scheduler.run_once()
    assert bench.results["a"] == []
    return bench, job


def test_a_first_sound_too_early_for_the_rest_is_held_until_its_time() -> None:
    bench, job = held_first_piece()
    while not bench.results["a"]:
        before = bench.now
        bench.scheduler.run_once()
    assert before < bench.now < job.due and job.segments_done == 1, "what is left has become short enough"
    assert [when for when, _ in bench.alarms] == [job.due]
    bench.serve()
    assert bench.ends() == {"a": SegmentAudio}


@pytest.mark.parametrize("before_s", [0.0, 1e-6])
def test_a_held_first_sound_goes_out_when_it_is_due(before_s: float) -> None:
    """An alarm may ring a moment early."""
    bench, job = held_first_piece()
    [(when, act)] = bench.alarms
    bench.now = when - before_s
    act()
    assert len(bench.results["a"]) == 1 and job.audible == bench.now and not job.ended
    act()
    assert len(bench.results["a"]) == 1
    bench.serve()
    assert job.ended and bench.scheduler.load == RequestCounts()


def test_an_alarm_rings_for_each_held_first_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    audio = held_first_piece()[1].unreleased
    monkeypatch.setattr(Early, "_breaks_promise", lambda *_: True)
    bench = Bench()
    jobs = {due: bench.admit(f"due {due}", 2) for due in (2.0, 1.0, 3.0)}
    for due, job in jobs.items():
        job.due, job.segments_done, job.unreleased = due, 1, list(audio)
    bench.scheduler._delivery.release_all()
    for due in sorted(jobs):
        bench.advance(due)
    assert [job.audible for job in jobs.values()] == [2.0, 1.0, 3.0] and bench.alarms == []


@pytest.mark.parametrize("how", ["cancelled", "paused"])
def test_a_held_first_sound_does_not_go_out_of_a_job_that_is_cancelled_or_paused(how: str) -> None:
    bench, job = held_first_piece()
    if how == "cancelled":
        bench.scheduler.queue.cancel(job)
    else:
        bench.scheduler.queue.pause("")
    bench.now = job.due
    bench.alarms[0][1]()
    assert not any(isinstance(result, SegmentAudio) for result in bench.results["a"])
    _, ended, _ = bench.scheduler.queue.utterances()
    assert not any(one.job.unreleased for one in ended), "the history keeps no audio"


def test_a_reply_that_is_not_streamed_goes_out_whole() -> None:
    bench = Bench()
    job = bench.admit("a", 3, stream=False)
    while not job.is_done:
        assert bench.results["a"] == [] and job.audible is None
        bench.scheduler.run_once()
    assert len(bench.results["a"]) == 3 and job.audible == bench.now


def test_audio_without_a_promise_is_sent_at_once() -> None:
    """The job is BULK work, or late in any case."""
    for call_s, terms in ((CALL_S, {"priority": Priority.BULK}), (1.0, {})):
        bench = Bench(Device(call_s), patience_s=0.0)
        job = bench.admit("a", 3, **terms)
        assert bool(job.late_s) is (call_s == 1.0)
        while not job.segments_done:
            bench.scheduler.run_once()
        assert len(bench.results["a"]) == 1
