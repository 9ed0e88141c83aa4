"""Readings of words: of the dictionary, of inflected forms, of function words and of initials.

The dictionary is misaki's for US English. Stress, inflection and weak forms follow misaki 0.9.4, as hibari
does. Readings are strings of misaki's symbols.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from appliance.text.phones.alphabet import CONSONANTS, VOWELS
from appliance.text.phones.table import Table

KIND = "w"
SYMBOLS = "".join(map(chr, range(128))) + "ˈˌæðŋɑɔəɛɜɡɪɹʃʊʌʒʤʧθᵊᵻɐ"
"""Symbols of readings; the table stores each as its index here."""
SEPARATOR, OF_TAG, GOLD = "|", "=", "!"
"""An entry is `reading|TAG=reading|…`; it begins with ! if misaki is sure of it."""
ALONE = "None"
"""Tag for a word before a mark or at the end of the text."""
PRIMARY, SECONDARY = "ˈ", "ˌ"
MOST_CACHED = 2048
"""Words whose entries stay in memory."""
LONGEST_WORD = 64
"""Longest word in letters for which the dictionary is searched."""

_FULL_VOWELS = frozenset(VOWELS) - {"ɐ", "ᵊ"}
"""Vowels that may be stressed. "to" and "the" change before them."""
_FLAPPED_AFTER = frozenset("AIOWYiuæɑəɛɪɹʊʌ")
_SIGNS = {"&": "and", "+": "plus", "%": "percent", "@": "at"}
_INITIALS = re.compile(r"\.*[A-Za-z]{1,2}(?:\.+[A-Za-z]{1,2})+\.*")
_DOUBLED = re.compile(r"(?:([bcdgklmnprstvxz])\1|ck)ing$")
_PARENTS = {"VB": "VERB", "NN": "NOUN", "RB": "ADV", "JJ": "ADJ"}


class Ahead(NamedTuple):
    """The beginning of the next word, on which a reading depends."""

    vowel: bool | None = None
    """True if it begins with a vowel; None before a mark and at the end."""
    is_to: bool = False

    def before(self, reading: str, is_to: bool) -> Ahead:
        """The Ahead of the word before this reading. A reading without a sound changes only `is_to`."""
        for symbol in reading:
            if symbol in ";:,.!?—…":
                return Ahead(None, is_to)
            if symbol in _FULL_VOWELS or symbol in CONSONANTS:
                return Ahead(symbol in _FULL_VOWELS, is_to)
        return Ahead(self.vowel, is_to)


class LexiconEntry(NamedTuple):
    is_gold: bool
    reading: str
    """Symbols of the reading; empty if the word is spelt letter by letter."""
    by_tag: Mapping[str, str]


class Emphasis(NamedTuple):
    """Stress that the spelling of a word adds if the word has none."""

    added: str
    raised: bool = False
    """True if a word's secondary stress becomes primary."""


SMALL: Final = None
CAPITALISED: Final = Emphasis(SECONDARY)
CAPITALS: Final = Emphasis(PRIMARY, raised=True)


def unpacked(value: bytes) -> LexiconEntry:
    text = codecs.charmap_decode(value, "strict", SYMBOLS)[0]
    reading, *others = text.removeprefix(GOLD).split(SEPARATOR)
    by_tag = dict(other.split(OF_TAG, 1) for other in others)
    return LexiconEntry(text.startswith(GOLD), reading, by_tag)


def emphasised(reading: str, emphasis: Emphasis | None) -> str:
    if emphasis is None or PRIMARY in reading:
        return reading
    if SECONDARY in reading:
        return reading.replace(SECONDARY, PRIMARY) if emphasis.raised else reading
    first = next((at for at, symbol in enumerate(reading) if symbol in _FULL_VOWELS), None)
    return reading if first is None else reading[:first] + emphasis.added + reading[first:]


def weakened(reading: str) -> str:
    """A reading whose primary stress is secondary."""
    if PRIMARY not in reading:
        return reading
    return reading.replace(SECONDARY, "").replace(PRIMARY, SECONDARY)


