"""Numbers and signs of chat in English words: `speak` applies RULES. No rule matches inside a word."""

from __future__ import annotations

import re
from collections.abc import Callable

from appliance.text.numbers import (
    LONGEST,
    english,
    english_decimal,
    english_digits,
    english_ordinal,
    english_year,
)
from appliance.text.rewrite import Rewriting

_NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
_START = r"(?<![\w.,:/$€£¥%-])"  # no number or word before it
_MINUS = r"(?<![\w.)])-?"
_END = r"(?![\w%°]|[.,:/]\d)"

_MONTHS = str.split("January February March April May June July August September October November December")
_MONTH = "|".join(f"{name[:3]}(?:{name[3:]})?" if name != "May" else "May" for name in _MONTHS)
_CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "¥": ("yuan", "yuan", "fen", "fen"),
}
_SCALES = {"k": "thousand", "m": "million", "b": "billion"}
_UNITS = {
    "kg": "kilogram",
    "g": "gram",
    "mg": "milligram",
    "km": "kilometer",
    "cm": "centimeter",
    "mm": "millimeter",
    "mi": "mile",
    "ml": "milliliter",
    "lb": "pound",
    "lbs": "pound",
    "ft": "foot",
    "kb": "kilobyte",
    "mb": "megabyte",
    "gb": "gigabyte",
    "tb": "terabyte",
    "hz": "hertz",
    "khz": "kilohertz",
    "mhz": "megahertz",
    "ghz": "gigahertz",
    "ms": "millisecond",
    "sec": "second",
    "secs": "second",
    "min": "minute",
    "mins": "minute",
    "h": "hour",
    "hr": "hour",
    "hrs": "hour",
    "mph": "mile per hour",
    "km/h": "kilometer per hour",
    "fps": "frame per second",
    "px": "pixel",
}
_PLURALS = {"foot": "feet", "hertz": "hertz", "kilohertz": "kilohertz", "megahertz": "megahertz"} | {
    "gigahertz": "gigahertz",
    "mile per hour": "miles per hour",
    "kilometer per hour": "kilometers per hour",
    "frame per second": "frames per second",
}
_FRACTIONS = {
    ("1", "2"): "one half",
    ("1", "3"): "one third",
    ("2", "3"): "two thirds",
    ("1", "4"): "one quarter",
    ("3", "4"): "three quarters",
}
_OUT_OF = {"5", "10", "20", "100"}


def digit(character: str) -> str:
    """A digit within a word."""
    return f" {english_digits(character)} "


def number(plain: str, ordinal: bool) -> str:
    """A cardinal or ordinal number without separators."""
    return english_ordinal(int(plain)) if ordinal else english_decimal(plain)


def _iso_date(match: re.Match[str]) -> str | None:
    year, month, day = (int(part) for part in match.groups())
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    return f"{_MONTHS[month - 1]} {english_ordinal(day)}, {english_year(year)}"


def _month_day(match: re.Match[str]) -> str | None:
    name = next(name for name in _MONTHS if name.lower().startswith(match[1][:3].lower()))
    day = int(match[2])
    if not 1 <= day <= 31 or (match[1] == "may" and not match[3]):
        return None
    year = f", {english_year(int(match[4][-4:]))}" if match[4] else ""
    return f"{name} {english_ordinal(day)}{year}"


def _clock(match: re.Match[str]) -> str | None:
    hour, minute = int(match[1]), int(match[2])
    if not (hour <= 12 and minute < 60):
        return None
    return f"{english(hour)} {_minutes(minute)}{match[3].lower()} m"


def _minutes(minute: int) -> str:
    if not minute:
        return ""
    return f"{'oh ' if minute < 10 else ''}{english(minute)} "


def _clock_24(hour: str, minute: str) -> str | None:
    if int(hour) > 24 or int(minute) > 59:
        return None
    if int(minute):
        return f"{english(int(hour))} {_minutes(int(minute)).strip()}"
    return f"{english(int(hour))} {'hundred' if int(hour) > 12 else 'o' + chr(39) + 'clock'}"


def _duration(match: re.Match[str]) -> str:
    return " ".join(
        [english(int(match[1])), *(_minutes(int(m)).strip() or "zero" for m in match.groups()[1:])]
    )


def _percent(match: re.Match[str]) -> str:
    is_joined = match.string[match.end() : match.end() + 1].isalpha()
    return f"{english_decimal(match[0].rstrip('% '))} percent{' ' if is_joined else ''}"


def _points(version: str) -> str:
    return " point ".join(english(int(p)) if len(p) <= 3 else english_digits(p) for p in version.split("."))


def _phone(match: re.Match[str]) -> str | None:
    groups = re.split(r"[ -]", match[0].lstrip("+"))
    if sum(map(len, groups)) < 7:
        return None
    return ", ".join(map(english_digits, groups))


def _money_before(match: re.Match[str]) -> str:
    scale = _SCALES.get((match[4] or "").lower(), "")
    return ("minus " if match[1] else "") + _money(match[3], match[2], scale)


