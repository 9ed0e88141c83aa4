"""Turkish: its numbers and ordinals, with suffixes that an apostrophe joins to a number."""

from __future__ import annotations

import re

from appliance.text.languages.facets import Noun
from appliance.text.languages.grammar import BaseGrammar
from appliance.text.languages.plain import unshouted
from appliance.text.languages.quantity import roman
from appliance.text.spans import Kind, Say, Table

_LETTERS = "a-zçğıöşü"
_SUFFIX = rf"(?:['’](?P<suffix>[{_LETTERS}]+))?"
_VOWELS = {"a": "ı", "ı": "ı", "e": "i", "i": "i", "o": "u", "u": "u", "ö": "ü", "ü": "ü"}
"""Last vowel of a word → the vowel of an ordinal's ending."""


class Grammar(BaseGrammar):
    def ordinal(self, number: int, ending: str = "") -> str:
        words = re.sub("t$", "d", self.cardinal(number)) if number % 10 == 4 else self.cardinal(number)
        vowel = _VOWELS[re.findall("[aeıioöuü]", words)[-1]]
        return f"{words}{'' if words[-1] in _VOWELS else vowel}nc{vowel}"

    def decimals(self, whole: str, part: str) -> str:
        if part == "5" and whole != "0":
            return f"{self.cardinal(int(whole))} buçuk"
        return super().decimals(whole, part)

    def counted(self, number: str, noun: Noun) -> str:
        """Words of a number with its noun. The noun may be a format: yüzde {}."""
        form = noun.forms[0]
        return form.format(self.spoken(number)) if "{}" in form else super().counted(number, noun)

    def between(self, first: str, word: str, second: str) -> str:
        """Words of two numbers with a word between. "Versus" has a suffix before it: bire karşı bir."""
        return super().between(_joined(first, "e") if word == self.signs.versus else first, word, second)

    def capitals(self, match: re.Match[str], shouted: bool) -> tuple[Kind, str] | None:
        """Write shouted words in small letters. I becomes ı, and İ becomes i."""
        if not (reading := unshouted(match, shouted)):
            return None
        small = match[0].replace("I", "ı").replace("İ", "i").lower()
        return reading[0], match[0][0] + small[1:] if reading[1][0].isupper() else small

    def in_case(self, table: Table) -> Table:
        """Readings that add a suffix after an apostrophe: 5'te → beşte, 4'ü → dördü."""
        return [(kind, f"{pattern}{_SUFFIX}", _suffixed(say)) for kind, pattern, say in table]

    def digit_rules(self) -> Table:
        time = r"(?<=saat )([01]?\d|2[0-3])\.([0-5]\d)(?![\w%]|[.,:]\d)"
        ordinal = rf"(\d{{1,4}})\.(?=\s[{_LETTERS}])"
        return self.in_case(
            (
                (Kind.TIME, time, lambda m: self.clock(int(m[1]), int(m[2]), False)),
                (Kind.NUMBER, ordinal, lambda m: self.ordinal(int(m[1]))),
            )
        )

    def letter_rules(self) -> Table:
        numeral = r"([IVX]{1,5})\.(?=\s[A-ZÇĞİÖŞÜ])"
        return ((Kind.ROMAN, numeral, lambda m: self.ordinal(roman(m[1]))),)


def _suffixed(say: Say) -> Say:
    def read(match: re.Match[str]) -> str | tuple[Kind, str] | None:
        words, suffix = say(match), match["suffix"] or ""
        if not suffix or words is None:
            return words
        return (words[0], _joined(words[1], suffix)) if isinstance(words, tuple) else _joined(words, suffix)

    return read


def _joined(words: str, suffix: str) -> str:
    """Words with a suffix, whose vowels follow the harmony: TL'ye → liraya, kuruşa."""
    vowel = re.findall("[aeıioöuü]", words)[-1]
    buffer, rest = re.findall("^([yns]?)(?=[aeıiuü])|$", suffix)[0], re.sub("^[yns](?=[aeıiuü])", "", suffix)
    rest = re.sub("[ae]", "a" if vowel in "aıou" else "e", re.sub("[ıiuü]", _VOWELS[vowel], rest))
    if words[-1] in _VOWELS:
        return words + (buffer or "y") * (rest[0] in _VOWELS) + rest
    rest = re.sub("^[dt]", "t" if words[-1] in "fstkçşhp" else "d", rest)
    return (re.sub("dört$", "dörd", words) if rest[0] in _VOWELS else words) + rest
