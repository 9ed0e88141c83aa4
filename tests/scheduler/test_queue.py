"""The queue: waiting and sounding lines, and a moderator's verbs; on the fake engine and clock."""

import math

import pytest

from appliance.errors import ApplianceError, Cancelled, Cleared, DeadlineMissed, Merged, QueueFull, Skipped
from appliance.request import Playout, Priority, SegmentAudio
from appliance.scheduler.job import Job, State
from appliance.scheduler.queue import MAX_PAUSED
from tests.harness.engine import Device
from tests.harness.scheduler import Bench
from tests.harness.segments import pieces

SERIAL = Playout.SERIAL


def say(bench: Bench, name: str, channel: str = "stage", segments: int = 1, **options: object) -> Job:
    return bench.admit(name, segments, channel=channel, playout=SERIAL, **options)


def seen(bench: Bench) -> dict[str, State]:
    return {u.job.terms.request_id: u.state for u in bench.scheduler.queue.utterances()[0]}


def ended(bench: Bench) -> dict[str, type | None]:
    return {u.job.terms.request_id: u.why and type(u.why) for u in bench.scheduler.queue.utterances()[1]}


def sounding(bench: Bench, channel: str = "stage") -> list[str]:
    return [name for name, state in seen(bench).items() if state is State.SOUNDING]


def end(bench: Bench, state: State, why: ApplianceError, channel: str = "stage") -> list[str]:
    found = bench.scheduler.queue.end(lambda u: u.state is state and u.job.terms.channel == channel, why)
    return [u.job.terms.request_id for u in found]


def skip(bench: Bench, channel: str = "stage") -> list[str]:
    return end(bench, State.SOUNDING, Skipped("skipped"), channel)


def made(bench: Bench, name: str) -> int:
    return sum(isinstance(result, SegmentAudio) for result in bench.results[name])


def test_a_reply_sounds_until_it_has_been_played_and_then_the_next_one(bench: Bench) -> None:
    first, second = say(bench, "a"), say(bench, "b")
    assert seen(bench) == {"a": State.WAITING, "b": State.WAITING}
    bench.work()
    assert first.ended and second.ended  # the engine has finished both
    assert seen(bench) == {"a": State.SOUNDING, "b": State.WAITING}
    bench.now += first.audio_s
    assert seen(bench) == {"b": State.SOUNDING}
    assert ended(bench) == {"a": None}
    bench.now += second.audio_s
    assert seen(bench) == {} and ended(bench) == {"a": None, "b": None}


def test_a_reply_without_a_channel_ends_with_its_last_audio(bench: Bench) -> None:
    bench.admit("a", client="ipv4:1", playout=SERIAL)
    bench.work()
    assert seen(bench) == {} and ended(bench) == {"a": None}


@pytest.mark.parametrize("is_made", [True, False])
def test_a_skipped_reply_gives_its_channel_to_the_next(bench: Bench, is_made: bool) -> None:
    first = say(bench, "a", segments=6)
    second = say(bench, "b")
    if is_made:
        bench.work()
    else:
        bench.until("a")
    assert sounding(bench) == ["a"] and first.ended is is_made
    assert skip(bench, "other") == []
    assert skip(bench) == ["a"]
    assert ended(bench) == {"a": Skipped}
    if not is_made:
        assert bench.ends()["a"] is Skipped
    bench.work()
    assert sounding(bench) == ["b"]
    bench.now += second.audio_s
    assert seen(bench) == {}
    assert bench.engine.lanes == 0


def test_clear_leaves_what_sounds(bench: Bench) -> None:
    for name in "abc":
        say(bench, name)
    say(bench, "d", "other")
    bench.work()
    say(bench, "e")
    assert end(bench, State.WAITING, Cleared("cleared")) == ["b", "c", "e"]
    assert bench.ends()["e"] is Cleared
    assert seen(bench) == {"a": State.SOUNDING, "d": State.SOUNDING}


