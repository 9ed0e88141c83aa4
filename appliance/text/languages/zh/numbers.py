"""Chinese numbers in words: whole, decimal, and digit by digit."""

from __future__ import annotations

from pathlib import Path

from appliance.text.languages.numerals import Numerals
from appliance.text.languages.quantity import LONGEST
from appliance.text.languages.words import own

_NUMERALS = Numerals(own(Path(__file__).with_name("words.tsv")).numerals)


def chinese(number: int) -> str:
    """The number in words, up to LONGEST digits: 10500 → "一万零五百"."""
    return _NUMERALS.say("cardinal", number)


def chinese_digits(digits: str) -> str:
    """Words of each digit. Other characters are ignored."""
    return "".join(chinese(int(digit)) for digit in digits if digit.isdecimal())


def chinese_decimal(number: str) -> str:
    whole, _, part = number.replace(",", "").partition(".")
    sign = "负" if whole.startswith("-") else ""
    whole = whole.lstrip("-+") or "0"
    words = chinese(int(whole)) if len(whole) <= LONGEST else chinese_digits(whole)
    return sign + words + (f"点{chinese_digits(part)}" if part else "")
