"""Admitted requests are in time: the scheduler on a virtual clock, with workloads from hypothesis."""

import dataclasses
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.config import SchedulerConfig
from appliance.request import Priority, RequestCounts
from tests.harness.engine import DEVICES, LAUNCH_BOUND, ORIN, Device
from tests.harness.scheduler import BESIDE, Bench, Message, chat, cut, refused_by_oracle, report, segments_of

pytestmark = [pytest.mark.slow, pytest.mark.once]


@st.composite
def workloads(draw: st.DrawFn, bundles: tuple[str, ...] = ("",)) -> list[Message]:
    """Up to forty messages within some seconds, of every kind."""
    messages, at = [], 0.0
    for _ in range(draw(st.integers(1, 40))):
        at += draw(st.sampled_from((0.0, 0.01, 0.2, 1.0)))
        seconds = draw(st.floats(0.3, 25.0))
        stream = draw(st.booleans())
        messages.append(
            Message(
                at,
                cut(seconds) if stream else (tuple(cut(seconds, 8.0)[-1]),),
                reference_s=draw(st.sampled_from((2.0, 5.0, 11.0))),
                nfe=draw(st.sampled_from((1, 5, 7, 32))),
                priority=draw(st.sampled_from(Priority)),
                channel=draw(st.sampled_from(("", "", "a", "b"))),
                stream=stream,
                cancel_after_s=draw(st.sampled_from((math.inf, math.inf, 0.0, 0.3, 2.0))),
                user=draw(st.sampled_from(("", "ann"))),
                bundle=draw(st.sampled_from(bundles)),
                supersede=draw(st.sampled_from(("", "", "status"))),
                queue_timeout_s=draw(st.sampled_from((None, None, 1.0, 10.0))),
            )
        )
    return messages


def late_s(message: Message) -> float:
    """Delay of the first audio, or of all of a unary reply, beyond its deadline."""
    assert message.job is not None
    return message.heard[0 if message.stream else -1][0] - message.promised_at


def check_promises(world: Bench, messages: list[Message]) -> None:
    """Run the messages; all end, and no promised message is late."""
    world.run(messages)
    assert world.scheduler.load == RequestCounts() and world.engine.lanes == 0
    for message in messages:
        assert message.refused or message.ended
        if message.promised:
            assert late_s(message) <= 1e-9, message
            assert message.underrun_s <= 1e-9, message


@settings(max_examples=30)
@given(workloads(), st.sampled_from(sorted(DEVICES)), st.sampled_from((1, 3, 8)))
def test_at_exact_costs_no_deadline_is_missed(messages: list[Message], device: str, lanes: int) -> None:
    world = Bench(DEVICES[device], lanes=lanes, oracle=True)
    check_promises(world, messages)


@settings(max_examples=30)
@given(workloads(("", BESIDE)), *2 * [st.sampled_from(sorted(DEVICES))], st.sampled_from((1, 3, 8)))
def test_two_bundles_miss_no_deadline(messages: list[Message], device: str, beside: str, lanes: int) -> None:
    world = Bench(DEVICES[device], lanes=lanes, oracle=True, beside=DEVICES[beside])
    check_promises(world, messages)


def test_a_word_waits_for_the_segments_that_hold_the_lanes_of_both_bundles() -> None:
    # Each bundle has one lane, which a long segment with a much later deadline occupies.
    long = {"nfe": 32, "stream": False, "pieces": ((8.0,),)}
    words = {"nfe": 1, "pieces": ((0.5,),)}
    messages = [
        Message(0.0, **long),
        Message(0.01, **{**long, "pieces": ((7.5,),)}, bundle=BESIDE),
        Message(0.3, **words, bundle=BESIDE),
        Message(0.3, **words),
        Message(0.3, **words, bundle=BESIDE),
    ]
    world = Bench(ORIN, lanes=1, oracle=True, beside=ORIN)
    world.run(messages)
    for message in messages:
        assert message.promised and late_s(message) <= 1e-9, message


NOW = {"nfe": 32, "priority": Priority.REALTIME}
THRICE = ((3.0, 3.0, 3.0),)
BULK = {"nfe": 32, "priority": Priority.BULK, "stream": False}
LONG = cut(20.0)


