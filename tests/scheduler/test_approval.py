"""Approval in the scheduler: a held line plays after a moderator approves it."""

import dataclasses
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import DeadlineMissed, Merged, Overloaded, QueueFull, Rejected, Superseded, Unavailable
from appliance.request import Priority, RequestCounts
from appliance.scheduler.job import Job, State
from appliance.scheduler.queue import MAX_PAUSED
from tests.harness.engine import CALL_S, DEVICES, ORIN
from tests.harness.scheduler import Bench, Message, chat, cut
from tests.harness.segments import pieces
from tests.scheduler.test_promises import check_promises, late_s, loads, workloads
from tests.scheduler.test_queue import SERIAL, ended, made, merge, say, seen


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.scheduler.queue.moderate("stage", True)
    return bench


def approve(bench: Bench, *names: str) -> list[tuple[str, State]]:
    """Approve the named lines, or all held lines."""
    done = bench.scheduler.queue.approve(lambda u: not names or u.job.terms.request_id in names)
    return [(u.job.terms.request_id, u.state) for u in done]


def test_nothing_of_a_held_line_goes_out_before_it_is_approved(bench: Bench) -> None:
    line = say(bench, "a", segments=3)
    bench.work()
    assert line.is_done and made(bench, "a") == 0
    bench.now += 1_000.0
    bench.work()
    assert made(bench, "a") == 0 and seen(bench) == {"a": State.HELD}
    at = bench.now
    assert approve(bench) == [("a", State.SOUNDING)]
    assert made(bench, "a") == 3 and line.ended and line.audible == bench.now == at
    bench.now += line.audio_s
    assert seen(bench) == {} and ended(bench) == {"a": None}


def test_lines_are_played_in_the_order_in_which_they_are_approved(bench: Bench) -> None:
    lines = {name: say(bench, name) for name in "abc"}
    bench.work()
    assert approve(bench, "c") == [("c", State.SOUNDING)]
    bench.now += 0.5 * lines["c"].audio_s
    assert approve(bench, "a") == [("a", State.WAITING)]
    # Held lines do not delay other lines.
    assert list(seen(bench).items()) == [("b", State.HELD), ("c", State.SOUNDING), ("a", State.WAITING)]
    bench.now += 0.6 * lines["c"].audio_s
    assert seen(bench) == {"b": State.HELD, "a": State.SOUNDING}
    assert approve(bench, "a", "nobody") == []


def test_a_line_that_is_not_made_yet_is_promised_when_it_is_approved(bench: Bench) -> None:
    lines = [say(bench, name, segments=3) for name in "ab"]
    assert all(line.due == math.inf and not line.guaranteed for line in lines)
    bench.engine.costs.factor = 3.0  # learnt while the lines wait
    bench.now += 60.0
    approve(bench)
    assert [line.cost for line in lines] == [bench.engine.costs.of(line.segment) for line in lines]
    assert bench.now < lines[0].due < lines[1].due < math.inf
    bench.work()
    for line in lines:
        assert line.audible is not None and line.audible <= line.due


def test_a_held_line_is_synthesised_in_idle_time(bench: Bench) -> None:
    held = [say(bench, name, segments=4, nfe=10) for name in "abcde"]
    bench.scheduler.run_once()
    promised = bench.admit("promised", 3, nfe=10)
    bench.until("promised", 3)
    assert promised.ended and not any(line.segments_done for line in held)
    bench.work()
    assert all(line.is_done for line in held)


def test_a_held_line_leaves_its_lane_to_promised_work(bench: Bench) -> None:
    bench.engine.max_lanes = 1
    say(bench, "held", nfe=50)
    for _ in range(3):
        bench.scheduler.run_once()
    promised = bench.admit("promised")
    bench.until("promised")
    assert promised.audible is not None and promised.audible <= promised.due
    bench.work()
    approve(bench)
    assert made(bench, "held") == 1


@pytest.mark.parametrize("during_a_call", [False, True])
def test_a_line_gives_up_the_last_lane_to_who_counts_on_it(bench: Bench, during_a_call: bool) -> None:
    bench.engine.max_lanes = 1
    line = say(bench, "held", nfe=100)
    for _ in range(10):
        bench.scheduler.run_once()
    word: Job | None = None

    def a_word_and_the_approval(seconds: float = CALL_S) -> None:
        nonlocal word
        bench.tick(seconds)
        if word is None:
            word = bench.admit("word", priority=Priority.REALTIME)
            approve(bench)

    if during_a_call:
        bench.engine.on_call = a_word_and_the_approval
    else:
        a_word_and_the_approval()
    bench.work()
    assert word is not None
    for job in (word, line):
        assert job.audible is not None and job.audible <= job.due
    assert bench.engine.lanes == 0 and bench.opened() == ["held0", "word0", "held0"]


def test_a_line_that_is_being_made_goes_on_when_nobody_waits_for_its_lane(bench: Bench) -> None:
    bench.engine.max_lanes = 1
    say(bench, "held")
    bench.scheduler.run_once()
    approve(bench)
    bench.work()
    assert bench.opened() == ["held0"] and made(bench, "held") == 1


