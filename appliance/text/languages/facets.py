"""The settings and words of a language's file, by subject: numbers, money, units and so on.

A default is right for most languages. The pattern (?!) matches nothing. Classes here have a field for each
row of a table of settings, and for each table of words, of a file words.tsv.
"""

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
    """Word between the whole number and its decimals."""
    decimal: str = ","
    """Decimal mark: comma or point. The other mark groups thousands."""
    mixed: bool = False
    """True if both marks can be either. Then a comma is a decimal mark only before a unit."""
    pairs: bool = False
    """True if two decimals are read as one number."""
    spaced: bool = True
    """True if words have spaces between them."""
    comma: str = ","
    """Separates spoken groups of digits, and the last two items of a list."""
    unsigned: str = r"\w.)%°"
    """After these characters, - and + are not the sign of a number."""
    letter: str = r"[^\W\d_]"
    """Pattern of a letter that may be part of a code or unit."""
    nouns: Mapping[str, str] = _NONE
    """Noun (with / between its forms) → its gender. This has precedence over `feminine`."""
    feminine: str = "(?!)"
    """Pattern of a feminine noun after a number."""
    no_noun: str = "(?!)"
    """Pattern of a word that follows a number and is not the noun that it counts."""
    phone: str = (
        r"(?:\+\d{1,3}(?:[ ./-]{1,2}(?:\(\d{1,4}\)[ ./-]?)?\d{1,8})+|0\d{1,3}(?:\.\d{2,4}){2,}"
        r"|\d{3}[ .-]\d{3}[ .-]\d{4}|0\d{1,4}(?:[ /-]\d{2,8})+)|\d{1,4}(?:[ -]\d{2,4}){3,}"
        r"|\d{2,4}(?:-\d{2,4}){2,}|\d{3}-\d{4}|1[389]00(?: \d{3,4}){1,2}(?! ?\d)|(?:\+\d{7,}|0\d{6,})"
    )
    """Pattern of a telephone number of seven digits or more: +49 30 1234567, 06.12.34.56.78, 321 434-5049"""
    ordinal_endings: str = "(?!)"
    """Pattern of the ending that makes a number an ordinal; a or ª at its end makes it feminine."""
    labels: str = "(?!)"
    """Pattern of a word that has a number as its name: level 5."""


class Money(NamedTuple):
    currencies: Mapping[str, tuple[Noun, Noun | None]] = _NONE
    """Sign or code → noun, and the noun of its hundredth part."""
    before: str = ""
    """Currencies that may precede the number, besides codes of three capitals: Rs. 500."""
    cents: str = ""
    """Format of {whole} and {part}, and of {noun}, the noun of the part."""
    scales: Mapping[str, Scale] = _NONE
    """Sign of a scale → its power and its noun.

    5k is spoken as the number 5000, but 1.5m with the noun: one point five million. A scale without power
    always has its noun; a scale without noun never has one.
    """
    unstopped: str = ""
    """Scales of three or four letters that are whole words, and have no full stop."""
    of: str = ""
    """Format of the noun after millions."""
    of_vowel: str = ""
    """Format of the noun after millions, if it begins with a vowel."""


class Units(NamedTuple):
    nouns: Mapping[str, Noun] = _NONE
    """Unit → noun."""
    cased: Mapping[str, Noun] = _NONE
    """Units that are units only in this case: W."""
    per: Mapping[str, str] = _NONE
    """Unit → its words in the denominator of a rate."""
    per_word: str = "{}"
    """Format of other words after the / of a price."""
    repeated: str = ""
    """Units that are spoken at both ends of a range: 五日到十日."""
    glued: str = "(?!)"
    """Pattern of a word that may follow a number without a space: $20off."""
    unspaced: str = "A L nm ns"
    """Units that are also words, so they are units only if no space precedes them: 5 A day."""
    measured: str = "km m kb mb gb kbit mbit gbit"
    """Units whose rates are read even without a number: in km/h."""
    seats: str = "(?!)"
    """Pattern of a word before a number with a letter that is not a unit: gate 5A."""
    degrees: str = "(?!)"
    """Pattern of a word after 2° that does not make it an ordinal."""
    weather: str = "(?!)"
    """Pattern of a word that makes 25º after it a temperature."""