@pytest.mark.parametrize(("device", "lanes", "messages"), [
    pytest.param("launch-bound", 2, [
        Message(1.0, THRICE, **NOW, stream=False, caller="b"),
        Message(1.01, ((3.0,),), nfe=32, stream=False, caller="a"),
        Message(1.05, THRICE, **NOW, caller="a"),
    ], id="a step is shared"),
    pytest.param("launch-bound", 2, [
        Message(1.05, ((1.0,),), nfe=4, priority=Priority.HIGH, stream=False, caller="a"),
        Message(1.05, ((1.0,),), nfe=8, priority=Priority.REALTIME, caller="b"),
        Message(1.01, ((1.0,),), **NOW, stream=False, caller="b"),
    ], id="a modest caller has the last lane"),
    pytest.param("zipvoice", 3, [
        Message(1.21, cut(3.0), channel="a"),
        Message(1.22, cut(3.0), nfe=32, channel="a", cancel_after_s=0.3),
        Message(1.23, LONG, **NOW, channel="b"),
    ], id="a modest caller goes first, and shares its steps"),
    pytest.param("orin", 8, [
        Message(1.46, ((1.0,),), **BULK, channel="a", cancel_after_s=0.3, caller="b", user="u"),
        Message(1.47, LONG, **NOW, channel="a", caller="c", user="u"),
        Message(1.47, cut(8.0), nfe=32, cancel_after_s=2.0, caller="a", user="u"),
        Message(1.48, LONG, nfe=5, priority=Priority.HIGH, caller="c", user="v"),
        Message(1.48, cut(3.0), nfe=32, caller="a", user="v", queue_timeout_s=1.0),
    ], id="BULK before it on its channel is cancelled"),
])  # fmt: skip
def test_nothing_takes_the_time_of_a_promise(device: str, lanes: int, messages: list[Message]) -> None:
    world = Bench(DEVICES[device], lanes=lanes, oracle=True)
    check_promises(world, [dataclasses.replace(message, heard=[]) for message in messages])


def storm(
    load: float,
    seconds: float = 100.0,
    queue_timeout_s: float | None = 0.0,
    device: Device = ORIN,
    of: Device = ORIN,
    **world: float,
) -> dict[str, float]:
    """A report on Poisson arrivals of chat lines, whose rate fits the device `of`."""
    messages = chat(seconds, load, of, queue_timeout_s=queue_timeout_s)
    bench = Bench(device, **world)  # type: ignore[arg-type]
    bench.run(messages)
    return report(bench, messages, seconds)


def check_storm(figures: dict[str, float]) -> None:
    """Check that no promised reply stalls or begins late."""
    assert figures["C0"] == figures["C100"] == 1.0
    assert figures["worst first audio after its promise s"] <= 0.0


def loads(by_day: float, *others: float) -> pytest.MarkDecorator:
    more = [pytest.param(load, marks=pytest.mark.thorough) for load in others]
    return pytest.mark.parametrize("load", [by_day, *more])


def test_a_storm_on_two_bundles_keeps_every_promise() -> None:
    messages = chat(50.0, 3.0, ORIN, queue_timeout_s=0.0)
    for message in messages[::2]:
        message.bundle = BESIDE
    world = Bench(ORIN, beside=DEVICES["zipvoice"])
    world.run(messages)
    check_storm(report(world, messages, 50.0))
    spoken = [sum(message.promised for message in messages[first::2]) for first in (0, 1)]
    assert min(spoken) > 0.2 * max(spoken)


@loads(3.0, 0.8, 1.2)
def test_a_storm_on_orins_table(load: float) -> None:
    figures = storm(load, 60.0)
    check_storm(figures)
    assert figures["P95 of idle"] <= 2.5
    serveable = figures["refused"] - refused_by_oracle(ORIN, chat(60.0, load, ORIN))
    assert serveable <= 0.05
    assert figures["lanes per step"] == 1.0, "nothing is batched where that saves nothing"
    if load == 3.0:
        assert figures["utilisation"] > 0.95


@loads(1.2, 0.8, 3.0)
def test_a_storm_of_those_who_may_wait(load: float) -> None:
    figures = storm(load, 50.0, None)  # a queue makes each call slower
    check_storm(figures)
    assert figures["refused"] <= (0.6 if load == 3.0 else 0.0)


@pytest.mark.parametrize(
    ("queue_timeout_s", "seconds"), [(0.0, 100.0), pytest.param(None, 50.0, marks=pytest.mark.thorough)]
)
def test_calls_a_tenth_off_stall_hardly_anybody(queue_timeout_s: float | None, seconds: float) -> None:
    figures = storm(3.0, seconds, queue_timeout_s, noise=0.1)
    assert figures["C0"] >= 0.995 and figures["C100"] >= 0.995


