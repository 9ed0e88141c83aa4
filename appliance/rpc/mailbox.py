"""From the engine's thread to the event loop: the results of one job, in order, counting what is unread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from appliance.errors import ApplianceError
from appliance.job import Packet, Timings
from appliance.scheduler import Result


class Mailbox:
    """One writer on any thread, one reader on the loop that made the box."""

    def __init__(self, limit_samples: float, wake: Callable[[], None]) -> None:
        """`wake` is called when a full box has room again."""
        self._loop = asyncio.get_running_loop()
        self._results: asyncio.Queue[Result] = asyncio.Queue()
        self._limit_samples = limit_samples
        self._wake = wake
        # Each is written by one thread only, so that neither needs a lock.
        self._put_samples = 0
        self._sent_samples = 0

    def put(self, result: Result) -> None:
        """Never blocks: the writer asks `has_room` first."""
        if isinstance(result, Packet):
            self._put_samples += len(result.samples)
        # A closed loop has no reader left.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._results.put_nowait, result)

    def has_room(self) -> bool:
        """Whether the reader has kept up."""
        return self._put_samples - self._sent_samples <= self._limit_samples

    def sent(self, samples: int) -> None:
        """The reader has passed on so many samples."""
        was_full = not self.has_room()
        self._sent_samples += samples
        if was_full and self.has_room():
            self._wake()

    async def get(self) -> Packet | Timings:
        """The next result. Raises the error that ended the job."""
        result = await self._results.get()
        if isinstance(result, ApplianceError):
            raise result
        return result