def _money(amount: str, sign: str, scale: str = "") -> str:
    one, many, cent, cents = _CURRENCIES[sign]
    if scale:
        return f"{english_decimal(amount)} {scale} {many}"
    whole, _, part = amount.replace(",", "").partition(".")
    if len(part) not in (0, 1, 2):
        return f"{english_decimal(amount)} {many}"
    small = int(part.ljust(2, "0")) if part else 0
    words = [f"{english_decimal(whole)} {one if whole == '1' else many}"] if int(whole) or not small else []
    if small:
        words.append(f"{english(small)} {cent if small == 1 else cents}")
    return " and ".join(words)


def _degrees(match: re.Match[str]) -> str:
    scale = {"c": " celsius", "f": " fahrenheit"}.get((match[2] or "").lower(), "")
    sign = "minus " if match[0].startswith("-") else ""
    return f"{sign}{english_decimal(match[1])} degree{'' if match[1] == '1' else 's'}{scale}"


def _pairs(digits: str) -> str:
    head, tail = digits[:-2], digits[-2:]
    return f"{english(int(head))} {'hundred' if tail == '00' else english(int(tail))}"


def _unit(match: re.Match[str]) -> str | None:
    if match[2] == "G":
        return None
    unit = _UNITS[match[2].lower()]
    if match[1] != "1":
        unit = _PLURALS.get(unit, f"{unit}s")
    return f"{english_decimal(match[1])} {unit}"


def _thousands(match: re.Match[str]) -> str:
    if match[0].endswith("K") and match[1] in ("2", "4", "8"):  # of a screen
        return f"{english_decimal(match[1])} K"
    return f"{english_decimal(match[1])} thousand"


def _millions(match: re.Match[str]) -> str | None:
    scale = {"M": "million", "B": "billion"}.get(match[2])
    return scale and f"{english_decimal(match[1])} {scale}"


def _tens(digits: str) -> str:
    """80 → "eighties"."""
    words = english(int(digits))
    return f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"


def _slash(match: re.Match[str]) -> str:
    a, b = match[1], match[2]
    if (a, b) in _FRACTIONS:
        return _FRACTIONS[a, b]
    if b in _OUT_OF and int(a) <= int(b):
        return f"{english_decimal(a)} out of {english_decimal(b)}"
    if 1 <= int(a) <= 12 < int(b) <= 31:
        return f"{_MONTHS[int(a) - 1]} {english_ordinal(int(b))}"
    return f"{_number(a)} slash {_number(b)}"


def _range(match: re.Match[str]) -> str:
    if match[1] == match[2]:
        return f"{english_decimal(match[1])} {english_decimal(match[2])}"
    return f"{english_decimal(match[1])} to {english_decimal(match[2])}"


def _number(number: str) -> str:
    """A number; digit by digit if it is long or begins with 0."""
    digits = number.lstrip("-+")
    if len(digits.partition(".")[0].replace(",", "")) > LONGEST or (
        digits[0] == "0" and digits.isdigit() and len(digits) > 1
    ):
        return english_digits(digits)
    return english_decimal(number)


