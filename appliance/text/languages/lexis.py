"""Words and rules of one language, from which `readings.py` makes its readings."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from appliance.text.languages import quantity
from appliance.text.languages.numbers import is_code
from appliance.text.languages.plain import unshouted
from appliance.text.spans import Capitals, Kind, before

_MASCULINE, _FEMININE = "m", "f"
_HIGHEST_FLOOR = 20
"""Largest ordinal that is written with a degree sign; above are angles and temperatures."""


@dataclass(frozen=True)
class Noun:
    forms: tuple[str, ...]
    gender: str


@dataclass(frozen=True)
class Amount:
    number: str
    """Digits with a decimal point."""
    scale: str = ""
    sign: str = ""
    """Currency or unit."""


def as_noun(text: str) -> Noun:
    """ "kilo/s", "f:hora/s", "Kilometer/ pro Stunde", "рубль/рубля/рублей": two letters are an ending.

    With a space in the first, none has a tail: "metro cuadrado/metros cuadrados", "square meter/s".
    """
    gender, colon, name = text.partition(":")
    if not colon:
        gender, name = _MASCULINE, text
    if " " in name.strip().partition("/")[0]:
        one, *others = name.strip().split("/")
        return Noun((one, *(one + other if len(other) <= 2 else other for other in others)), gender.strip())
    head, space, tail = name.strip().partition(" ") if "/" in name else (name.strip(), "", "")
    one, *others = head.split("/")
    forms = (one, *(one + other if len(other) <= 2 else other for other in others))
    return Noun(tuple(f"{form}{space}{tail}" for form in forms), gender.strip())


def as_rows(table: str) -> dict[str, str]:
    """ "kg kilo/s; km kilómetro/s" → sign → the rest."""
    rows = (row.strip().partition(" ") for row in re.split(r"[;\n]", table) if row.strip())
    return {sign: rest.strip() for sign, _, rest in rows}


def one_or_many(number: str) -> int:
    return int(number != "1")


@dataclass(frozen=True)
class Lexis:
    """Words and rules of one language; `readings.language_of` makes its readings."""

    code: str
    cardinal: Callable[[int, str], str]
    """Words of a number below 10¹²; before a noun with its gender "m" or "f", "" in counting."""
    ordinal: Callable[[int, str], str]
    point: str
    """Word between whole and decimals."""
    units: str
    """Sign and noun in each form, "f:" before a feminine one; % and x among them."""
    currencies: str
    """Sign, noun | noun of the hundredth part."""
    cents: str
    """After a price, {} its hundredths, {cent} their noun: " con {}"."""
    months: str
    day: Callable[[int, re.Match[str]], str]
    """A day of a month in a date."""
    date: tuple[str, str]
    """Formats with {day} and {month}, and with {year}."""
    clock: Callable[[int, int, bool], str]
    """Hour, minutes; True if the word for hour was written."""
    signs: str
    """Words of SIGNS, with | between."""
    to: str
    """Word between the ends of a range; the next three stand between two numbers too."""
    score: str
    out_of: str
    versus: str
    number_sign: str
    """Word of #1."""
    version: str
    dot: str
    """Between the parts of a version."""
    minus: str
    link: str
    mail: str
    listing: str
    heart: str
    limits: str = ""
    """Words of < and > before a number that stands alone, with | between: <5 min."""
    cased: str = ""
    """Units whose letters in another case are none: "W Watt"."""
    per: str = ""
    """Denominators of rates, after the /, and their words: "s por segundo"."""
    per_word: str = "{}"
    """Words of any other word after the / of a price."""
    clock_before: str = r"(?!)"
    """Pattern of a word before 17:02:51 as a time of day."""
    lasting: str = r"(?!)"
    """Pattern of a word that makes 00:45 or 1h30 a length of time."""
    degrees: str = r"(?!)"
    """Pattern of a word after 2° that is no noun with an ordinal; and of one before 25º of a temperature."""
    weather: str = r"(?!)"
    ending: str = ""
    """Word before the ending of a file's name, if it is not `dot`."""
    scripts: tuple[str, ...] = ("LATIN",)
    sample: str = ""
    comma: str = ", "
    decimal: str = ","
    """Decimal mark; the other of comma and point groups thousands."""
    number: str = ""
    """Pattern of a number, if not by `decimal`; then no comma is a decimal mark but before a unit."""
    unsigned: str = r"\w.)%°"
    """Characters after which - and + are no sign of a number."""
    in_pairs: bool = False
    """Two decimals are read as one number."""
    decimals: Callable[[str, str], str] | None = None
    """Words of whole and decimals, if not by `point`."""
    count: Callable[[int, str], str] | None = None
    """Words of a whole number and its noun, if one changes the other."""
    form: Callable[[str], int] = one_or_many
    """Index of a noun's form for a number."""
    feminine: str = r"(?!)"
    """Pattern of a feminine noun after a number."""
    no_noun: str = r"(?!)"
    """Pattern of a word after a number that is not its noun; and of a label before a number."""
    labels: str = r"(?!)"
    thousands: str = "k"
    """Letters and abbreviations of a thousand."""
    scales: str = "M 1000000"
    """Sign, power and noun. A whole number, or one without a noun, is written out. The noun of a sign without
    a power is always spoken."""
    of: str = ""
    """Between a round million and its noun; after | before a vowel."""
    hour: str = r"\s?h(?:rs?)?"
    """Pattern of the word for hour after a time."""
    hour_minute: str = r"(?!)"
    """Pattern between hour and minutes but for the colon: 19h30."""
    of_month: str = r"\.?\s(?:de\s)?"
    """Pattern between a day and its month."""
    date_before: str = r"(?!)"
    """Pattern of a word before 24/12."""
    day_first: str = "[-/.]"
    """Marks of a date with its day first: 24.12.2026"""
    year: Callable[[int], str] | None = None
    years: str = r"(?:1[1-9]|20)\d\d"
    """Pattern of a year at either end of a range."""
    repeated: str = ""
    """Units that both ends of a range have: 五日到十日."""
    slash: str = " "
    """Between two words with a / between them."""
    phone_digits: int = 7
    """Fewest digits of a telephone number."""
    phone: str = (
        rf"(?:{quantity.PHONE}|0\d{{1,4}}(?:[ /-]\d{{2,8}})+)|\d{{1,4}}(?:[ -]\d{{2,4}}){{3,}}"
        r"|\d{2,4}(?:-\d{2,4}){2,}|\d{3}-\d{4}|(?:\+\d{7,}|0\d{6,})"
    )
    chat: str = ""
    """Word of chat = words: "vc = você; pq = porque"."""
    labelled: str = ""
    """Short noun before a number = words, with its full stop if it needs one: "ep = episodio; p. = page"."""
    abbreviations: str = ""
    """Abbreviation = words; without words it stays as written. Its full stop ends no sentence."""
    fractions: Mapping[tuple[str, str], str] = field(default_factory=dict)
    half: Callable[[int], str] | None = None
    """Words of a number and a half."""
    letter: str = r"[^\W\d_]"
    """Pattern of a letter that may belong to a code or unit."""
    glued: str = "(?!)"
    """Pattern of a word that may follow a number without a space: $20off."""
    joint: str = " "
    """Between words of one reading."""
    reads_roman: bool = True
    """False where `capitals` reads Roman numerals."""
    weekdays: str = ""
    """Short form = name, and after a | the name behind `day_range`'s second word."""
    day_range: str = "{} {}"
    """Format of two weekdays: Mo-Fr."""
    kings: str = "(?!)"
    """Pattern of a name before the Roman numeral of a king; and of a queen."""
    queens: str = "(?!)"
    regnal: Callable[[int, str], str] | None = None
    """Words of a king's or queen's number, if they are not its cardinal."""
    regnal_stop: str = ""
    """Pattern of the full stop that belongs to it: Ludwig XIV."""
    roman_ending: str = "(?!)"
    """Pattern of the ending of an ordinal in Roman numerals: XVe."""
    symbols: Mapping[str, str] = field(default_factory=dict)
    """Words of signs that no reading takes and that the vocabulary lacks, besides & + = % × ÷."""
    capitals: Capitals = unshouted
    stretched: int = 4
    """See Language."""

    # Words of numbers.

    def plain(self, written: str) -> str:
        """ "1.200,50" → "1200.50", in this language's marks."""
        number = "".join(str(unicodedata.digit(c)) if c.isdigit() else c for c in written)
        number = re.sub(r"[ '’٬]", "", number).replace("٫", ".").replace("،", ",")
        marks = [c for c in number if c in ".,"]
        if not marks:
            return number
        decimal = marks[-1]
        first = r"\d{1,3}" if self.number else r"[1-9]\d{0,2}"
        grouped = re.fullmatch(rf"{first}(?:[.,]\d{{2,3}})*[.,]\d{{3}}", number)
        is_whole = grouped and (
            len(set(marks)) == 1 and (decimal != self.decimal or len(marks) > 1 or number.endswith(",000"))
        )
        whole, _, part = number.rpartition(decimal)
        whole = re.sub(r"\D", "", whole) or "0"
        return whole + part if is_whole else f"{whole}.{part}"

    def spoken(self, number: str, gender: str = "") -> str:
        """Words of a plain number; digit by digit if it is a code."""
        whole, _, part = number.partition(".")
        if is_code(whole):
            words = self.digits(whole)
        elif not part:
            return self.cardinal(int(whole), gender)
        else:
            words = self.cardinal(int(whole), "")
        if not part:
            return words
        if self.decimals:
            return self.decimals(whole, part)
        zeros = part[: len(part) - len(part.lstrip("0"))]
        if self.in_pairs and len(part) <= 2 and part.strip("0"):
            said = " ".join(filter(None, (self.digits(zeros), self.cardinal(int(part), ""))))
        else:
            said = self.digits(part)
        return self.joint.join((words, self.point, said)) if self.joint else words + self.point + said

    def digits(self, digits: str) -> str:
        """Words of each digit, without other characters."""
        words = (self.cardinal(unicodedata.digit(c), "") for c in digits if c.isdigit())
        return self.joint.join(words)

    def grouped(self, text: str) -> str:
        """Digits of groups, as of a telephone number."""
        return self.comma.join(self.digits(group) for group in re.findall(r"\d+", text))

    def counted(self, number: str, noun: Noun) -> str:
        form = noun.forms[min(self.form(number), len(noun.forms) - 1)]
        if self.count and number.isdigit():
            return self.count(int(number), form)
        return f"{self.spoken(number, noun.gender)}{self.joint}{form}"

    def points(self, version: str) -> str:
        parts = (self.spoken(part) if len(part) < 4 else self.digits(part) for part in version.split("."))
        return f"{self.joint}{self.dot}{self.joint}".join(parts)

    def followed(self, match: re.Match[str]) -> str:
        """Gender of a number before its noun; "" without a noun."""
        if self.feminine == "(?!)":
            return ""
        after = re.match(r"\s([^\W\d_]+)", match.string[match.end() :])
        if not after or re.fullmatch(self.no_noun, after[1]):
            return ""
        if re.search(rf"(?i)(?<!\w)(?:{self.labels})\s?$", before(match)):
            return ""
        return _FEMININE if re.fullmatch(self.feminine, after[1]) else _MASCULINE

    def numbered(self, match: re.Match[str]) -> str | None:
        """2° piano: an ordinal before a noun, degrees of anything else."""
        noun = self._counted_noun(match)
        if not noun or int(match[1]) > _HIGHEST_FLOOR or self.is_weather(match):
            return None
        return self.ordinal(int(match[1]), _FEMININE if re.fullmatch(self.feminine, noun) else _MASCULINE)

    def _counted_noun(self, match: re.Match[str]) -> str:
        after = re.match(r"\s([^\W\d_]+)", match.string[match.end() :])
        is_noun = after and not any(re.fullmatch(p, after[1], re.I) for p in (self.degrees, self.no_noun))
        return after[1] if after and is_noun else ""

    def in_unit(self, number: str, sign: str) -> str:
        return self.counted(number, as_noun(as_rows(self.units)[sign]))

    def is_weather(self, match: re.Match[str]) -> bool:
        """True for 25º, if no noun follows, after a word of the weather."""
        if match[0][-1] == "º" and self._counted_noun(match):
            return False
        return re.search(rf"(?i)(?<!\w)(?:{self.weather})\s$", before(match)) is not None

    def between(self, first: str, word: str, second: str) -> str:
        return self.joint.join((first, word, second))

    def negative(self, match: re.Match[str]) -> str:
        """Word of a number below zero."""
        return self.minus

    def signed(self, match: re.Match[str], words: str) -> str:
        sign = match["sign"] or ""
        if sign:
            sign = self.signs.split("|")[1] if sign == "+" else self.negative(match)
        return f"{sign}{self.joint}{words}" if sign else words

    def measured(self, amount: Amount, match: re.Match[str]) -> Amount | None:
        """Amount as the line means it in this language; None if it is no quantity."""
        return amount

    def bare(self, match: re.Match[str]) -> str | tuple[Kind, str]:
        """A number without a unit."""
        return self.signed(match, self.spoken(self.plain(match["number"]), self.followed(match)))

    def in_code(self, digits: str, code: str) -> str:
        """Digits within a code."""
        return self.spoken(digits) if len(digits) < 5 else self.digits(digits)

    def letters(self, letters: str) -> str:
        """Letters within a code."""
        return letters
