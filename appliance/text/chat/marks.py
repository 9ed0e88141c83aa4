"""Marks: private characters for texts, pauses, directions and tags, so that no rewriting changes them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_FIRST_TEXT, _FIRST_SILENT = 0xF0000, 0x100000
TEXT_MARKS = "\U000f0000-\U000ffffd"
"""Range of marks for texts, for a pattern's brackets."""
PRIVATE = re.compile("[\U000f0000-\U0010ffff]+")
SILENT_MARK = "[\U00100000-\U0010fffd]"
_SILENT = re.compile(f"({SILENT_MARK})")


@dataclass(frozen=True)
class Silent:
    """A mark without a text: a pause, direction, style or voice."""

    pause_s: float = 0.0
    direction: str = ""
    style: str = ""
    """Name of the style in a tag."""
    voice: str | None = None
    """Name of the next voice; "" for the request's voice."""


class Marks:
    """The marks of one text, which must have no other private characters."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._silent: list[Silent] = []

    def text(self, text: str) -> str:
        """The mark of a text. Equal texts have the same mark, so that repeats are recognised."""
        return self._texts.setdefault(text, chr(_FIRST_TEXT + len(self._texts)))

    def silent(self, silent: Silent) -> str:
        self._silent.append(silent)
        return chr(_FIRST_SILENT + len(self._silent) - 1)

    def by_voice(self, text: str) -> list[tuple[str, str | None, str]]:
        """Parts of a text by voice: (mark of a voice, its name, text up to the next mark).

        The first part is ("", None, the text before any mark).
        """
        voices = {chr(_FIRST_SILENT + n): s.voice for n, s in enumerate(self._silent) if s.voice is not None}
        pieces = re.split(f"([{''.join(voices)}])", text) if voices else [text]
        return [
            ("", None, pieces[0]),
            *((m, voices[m], t) for m, t in zip(pieces[1::2], pieces[2::2], strict=True)),
        ]

    def restored(self, text: str) -> str:
        """Replace marks by their texts and drop silent marks."""
        if text.isascii():
            return text
        texts = {mark: text for text, mark in self._texts.items()}
        return PRIVATE.sub(lambda m: "".join(texts.get(mark, "") for mark in m[0]), text)

    def parts(self, text: str) -> list[tuple[str, Silent]]:
        """Parts of a text: (text, the silent mark after it)."""
        pieces = _SILENT.split(text)
        silent = [self._silent[ord(mark) - _FIRST_SILENT] for mark in pieces[1::2]]
        return list(zip(pieces[0::2], [*silent, Silent()], strict=True))
