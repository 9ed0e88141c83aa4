"""Numbers and abbreviations in words, as ZipVoice's front end writes them. Commas in them are pauses."""

from __future__ import annotations

import re
from collections.abc import Callable

from appliance.text.languages.en.numbers import english, ordinal
from appliance.text.languages.zh.numbers import chinese_decimal, chinese_digits

_SHORT = {
    **{"mrs": "misess", "mr": "mister", "dr": "doctor", "st": "saint", "co": "company", "jr": "junior"},
    **{"maj": "major", "gen": "general", "drs": "doctors", "rev": "reverend", "lt": "lieutenant"},
    **{"hon": "honorable", "sgt": "sergeant", "capt": "captain", "esq": "esquire", "ltd": "limited"},
    **{"col": "colonel", "ft": "fort", "etc": "et cetera", "btw": "by the way"},
}
_SHORT_WORD = re.compile(rf"\b(?:{'|'.join(_SHORT)})\b", re.I)
_SCALES = ("thousand", "million", "billion", "trillion", "quadrillion", "quintillion", "sextillion")
_LONGEST = 3 * (len(_SCALES) + 1)
"""Digits of the longest number that is read as one number."""


def english_words(text: str) -> str:
    text = _SHORT_WORD.sub(lambda match: _SHORT[match[0].lower()], text)
    for pattern, spoken in _ENGLISH:
        text = pattern.sub(spoken, text)
    return text


def cardinal(number: int, *, with_and: bool = False) -> str:
    """Words of a number: 1205 → "one thousand, two hundred five"; `with_and`: "… two hundred and five"."""
    if number < 1000:
        return _below_thousand(number, with_and)
    groups: list[str] = []
    rest, scales = number // 1000, iter(_SCALES)
    while rest:
        scale = next(scales)
        if rest % 1000:
            groups.insert(0, f"{_below_thousand(rest % 1000, with_and)} {scale}")
        rest //= 1000
    words, last = ", ".join(groups), number % 1000
    if not last:
        return words
    mark = ", " if last >= 100 else " and " if with_and else " "
    return words + mark + _below_thousand(last, with_and)


def _below_thousand(number: int, with_and: bool) -> str:
    words = english(number)
    return words.replace("hundred ", "hundred and ") if with_and else words


def _number(match: re.Match[str]) -> str:
    digits = match[0]
    if len(digits) > _LONGEST:
        return f" {' '.join(english(int(digit)) for digit in digits)} "
    number = int(digits)
    return f" {_year(number) if 1000 < number < 3000 else cardinal(number)} "


def _year(number: int) -> str:
    """Words of a year: 1905 → "nineteen oh five", 2005 → "two thousand five"."""
    century, rest = divmod(number, 100)
    if number == 2000 or 2000 < number < 2010:
        return f"two thousand {english(rest)}" if rest else "two thousand"
    if not rest:
        return f"{english(century)} hundred"
    return f"{english(century)} {'oh ' if rest < 10 else ''}{english(rest)}"


def _dollars(match: re.Match[str]) -> str:
    written = match[1].replace(",", "")
    parts = written.split(".")
    if len(parts) > 2 or max(map(len, parts)) > _LONGEST:
        return f" {written} dollars "
    dollars, cents = (int(part or "0") for part in (*parts, "0")[:2])
    amounts = [f"{n} {unit}{'s' * (n != 1)}" for n, unit in ((dollars, "dollar"), (cents, "cent")) if n]
    return f" {', '.join(amounts) or 'zero dollars'} "


def _fraction(match: re.Match[str]) -> str:
    if max(map(len, match.groups())) > _LONGEST:
        return match[0]
    upper, lower = int(match[1]), int(match[2])
    if lower in (2, 4):
        part = {2: "half", 4: "quarter"}[lower]
        many = {"half": "halves", "quarter": "quarters"}[part]
        return f" one {part} " if upper == 1 else f" {cardinal(upper, with_and=True)} {many} "
    return f" {cardinal(upper, with_and=True)} {ordinal(cardinal(lower, with_and=True))} "


def _ordinal(match: re.Match[str]) -> str:
    if len(match[1]) > _LONGEST:
        return match[0]
    return f" {ordinal(cardinal(int(match[1]), with_and=True))} "


Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]

_ENGLISH: tuple[Rule, ...] = (
    (re.compile(r"[0-9][0-9,]+[0-9]"), lambda match: match[0].replace(",", "")),
    (re.compile(r"£([0-9,]*[0-9])"), lambda match: f"{match[1]} pounds"),
    (re.compile(r"\$([0-9.,]*[0-9])"), _dollars),
    (re.compile(r"(?<![0-9])([0-9]+)/([0-9]+)"), _fraction),
    (re.compile(r"(?<![0-9])([0-9]+)\.([0-9]+)"), lambda match: f"{match[1]} point {match[2]}"),
    (re.compile(r"(?<![0-9.,])([0-9.,]*[0-9])%"), lambda match: f"{match[1]} percent "),
    (re.compile(r"(?<![0-9])([0-9]+)(?:st|nd|rd|th)"), _ordinal),
    (re.compile(r"[0-9]+"), _number),
)
"""Rules in order: each reads the result of those before it.

They look at a run of digits from its first digit alone, because the run may be long.
"""


def chinese_words(text: str) -> str:
    for pattern, spoken in _CHINESE:
        text = pattern.sub(spoken, text)
    return text


def _date(match: re.Match[str]) -> str:
    year, rest = match[1] or "", match[0][len(match[1] or "") :]
    return f"{chinese_digits(year)}{'年' * bool(year)}{_DIGITS.sub(lambda n: chinese_decimal(n[0]), rest)}"


_DIGITS = re.compile(r"[0-9]+")
_COUNTED = (
    "斤|克|千克|公斤|吨|米|厘米|毫米|公里|升|毫升|元|角|分|个|只|条|张|块|瓶|杯|份|本|辆|台|匹|头|位|亩|"
    "小时|分钟|秒|天|半"
)
_CHINESE: tuple[Rule, ...] = (
    (
        re.compile(rf"(?<![0-9])([0-9]+(?:\.[0-9]+)?)-([0-9]+(?:\.[0-9]+)?)(?={_COUNTED})"),
        lambda match: f"{chinese_decimal(match[1])}到{chinese_decimal(match[2])}",
    ),
    (re.compile(r"([0-9]{2,4}年)?([0-9]{1,2}月)?([0-9]{1,2}日)?"), _date),
    (
        re.compile(r"(?<![0-9])([0-9]+)/([0-9]+)"),
        lambda match: f"{chinese_decimal(match[2])}分之{chinese_decimal(match[1])}",
    ),
    (re.compile(r"(-?(?<![0-9])(?:[0-9]+\.)?[0-9]+)%"), lambda match: f"百分之{chinese_decimal(match[1])}"),
    (re.compile(r"(?<![0-9])([0-9]+)℃"), lambda match: f"{chinese_decimal(match[1])}摄氏度"),
    (re.compile(r"-?(?:[0-9]+\.)?[0-9]+"), lambda match: chinese_decimal(match[0])),
)