class Dates(NamedTuple):
    months: Mapping[str, str] = _NONE
    unshortened: str = ""
    """Short names of months that may be other words after a number: 3 set."""
    date: str = "{day} {month}"
    dated: str = "{day} {month} {year}"
    before: str = "(?!)"
    """Pattern of a word that makes 24/12 after it a date."""
    day_first: str = "[-/.]"
    """Marks in a date that begins with the day: 24.12.2026"""
    of_month: str = r"\.?\s(?:de\s)?"
    """Pattern of the text between a day and its month."""
    years: str = r"(?:1[1-9]|20)\d\d"
    """Pattern of a year at either end of a range."""
    seasons: bool = False
    """True if 2025/26 means two years."""
    weekdays: Mapping[str, tuple[str, str]] = _NONE
    """Short name of a weekday → its name, and its name as the end of a range."""
    weekday_range: str = "{} {}"
    century: str = "(?!)"
    """Pattern of the noun before the number of a century."""
    short_century: str = "(?!)"


class Times(NamedTuple):
    hour: str = r"\s?h(?:rs?)?"
    """Pattern of the word for hour after a time."""
    hour_minute: str = "(?!)"
    """Pattern of the text between hour and minutes, besides a colon: 19h30."""
    before: str = "(?!)"
    """Pattern of a word that makes 17:02:51 after it a time of day."""
    lasting: str = "(?!)"
    """Pattern of a word that makes 00:45 or 1h30 a duration."""
    with_seconds: str = "{clock} {seconds}"
    marks: str = "h H"
    """Words for hour before the dash of a range of times."""
    stopped: str = "min"
    """Units of time that may have a full stop: 30 Min."""


class Signs(NamedTuple):
    words: Mapping[str, str] = _NONE
    """Key of SIGNS → words."""
    limits: Mapping[str, str] = _NONE
    """Words for < and > before a number that stands alone: <5 min."""
    symbols: Mapping[str, str] = _NONE
    """Words for other signs, besides & + = % × ÷, that the vocabulary lacks."""
    fractions: Mapping[str, str] = _NONE
    to: str = ""
    """Word between the ends of a range. `score`, `out_of` and `versus` are further words between two numbers.
    """
    score: str = ""
    out_of: str = ""
    versus: str = ""
    number: str = ""
    """Word for the sign in #1."""
    version: str = ""
    dot: str = ""
    """Word between the parts of a version."""
    ending: str = ""
    """Word before the extension of a file's name; "" means `dot`."""
    minus: str = ""
    slash: str = ""
    """Word for the / between two words."""


class Chat(NamedTuple):
    link: str = ""
    mail: str = ""
    listing: str = ""
    """Words that replace a block of code."""
    heart: str = ""
    short: Mapping[str, str] = _NONE
    """Short form in chat → words."""
    abbreviations: Mapping[str, str] = _NONE
    """Abbreviation → words ("" if it stays as written). Its full stop does not end a sentence."""
    labels: Mapping[str, str] = _NONE
    """Short noun before a number → words. A key with a full stop matches only with it."""
    versions: str = "(?!)"
    """Pattern of a word that makes the point of the number after it not a decimal point: Patch 4.2"""
    kings: str = "(?!)"
    """Pattern of a name before a king's Roman numeral."""
    queens: str = "(?!)"
    regnal_stop: str = ""
    """Pattern of the full stop that is part of a king's number: Ludwig XIV."""
    roman: bool = True
    """False if `BaseGrammar.capitals` reads Roman numerals."""
    roman_ending: str = "(?!)"
    """Pattern of the ending of an ordinal in Roman numerals: XVe."""
    roman_feminine: str = "(?!)"
    """Pattern of such an ending before a feminine noun."""


class Writing(NamedTuple):
    scripts: str = "LATIN"
    """First words of the letters' Unicode names: LATIN, CYRILLIC, CJK, HIRAGANA, DEVANAGARI, ARABIC …"""
    sample: str = ""
    """Letters of the language's words. A vocabulary that lacks one of them cannot speak the words."""
    stretched: int = 4
    """Number of equal letters that show that a word is drawn out: noooo.

    German words have three: Schifffahrt.
    """


FACETS: Mapping[str, type[Any]] = {
    facet.__name__.lower(): facet for facet in (Numbers, Money, Units, Dates, Times, Signs, Chat, Writing)
}
"""Tables in which each row is a setting."""
