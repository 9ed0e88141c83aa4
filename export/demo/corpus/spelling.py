"""Numbers and common abbreviations as words: the character model has no digits."""

from __future__ import annotations

import re

_ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
]
_ONES += [f"{stem}teen" for stem in ("thir", "four", "fif", "six", "seven", "eigh", "nine")]
_TENS = ["zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SCALES = ((10**9, "billion"), (10**6, "million"), (1_000, "thousand"))
_IRREGULAR = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
LARGEST = 10**12 - 1
_ABBREVIATIONS = {
    r"\bMr\.": "Mister",
    r"\bMrs\.": "Missus",
    r"\bMs\.": "Miz",
    r"\bDr\.": "Doctor",
    r"\bProf\.": "Professor",
    r"\bSt\.(?= [A-Z])": "Saint",
    r"\betc\.(?= [a-z])": "et cetera",
    r"\betc\.": "et cetera.",
    r"\bvs\.": "versus",
    r"\be\.g\.,?": "for example,",
    r"\bi\.e\.,?": "that is,",
}
_NUMBER = r"\d{1,3}(?:,\d{3})+|\d+"


def cardinal(number: int) -> str:
    """42 → "forty-two". Raises ValueError outside 0 to `LARGEST`."""
    if not 0 <= number <= LARGEST:
        raise ValueError(f"{number}: only 0 to {LARGEST} are spelled")
    if number < 20:
        return _ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens] + (f"-{_ONES[ones]}" if ones else "")
    if number < 1_000:
        hundreds, rest = divmod(number, 100)
        return f"{_ONES[hundreds]} hundred" + (f" and {cardinal(rest)}" if rest else "")
    scale, name = next((scale, name) for scale, name in _SCALES if number >= scale)
    count, rest = divmod(number, scale)
    joint = " and " if 0 < rest < 100 else " "
    return f"{cardinal(count)} {name}" + (f"{joint}{cardinal(rest)}" if rest else "")


def ordinal(number: int) -> str:
    """42 → "forty-second"."""
    words = cardinal(number)
    head, last = re.fullmatch(r"(.*?[ -])?([a-z]+)", words).groups(default="")  # type: ignore[union-attr]
    if last in _IRREGULAR:
        last = _IRREGULAR[last]
    else:
        last = last[:-1] + "ieth" if last.endswith("y") else last + "th"
    return head + last


def year(number: int) -> str:
    """1984 → "nineteen eighty-four", 2000 → "two thousand"."""
    century, rest = divmod(number, 100)
    if not 1_100 <= number < 2_100 or 2_000 <= number < 2_010 or number % 1_000 == 0:
        return cardinal(number)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def spell(text: str) -> str:
    """Write out numbers, percentages, amounts of money and abbreviations.

    Versions, times of day and phone numbers keep their digits.
    """
    for pattern, words in _ABBREVIATIONS.items():
        text = re.sub(pattern, words, text)
    text = re.sub(r"(?<=\w) ?& ?(?=\w)", " and ", text)
    text = re.sub(rf"\$({_NUMBER})(?:\.(\d\d))?(?![\d.]*\d)", _dollars, text)
    text = re.sub(rf"(?<![\w.,])({_NUMBER})(st|nd|rd|th)\b", lambda m: ordinal(_value(m[1])), text)
    text = re.sub(rf"(?<![\w.,])({_NUMBER})\.(\d{{1,3}})(?![\w.])", _decimal, text)
    text = re.sub(r"(?<![\w.,/:-])(1[1-9]\d\d|20\d\d)(?![\w%/:-]|[.,]\d)", lambda m: year(int(m[1])), text)
    text = re.sub(rf"(?<![\w.,/:-])({_NUMBER})(?![\w/:-]|[.,]\d)", _plain, text)
    return re.sub(r"(?<=[a-z]) ?%", " percent", text)


def _value(digits: str) -> int:
    return int(digits.replace(",", ""))


def _plain(match: re.Match[str]) -> str:
    value = _value(match[1])
    return match[0] if value > LARGEST else cardinal(value)


def _decimal(match: re.Match[str]) -> str:
    if _value(match[1]) > LARGEST:
        return match[0]
    return f"{cardinal(_value(match[1]))} point {' '.join(_ONES[int(d)] for d in match[2])}"


def _dollars(match: re.Match[str]) -> str:
    whole, cents = _value(match[1]), int(match[2] or 0)
    if whole > LARGEST:
        return match[0]
    said = f"{cardinal(whole)} dollar{'s' * (whole != 1)}"
    return said + (f" and {cardinal(cents)} cent{'s' * (cents != 1)}" if cents else "")
