"""Work in slices, with which callers take turns at the planner."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")
Work = Generator[int, None, T]
"""Work that yields the size of each slice, in characters to read, and then does the slice."""

WORD, VOICE = 12, 50
"""Characters that take as long to read as a pronunciation, and as a voice in memory takes to look up."""
LOOKUP = 1_000
"""Characters that take as long to read as a file on a slow disk, or as another process takes to reply."""
