"""Turns at the planner, on a counted clock: the order of callers, and work that the event loop does at
once."""

import asyncio
import threading
from collections.abc import Sequence

import pytest

from appliance.rpc.turns import AHEAD_S, AT_ONCE, BURST_S, LOOP_SHARE, PACE, SLICE, Turns, Usage, Work

SHORT, LONG = AT_ONCE, SLICE


class Desk:
    """Turns, and a record of the work: a name for each slice."""

    def __init__(self) -> None:
        self.now, self.done, self.at_once = 0.0, list[str](), list[str]()
        self.turns = Turns(lambda: self.now)
        self._loop = threading.get_ident()

    def work(self, name: str, slices: Sequence[int], took_s: float) -> Work[str]:
        for characters in slices:
            yield characters
            self.now += took_s or characters // LONG * characters / PACE
            self.done.append(name)
            if threading.get_ident() == self._loop:
                self.at_once.append(name)
        return name

    def take(
        self, name: str, usage: Usage, *slices: int, line: str = "", took_s: float = 0.0
    ) -> asyncio.Task[str]:
        return asyncio.ensure_future(self.turns.take(usage, line, self.work(name, slices, took_s)))


async def test_callers_take_turns_by_their_characters_and_keep_their_own_order() -> None:
    desk, a, b = Desk(), Usage(), Usage()
    await asyncio.gather(
        *(desk.take(f"a{i}", a, LONG) for i in range(3)), *(desk.take(f"b{i}", b, LONG) for i in range(2))
    )
    assert desk.done == ["a0", "b0", "a1", "b1", "a2"]
    desk.done.clear()
    wide = [desk.take(f"a{i}", a, 2 * LONG) for i in range(2)]
    # A caller that was away saves no turns: it begins level with the others.
    c = Usage()
    assert await asyncio.gather(*wide, *(desk.take(f"c{i}", c, LONG) for i in range(3)))
    assert desk.done == ["c0", "a0", "c1", "c2", "a1"]


async def test_long_work_is_interrupted_and_a_line_keeps_its_order_across_callers() -> None:
    desk = Desk()
    first = desk.take("first", Usage(), LONG, LONG, LONG, line="stage")
    second = desk.take("second", Usage(), SHORT, line="stage")
    other = desk.take("other", Usage(), LONG)
    assert await asyncio.gather(first, second, other) == ["first", "second", "other"]
    assert desk.done == ["first", "other", "first", "first", "second"]


async def test_short_work_is_done_at_once_unless_earlier_work_of_its_caller_or_line_waits() -> None:
    desk, busy = Desk(), Usage()
    await desk.take("short", Usage(), SHORT, SHORT)
    await desk.take("grows", Usage(), SHORT, LONG)
    assert desk.at_once == ["short", "short", "grows"] and desk.done == [*desk.at_once, "grows"]
    desk.at_once.clear()
    long = desk.take("long", busy, LONG, LONG, line="stage")
    behind = [desk.take("own", busy, SHORT), desk.take("line", Usage(), SHORT, line="stage")]
    await asyncio.gather(long, *behind, desk.take("stranger", Usage(), SHORT))
    assert desk.at_once == ["stranger"]


async def test_a_caller_gets_its_share_of_the_event_loop_and_the_rest_waits() -> None:
    desk, flood, took_s, count = Desk(), Usage(), 0.01, 200
    for number in range(count):
        await desk.take(f"{number}", flood, SHORT, took_s=took_s)
    allowed_s = LOOP_SHARE * (count * took_s + BURST_S)
    assert len(desk.done) == count
    assert allowed_s - took_s <= len(desk.at_once) * took_s <= allowed_s + took_s
    await desk.take("stranger", Usage(), SHORT, took_s=took_s)
    assert desk.at_once[-1] == "stranger"


async def test_a_caller_far_ahead_of_its_pace_waits_and_no_other_does() -> None:
    desk, flood = Desk(), Usage()
    at_first = int(AHEAD_S * PACE / LONG) + 1
    flooding = [desk.take(f"{number}", flood, LONG, took_s=1e-6) for number in range(2 * at_first)]
    await asyncio.gather(*flooding[:at_first])
    assert await desk.take("stranger", Usage(), LONG, took_s=1e-6) == "stranger"
    assert desk.done[at_first:] == ["stranger"]
    desk.now += 2 * AHEAD_S
    await asyncio.gather(*flooding)


@pytest.mark.parametrize("characters", [SHORT, LONG])
async def test_an_error_reaches_its_caller_and_cancelled_work_is_dropped(characters: int) -> None:
    desk, usage = Desk(), Usage()

    def fails() -> Work[None]:
        yield characters
        raise ValueError("it is empty")

    failing = asyncio.ensure_future(desk.turns.take(usage, "", fails()))
    gone, last = desk.take("gone", usage, LONG, LONG), desk.take("last", usage, LONG)
    await asyncio.sleep(0)
    gone.cancel()
    with pytest.raises(ValueError, match="it is empty"):
        await failing
    assert await last == "last"
    assert desk.done[-1] == "last" and desk.done.count("gone") < 2, "a slice that was under way at most"
