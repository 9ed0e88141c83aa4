"""Front end: a request's text → text that the bundle's vocabulary can say, and the changes."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

from appliance.config import TextConfig
from appliance.contract.tokens import Vocabulary
from appliance.request import Change, Direction, Handling, Pause, Spoken
from appliance.text import ssml
from appliance.text.chat import rewrite, tidied
from appliance.text.chinese import to_tokens
from appliance.text.languages.english import ENGLISH
from appliance.text.languages.mandarin import MANDARIN
from appliance.text.line import is_chinese
from appliance.text.marks import PRIVATE, Marks, Silent
from appliance.text.normalise import normalise
from appliance.text.pronounce import pronounce
from appliance.text.rewrite import Rewriting, shortened

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
    "’": "'",
    "‘": "'",
    "“": '"',
    "”": '"',
    "„": '"',
    "!": ".",
    "?": ".",
    ",": " ",
    ".": " ",
}
"""Nearest substitutes; applied repeatedly until the vocabulary has the result."""
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


class FrontEnd:
    """Rewriting of texts for one vocabulary. Thread-safe."""

    def __init__(self, vocabulary: Vocabulary, choices: TextConfig | None = None) -> None:
        self.choices = choices or TextConfig()

        @lru_cache(maxsize=4096)
        def can_say(character: str) -> bool:
            return character == " " or all(
                token in vocabulary.index for token in vocabulary.split(character, to_tokens) if token != " "
            )

        self._can_say: Callable[[str], bool] = can_say
        self._chinese = all(map(can_say, "一二三百点"))

    def speakable(
        self, text: str, handling: Handling = Handling.CHAT, words: Mapping[str, str] = MappingProxyType({})
    ) -> Spoken:
        """`words` are pronunciations. Raises InvalidRequest for bad SSML."""
        marks = Marks()
        if PRIVATE.search(text):
            text = PRIVATE.sub(" ", text)
        changed = Rewriting(text)
        if handling is Handling.SSML:
            self._read_ssml(changed, marks)
        pronounce(changed, words, marks)
        if handling is Handling.VERBATIM:
            changed.text = normalise(changed.text)
        else:
            rewrite(changed, self.choices, marks, chinese=self._chinese)
        spoken = ""
        pauses: list[Pause] = []
        directions: list[Direction] = []
        for part, silent in marks.parts(changed.text):
            sayable = self._within_vocabulary(Rewriting(marks.restored(part), changed.changes)).strip()
            if any(character.isalnum() for character in sayable):
                spoken += f" {tidied(sayable)}" if spoken else sayable
            if silent.direction:
                directions.append(Direction(len(spoken), silent.direction))
            if spoken and silent.pause_s:
                before_s = pauses.pop().seconds if pauses and pauses[-1].after == len(spoken) else 0.0
                pauses.append(Pause(len(spoken), before_s + silent.pause_s))
        changes = tuple(
            Change(c.kind, shortened(marks.restored(c.before)), shortened(marks.restored(c.after)))
            for c in changed.changes
        )
        return Spoken(spoken, changes, tuple(pauses), tuple(directions))

    def _read_ssml(self, text: Rewriting, marks: Marks) -> None:
        pieces = ssml.parse(text.text)
        plain = "".join(piece for piece in pieces if isinstance(piece, str))
        language = MANDARIN if self._chinese and is_chinese(plain, self.choices.language) else ENGLISH
        text.text = ""
        for piece in pieces:
            if isinstance(piece, ssml.Break):
                text.text += f" {marks.silent(Silent(pause_s=piece.seconds))} "
            elif isinstance(piece, ssml.Ignored):
                text.note("ssml", piece.tag, "")
            elif isinstance(piece, ssml.SayAs):
                reading = tidied(normalise(ssml.spelt(piece, language.digit, language.number)))
                text.note(piece.how, piece.written, reading)
                text.text += marks.text(reading)
            else:
                text.text += piece

    def _within_vocabulary(self, text: Rewriting) -> str:
        """Drop and note characters without a substitute."""
        if all(map(self._can_say, text.text)):
            return text.text
        chinese = self._chinese and is_chinese(text.text, self.choices.language)
        digit = (MANDARIN if chinese else ENGLISH).digit
        parts: list[str] = []
        dropped = ""
        for character in f"{text.text} ":
            substitute = self._substitute(character, digit)
            if substitute is None:
                if unicodedata.combining(character):
                    text.note("letter", character, "")
                else:
                    dropped += character
                continue
            if dropped and not character.isspace():
                text.note("unsayable", dropped, "")
                parts.append(" ")
                dropped = ""
            if substitute != character and any(map(str.isalnum, character + substitute)):
                text.note("letter" if character.isalnum() else "sign", character, substitute)
            parts.append(substitute)
        if dropped:
            text.note("unsayable", dropped, "")
        return tidied("".join(parts))

    def _substitute(self, character: str, digit: Callable[[str], str]) -> str | None:
        """None without a substitute that the vocabulary can say."""
        if self._can_say(character):
            return character
        if character.isascii() and character.isdigit():
            return self._within(digit(character))
        for table in (_LETTERS, _SIGNS, _PUNCTUATION):
            if character in table:
                return self._within(table[character])
        base = "".join(c for c in unicodedata.normalize("NFKD", character) if not unicodedata.combining(c))
        return self._within(base) if base and base != character else None

    def _within(self, text: str) -> str | None:
        """None if it cannot be said."""
        sayable = ""
        for c in text:
            part = c if self._can_say(c) else self._within(_PUNCTUATION[c]) if c in _PUNCTUATION else None
            if part is None:
                return None
            sayable += part
        return sayable