def test_a_paused_channel_is_synthesised_and_resumes_in_place(bench: Bench) -> None:
    first = say(bench, "a", segments=4)
    bench.work()
    bench.now += 0.3 * first.audio_s
    bench.scheduler.queue.pause("stage")
    second = say(bench, "b")
    other = say(bench, "c", "other")
    bench.work()
    assert made(bench, "b") == 0 and second.is_done and not second.ended
    assert made(bench, "c") == 1 and other.ended
    bench.now += 100.0
    assert seen(bench) == {"a": State.SOUNDING, "b": State.WAITING}
    assert list(bench.scheduler.queue.paused) == ["stage"]
    bench.scheduler.queue.resume("stage")
    assert made(bench, "b") == 1 and second.ended
    bench.now += 0.6 * first.audio_s
    assert sounding(bench) == ["a"]
    bench.now += 0.2 * first.audio_s
    assert sounding(bench) == ["b"]
    assert bench.scheduler.queue.paused == {}


@pytest.mark.parametrize("paused_first", [True, False])
def test_the_line_after_a_skip_plays_whole_around_a_pause(bench: Bench, paused_first: bool) -> None:
    """The audio was sent long before: the pause counts from the line's playback."""
    say(bench, "a", segments=9)
    second, third = say(bench, "b"), say(bench, "c")
    bench.work()
    bench.now += 1.0
    if paused_first:
        bench.scheduler.queue.pause("stage")
    assert skip(bench) == ["a"] and sounding(bench) == ["b"]
    heard_s = 0.0 if paused_first else 0.5 * second.audio_s
    bench.now += heard_s
    bench.scheduler.queue.pause("stage")
    bench.now += 100.0
    bench.scheduler.queue.resume("stage")
    assert sounding(bench) == ["b"]
    bench.now += 0.9 * (second.audio_s - heard_s)
    assert sounding(bench) == ["b"]
    bench.now += 0.2 * second.audio_s
    assert sounding(bench) == ["c"]
    bench.now += third.audio_s
    assert seen(bench) == {}


def test_pause_holds_a_reply_in_its_midst_and_a_whole_one(bench: Bench) -> None:
    say(bench, "a", segments=3)
    bench.until("a")
    whole = say(bench, "b", "other", stream=False)
    bench.scheduler.queue.pause("stage")
    bench.scheduler.queue.pause("other")
    bench.work()
    assert made(bench, "a") == 1 and made(bench, "b") == 0
    bench.scheduler.queue.resume("stage")
    bench.scheduler.queue.resume("other")
    bench.work()
    assert made(bench, "a") == 3 and made(bench, "b") == 1 and whole.ended


def test_a_line_of_a_resumed_channel_gets_a_new_promise_that_delays_none(bench: Bench) -> None:
    bench.scheduler.queue.pause("stage")
    waiting = [say(bench, name, segments=3) for name in "ab"]
    assert all(job.due == math.inf for job in waiting)
    bench.now += 60.0
    promised = [say(bench, f"c{i}", f"c{i}", segments=2, nfe=10) for i in range(2)]
    bench.scheduler.queue.resume("stage")
    assert all(bench.now < job.due < math.inf for job in waiting)
    bench.work()
    for job in promised:
        assert job.audible is not None and job.audible <= job.due
    assert [made(bench, name) for name in "ab"] == [3, 3]


def test_a_channel_resumed_within_a_long_call_is_promised_after_it() -> None:
    """A promise does not interrupt another job's step, which here takes longer than the line with all its
    slack."""
    bench = Bench(Device(0.0, token_s=1e-4))
    bench.scheduler.queue.pause("stage")
    line = say(bench, "line")
    bench.admit("long", frames=20_000)
    bench.at(bench.now + 1.0, lambda: bench.scheduler.queue.resume("stage"))
    bench.work()
    assert "step" in bench.engine.calls[: bench.engine.calls.index("open line0")]
    assert line.late_s > 0.0 and line.audible is not None
    assert line.audible <= line.due + line.late_s