def test_a_rejected_line_costs_only_its_finished_part(bench: Bench) -> None:
    say(bench, "a", segments=5)
    for _ in range(3):
        bench.scheduler.run_once()
    bench.scheduler.queue.end(lambda u: u.state is State.HELD, Rejected("rejected"))
    calls = len(bench.engine.calls)
    bench.work()
    steps = [call for call in bench.engine.calls[calls:] if not call.startswith("close")]
    assert steps == [] and bench.engine.lanes == 0 and made(bench, "a") == 0
    assert ended(bench) == {"a": Rejected} and seen(bench) == {}
    assert bench.scheduler.load == RequestCounts()
    assert approve(bench) == []


def test_a_line_that_may_not_wait_is_refused_at_its_approval_and_told_how_long(bench: Bench) -> None:
    for number in range(20):
        bench.admit(f"busy {number}", 3, nfe=10)
    hasty = say(bench, "hasty", segments=3, nfe=10, queue_timeout_s=0.0)
    patient = say(bench, "patient", segments=3, nfe=10)
    assert approve(bench) == [("hasty", State.ENDED), ("patient", State.WAITING)]
    refusal = bench.results["hasty"][-1]
    assert hasty.ended and isinstance(refusal, Overloaded) and refusal.retry_s is not None
    bench.work()
    assert patient.audible is not None and patient.audible <= patient.due
    assert made(bench, "patient") == 3 and made(bench, "hasty") == 0


def test_a_made_line_that_may_not_wait_is_refused_where_its_turn_is_too_late(bench: Bench) -> None:
    first, second = say(bench, "a", segments=9), say(bench, "b", queue_timeout_s=0.0)
    bench.work()
    approve(bench, "a")
    assert first.audio_s > 2.0
    assert approve(bench, "b") == [("b", State.ENDED)] and second.ended
    assert isinstance(bench.results["b"][-1], Overloaded)


def test_an_approved_line_waits_while_its_channel_is_paused(bench: Bench) -> None:
    say(bench, "made")
    bench.work()
    say(bench, "new")
    bench.scheduler.queue.pause("stage")
    approve(bench)
    bench.work()
    assert set(seen(bench).values()) == {State.WAITING} and made(bench, "made") == made(bench, "new") == 0
    say(bench, "later")
    bench.scheduler.queue.resume("stage")
    bench.work()
    assert made(bench, "made") == made(bench, "new") == 1
    assert seen(bench)["later"] is State.HELD and made(bench, "later") == 0


def test_moderation_holds_only_later_lines_and_its_end_releases_none(bench: Bench) -> None:
    queue = bench.scheduler.queue
    queue.moderate("stage", False)
    say(bench, "before")
    queue.moderate("stage", True)
    say(bench, "held")
    queue.moderate("stage", False)
    say(bench, "after")
    bench.work()
    assert [made(bench, name) for name in ("before", "held", "after")] == [1, 0, 1]
    assert approve(bench) == [("held", State.WAITING)]
    assert made(bench, "held") == 1


def test_channels_are_moderated_as_configured_until_a_moderator_says_otherwise() -> None:
    bench = Bench(approval_channels=("stage", "alerts"))
    queue = bench.scheduler.queue
    assert queue.moderated == ["alerts", "stage"]
    assert bench.admit("other", channel="other").guaranteed and not say(bench, "first").guaranteed
    queue.moderate("stage", False)
    queue.moderate("chat", True)
    assert queue.moderated == ["alerts", "chat"] and say(bench, "free").guaranteed
    seen_by_watchers: list[list[str]] = []
    queue.watch(lambda: seen_by_watchers.append(queue.moderated))
    bench.scheduler.config = dataclasses.replace(bench.scheduler.config, approval_channels=())
    assert seen_by_watchers == [["chat"]]
    queue.moderate("chat", False)
    for number in range(1, MAX_PAUSED):  # one more channel, "stage", is moderated already
        queue.moderate(str(number), True)
    with pytest.raises(QueueFull, match="moderated differently"):
        queue.moderate("one more", True)
    queue.moderate("1", False)
    queue.moderate("one more", True)


def test_held_speech_on_a_channel_is_bounded(bench: Bench) -> None:
    long = bench.job("long", channel="stage", playout=SERIAL)
    bench.scheduler.admit(long, [pieces("long", 9, frames=2_000)])
    assert long.audio_s > bench.scheduler.config.backlog_s
    with pytest.raises(QueueFull, match="speech wait on this channel") as refused:
        say(bench, "one more")
    assert refused.value.retry_s == pytest.approx(long.audio_s - bench.scheduler.config.backlog_s)


def test_a_held_line_has_its_callers_deadline_and_ends_with_the_daemon(bench: Bench) -> None:
    say(bench, "a", deadline=bench.now + 5.0)
    say(bench, "b")
    bench.work()
    bench.now += 6.0
    bench.scheduler.run_once()
    assert bench.ends() == {"a": DeadlineMissed} and "held for approval" in str(bench.results["a"][-1])
    bench.serve()
    assert bench.ends()["b"] is Unavailable


