"""Facets of a language: the settings and words of its file, by subject."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

_NONE: Mapping[str, Any] = MappingProxyType({})


class Noun(NamedTuple):
    forms: tuple[str, ...]
    gender: str


class Scale(NamedTuple):
    power: int
    noun: Noun | None


class Numbers(NamedTuple):
    point: str = ""
    """Word between whole and decimals."""
    decimal: str = ","
    """Decimal mark; the other of comma and point groups thousands."""
    mixed: bool = False
    """True: each mark may be either, and no comma is a decimal mark but before a unit."""
    pairs: bool = False
    """True: two decimals are read as one number."""
    spaced: bool = True
    """Spaces between words."""
    comma: str = ","
    """Between groups of digits, and before the ends of lists."""
    unsigned: str = r"\w.)%°"
    """Characters after which - and + are no sign of a number."""
    letter: str = r"[^\W\d_]"
    """Pattern of a letter that may belong to a code or unit."""
    nouns: Mapping[str, str] = _NONE
    """Gender of nouns, with / between their forms; it has precedence over `feminine`."""
    feminine: str = "(?!)"
    """Pattern of a feminine noun after a number."""
    no_noun: str = "(?!)"
    """Pattern of a word after a number that is not its noun."""
    ordinal_endings: str = "(?!)"
    """Pattern of what makes a number an ordinal, a feminine one if it ends with a or ª."""
    labels: str = "(?!)"
    """Pattern of a word before a number that the number names: level 5."""


class Money(NamedTuple):
    currencies: Mapping[str, tuple[Noun, Noun | None]] = _NONE
    """Noun by sign, and the noun of its hundredth part."""
    before: str = ""
    """Currencies that may come before the number too, besides codes of three capitals: Rs. 500."""
    cents: str = ""
    """Format of {whole} and {part}, with the {noun} of the part."""
    scales: Mapping[str, Scale] = _NONE
    """A whole number, and a number without a noun, are written out. A sign without power is always spoken."""
    unstopped: str = ""
    """Scales of three and four letters that are whole words, without a full stop of their own."""
    of: str = ""
    """Format of a noun after millions."""
    of_vowel: str = ""
    """The same for a noun that begins with a vowel."""


class Units(NamedTuple):
    nouns: Mapping[str, Noun] = _NONE
    cased: Mapping[str, Noun] = _NONE
    """Units whose letters in another case are none: W."""
    per: Mapping[str, str] = _NONE
    """Words of denominators of rates."""
    per_word: str = "{}"
    """Format of any other word after the / of a price."""
    repeated: str = ""
    """Units that both ends of a range have: 五日到十日."""
    glued: str = "(?!)"
    """Pattern of a word that may follow a number without a space: $20off."""
    unspaced: str = "A L nm ns"
    """Units that are words too, and units only without a space before: 5 A day."""
    measured: str = "km m kb mb gb kbit mbit gbit"
    """Units whose rates are named without a number too: in km/h."""
    seats: str = "(?!)"
    """Pattern of a word before a number and a letter that is no unit: gate 5A."""
    degrees: str = "(?!)"
    """Pattern of a word after 2° that is no noun with an ordinal."""
    weather: str = "(?!)"
    """Pattern of a word before 25º that makes it a temperature."""


class Dates(NamedTuple):
    months: Mapping[str, str] = _NONE
    unshortened: str = ""
    """Short names of months that may be other words after a number: 3 set."""
    first: str = ""
    """The first day of a month, if it is no cardinal."""
    date: str = "{day} {month}"
    dated: str = "{day} {month} {year}"
    before: str = "(?!)"
    """Pattern of a word before 24/12."""
    day_first: str = "[-/.]"
    """Marks of a date with its day first: 24.12.2026"""
    of_month: str = r"\.?\s(?:de\s)?"
    """Pattern between a day and its month."""
    years: str = r"(?:1[1-9]|20)\d\d"
    """Pattern of a year at either end of a range."""
    seasons: bool = False
    """True if 2025/26 are two years."""
    weekdays: Mapping[str, tuple[str, str]] = _NONE
    """Names of short forms, and the names as a range's end."""
    weekday_range: str = "{} {}"
    century: str = "(?!)"
    """Pattern of the noun before a century's number."""
    short_century: str = "(?!)"


class Times(NamedTuple):
    hour: str = r"\s?h(?:rs?)?"
    """Pattern of the word for hour after a time."""
    hour_minute: str = "(?!)"
    """Pattern between hour and minutes but for the colon: 19h30."""
    before: str = "(?!)"
    """Pattern of a word before 17:02:51 as a time of day."""
    lasting: str = "(?!)"
    """Pattern of a word that makes 00:45 or 1h30 a length of time."""
    with_seconds: str = "{clock} {seconds}"
    marks: str = "h H"
    """Words for hour before the dash of a range of times."""
    stopped: str = "min"
    """Units of time with a full stop of their own: 30 Min."""


class Signs(NamedTuple):
    words: Mapping[str, str] = _NONE
    """Words by a sign of SIGNS."""
    limits: Mapping[str, str] = _NONE
    """Words of < and > before a number that stands alone: <5 min."""
    symbols: Mapping[str, str] = _NONE
    """Words of signs that no reading takes and that the vocabulary lacks, besides & + = % × ÷."""
    fractions: Mapping[str, str] = _NONE
    to: str = ""
    """Word between the ends of a range; the next three stand between two numbers too."""
    score: str = ""
    out_of: str = ""
    versus: str = ""
    number: str = ""
    """Word of #1."""
    version: str = ""
    dot: str = ""
    """Between the parts of a version."""
    ending: str = ""
    """Word before the ending of a file's name, if it is not `dot`."""
    minus: str = ""
    slash: str = ""
    """Between two words with a / between them."""


class Chat(NamedTuple):
    link: str = ""
    mail: str = ""
    listing: str = ""
    """Words for a block of code."""
    heart: str = ""
    short: Mapping[str, str] = _NONE
    """Words of short words of chat."""
    abbreviations: Mapping[str, str] = _NONE
    """"" stays as written. The full stop ends no sentence."""
    labels: Mapping[str, str] = _NONE
    """Words of short nouns before a number, with their full stop if they need one."""
    versions: str = "(?!)"
    """Pattern of a word before a number whose point is no decimal's: Patch 4.2"""
    kings: str = "(?!)"
    """Pattern of a name before the Roman numeral of a king."""
    queens: str = "(?!)"
    regnal_stop: str = ""
    """Pattern of the full stop that belongs to it: Ludwig XIV."""
    roman: bool = True
    """False if `Speech.capitals` reads Roman numerals."""
    roman_ending: str = "(?!)"
    """Pattern of the ending of an ordinal in Roman numerals: XVe."""
    roman_feminine: str = "(?!)"
    """Pattern of the same before a feminine noun."""


class Writing(NamedTuple):
    scripts: str = "LATIN"
    """First words of its letters' Unicode names: LATIN, CYRILLIC, CJK, HIRAGANA, DEVANAGARI, ARABIC …"""
    sample: str = ""
    """Letters of the words; a vocabulary that lacks a letter cannot say the words."""
    stretched: int = 4
    """Equal letters in a row, from which on a word is shortened: noooo. German has three: Schifffahrt."""
