"""Threads that cross-fade, resample and encode long audio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

SHORT_SAMPLES = 1 << 17
"""Up to 5 s of audio take about a millisecond, on the event loop."""
THREADS = 2


class AudioWorkers:
    """Runs work on audio; short audio is not worth a change of threads."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="audio")

    async def run(self, samples: int, work: Callable[..., Any], *arguments: Any, costly: bool = False) -> Any:
        """Return work(*arguments), on a thread if there are many samples or it is `costly`."""
        if samples <= SHORT_SAMPLES and not costly:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
