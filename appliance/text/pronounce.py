"""Pronunciations: words, above all names, with a spelling of their sound."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from functools import lru_cache

from appliance.errors import InvalidRequest
from appliance.text.chat.line import LINK, MAIL
from appliance.text.chat.marks import Marks
from appliance.text.chat.rewrite import Rewriting
from appliance.text.normalise import normalise
from appliance.text.scripts import HAN

MOST_WORDS = 500
MOST_WORD, MOST_SAY = 64, 200
"""Longest word and longest spelling, in characters."""
_ADDRESS = re.compile(f"{LINK}|{MAIL}", re.IGNORECASE)
_LETTER = re.compile(f"[^\\W{HAN}]")
"""A letter of a word. Chinese has no spaces that separate words."""


def check(words: Mapping[str, str], field: str = "pronunciations") -> None:
    """Check pronunciations. Raises InvalidRequest."""
    if len(words) > MOST_WORDS:
        raise InvalidRequest(field, f"has {len(words)} words; at most {MOST_WORDS} are allowed")
    for word, say in words.items():
        for text, most in ((word, MOST_WORD), (say, MOST_SAY)):
            if len(text) > most:
                raise InvalidRequest(
                    field, f"{text[:20]!r}… has {len(text)} characters; at most {most} are allowed"
                )
        if not (normalise(word) and normalise(say)):
            raise InvalidRequest(field, f"of {word!r} has an empty side")


def pronounce(text: Rewriting, words: Mapping[str, str], marks: Marks) -> None:
    """Put marks in place of these words, in any case, with or without an @, but not inside links.

    Among words that begin at one place, the longest wins; among words that differ only in case, the later
    one.
    """
    if not words:
        return
    plain = unicodedata.normalize("NFC", text.text)
    copied = 0
    parts = []
    for start, word, end, say in _matches(plain, *_looked_up(tuple(words.items()))):
        text.note("pronunciation", plain[word:end], say)
        parts += [plain[copied:start], marks.text(say)]
        copied = end
    text.text = "".join([*parts, plain[copied:]])


def _matches(
    text: str, says: Mapping[str, str], lengths: Mapping[str, tuple[int, ...]]
) -> Iterator[tuple[int, int, int, str]]:
    """(beginning with its @, beginning of the word, end, spelling) of each word, from left to right.

    A pattern of all words would compare each with each place: a second for 500 words of 64 characters.
    """
    folded = _folded(text)
    letters = {match.start() for match in _LETTER.finditer(text)}
    address, place = _ADDRESS.search(text), 0

    def at(start: int) -> int:
        """End of the longest whole word that begins here; 0 if there is none."""
        if start in letters and start - 1 in letters:
            return 0
        for length in lengths.get(folded[start : start + 1], ()):
            end = start + length
            if folded[start:end] in says and not (end - 1 in letters and end in letters):
                return end
        return 0

    while place < len(text):
        if address and address.start() < place:
            address = _ADDRESS.search(text, place)
        if address and address.start() == place:
            place = address.end()
            continue
        word = place + 1 if text[place] == "@" and at(place + 1) else place
        if end := at(word):
            yield place, word, end, says[folded[word:end]]
        place = end or place + 1


@lru_cache(maxsize=64)
def _looked_up(words: tuple[tuple[str, str], ...]) -> tuple[Mapping[str, str], Mapping[str, tuple[int, ...]]]:
    """Word → spelling, and first character → lengths of its words, the longest first."""
    says = {_folded(unicodedata.normalize("NFC", word.strip())): normalise(say) for word, say in words}
    lengths: dict[str, set[int]] = {}
    for word in says:
        lengths.setdefault(word[0], set()).add(len(word))
    return says, {first: tuple(sorted(sizes, reverse=True)) for first, sizes in lengths.items()}


def _folded(text: str) -> str:
    """The text without case, character for character: ẞ becomes ß and not "ss", İ becomes i."""
    return text.lower() if text.isascii() else "".join(map(_fold, text))


@lru_cache(maxsize=4096)
def _fold(character: str) -> str:
    folded = character.casefold()
    return folded if len(folded) == 1 else character.lower()[0]
