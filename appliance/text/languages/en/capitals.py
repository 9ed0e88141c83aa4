"""English words in capitals: which are acronyms, Roman numerals, sizes or shouting."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

from appliance.text.languages.en.numbers import english, english_ordinal
from appliance.text.languages.quantity import ONLY_ROMAN, roman
from appliance.text.languages.words import own
from appliance.text.spans import Kind, before

_LISTS = {name: frozenset(words) for name, words in own(Path(__file__).with_name("words.tsv")).lists.items()}
SPELT, _SPOKEN, _SHORT_WORDS = _LISTS["spelt"], _LISTS["said as words"], _LISTS["short words"]
_ONSETS, _CODAS = _LISTS["beginnings of words"] | {""}, _LISTS["ends of words"]


def pronounceable(word: str) -> bool:
    """True if letters look like one English word: with vowels, and clusters as words begin and end with."""
    word = word.lower()
    parts = re.split(r"[aeiouy]+", word)
    if len(parts) < 2:
        return False
    onset = parts[0] if not word.startswith("y") else ""
    return (
        onset in _ONSETS and (not parts[-1] or parts[-1] in _CODAS) and all(len(part) < 5 for part in parts)
    )


def is_spelt(word: str) -> bool:
    """True if capitals cannot be a word, accents ignored."""
    word = re.sub("[^A-Z']", "", unicodedata.normalize("NFD", word)) or word
    return len(word) > 1 and (not re.search("[AEIOUY]", word) or (len(word) <= 6 and not pronounceable(word)))


def is_initials(word: str) -> bool:
    """True if capitals are spelt letter by letter: PDF. Speakers say JSON as a word."""
    return word not in _SPOKEN and (word in SPELT or is_spelt(word))


_ROMAN = re.compile(r"(?=[IVX]{2,}|[IVXL]{3,}|[ivx]{2,})L?X{0,3}(?:IX|IV|V?I{0,3})|x{0,2}(?:ix|iv|v?i{0,3})")
_ONLY_ROMAN = ONLY_ROMAN | {"II"}
"""Numerals that are no words, even in small letters."""
_BEFORE_ROMAN = re.compile(
    r"(?:\b[A-Z][\w']*|\b(?:part|chapter|season|act|level|phase|type|class|mark|volume|book|tier|stage|episode"
    r"|round|title))[ :]\s?$"
)
_MONARCH = re.compile(
    r"\b(?:Henry|Louis|Elizabeth|George|Edward|Charles|Richard|William|Philip|Napoleon|Pope \w+|King \w+"
    r"|Queen \w+|John Paul|Benedict) $"
)


def capitals(match: re.Match[str], shouted: bool) -> tuple[Kind, str] | None:
    """Words of a word in capitals, with their kind. None leaves it as written."""
    word, earlier = match[0], before(match)
    if len(word) == 1:
        return None
    if _ROMAN.fullmatch(word) and (
        word.upper() in _ONLY_ROMAN or (_BEFORE_ROMAN.search(earlier) and (not shouted or len(word) > 2))
    ):
        value = roman(word.upper())
        return Kind.ROMAN, f"the {english_ordinal(value)}" if _MONARCH.search(earlier) else english(value)
    short = re.sub(r"([A-Z])\1{2,}", r"\1", word)
    if short != word:
        if len(short) == 1:
            return Kind.REPEAT, word[:3].lower()
        if short in _SPOKEN or short in SPELT:
            return Kind.REPEAT, short
    stem = short.removesuffix("'S")
    if stem in _SPOKEN or stem == "I":
        return None
    if stem in SPELT and not (shouted and stem in _SHORT_WORDS):
        return Kind.ACRONYM, " ".join(short.removesuffix("'S")) + ("'s" if stem != short else "")
    if "'" not in short and short not in _SHORT_WORDS and is_spelt(short):
        return Kind.ACRONYM, " ".join(short)
    if len(short) >= 4 or (short in _SHORT_WORDS and short != "A") or shouted:
        short = re.sub(r"([A-Z]{2,3}?)\1{3,}", r"\1\1\1", short)
        is_first = not earlier or earlier.rstrip()[-1:] in (*".!?\n", "")
        kind = Kind.SHOUTING if short == word else Kind.REPEAT
        return kind, short.capitalize() if is_first else short.lower()
    return None
