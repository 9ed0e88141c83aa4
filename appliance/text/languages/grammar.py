"""The grammar of a language: words of numbers, dates and units, from the language's file of words."""

from __future__ import annotations

import re
import unicodedata
from functools import cache
from typing import NamedTuple

from appliance.text.languages import quantity
from appliance.text.languages.facets import Noun
from appliance.text.languages.numerals import Numerals
from appliance.text.languages.plain import unshouted
from appliance.text.languages.words import Words
from appliance.text.spans import Kind, Table, before

_NEXT_WORD = re.compile(r"\s([^\W\d_]+)")
_HIGHEST_FLOOR = 20
"""Largest ordinal that is written with a degree sign. Larger numbers are angles or temperatures."""


@cache
def _after(words: str, is_spaced: bool) -> re.Pattern[str]:
    return re.compile(rf"(?i)(?<!\w)(?:{words})\s$" if is_spaced else rf"(?i)(?:{words})\s?$")


class Amount(NamedTuple):
    number: str
    """Digits, with a decimal point."""
    scale: str = ""
    sign: str = ""
    """Currency or unit."""


class BaseGrammar:
    """Grammar of a language, by the rows of its file. A subclass adds what rows cannot express."""

    def __init__(self, code: str, words: Words) -> None:
        self.code, self.words = code, words
        self.numbers, self.money, self.units, self.dates, self.times, self.signs, self.chat, _ = words[:8]
        self.lists = words.lists
        self.numerals = Numerals(words.numerals, self.form)
        self.joint = " " if self.numbers.spaced else ""
        self.comma = self.numbers.comma + self.joint
        self._genders = {
            form: gender for forms, gender in self.numbers.nouns.items() for form in forms.split("/")
        }
        self.months = [self.dates.months[str(month)] for month in range(1, 13)]

    def cardinal(self, number: int, gender: str = "") -> str:
        """Words of a number below 10¹².

        `gender` is that of the noun after it ("m", "f"), or "" in counting.
        """
        return self.numerals.say("cardinal", number, gender)

    def ordinal(self, number: int, ending: str = "") -> str:
        """Words of an ordinal. `ending` is a gender, or an ending in this language."""
        return self.numerals.say("ordinal", number, ending)

    def clock(self, hour: int, minute: int, marked: bool) -> str:
        """Words of a time of day. `marked` is True if the text has a word for hour."""
        return self.numerals.say("clock", 100 * hour + minute, "marked" if marked else "")

    def in_case(self, table: Table) -> Table:
        """The shared readings, put into the case that the words around a number require."""
        return table

    # Rules that are right for most languages.

    def form(self, number: str) -> int:
        """Index of the form that a noun has after a number."""
        return int(number != "1")

    def day(self, number: int, match: re.Match[str]) -> str:
        """Words of the day in a date."""
        return self.numerals.say("day" if self.numerals.has("day") else "cardinal", number)

    def year(self, number: int) -> str:
        return self.numerals.say("year" if self.numerals.has("year") else "cardinal", number)

    def half(self, whole: int) -> str | None:
        """Words of a number and a half; None if the language has none."""
        return self.numerals.say("half", whole) if self.numerals.has("half") else None

    def regnal(self, number: int, gender: str) -> str | None:
        """Words of a king's or queen's number; None if that is the cardinal."""
        return self.numerals.say("regnal", number, gender) if self.numerals.has("regnal") else None

    def capitals(self, match: re.Match[str], shouted: bool) -> tuple[Kind, str] | None:
        return unshouted(match, shouted)

    def plain(self, written: str) -> str:
        """The number with a decimal point and without groups: "1.200,50" → "1200.50"."""
        if written.isascii() and written.isdigit():
            return written
        number = "".join(str(unicodedata.digit(c)) if c.isdigit() else c for c in written)
        number = re.sub(r"[ '’٬]", "", number).replace("٫", ".").replace("،", ",")
        marks = [c for c in number if c in ".,"]
        if not marks:
            return number
        decimal = marks[-1]
        first = r"\d{1,3}" if self.numbers.mixed else r"[1-9]\d{0,2}"
        grouped = re.fullmatch(rf"{first}(?:[.,]\d{{2,3}})*[.,]\d{{3}}", number)
        is_whole = grouped and (
            len(set(marks)) == 1
            and (decimal != self.numbers.decimal or len(marks) > 1 or number.endswith(",000"))
        )
        whole, _, part = number.rpartition(decimal)
        whole = re.sub(r"\D", "", whole) or "0"
        return whole + part if is_whole else f"{whole}.{part}"

    def spoken(self, number: str, gender: str = "") -> str:
        """Words of a plain number. A code is read digit by digit."""
        if number[0] == "-":
            return f"{self.signs.minus}{self.joint}{self.spoken(number[1:], gender)}"
        whole, _, part = number.partition(".")
        if part:
            return self.decimals(whole, part)
        return self.digits(whole) if quantity.is_code(whole) else self.cardinal(int(whole), gender)

    def decimals(self, whole: str, part: str) -> str:
        zeros = part[: len(part) - len(part.lstrip("0"))]
        if self.numbers.pairs and len(part) <= 2 and part.strip("0"):
            fraction = " ".join(filter(None, (self.digits(zeros), self.cardinal(int(part)))))
        else:
            fraction = self.digits(part)
        return self.joint.join((self.spoken(whole), self.numbers.point, fraction))

    def digits(self, digits: str) -> str:
        """Words of each digit. Other characters are ignored."""
        words = (self.cardinal(unicodedata.digit(c)) for c in digits if c.isdigit())
        return self.joint.join(words)

    def grouped(self, text: str) -> str:
        """Words of each digit, in groups, as in a telephone number."""
        return self.comma.join(self.digits(group) for group in re.findall(r"\d+", text))

    def counted(self, number: str, noun: Noun) -> str:
        form = noun.forms[min(self.form(number), len(noun.forms) - 1)]
        return f"{self.spoken(number, noun.gender)}{self.joint}{form}"

    def in_unit(self, number: str, sign: str) -> str:
        return self.counted(number, self.units.nouns.get(sign) or self.units.cased[sign])

    def points(self, version: str) -> str:
        parts = (self.spoken(part) if len(part) < 4 else self.digits(part) for part in version.split("."))
        return f"{self.joint}{self.signs.dot}{self.joint}".join(parts)

    def gender_of(self, noun: str) -> str:
        """Gender of a noun, by the list of nouns, else by the pattern of feminine nouns."""
        listed = self._genders.get(noun) or self._genders.get(noun.lower())
        return listed or ("f" if re.fullmatch(self.numbers.feminine, noun) else "m")

    def followed(self, match: re.Match[str]) -> str:
        """Gender of the noun after a number; "" if there is no noun."""
        if self.numbers.feminine == "(?!)":
            return ""
        after = _NEXT_WORD.match(match.string, match.end())
        if not after or re.fullmatch(self.numbers.no_noun, after[1]):
            return ""
        if re.search(rf"(?i)(?<!\w)(?:{self.numbers.labels})\s?$", before(match)):
            return ""
        return self.gender_of(after[1])

    def numbered(self, match: re.Match[str]) -> str | None:
        """Read 2° piano as an ordinal, because a noun follows. None for degrees."""
        noun = self._counted_noun(match)
        if (
            self.units.degrees == quantity.NOTHING
            or not noun
            or int(match[1]) > _HIGHEST_FLOOR
            or self.is_weather(match)
        ):
            return None
        return self.ordinal(int(match[1]), self.gender_of(noun))

    def _counted_noun(self, match: re.Match[str]) -> str:
        after = _NEXT_WORD.match(match.string, match.end())
        patterns = (self.units.degrees, self.numbers.no_noun)
        is_noun = after and not any(re.fullmatch(p, after[1], re.I) for p in patterns)
        return after[1] if after and is_noun else ""

    def after(self, match: re.Match[str], words: str) -> bool:
        """True if the text before the match ends with `words`, a pattern."""
        return _after(words, bool(self.joint)).search(before(match, 40)) is not None

    def is_after(self, name: str, match: re.Match[str]) -> bool:
        """True if the text before the match ends with a pattern of this name in the file of words."""
        return self.words.patterns[name].search(before(match)) is not None

    def is_before(self, name: str, match: re.Match[str]) -> bool:
        return self.words.patterns[name].match(match.string, match.end()) is not None

    def is_weather(self, match: re.Match[str]) -> bool:
        """True if 25º follows a word about the weather, and no noun follows it."""
        if match[0][-1] == "º" and self._counted_noun(match):
            return False
        return self.after(match, self.units.weather)

    def between(self, first: str, word: str, second: str) -> str:
        return self.joint.join((first, word, second))

    def negative(self, match: re.Match[str]) -> str:
        """Word for the sign of a negative number."""
        return self.signs.minus

    def signed(self, match: re.Match[str], words: str) -> str:
        if not match["sign"]:
            return words
        sign = self.signs.words["+"] if match["sign"] == "+" else self.negative(match)
        return f"{sign}{self.joint}{words}" if sign else words

    def measured(self, amount: Amount, match: re.Match[str]) -> Amount | None:
        """The amount with this language's meaning of its signs; None if it is not a quantity."""
        return amount

    def bare(self, match: re.Match[str]) -> str | tuple[Kind, str]:
        """Words of a number without a unit."""
        return self.signed(match, self.spoken(self.plain(match["number"]), self.followed(match)))

    def in_code(self, digits: str, code: str) -> str:
        """Words of digits in a code."""
        return self.spoken(digits) if len(digits) < 5 else self.digits(digits)

    def group(self, text: str, form: str) -> str:
        """Words of a group of a rule in the file of words.

        {1} is a number, {1:f} before a feminine noun, {1:in kg} with its unit, {1:ordinal} and {1:ordinal f}
        an ordinal, {1:digits} and {1:groups} each digit, {1:each} each letter too, {1:points} a version,
        {1:unit} and {1:units} a unit's first and second form, and {1:word} as written. {1:clock} is a time of
        day, and {1:clock marked} one with its word for hour; {1:year} is a year, {1:weekday} the name of a
        weekday, and {1:oh} a number by the rows `part oh`.
        """
        if form == "word":
            return text
        if form == "each":
            return self.joint.join(self.digits(character) or character for character in text)
        if form in ("digits", "groups", "points"):
            return {"digits": self.digits, "groups": self.grouped, "points": self.points}[form](text)
        if form in ("unit", "units"):
            return self.units.nouns[text].forms[form == "units"]
        if form.startswith("clock"):
            hour, minute, *_ = map(int, [*re.findall(r"\d+", text), "0"])
            return self.clock(hour, minute, form.endswith("marked"))
        if form == "weekday":
            days = self.dates.weekdays.items()
            return next(day for short, (day, _) in days if text.lower().startswith(short.lower()))
        if self.numerals.has(f"part {form}"):
            return self.cardinal(int(text), form)
        if form == "year":
            return self.year(int(text))
        if form.startswith("in "):
            return self.in_unit(self.plain(text), form.removeprefix("in "))
        if form.startswith("ordinal"):
            number = int(self.plain(text)) if text[0].isdigit() else quantity.roman(text)
            return self.ordinal(number, form.removeprefix("ordinal").strip())
        return self.spoken(self.plain(text), form)

    def letters(self, letters: str) -> str:
        """Words of letters in a code."""
        return letters
