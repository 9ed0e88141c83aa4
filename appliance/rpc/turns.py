"""Turns at the planner: in order of arrival for each caller; among callers, the least served goes first.

The event loop does short work itself, as long as the caller uses little of the loop's time.
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
"""Characters that the event loop plans at once, in about a millisecond."""
SLICE = 2_048
"""Characters of a slice for the planner's thread, about 20 ms.

After a slice another caller may have its turn.
"""
LOOP_SHARE = 0.1
"""Share of the event loop's time that the work of one caller may take."""
BURST_S = 0.2
"""Seconds by which a caller may be ahead of its share of the loop."""
PACE = 16_000.0
"""Characters per second of one caller that the planner's thread works on: a thousand times the speed of
speech. A larger value takes the processor from the engine.
"""
AHEAD_S = 0.5
"""Seconds by which a caller may be ahead of PACE: enough for two texts of 4,096 characters."""


def in_a_slice(characters: int, act: Callable[[], T]) -> Work[T]:
    yield characters
    return act()


@dataclass(eq=False)
class Usage:
    """A caller's use of the planner and of the event loop."""

    characters: int = 0
    paid_at: float = 0.0
    """Time at which the caller's use of the loop has fallen to LOOP_SHARE."""
    paced_at: float = 0.0
    """Time at which the caller's use of the planner's thread has fallen to PACE."""


@dataclass(eq=False)
class Turn:
    """A piece of work that waits for its caller's turn."""

    usage: Usage
    orders: frozenset[object]
    """Keys of the orders that the turn belongs to: its caller's and its line's. In each order, turns follow
    by arrival.
    """
    work: Work[Any]
    characters: int
    """Characters of the next slice."""
    ended: asyncio.Future[Any]

    def advance(self, most: int) -> Callable[[], None] | None:
        """Do a slice, and more up to `most` characters.

        After the last slice, return a function that ends the turn.
        """
        done = 0
        try:
            while not done or done + self.characters <= most:
                done += self.characters
                self.usage.characters += self.characters
                self.characters = next(self.work)
        except StopIteration as end:
            return partial(self.ended.set_result, end.value)
        except Exception as error:
            return partial(self.ended.set_exception, error)
        return None


class Turns:
    """Gives turns. Must be constructed on the event loop that uses it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._turns: dict[Turn, None] = {}
        """Turns that have not ended, in order of arrival."""
        self._level = 0
        """Characters of the caller that had the last turn. A new caller's count begins here."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="plan", initializer=run_below_engine)
        self._running: asyncio.Task[None] | None = None

    async def take(self, usage: Usage, line: str, work: Work[T]) -> T:
        """Do work after all earlier work of its caller and of its line ("": none); return the result."""
        orders = frozenset({usage, line} - {""})
        turn = Turn(usage, orders, work, next(work), asyncio.get_running_loop().create_future())
        usage.characters = max(usage.characters, self._level)
        self._turns[turn] = None
        try:
            begun = self._clock()
            if usage.paid_at <= begun + BURST_S and turn in self._first():
                while turn.characters <= AT_ONCE and not turn.ended.done():
                    self._end(turn, turn.advance(0))
                usage.paid_at = max(usage.paid_at, begun) + (self._clock() - begun) / LOOP_SHARE
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
        """Give turns on the planner's thread, until only callers beyond PACE have turns left."""
        loop = asyncio.get_running_loop()
        while ready := [turn for turn in self._first() if turn.usage.paced_at <= self._clock() + AHEAD_S]:
            turn = min(ready, key=lambda turn: turn.usage.characters)
            self._level = before = turn.usage.characters
            self._end(turn, await loop.run_in_executor(self._thread, turn.advance, SLICE))
            did_s = (turn.usage.characters - before) / PACE
            turn.usage.paced_at = max(turn.usage.paced_at, self._clock()) + did_s
        self._running = None
        if self._turns:
            loop.call_later(AHEAD_S / 10, self._start)

    def _first(self) -> list[Turn]:
        """Turns that need not wait for an earlier turn of their caller or line."""
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
