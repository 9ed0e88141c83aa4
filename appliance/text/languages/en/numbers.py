"""English numbers in words: whole, decimal, ordinal, as a year, and digit by digit."""

from __future__ import annotations

from pathlib import Path

from appliance.text.languages.numerals import Numerals
from appliance.text.languages.quantity import LONGEST
from appliance.text.languages.words import own

_NUMERALS = Numerals(own(Path(__file__).with_name("words.tsv")).numerals)
_IRREGULAR = str.split("one first two second three third five fifth eight eighth nine ninth twelve twelfth")
_ORDINALS = dict(zip(_IRREGULAR[::2], _IRREGULAR[1::2], strict=True))


def english(number: int) -> str:
    """The number in words, up to LONGEST digits: 1299 → "one thousand two hundred ninety-nine"."""
    return _NUMERALS.say("cardinal", number)


def english_ordinal(number: int) -> str:
    return ordinal(english(number))


def ordinal(words: str) -> str:
    """The ordinal of a number in words: "twenty-one" → "twenty-first"."""
    head, mark, last = words.rpartition("-") if "-" in words.split()[-1] else words.rpartition(" ")
    if last in _ORDINALS:
        return head + mark + _ORDINALS[last]
    return head + mark + (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")


def english_year(year: int) -> str:
    """A year in words: 2026 → "twenty twenty-six", 1905 → "nineteen oh five", 2005 → "two thousand five"."""
    return _NUMERALS.say("year", year)


def english_digits(digits: str) -> str:
    """Words of each digit. Other characters are ignored."""
    return " ".join(english(int(digit)) for digit in digits if digit.isdecimal())


def english_decimal(number: str) -> str:
    whole, _, part = number.replace(",", "").partition(".")
    sign = "minus " if whole.startswith("-") else ""
    whole = whole.lstrip("-+") or "0"
    words = english(int(whole)) if len(whole) <= LONGEST else english_digits(whole)
    return sign + words + (f" point {english_digits(part)}" if part else "")