RULES: tuple[tuple[str, str, str | Callable[[re.Match[str]], str | None]], ...] = (
    ("sign", r"\s?²", " squared"),
    ("sign", r"\s?³", " cubed"),
    ("range", r"(?<=\d:\d\d)\s?[-–~]\s?(?=\d{1,2}:\d\d)", " to "),
    ("laughter", rf"{_START}23{{3,}}{_END}", "ha ha ha"),
    ("number", rf"{_START}(6{{3,}}){_END}", lambda m: english_digits(m[1][:3])),
    (
        "unit",
        rf"{_START}(\d)'(\d{{1,2}})\"?(?!\w)",
        lambda m: f"{english(int(m[1]))} foot {english(int(m[2]))}",
    ),
    (
        "number",
        rf"{_START}(\d{{1,3}}(?:\.\d{{3}}){{2,}}){_END}",
        lambda m: english_decimal(m[1].replace(".", "")),
    ),
    ("number", rf"{_START}911{_END}", "nine one one"),
    ("sign", r"\b24/7\b", "twenty-four seven"),
    ("sign", r"\bC\+\+", "C plus plus"),
    ("sign", r"\b([CF])#(?!\w)", r"\1 sharp"),
    ("sign", r"(?<!\w)w/o\b", "without"),
    ("sign", r"(?<!\w)w/(?=\s|\w)", "with "),
    ("date", rf"{_START}(\d{{4}})-(\d{{1,2}})-(\d{{1,2}}){_END}", _iso_date),
    (
        "date",
        rf"\b({_MONTH})\.? (\d{{1,2}})(st|nd|rd|th)?\b(?![.:]?\d)(,? (?:19|20)\d\d(?!\d))?",
        _month_day,
    ),
    ("time", rf"{_START}(\d{{1,2}}):(\d{{2}})(?::\d{{2}})?\s?([ap])\.?m\b\.?", _clock),
    (
        "time",
        rf"{_START}(\d{{1,2}})\s?([ap])\.?m\b\.?",
        lambda m: f"{english(int(m[1]))} {m[2].lower()} m" if 1 <= int(m[1]) <= 12 else None,
    ),
    ("time", rf"{_START}(\d{{1,2}}):(\d{{2}}):(\d{{2}}){_END}", _duration),
    ("time", rf"{_START}(\d{{1,2}}):(\d{{2}}){_END}", lambda m: _clock_24(m[1], m[2])),
    (
        "score",
        rf"{_START}(\d{{1,2}}):(\d{{1,2}}){_END}",
        lambda m: f"{english(int(m[1]))} to {english(int(m[2]))}",
    ),
    ("version", rf"(?<![\w.])v\.?\s?(\d+(?:\.\d+)*){_END}", lambda m: f"version {_points(m[1])}"),
    ("version", rf"{_START}(\d+(?:\.\d+){{2,}}){_END}", lambda m: _points(m[1])),
    ("phone", rf"{_START}\+?\d{{1,4}}(?:[ -]\d{{2,4}}){{2,}}{_END}", _phone),
    ("phone", rf"{_START}(?:\+\d{{7,}}|0\d{{6,}}){_END}", lambda m: english_digits(m[0])),
    ("money", rf"(-?)([$€£¥])({_NUMBER})()(?=off(?!\w))", lambda m: f"{_money_before(m)} "),
    ("money", rf"(-?)([$€£¥])\s?({_NUMBER})\s?([kmb])?(?![\w.]\w)", _money_before),
    ("money", rf"{_START}({_NUMBER})\s?([€£])", lambda m: _money(m[1], m[2])),
    ("percent", rf"{_MINUS}({_NUMBER})\s?%", _percent),
    ("unit", rf"{_MINUS}({_NUMBER})\s?°\s?([CF])?(?!\w)", _degrees),
    ("unit", rf"{_START}(\d{{3,4}})([pi])(?!\w)", lambda m: f"{_pairs(m[1])} {m[2]}"),
    ("unit", rf"{_START}({_NUMBER})\s?({'|'.join(_UNITS)})(?![\w/])", _unit),
    ("number", rf"{_START}({_NUMBER})k(?!\w)", _thousands),
    ("number", rf"{_START}({_NUMBER})([MB])(?!\w)", _millions),
    ("number", rf"{_START}(1\d|20)(\d0)s\b", lambda m: f"{english(int(m[1]))} {_tens(m[2])}"),
    ("number", rf"{_START}(\d+)(st|nd|rd|th)\b", lambda m: english_ordinal(int(m[1]))),
    ("number", rf"{_START}([2-9]0)s\b", lambda m: _tens(m[1])),
    (
        "number",
        rf"{_START}({_NUMBER})(?=(?:hp|xp|usd|eur|off|subs?|bits?)(?!\w))",
        lambda m: f"{english_decimal(m[1])} ",
    ),
    ("number", r"(?<!\w)#(\d+)(?!\w)", lambda m: f"number {english_decimal(m[1])}"),
    ("sign", r"(?<=\d)\s?-\s?(?=\d+\s?=)", " minus "),
    ("fraction", r"(?<=\d) (?=\d/\d(?![\d/]))", " and "),
    ("fraction", rf"{_START}(\d+)/(\d+){_END}", _slash),
    ("range", rf"{_START}({_NUMBER})\s?[-–~]\s?({_NUMBER}){_END}", _range),
    ("sign", r"(?<=\d)\s?[x×*]\s?(?=\d+(?!\w))|(?<=\w)\s?×\s?(?=\d)", " times "),
    ("sign", r"(?<!\w)[x×]\s?(\d+)(?!\w)", lambda m: f"times {english_decimal(m[1])}"),
    ("sign", rf"{_START}(\d+)x(?!\w)", lambda m: f"{english_decimal(m[1])} times"),
    ("sign", r"\s?\+\s?(?=\d)", " plus "),
    (
        "year",
        rf"\b(in|since|by|until|of|from|year|early|late) ((?:19|20)\d\d){_END}",
        lambda m: f"{m[1]} {english_year(int(m[2]))}",
    ),
    ("number", rf"{_MINUS}{_NUMBER}(?![\w]|[.,]\d)", lambda m: _number(m[0])),
    ("sign", r"\s?&\s?", " and "),
    ("sign", r"\s?=\s?", " equals "),
    ("sign", r"(?<=\S)\s?\+(?=\s|$|[,.!?])", " plus"),
    ("sign", r"\s\+\s", " plus "),
    ("sign", r"(?<=\w)/(?=\w)", " "),
    ("sign", r"~(?=\w)", "about "),
    ("sign", r"(?<=\w)\s?%(?!\w)", " percent"),
    ("sign", r"(?<!\w)@(?=\s)", "at"),
)
"""Kind of change, pattern, replacement; applied in order, since later rules match what earlier ones leave."""


def speak(text: Rewriting) -> None:
    """Rewrite the numbers and signs of a text."""
    for kind, pattern, to in RULES:
        text.sub(kind, pattern, to)
