"""What a vocabulary cannot say: mapped to what it can, or dropped and named; never a silent space."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from functools import lru_cache

from appliance.contract.tokens import Vocabulary
from appliance.job import Change
from appliance.text import english, mandarin
from appliance.text.chat import Manners, is_chinese, rewrite, tidied
from appliance.text.chinese import to_tokens
from appliance.text.normalise import normalise
from appliance.text.rewrite import Rewriting

NOTHING = "nothing in it can be spoken"
_LETTERS = {"ß": "ss", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L"} | {
    "đ": "d",
    "Đ": "D",
    "ı": "i",
    "þ": "th",
    "ð": "th",
}
_PUNCTUATION = {
    "，": ", ",
    "。": ". ",
    "！": "! ",
    "？": "? ",
    "、": ", ",
    "：": ": ",
    "；": ", ",
    "（": " (",
    "）": ") ",
} | {
    "—": " - ",
    "–": "-",
    "…": "...",
    "·": " ",
    "~": " ",
    "～": " ",
    "|": ", ",
    "/": " ",
    "\\": " ",
    "_": " ",
    "[": " ",
    "]": " ",
    "{": " ",
    "}": " ",
    "`": " ",
    "「": '"',
    "」": '"',
    "《": '"',
    "》": '"',
    "【": " ",
    "】": " ",
    ";": ",",
    "(": ", ",
    ")": ", ",
    '"': " ",
    ":": ",",
    "-": " ",
    "'": "",
    "!": ".",
    "?": ".",
    ",": " ",
    ".": " ",
}
"""Punctuation by what is nearest to it; followed more than once, as far as the vocabulary needs."""
_SIGNS = {"&": " and ", "+": " plus ", "=": " equals ", "%": " percent ", "@": " at ", "$": " dollars "} | {
    "€": " euros ",
    "£": " pounds ",
    "¥": " yuan ",
    "°": " degrees ",
    "×": " times ",
    "÷": " divided by ",
    "→": " to ",
    "#": " number ",
}


class Front:
    """Texts as they come → texts that a vocabulary can say. Any thread may use it."""

    def __init__(self, vocabulary: Vocabulary, manners: Manners | None = None) -> None:
        self.manners = manners or Manners()

        @lru_cache(maxsize=4096)
        def can_say(character: str) -> bool:
            return character == " " or all(
                token in vocabulary.index for token in to_tokens(character) if token != " "
            )

        self._can_say: Callable[[str], bool] = can_say
        self._chinese = all(map(can_say, "一二三百点"))

    def speakable(self, text: str, verbatim: bool = False) -> tuple[str, tuple[Change, ...]]:
        """A text as it is to be spoken, empty where nothing is left, and what was changed.

        `verbatim` changes only what the vocabulary cannot say.
        """
        changed = Rewriting(normalise(text) if verbatim else text)
        if not verbatim:
            rewrite(changed, self.manners, chinese=self._chinese)
        spoken = self._within_vocabulary(changed)
        if not any(character.isalnum() for character in spoken):
            spoken = ""
        return spoken, tuple(changed.changes)

    def _within_vocabulary(self, text: Rewriting) -> str:
        if all(map(self._can_say, text.text)):
            return text.text
        chinese = self._chinese and is_chinese(text.text, self.manners.language)
        digit = mandarin.digit if chinese else english.digit
        parts: list[str] = []
        dropped = ""
        for character in f"{text.text} ":
            said = self._said(character, digit)
            if said is None:
                dropped += character
                continue
            if dropped and not character.isspace():
                text.note("unsayable", dropped, "")
                parts.append(" ")
                dropped = ""
            if said != character and character.isalnum():
                text.note("letter", character, said)
            parts.append(said)
        if dropped:
            text.note("unsayable", dropped, "")
        return tidied("".join(parts))

    def _said(self, character: str, digit: Callable[[str], str]) -> str | None:
        """What stands for a character; None for nothing."""
        if self._can_say(character):
            return character
        if character.isascii() and character.isdigit():
            return self._all(digit(character))
        for table in (_LETTERS, _SIGNS, _PUNCTUATION):
            if character in table:
                return self._all(table[character])
        base = "".join(c for c in unicodedata.normalize("NFKD", character) if not unicodedata.combining(c))
        return self._all(base) if base and base != character else None

    def _all(self, text: str) -> str | None:
        """A mapping, each character of which may itself be mapped."""
        said = [
            c if self._can_say(c) else self._all(_PUNCTUATION[c]) if c in _PUNCTUATION else None for c in text
        ]
        return None if None in said else "".join(c for c in said if c is not None)