def test_a_launch_bound_device_speaks_half_as_much_again_by_batching() -> None:
    batched, single = (
        storm(3.0, 20.0, device=dataclasses.replace(LAUNCH_BOUND, max_batch=lanes), of=LAUNCH_BOUND)
        for lanes in (8, 1)
    )
    assert batched["C0"] == single["C0"] == 1.0
    assert batched["goodput"] >= 1.5 * single["goodput"]
    assert batched["lanes per step"] > 2.0


def test_a_word_in_the_middle_of_bulk_work_waits_for_one_call() -> None:
    book = Message(0.0, cut(60.0)[-1:], priority=Priority.BULK)
    word = Message(1.0, ((1.0,),), priority=Priority.REALTIME)
    alone = Message(0.0, ((1.0,),), priority=Priority.REALTIME)
    Bench(ORIN).run([alone])
    Bench(ORIN).run([book, word])
    assert word.first_s - alone.first_s <= ORIN.step_s([(segments_of(book, (8.0,))[0], 0)]) + 1e-9


def test_a_flood_on_one_channel_delays_no_other() -> None:
    flood = [Message(0.001 * n, ((4.0,),), channel="a", queue_timeout_s=60.0) for n in range(60)]
    other = [Message(0.5 + 2.0 * n, ((4.0,),), channel=f"b{n}") for n in range(5)]
    Bench(ORIN).run([*flood, *other])
    assert not any(message.refused for message in other)


@pytest.mark.parametrize("names", ["", pytest.param("user", marks=pytest.mark.thorough), "channel"])
def test_a_flood_of_one_caller_delays_no_other(names: str) -> None:
    """`names` empty: a flood without names delays no named requests of its address. Otherwise: a flood with
    any number of names delays no other caller."""

    def own(number: int) -> dict[str, str]:
        return {names: f"n{number}"} if names else {}

    flood = [
        Message(1.0 + 0.03 * n, ((2.0,),), caller="flood", **own(n))  # type: ignore[arg-type]
        for n in range(200)
    ]
    by = "other" if names else "flood"
    other = [Message(0.8 * n, ((2.0,),), caller=by, channel=f"stage {n}") for n in range(1, 16)]
    alone = Message(0.0, ((2.0,),))
    Bench(ORIN).run([alone])
    Bench(ORIN).run([*flood, *other])
    assert not any(message.refused for message in other)
    assert sorted(message.first_s for message in other)[-2] < 2.0 * alone.first_s
    assert any(message.heard for message in flood[50:])


def test_a_lone_callers_flood_leaves_time_for_the_next_two() -> None:
    flood = [Message(0.03 * n, ((2.0,),), caller="flood", channel=f"n{n}") for n in range(60)]
    others = [Message(0.9, ((2.0,),), caller="one"), Message(1.2, ((2.0,),), caller="two")]
    Bench(ORIN).run([*flood, *others])
    assert not any(message.refused for message in others)
    assert max(message.first_s for message in others) < 0.6


def test_a_stream_is_cut_only_where_the_whole_would_come_too_late() -> None:
    short, long = Message(0.0, cut(3.0)), Message(20.0, cut(7.9), nfe=16)
    Bench(ORIN).run([short, long])
    assert len(short.heard) == 1 and len(long.heard) > 1


def test_a_raid_on_one_channel_is_played_in_order_without_a_gap_in_any_reply() -> None:
    raid = [Message(0.05 * n, cut(1.0 + n % 5), channel="chat") for n in range(400)]
    Bench(ORIN).run(raid)
    spoken = [message for message in raid if message.heard]
    assert 30 <= len(spoken) <= 60 and {m.refused for m in raid} <= {"", "QueueFull"}
    assert [m.free_at for m in spoken] == sorted(m.free_at for m in spoken)
    assert max(message.underrun_s for message in spoken) == 0.0


def test_a_promise_that_is_broken_already_refuses_nobody_who_comes_after_it() -> None:
    first = Message(0.0, ((8.0,),), priority=Priority.REALTIME)
    estimated_s = 0.6 * ORIN.of(segments_of(first, (8.0,))[0]).whole_s
    second = Message(1.45 * estimated_s, ((8.0,),))
    world = Bench(ORIN, factor=0.6)
    world.run([first, second])
    assert late_s(first) > 0.0, "the estimate was to be too short"
    assert not second.refused