def test_held_lines_are_merged_with_each_other_alone(bench: Bench) -> None:
    queue = bench.scheduler.queue
    queue.moderate("stage", False)
    free = merge(bench, "one rose")
    queue.moderate("stage", True)
    held = merge(bench, "a rose for approval")
    more = merge(bench, "two roses for approval")
    queue.moderate("stage", False)
    again = merge(bench, "more roses")
    assert [job.merged for job in (free, held, more, again)] == [1, 1, 2, 2]
    assert ended(bench) == {"a rose for approval": Merged, "one rose": Merged}
    queue.moderate("stage", True)
    late = bench.job("late", channel="stage", playout=SERIAL, merge="rose")
    assert bench.scheduler.admit(late, [pieces("late", 1)], again) is None


def test_a_line_supersedes_approved_ones_after_its_approval(bench: Bench) -> None:
    queue = bench.scheduler.queue
    queue.pause("stage")
    queue.moderate("stage", False)
    say(bench, "nil nil", supersede="score")
    queue.moderate("stage", True)
    say(bench, "one nil", supersede="score")
    say(bench, "two nil", supersede="score")
    assert ended(bench) == {"one nil": Superseded}
    approve(bench)
    assert ended(bench) == {"one nil": Superseded, "nil nil": Superseded}
    assert seen(bench) == {"two nil": State.WAITING}


@st.composite
def moderated_workloads(draw: st.DrawFn) -> list[Message]:
    """A workload on moderated channels: lines are approved, rejected or left."""
    messages = draw(workloads())
    for message in messages:
        if message.channel:
            message.approve_after_s = draw(st.sampled_from((math.inf, 0.0, 0.05, 0.4, 3.0, 20.0)))
            if message.approve_after_s == math.inf and message.cancel_after_s == math.inf:
                message.cancel_after_s = 30.0
    return messages


@pytest.mark.slow
@pytest.mark.once
@settings(max_examples=100)
@given(moderated_workloads(), st.sampled_from(sorted(DEVICES)), st.sampled_from((1, 2, 3, 8)))
def test_an_approval_breaks_no_promise(messages: list[Message], device: str, lanes: int) -> None:
    world = Bench(DEVICES[device], lanes=lanes, oracle=True, approval_channels=("a", "b"))
    check_promises(world, messages)
    for message in messages:
        if message.heard and message.channel:
            assert message.heard[0][0] >= message.at + message.approve_after_s


@pytest.mark.slow
@pytest.mark.once
@loads(1.2, 0.8, 3.0)
def test_no_reply_stalls_in_a_storm_with_three_of_ten_lines_on_hold(load: float) -> None:
    """A moderator rejects one held line in three after some seconds, and approves the others."""
    draw = random.Random(1)
    messages = chat(50.0, load, ORIN, queue_timeout_s=None)
    held = [message for message in messages if draw.random() < 0.3]
    for message in held:
        message.channel = f"stage {draw.randrange(8)}"
        decided_s = draw.uniform(0.1, 10.0)
        if draw.random() < 1 / 3:
            message.cancel_after_s = decided_s
        else:
            message.approve_after_s = decided_s
    Bench(ORIN, approval_channels=tuple(f"stage {number}" for number in range(8))).run(messages)
    promised = [message for message in messages if message.promised]
    assert len(promised) > 50
    assert max(message.underrun_s for message in promised) <= 1e-6
    assert max(late_s(message) for message in promised) <= 0.0
    approved = [message for message in held if message.approve_after_s < math.inf and not message.refused]
    assert approved and all(message.ended == "SegmentAudio" for message in approved)
    assert not any(message.heard for message in held if message.cancel_after_s < math.inf)


@pytest.mark.slow
@pytest.mark.once
def test_a_finished_line_sounds_at_its_approval_despite_promises() -> None:
    line = Message(0.0, cut(6.0), channel="stage", approve_after_s=30.0)
    storm = [dataclasses.replace(message, at=message.at + 20.0) for message in chat(30.0, 3.0, ORIN)]
    world = Bench(ORIN, approval_channels=("stage",))
    world.run([line, *storm])
    assert line.heard[0][0] == line.at + line.approve_after_s and line.underrun_s == 0.0


@pytest.mark.slow
@pytest.mark.once
def test_held_lines_delay_promised_work_by_at_most_a_call() -> None:
    held = [Message(0.0, cut(20.0), channel=f"stage {n}", cancel_after_s=60.0) for n in range(8)]
    words = [Message(1.0 + 3.0 * n, ((1.0,),), priority=Priority.REALTIME) for n in range(5)]
    alone = [dataclasses.replace(word) for word in words]
    Bench(ORIN).run(alone)
    channels = tuple(f"stage {n}" for n in range(8))
    Bench(ORIN, approval_channels=channels).run([*held, *words])
    call_s = max(max(ORIN.of(s).steps_s) for m in held if m.job is not None for s in m.job.segments)
    for word, own in zip(words, alone, strict=True):
        assert word.first_s - own.first_s <= call_s + CALL_S
