"""The C library's heap, where that is glibc: one for all threads, and its free pages back to the system."""

from __future__ import annotations

import contextlib
import ctypes

OPTIONS = {-8: 1, -3: 4 << 20, -1: 32 << 20}
"""M_ARENA_MAX, M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of glibc's malloc.h.

Left to itself glibc raises its thresholds to 32 and 64 MB with the first large block that is freed: large
blocks then lie within the heap, and between them what cannot go back to the system.
"""


def keep_one() -> None:
    """Let all threads allocate in one arena: each of several keeps pages that the others cannot use."""
    with contextlib.suppress(OSError, AttributeError):
        for option, value in OPTIONS.items():
            ctypes.CDLL(None).mallopt(option, value)


def trim() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
