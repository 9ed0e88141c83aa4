"""Threads that cross-fade, resample and encode, so that long audio does not hold up the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

SHORT_SAMPLES = 1 << 17
"""Up to 5 s of audio, which take about a millisecond, are worked on in the event loop."""
THREADS = 2


class AudioWorkers:
    """Runs work on audio: in place where there is little, since going to a thread takes time too."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="audio")

    async def run(self, samples: int, work: Callable[..., Any], *arguments: Any, costly: bool = False) -> Any:
        """Return work(*arguments), which is about so many samples; `costly` work always gets a thread."""
        if samples <= SHORT_SAMPLES and not costly:
            return work(*arguments)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False, cancel_futures=True)
