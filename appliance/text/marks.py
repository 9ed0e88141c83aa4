"""Marks: private characters in place of texts and pauses that the rewriting of chat must not change."""

from __future__ import annotations

import re

_FIRST_TEXT, _FIRST_PAUSE = 0xF0000, 0x100000
TEXT_MARKS = "\U000f0000-\U000ffffd"
"""Range for a pattern's brackets."""
PRIVATE = re.compile("[\U000f0000-\U0010ffff]+")
"""The private use area that marks are taken from."""
_PAUSE = re.compile("([\U00100000-\U0010fffd])")


class Marks:
    """The marks of one text, which has no private characters of its own."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._pauses: list[float] = []

    def text(self, text: str) -> str:
        """The mark of a text: equal for equal texts, so that repeats are recognised."""
        return self._texts.setdefault(text, chr(_FIRST_TEXT + len(self._texts)))

    def pause(self, seconds: float) -> str:
        self._pauses.append(seconds)
        return chr(_FIRST_PAUSE + len(self._pauses) - 1)

    def restored(self, text: str) -> str:
        """A text with its marks replaced by their texts, without pauses."""
        texts = {mark: text for text, mark in self._texts.items()}
        return PRIVATE.sub(lambda m: "".join(texts.get(mark, "") for mark in m[0]), text)

    def parts(self, text: str) -> list[tuple[str, float]]:
        """(text, seconds of silence after it) between pauses."""
        pieces = _PAUSE.split(text)
        seconds = [self._pauses[ord(mark) - _FIRST_PAUSE] for mark in pieces[1::2]]
        return list(zip(pieces[0::2], [*seconds, 0.0], strict=True))
