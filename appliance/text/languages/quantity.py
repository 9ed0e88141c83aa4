"""Patterns of written numbers, currencies, telephone numbers and units."""

from __future__ import annotations

import re
from collections.abc import Iterable

NOTHING = "(?!)"
"""A pattern that matches nothing."""
LONGEST = 12
"""Digits of the longest number that is read as a whole."""
NUMBER = (
    r"(?:\d{1,3}(?:\.\d{3})+,\d{1,2}(?!\d)|\d{1,3}(?:\.\d{3}){2,}(?![.\d])"
    r"|\d{1,3}(?=(?: \d{3})* 000(?!\d))(?: \d{3})+(?!\d)"
    r"|\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|(?<!\w)\.\d+)"
)
"""Matches 1.200,50, 1.200.000, 1 200 000, 1,200.50, 1200.5 and .5."""
CURRENCY = r"(?:(?:US|HK|NZ|MX|NT|CA|AU|R|C|A|S)?\$|[€£¥￥₹₩₽₫₺₱₿₴₸₪₦₡฿])"
DASH = r"(?:\s[-–—~～]\s|[-–—~～]|[–—~～]\s?)"
"""Matches the dash of a range. The dash of "5 -3" is a sign."""
END = r"(?![A-Za-z\d_%°]|[.,:]\d|(?<=\d)/\d)"
"""Ensures that the number or word ends here."""
NUMERAL = r"X{0,3}(?:IX|IV|V?I{0,3})"
ROMAN = rf"(?=[IVX]{{2}}){NUMERAL}"
ONLY_ROMAN = frozenset(str.split("III VII VIII XII XIII XIV XVI XVII XVIII XIX XXI XXII XXIII XXIV"))
"""Roman numerals that are no words and no initials."""
_NO_SPACE = r"(?<!\s)"
RATED = r"\d\s?(?:[^\s\d/]{1,12}\s)?[^\s\d/]{0,12}\s?$"
"""Matches the numerator of a rate, before the /: 7,000MB, 2.5k req, 1,5 Mio. €."""


def is_code(number: str) -> bool:
    """True if a number is read digit by digit: it has too many digits, or begins with zero."""
    return len(number.partition(".")[0]) > LONGEST or (
        len(number) > 1 and number[0] == "0" and number.isdigit()
    )


def is_address(match: re.Match[str]) -> bool:
    """True if four groups of digits are an address, as in 10.0.0.1.

    A number such as 2.300.000.000 is none.
    """
    groups = match[1].split(".")
    is_byte = all(int(group) < 256 and (group == "0" or group[0] != "0") for group in groups)
    return is_byte and not re.match(rf"\s?{CURRENCY}", match.string[match.end() :])


def is_rating(points: str, most: str) -> bool:
    """True for a rating such as 9/10, 8.5/10 or 11/10."""
    return most in ("5", "10", "20", "100") and float(points.replace(",", ".")) <= int(most) * (
        1.3 if most in ("10", "100") else 1
    )


def roman(numeral: str) -> int:
    values = [{"I": 1, "V": 5, "X": 10, "L": 50}[letter] for letter in numeral]
    return sum(
        -value if value < after else value for value, after in zip(values, [*values[1:], 0], strict=True)
    )


def one_of(patterns: Iterable[str]) -> str:
    """Pattern of alternatives, the longest first. Matches nothing if there are none."""
    return "|".join(sorted(patterns, key=len, reverse=True)) or NOTHING


def units_pattern(units: Iterable[str], cased: Iterable[str] = (), unspaced: str = "") -> str:
    """Pattern of units in any case, and of `cased` in theirs: m2 or m^2, °C or ° C, sqft or sq ft."""
    signs = [(sign, re.sub(r"(?<=[^\W\d_])(?=[23]$)", r"\\^?", re.escape(sign))) for sign in units]
    signs = [(sign, re.sub(r"^(°|sq)(?=[^\W\d_])", r"\1\\s?", pattern)) for sign, pattern in signs]
    signs += [(sign, f"{_NO_SPACE if sign in unspaced.split() else ''}(?-i:{sign})") for sign in cased]
    return "|".join(sign for _, sign in sorted(signs, key=lambda each: len(each[0]), reverse=True)) or NOTHING
