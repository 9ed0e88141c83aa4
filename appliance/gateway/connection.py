"""Tasks of a connection, and the writing of a text to a session of the daemon."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

from appliance.client import CallFailed, Event, Session, UtteranceError
from appliance.client.connection import CALLER

SENTENCE_ENDS = (".", "!", "?", "…", "。", "！", "？")

MAX_SESSIONS = 8
"""Sessions of a caller at a time; the daemon allows as many."""
_places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

T = TypeVar("T")


def session_places() -> asyncio.Semaphore:
    """Places for sessions of the current caller. A session without a place waits."""
    return _places.setdefault(CALLER.get(), asyncio.Semaphore(MAX_SESSIONS))


@asynccontextmanager
async def running(*works: Coroutine[Any, Any, T]) -> AsyncIterator[tuple[asyncio.Task[T], ...]]:
    """Run tasks while the context lasts; cancel them at its end."""
    # A task group would pass on the CancelledError of a grpc.aio call that was not cancelled from outside.
    tasks = tuple(asyncio.create_task(work) for work in works)
    try:
        yield tasks
    finally:
        await cancel(tasks)


async def cancel(tasks: Collection[asyncio.Task[T]]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def follow(session: Session) -> AsyncGenerator[Event, None]:
    """Events of a session. Raises CallFailed, also if an utterance fails."""
    async with aclosing(cast("Any", aiter(session))) as events:
        async for _, event in events:
            if isinstance(event, UtteranceError):
                raise CallFailed(event.reason, event.message, event.reason)
            yield event


class SessionWriter:
    """Writes a text of any length to a session. Utterances end at the last sentence before the limit."""

    def __init__(self, session: Session, most_characters: int) -> None:
        self._session, self._most = session, most_characters
        self._characters = 0
        """Characters of the current utterance."""

    async def say(self, text: str) -> int:
        """Write a text; return the number of utterances that its length ended. Raises CallFailed."""
        ended = 0
        if self._characters + len(text) > self._most:
            ended += await self.flush()
        await self._session.say(text)
        self._characters += len(text)
        if self._characters > self._most // 2 and text.rstrip().endswith(SENTENCE_ENDS):
            ended += await self.flush()
        return ended

    async def flush(self) -> int:
        """End the current utterance, if there is one. Raises CallFailed."""
        if not self._characters:
            return 0
        self._characters = 0
        await self._session.flush()
        return 1
