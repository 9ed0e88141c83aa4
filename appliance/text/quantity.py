"""Numbers as written, with currency, scale and unit; a language has the words for them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from appliance.text.spans import Kind

NUMBER = (
    r"(?:\d{1,3}(?:\.\d{3})+,\d{1,2}(?!\d)|\d{1,3}(?:\.\d{3}){2,}(?![.\d])"
    r"|\d{1,3}(?=(?: \d{3})* 000(?!\d))(?: \d{3})+(?!\d)"
    r"|\d{1,3}(?:,\d{3})+(?!\d)(?:\.\d+)?|\d+(?:\.\d+)?|(?<!\w)\.\d+)"
)
"""1.200,50, 1.200.000, 1 200 000, 1,200.50, 1200.5 or .5"""
CURRENCY = r"(?:(?:US|HK|NZ|R|C|A)?\$|[€£¥￥₹₩₽₫₺₱₿])"
DASH = r"(?:\s[-–—~～]\s|[-–—~～]|[–—~～]\s?)"
"""Between the ends of a range; "5 -3" is none."""
END = r"(?![A-Za-z\d_%°]|[.,:/]\d)"
"""No part of a longer number or word follows."""


@dataclass(frozen=True)
class Quantity:
    number: str
    currency: str = ""
    scale: str = ""
    unit: str = ""

    @property
    def kind(self) -> Kind:
        if self.currency or re.fullmatch(CURRENCY, self.unit):
            return Kind.MONEY
        if self.unit in ("%", "％"):
            return Kind.PERCENT
        return Kind.UNIT if self.unit else Kind.NUMBER


def pattern(suffix: str, scales: Iterable[str], units: Iterable[str]) -> str:
    """Groups end with the suffix."""
    longest = "|".join(sorted(map(re.escape, units), key=len, reverse=True))
    scale = "|".join(sorted(scales, key=len, reverse=True))
    return (
        rf"(?P<before{suffix}>{CURRENCY}\s?)?"
        rf"(?P<number{suffix}>\d+,\d{{1,2}}(?=\s?(?:{longest})(?![A-Za-z]))|{NUMBER})"
        rf"(?:\s?(?P<scale{suffix}>{scale})(?![A-Za-z]))?"
        rf"(?:\s?(?P<unit{suffix}>{longest}))?"
    )


def read(match: re.Match[str], suffix: str = "") -> Quantity:
    groups = match.groupdict()
    return Quantity(
        plain(groups[f"number{suffix}"]),
        (groups[f"before{suffix}"] or "").strip(),
        groups[f"scale{suffix}"] or "",
        groups[f"unit{suffix}"] or "",
    )


def alike(a: Quantity, b: Quantity) -> bool:
    """True for the ends of one range: a unit or currency of the first is also the second's."""
    return (not (a.currency and b.currency) or a.currency == b.currency) and (
        not a.unit or a.unit.lower() == b.unit.lower()
    )


def plain(number: str) -> str:
    """ "1.200,50" → "1200.50"."""
    number = number.replace(" ", "")
    if re.fullmatch(r"\d{1,3}(?:\.\d{3})+,\d{1,2}|\d+,\d{1,2}", number):
        return number.replace(".", "").replace(",", ".")
    if re.fullmatch(r"\d{1,3}(?:\.\d{3}){2,}", number):
        return number.replace(".", "")
    number = number.replace(",", "")
    return f"0{number}" if number.startswith(".") else number