CALLS = 2
"""Calls of a segment without its steps."""


@st.composite
def bursts(draw: st.DrawFn, channels: tuple[str, ...]) -> tuple[Device, list[Message]]:
    """A device, and lines whose speech is within `backlog_s` on each channel.

    A segment takes from 10 ms to 3 s, whatever its length: the device may be slower than playback.
    """
    steps = draw(st.integers(1, 8))
    call_s = draw(st.floats(0.01, 3.0)) / (steps + CALLS)
    users = draw(st.sampled_from((("",), ("ann",), ("ann", "bob"), tuple(map(str, range(60))))))
    room_s = dict.fromkeys(channels, SchedulerConfig().backlog_s)
    lines, at = [], 0.0
    for number in range(draw(st.integers(1, 60))):
        at += draw(st.sampled_from((0.0, 0.0, 0.01, 0.3)))
        channel, seconds = draw(st.sampled_from(channels)), draw(st.floats(0.3, 12.0))
        room_s[channel] -= seconds
        if room_s[channel] < 0.0:
            break
        stream = draw(st.booleans())
        lines.append(
            Message(
                at,
                cut(seconds) if stream else ((seconds,),),
                nfe=draw(st.integers(1, steps)),
                channel=channel,
                stream=stream,
                user=users[number % len(users)],
                queue_timeout_s=draw(st.sampled_from((None, 3_600.0))),
            )
        )
    return Device(call_s), lines


def check_spoken(lines: list[Message], channel: str) -> None:
    """Check that all lines of a channel were admitted and spoken: in order, in time and without a gap."""
    own = [line for line in lines if line.channel == channel]
    for line in own:
        assert (line.refused, line.ended) == ("", "SegmentAudio")
        assert line.promised and late_s(line) <= 1e-9 and line.underrun_s <= 1e-9, line
    firsts = [line.heard[0][0] for line in own]
    assert firsts == sorted(firsts)


@settings(max_examples=50)
@given(bursts(("chat", "alerts")) | bursts(("chat",)), st.sampled_from((1, 3, 8)), st.booleans())
def test_bursts_are_whole_and_in_order(burst: tuple[Device, list[Message]], lanes: int, oracle: bool) -> None:
    device, lines = burst
    world = Bench(device, lanes=lanes, oracle=oracle)
    world.run(lines)
    for channel in ("chat", "alerts"):
        check_spoken(lines, channel)


@settings(max_examples=20)
@given(bursts(("chat",)), workloads())
def test_a_burst_breaks_no_promise_and_is_not_refused_for_others(
    burst: tuple[Device, list[Message]], others: list[Message]
) -> None:
    device, lines = burst
    others = [dataclasses.replace(message, channel="", supersede="") for message in others]
    world = Bench(device, oracle=True)
    world.run([*others, *lines])
    check_spoken(lines, "chat")
    for message in others:
        if message.promised:
            assert late_s(message) <= 1e-9 and message.underrun_s <= 1e-9, message


def test_a_flood_on_a_channel_that_is_slower_than_playout_leaves_room_for_newcomers() -> None:
    flood = [Message(0.01 * n, ((0.4,),), nfe=8, channel="chat") for n in range(60)]
    newcomers = [Message(5.0 * n, ((0.4,),), nfe=8, channel=f"new {n}") for n in range(1, 11)]
    Bench(Device(2.0 / 10)).run([*flood, *newcomers])
    check_spoken(flood, "chat")
    assert max(newcomer.first_s for newcomer in newcomers) <= 2.2 * 2.0
    assert flood[-1].first_s > newcomers[-1].at


@pytest.mark.parametrize("callers", [1, 5])
def test_if_calls_take_longer_than_estimated_replies_begin_late_but_do_not_stall(callers: int) -> None:
    drawn = chat(20.0, 1.2, ORIN, queue_timeout_s=600.0)
    messages = [
        dataclasses.replace(message, caller=f"c{number % callers}", channel=str(number))
        for number, message in enumerate(drawn)
    ]
    Bench(ORIN, factor=0.7, patience_s=3600.0).run(messages)
    promised = [message for message in messages if message.promised]
    assert any(len(message.heard) > 1 for message in promised)
    assert max(message.underrun_s for message in promised) <= 0.2
