"""The heap of glibc: one arena for all threads, and free pages back to the system.

Other C libraries: no effect.
"""

from __future__ import annotations

import contextlib
import ctypes

OPTIONS = {-8: 1, -3: 1 << 20, -1: 32 << 20}
"""M_ARENA_MAX, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of glibc's malloc.h, with their values.

Each of several arenas keeps pages that the others cannot use. Without fixed thresholds glibc raises both as
soon as a large block is freed: large blocks then lie in the heap, and their pages stay there.
"""


def keep_one() -> None:
    """Make all threads allocate in one arena, and large blocks outside of it."""
    with contextlib.suppress(OSError, AttributeError):
        for option, value in OPTIONS.items():
            ctypes.CDLL(None).mallopt(option, value)


def trim() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