def test_a_deadline_counts_while_a_channel_is_paused(bench: Bench) -> None:
    bench.scheduler.queue.pause("stage")
    say(bench, "a", deadline=bench.now + 5.0)
    bench.work()
    bench.now += 6.0
    bench.scheduler.run_once()
    assert bench.ends()["a"] is DeadlineMissed
    assert "paused" in str(bench.results["a"][-1])


def test_paused_channels_are_bounded(bench: Bench) -> None:
    for number in range(MAX_PAUSED):
        bench.scheduler.queue.pause(str(number))
    bench.scheduler.queue.pause("0")
    with pytest.raises(QueueFull, match="channels are paused"):
        bench.scheduler.queue.pause("one more")
    bench.scheduler.queue.resume("one more")  # not paused before


def merge(bench: Bench, name: str, key: str = "rose", **options: object) -> Job:
    job = bench.job(name, channel="stage", playout=SERIAL, merge=key)
    earlier = bench.scheduler.queue.mergeable(job.terms)
    job.merged = 1 + (earlier.merged if earlier else 0)
    assert bench.scheduler.admit(job, [pieces(name, 1)], earlier) == 0
    return job


def test_a_merged_request_replaces_the_waiting_one(bench: Bench) -> None:
    say(bench, "now")
    bench.scheduler.run_once()
    merge(bench, "one rose")
    say(bench, "later")
    merge(bench, "a kiss", "kiss")
    merge(bench, "two roses")
    last = merge(bench, "three roses")
    assert last.merged == 3
    assert list(seen(bench)) == ["now", "three roses", "later", "a kiss"]
    assert ended(bench) == {"one rose": Merged, "two roses": Merged}
    bench.work()
    assert bench.opened() == ["now0", "three roses0", "later0", "a kiss0"]


@pytest.mark.parametrize("calls", [0, 1, 3, 99])
def test_a_line_that_does_not_sound_yet_is_merged_at_any_progress(bench: Bench, calls: int) -> None:
    now = say(bench, "now", segments=9)
    while not now.ended:
        bench.scheduler.run_once()
    first = merge(bench, "one rose")
    for _ in range(calls):
        bench.scheduler.run_once()
    assert (first.begun, first.ended) == (calls > 0, calls == 99)
    merge(bench, "two roses")
    assert seen(bench) == {"now": State.SOUNDING, "two roses": State.WAITING}
    bench.now += now.audio_s
    bench.work()
    assert sounding(bench) == ["two roses"] and bench.engine.lanes == 0
    assert merge(bench, "three roses").merged == 1, "what sounds is not merged with"
    late = bench.job("late", channel="stage", playout=SERIAL, merge="rose")
    assert bench.scheduler.admit(late, [pieces("late", 1)]) is None, "planned without the one that waits"


def test_a_reader_that_leaves_before_it_has_read_all_frees_its_channel(bench: Bench) -> None:
    first = say(bench, "a", segments=4)
    say(bench, "b")
    bench.work()
    bench.scheduler.queue.stop_playout(first)
    assert sounding(bench) == ["b"] and ended(bench) == {"a": Cancelled}
    bench.scheduler.queue.stop_playout(first)
    assert ended(bench) == {"a": Cancelled}


def test_changes_are_announced_and_ended_requests_are_remembered(bench: Bench) -> None:
    changes: list[None] = []
    bench.scheduler.queue.watch(lambda: changes.append(None))
    say(bench, "a", priority=Priority.HIGH)
    assert changes
    changes.clear()
    bench.work()
    assert changes
    _, past, number = bench.scheduler.queue.utterances()
    assert past == []
    bench.now += 60.0
    _, past, number = bench.scheduler.queue.utterances(number)
    assert [u.job.terms.request_id for u in past] == ["a"]
    assert bench.scheduler.queue.utterances(number) == ([], [], number)
