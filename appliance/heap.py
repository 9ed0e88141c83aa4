"""The C library's heap, where that is glibc: one for all threads, and its free pages back to the system."""

from __future__ import annotations

import contextlib
import ctypes

M_ARENA_MAX = -8
"""glibc's malloc.h."""


def keep_one() -> None:
    """Let all threads allocate in one arena: each of several keeps pages that the others cannot use."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def trim() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
