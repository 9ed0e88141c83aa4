"""Characters that stand in for what the rewriting of chat has to leave alone: said texts, and pauses."""

from __future__ import annotations

import re

_FIRST_SAID, _FIRST_PAUSE = 0xF0000, 0x100000
SAID = "\U000f0000-\U000ffffd"
"""Marks of texts, as a range within a pattern's brackets."""
PRIVATE = re.compile("[\U000f0000-\U0010ffff]+")
"""Characters without a meaning of their own, which marks are taken from."""
_PAUSE = re.compile("([\U00100000-\U0010fffd])")


class Marks:
    """The marks of one text, which has none of its own."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}
        self._pauses: list[float] = []

    def said(self, text: str) -> str:
        """The mark of a text; the same for the same text, so that repeats are seen."""
        return self._said.setdefault(text, chr(_FIRST_SAID + len(self._said)))

    def pause(self, seconds: float) -> str:
        """The mark of a pause."""
        self._pauses.append(seconds)
        return chr(_FIRST_PAUSE + len(self._pauses) - 1)

    def restored(self, text: str) -> str:
        """A text with what its marks stand for, pauses left out."""
        texts = {mark: text for text, mark in self._said.items()}
        return PRIVATE.sub(lambda m: "".join(texts.get(mark, "") for mark in m[0]), text)

    def parts(self, text: str) -> list[tuple[str, float]]:
        """Return the pieces between pauses, each with the seconds of silence after it."""
        pieces = _PAUSE.split(text)
        seconds = [self._pauses[ord(mark) - _FIRST_PAUSE] for mark in pieces[1::2]]
        return list(zip(pieces[0::2], [*seconds, 0.0], strict=True))
