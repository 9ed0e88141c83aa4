"""The heap of glibc: one arena for all threads, and free pages back to the system.

Other C libraries: no effect.
"""

from __future__ import annotations

import contextlib
import ctypes

M_ARENA_MAX = -8
"""Number of the option in glibc's malloc.h."""


def keep_one() -> None:
    """Make all threads allocate in one arena.

    Each of several arenas keeps pages that the others cannot use.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)


def trim() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
