"""Turns at the planner: each caller's work in order of arrival, callers by the work that each has had.

Short work is done at once, on the event loop, while its caller uses little of the loop's time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from appliance.speech.work import Work
from appliance.voices.prompts import run_below_engine

T = TypeVar("T")

AT_ONCE = 200
"""Characters of a slice that the event loop does at once, in a millisecond."""
SLICE = 2_048
"""Characters for the planner's thread, in some 20 ms, after which another caller may have its turn."""
LOOP_SHARE = 0.1
"""Share of the event loop's time in which work of one caller is done at once."""
BURST_S = 0.2
"""Time by which a caller may use its share of the loop ahead."""
PACE = 16_000.0
"""Characters a second of one caller that the planner's thread does, a thousand times as many as are spoken.
More would take the processor from the engine."""
AHEAD_S = 0.5
"""Time by which a caller may be ahead of PACE, for two texts of 4,096 characters."""


def in_a_slice(characters: int, act: Callable[[], T]) -> Work[T]:
    yield characters
    return act()


@dataclass(eq=False)
class Share:
    """A caller's use of the planner and of the event loop."""

    characters: int = 0
    paid_at: float = 0.0
    """Time at which its use of the loop is down to LOOP_SHARE."""
    paced_at: float = 0.0
    """Time at which its use of the planner's thread is down to PACE."""


@dataclass(eq=False)
class Turn:
    share: Share
    orders: frozenset[object]
    """Caller and line, in each of which it follows the turns that came before."""
    work: Work[Any]
    characters: int
    """Size of its next slice."""
    ended: asyncio.Future[Any]

    def advance(self, most: int) -> Callable[[], None] | None:
        """Do a slice, and more up to `most` characters; after the last slice, return how to end the turn."""
        done = 0
        try:
            while not done or done + self.characters <= most:
                done += self.characters
                self.share.characters += self.characters
                self.characters = next(self.work)
        except StopIteration as end:
            return partial(self.ended.set_result, end.value)
        except Exception as error:
            return partial(self.ended.set_exception, error)
        return None


class Turns:
    """Construct on the event loop that uses it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turns: dict[Turn, None] = {}
        """Turns that have not ended, in order of arrival."""
        self._level = 0
        """Characters of the caller that had the last turn: newcomers begin there."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="plan", initializer=run_below_engine)
        self._running: asyncio.Task[None] | None = None

    async def take(self, share: Share, line: str, work: Work[T]) -> T:
        """Do work after all that its caller and its line ("": none) have begun before; return its result."""
        orders = frozenset({share, line} - {""})
        turn = Turn(share, orders, work, next(work), asyncio.get_running_loop().create_future())
        share.characters = max(share.characters, self._level)
        self._turns[turn] = None
        try:
            begun = self._clock()
            if share.paid_at <= begun + BURST_S and turn in self._first():
                while turn.characters <= AT_ONCE and not turn.ended.done():
                    self._end(turn, turn.advance(0))
                share.paid_at = max(share.paid_at, begun) + (self._clock() - begun) / LOOP_SHARE
            self._start()
            result: T = await turn.ended
            return result
        finally:
            self._turns.pop(turn, None)

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        if self._running is None and self._turns:
            self._running = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        """Give turns on the planner's thread until none is left of callers within PACE."""
        loop = asyncio.get_running_loop()
        while ready := [turn for turn in self._first() if turn.share.paced_at <= self._clock() + AHEAD_S]:
            turn = min(ready, key=lambda turn: turn.share.characters)
            self._level = before = turn.share.characters
            self._end(turn, await loop.run_in_executor(self._thread, turn.advance, SLICE))
            did_s = (turn.share.characters - before) / PACE
            turn.share.paced_at = max(turn.share.paced_at, self._clock()) + did_s
        self._running = None
        if self._turns:
            loop.call_later(AHEAD_S / 10, self._start)

    def _first(self) -> list[Turn]:
        """Turns that follow no other."""
        first, orders = [], set[object]()
        for turn in self._turns:
            if turn.orders.isdisjoint(orders):
                first.append(turn)
            orders |= turn.orders
        return first

    def _end(self, turn: Turn, settle: Callable[[], None] | None) -> None:
        if settle is not None:
            self._turns.pop(turn, None)
            if not turn.ended.done():
                settle()
