"""English and Chinese lines, and texts of a wanted length from them."""

from __future__ import annotations

from pathlib import Path
from random import Random

LINES, CHINESE = (
    Path(__file__).with_name(f"{language}.txt").read_text("utf-8").splitlines()
    for language in ("english", "chinese")
)


def text_of(words: int, random: Random) -> str:
    """Text with this number of words, from consecutive lines, starting at a random one."""
    first = random.randrange(len(LINES))
    taken: list[str] = []
    while len(taken) < words:
        taken += LINES[first % len(LINES)].split()
        first += 1
    return " ".join(taken[:words]).rstrip(".,?") + "."


def chinese_of(characters: int, random: Random) -> str:
    """Text with this number of characters, punctuation included, from consecutive Chinese lines."""
    first = random.randrange(len(CHINESE))
    text = "".join(CHINESE[(first + number) % len(CHINESE)] for number in range(characters // 12 + 2))
    return text[: characters - 1].rstrip("，。") + "。"