def with_s(stem: str) -> str:
    if stem[-1:] in "szʃʒʧʤ":
        return f"{stem}ᵻz"
    return stem + ("s" if stem[-1:] in "ptkfθ" else "z")


def with_ed(stem: str) -> str:
    if stem[-1:] == "t":
        return f"{_flapped(stem)}ᵻd"
    if stem[-1:] == "d":
        return f"{stem}ᵻd"
    return stem + ("t" if stem[-1:] in "pkfθʃsʧ" else "d")


def with_ing(stem: str) -> str:
    return f"{_flapped(stem)}ɪŋ"


def _flapped(stem: str) -> str:
    return f"{stem[:-1]}T" if stem[-1:] == "t" and stem[-2:-1] in _FLAPPED_AFTER and len(stem) > 1 else stem


class Lexicon:
    """Looks up readings. Thread-safe."""

    def __init__(self, table: Table, own: Mapping[str, str]) -> None:
        """`own`: readings of words in small letters; they have precedence over the dictionary's."""
        self._table, self._own = table, own
        self._entry = lru_cache(maxsize=MOST_CACHED)(self._look_up)

    def read(self, word: str, tag: str, ahead: Ahead) -> str | None:
        """Reading of a word in its context; None for an unknown word."""
        if len(word) > LONGEST_WORD:
            return None
        emphasis = SMALL if word == word.lower() else CAPITALS if word == word.upper() else CAPITALISED
        if (reading := self._function_word(word, tag, ahead)) is not None:
            return reading
        small = word.lower()
        if self._is_small_at_heart(word, tag) and (
            self.find(small) or self._inflected(small, tag, None, ahead)
        ):
            word = small
        if self._is_known(word):
            return self._reading(word, tag, emphasis, ahead)
        for ending, instead in (("s'", "'s"), ("'", "")):
            bare = word[: -len(ending)] + instead
            if word.endswith(ending) and self._is_known(bare):
                return self._reading(bare, tag, emphasis, ahead)
        return self._inflected(word, tag, emphasis, ahead)

    def find(self, word: str) -> LexiconEntry | None:
        """Entry of a word as written, else with its first letter in the other case."""
        if (reading := self._own.get(word.lower())) is not None:
            return LexiconEntry(True, reading, {})
        return self._entry(word)

    def spelt(self, letters: str) -> str | None:
        """Names of the letters, with the stress on the last; None if a letter has no name."""
        names = [self._entry(letter.upper()) for letter in letters if letter.isalpha()]
        if not names or None in names:
            return None
        spelling = (
            "".join(name.reading for name in names if name).replace(SECONDARY, "").replace(PRIMARY, SECONDARY)
        )
        return PRIMARY.join(spelling.rsplit(SECONDARY, 1))

    def _look_up(self, word: str) -> LexiconEntry | None:
        value = self._table.get(KIND, word)
        if value is None and len(word) > 1:
            small = word.lower()
            other = {small: small.capitalize(), small.capitalize(): small}.get(word, word)
            value = self._table.get(KIND, other) if other != word else None
        return None if value is None else unpacked(value)

    def _function_word(self, word: str, tag: str, ahead: Ahead) -> str | None:
        """Reading of a word that depends on its tag or the next word; of signs; of initials with points."""
        small = word.lower()
        if word in _SIGNS:
            return self._reading(_SIGNS[word], tag, SMALL, ahead)
        if _INITIALS.fullmatch(word):
            return self.spelt(word)
        if word not in (small, small.capitalize(), small.upper()):
            return None
        is_noun, is_capitals = tag.startswith("NN"), len(word) > 1 and word == word.upper()
        match small:
            case "a":
                return "ɐ" if tag == "DT" else "ˈA"
            case "am" if is_noun:
                return self.spelt(word)
            case "am":
                return "æm" if ahead.vowel is None or word != small else "ɐm"
            case "an":
                return self.spelt(word) if is_capitals and is_noun else "ɐn"
            case "i" if word == "I" and tag == "PRP":
                return "ˌI"
            case "by" if _parent(tag) == "ADV":
                return "bˈI"
            case "to" if not is_capitals or tag in ("TO", "IN"):
                return "tu" if ahead.vowel is None else "tʊ" if ahead.vowel else "tə"
            case "in" if not is_capitals or tag != "NNP":
                return "ɪn" if tag == "IN" and ahead.vowel is not None else "ˈɪn"
            case "the" if not is_capitals or tag == "DT":
                return "ði" if ahead.vowel else "ðə"
            case "vs" | "vs." if tag == "IN":
                return self._reading("versus", tag, SMALL, ahead)
            case "used":
                return "jˈust" if tag in ("VBD", "JJ") and ahead.is_to else "jˈuzd"
        return None

    def _is_small_at_heart(self, word: str, tag: str) -> bool:
        """True if a word's capitals carry no meaning, so that it may be looked up in small letters."""
        return (
            len(word) > 1
            and word.replace("'", "").isalpha()
            and word != word.lower()
            and (tag != "NNP" or len(word) > 7)
            and self.find(word) is None
            and (word == word.upper() or word[1:] == word[1:].lower())
        )

    def _is_known(self, word: str) -> bool:
        if self.find(word) is not None:
            return True
        # Capitals that are no word are spelt.
        return word.isascii() and word.isalpha() and (len(word) == 1 or word[1:] == word[1:].upper())

    def _reading(self, word: str, tag: str, emphasis: Emphasis | None, ahead: Ahead) -> str | None:
        """Reading of a known word by its tag."""
        entry, is_name = self.find(word), False
        if word == word.upper() and not (entry and entry.is_gold):
            word, is_name = word.lower(), tag == "NNP"
            entry = self.find(word)
        if entry is None or (is_name and not entry.is_gold):
            return self.spelt(word)
        reading = entry.reading
        if ahead.vowel is None and ALONE in entry.by_tag:
            reading = entry.by_tag[ALONE]
        elif entry.by_tag:
            reading = entry.by_tag.get(tag, entry.by_tag.get(_parent(tag), reading))
        if not reading or (is_name and PRIMARY not in reading):
            return self.spelt(word) or emphasised(reading, emphasis) or None
        return emphasised(reading, emphasis)

    def _inflected(self, word: str, tag: str, emphasis: Emphasis | None, ahead: Ahead) -> str | None:
        """Reading of a known word with -s, -ed or -ing."""
        if len(word) > 2 and word.endswith("s"):
            stems = [word[:-1]] * (not word.endswith("ss"))
            stems += [word[:-2]] * (
                word.endswith("'s") or (len(word) > 4 and word[-3:] != "ies" and word.endswith("es"))
            )
            stems += [f"{word[:-3]}y"] * (len(word) > 4 and word.endswith("ies"))
            if (stem := self._stem(stems, tag, emphasis, ahead)) is not None:
                return with_s(stem)
        if len(word) > 3 and word.endswith("d"):
            stems = [word[:-1]] * (not word.endswith("dd"))
            stems += [word[:-2]] * (len(word) > 4 and word[-3:] != "eed" and word.endswith("ed"))
            if (stem := self._stem(stems, tag, emphasis, ahead)) is not None:
                return with_ed(stem)
        if len(word) > 4 and word.endswith("ing"):
            stems = [word[:-3]] * (len(word) > 5) + [f"{word[:-3]}e"]
            stems += [word[:-4]] * (len(word) > 5 and _DOUBLED.search(word) is not None)
            if (stem := self._stem(stems, tag, emphasis or CAPITALISED, ahead)) is not None:
                return with_ing(stem)
        return None

    def _stem(self, stems: list[str], tag: str, emphasis: Emphasis | None, ahead: Ahead) -> str | None:
        stem = next(filter(self._is_known, stems), None)
        return (self._reading(stem, tag, emphasis, ahead) if stem is not None else None) or None


def _parent(tag: str) -> str:
    """Word class, as the dictionary names it, of a Penn tag."""
    return _PARENTS.get(tag[:2], tag)
