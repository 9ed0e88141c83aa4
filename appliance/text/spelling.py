"""Letters in the case and canonical form that a vocabulary has, else the nearest letters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache

from appliance.contract.tokens import Vocabulary
from appliance.text.scripts import JOINERS, LETTERS, MARKS
from appliance.text.tokens.tokenizers import says

_NEAREST = dict(zip("ßæÆœŒøØłŁđĐıþð", str.split("ss ae AE oe OE o O l L d D i th th"), strict=True))
_BY_SUBSTITUTE = {
    **{", ": "，、；|()", ". ": "。", "! ": "！", "? ": "？", ": ": "：", " (": "（", ") ": "）", " - ": "—"},
    **{"-": "–", "...": "…", " ": '·~～/\\_[]{}`【】"-,.', '"': "「」《》«»“”„", ",": ";:،؛", ".": "۔।॥!?"},
    **{"?": "؟", "'": "’‘", "": "'¿¡"},
}
_SIGNS = {sign: substitute for substitute, signs in _BY_SUBSTITUTE.items() for sign in signs}
"""Sign → its nearest substitute, and so on until the vocabulary has the result."""
_SPACES = re.compile(r" +([,.!?])|  +")
"""Spaces before a mark, and repeated spaces."""
_WORD = re.compile(rf"(?:[^\W\d_]|[{MARKS}{JOINERS}])+")
_CLUSTER = re.compile(rf".[{MARKS}]*", re.S)
_EXCLUDED = {
    unicodedata.normalize("NFD", character): character
    for character in map(chr, (*range(0x958, 0x960), 0x9DC, 0x9DD, 0x9DF, *range(0xA33, 0xA5F), 0xB5C, 0xB5D))
    if unicodedata.normalize("NFC", character) != character
}
"""Letters with a nukta, which Unicode's composition leaves as two characters."""
_FEWEST = 10
"""Letters of a script that a vocabulary must have for texts in it."""


class Spelling:
    """Fits texts to one vocabulary. Thread-safe."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        @lru_cache(maxsize=4096)
        def can_say(character: str) -> bool:
            return character == " " or says(vocabulary, character)

        self.can_say: Callable[[str], bool] = can_say
        self.leaves_out = vocabulary.leaves_out
        self.omits = vocabulary.tokenizer in ("letters", "phones")
        """True if the tokenizer drops characters that have a nearest letter or sign."""
        self._word = lru_cache(maxsize=4096)(self._best)
        letters = "".join(token for token in vocabulary.tokens if len(token) == 1)
        self.scripts = frozenset(
            script
            for script, ranges in LETTERS.items()
            if (
                all(map(can_say, "一二三百"))
                if script == "CJK"
                else len(re.findall(f"[{ranges}]", letters)) >= _FEWEST
            )
        )
        """Scripts that the vocabulary has."""

    def fitted(self, text: str) -> str:
        """Each word as the vocabulary has it: whole words change case, letters their form."""
        if all(map(self.can_say, text)):
            return text
        return _WORD.sub(lambda match: self._word(match[0]), text)

    def read(self, text: str) -> str:
        """A transcript in the vocabulary's letters.

        If the tokenizer drops characters, the nearest ones replace them.
        """
        fitted = self.fitted(text)
        if not self.omits:
            return fitted
        characters = (c if self.can_say(c) else self.nearest(c) or "" for c in " ".join(fitted.split()))
        return _SPACES.sub(lambda match: match[1] or " ", "".join(characters)).strip()

    def loses(self, character: str) -> bool:
        """True for a character of a transcript that `read` loses."""
        return not (self.can_say(character) or (self.omits and self.nearest(character)))

    def within(self, text: str) -> str | None:
        """Text in signs of the vocabulary; None if the vocabulary lacks them."""
        sayable = ""
        for c in text:
            part = c if self.can_say(c) else self.within(_SIGNS[c]) if c in _SIGNS else None
            if part is None:
                return None
            sayable += part
        return sayable

    def nearest(self, letter: str) -> str | None:
        """Substitute for one letter or sign that the vocabulary has: é → e."""
        if letter in _SIGNS:
            return self.within(_SIGNS[letter])
        if letter in _NEAREST:
            bare = _NEAREST[letter]
        else:
            decomposed = unicodedata.normalize("NFKD", letter)
            bare = "".join(c for c in decomposed if not unicodedata.combining(c) or self.can_say(c))
        return bare if bare and bare != letter and all(map(self.can_say, bare)) else None

    def _best(self, word: str) -> str:
        if all(map(self.can_say, word)):
            return word
        # A longer word is the last choice: STRASSE for Straße.
        cases = {case: len(case) - len(word) for case in (word, word.lower(), word.upper())}
        formed = [(self._formed(case), grown) for case, grown in cases.items()]
        return min(formed, key=lambda form: form[0][1] + form[1])[0][0]

    def _cost(self, letter: str) -> int:
        if self.can_say(letter) or letter in JOINERS:
            return 0
        return 1 if unicodedata.category(letter)[0] == "M" or self.nearest(letter) else 3

    def _formed(self, word: str) -> tuple[str, int]:
        """The word in the vocabulary's form, and its cost: 1 for a replaced letter, 3 for a lost one."""
        formed, cost = "", 0
        for match in _CLUSTER.finditer(word):
            form = next((f for f in _forms(match[0]) if all(map(self.can_say, f))), None)
            formed += match[0] if form is None else form
            if form is None:
                cost += sum(map(self._cost, match[0]))
        return formed, cost


def _forms(cluster: str) -> list[str]:
    """A letter with its marks: as written, composed, composed with a single mark, decomposed."""
    decomposed = unicodedata.normalize("NFD", cluster)
    base, marks = decomposed[:1], decomposed[1:]
    forms = [cluster, unicodedata.normalize("NFC", cluster)]
    for place, mark in enumerate(marks):
        composed = _EXCLUDED.get(base + mark) or unicodedata.normalize("NFC", base + mark)
        if len(composed) == 1:
            forms.append(composed + marks[:place] + marks[place + 1 :])
    return [*forms, decomposed]
