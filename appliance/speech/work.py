"""Work in slices, with which callers take turns at the planner."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Work = Generator[int, None, T]
"""Work that yields the size of each slice, in characters to read, and then does the slice."""

WORD, VOICE = 12, 50
"""Equivalent costs in characters: of reading a pronunciation, and of looking up a voice in memory."""
LOOKUP = 1_000
"""Equivalent cost in characters of a file on a slow disk, or of a reply from another process."""
