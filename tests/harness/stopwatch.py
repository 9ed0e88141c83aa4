"""`python -m tests.harness.stopwatch serve …`: the daemon, which logs long stops of its event loop.

A stop is the CPU time of one callback on the loop's thread: other work of the machine does not count.
"""

import asyncio
import gc
import logging
import sys
import time
from typing import Any

from appliance.cli import main

LONG_S = 2e-3

logger = logging.getLogger("stopwatch")
real = asyncio.Handle._run


def timed(self: asyncio.Handle) -> Any:
    begun = time.thread_time()
    collected = gc.get_stats()[2]["collections"]
    try:
        return real(self)
    finally:
        took_s = time.thread_time() - begun
        # A full collection takes time in proportion to the process's objects, whatever the callback does.
        if took_s > LONG_S and gc.get_stats()[2]["collections"] == collected:
            logger.warning("the loop stood for %.1f ms: %.300r", took_s * 1e3, self)


if __name__ == "__main__":
    asyncio.Handle._run = timed  # type: ignore[method-assign]
    sys.exit(main())
