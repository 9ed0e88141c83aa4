"""English lines, and texts of a wanted length from them."""

from __future__ import annotations

from pathlib import Path
from random import Random

LINES = Path(__file__).with_name("english.txt").read_text("utf-8").splitlines()


def text_of(words: int, random: Random) -> str:
    """Text with this number of words, from consecutive lines, starting at a random one."""
    first = random.randrange(len(LINES))
    text: list[str] = []
    while len(text) < words:
        text += LINES[first % len(LINES)].split()
        first += 1
    return " ".join(text[:words]).rstrip(".,?") + "."
