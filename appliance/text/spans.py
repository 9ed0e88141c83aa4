"""Spans of a text. Each character belongs to one span, and only its kind decides how it is read."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby


class Kind(enum.Enum):
    """Kind of a span. The value is also the `kind` of a change."""

    # Left as written.
    SPACE = "space"
    WORD = "word"
    MARK = "mark"
    PUNCTUATION = "punctuation"
    # Markup and machines.
    THINKING = "thinking"
    MARKUP = "markup"
    QUOTE = "quote"
    LAYOUT = "layout"
    DATA = "data"
    CODE = "code"
    LINK = "link"
    MAIL = "mail"
    DIRECTION = "direction"
    PAUSE = "pause"
    STYLE = "style"
    VOICE = "voice"
    # Chat.
    EMOTE = "emote"
    EMOTICON = "emoticon"
    EMOJI = "emoji"
    NAME = "name"
    HASHTAG = "hashtag"
    LAUGHTER = "laughter"
    GOODBYE = "goodbye"
    # Words in capitals.
    SHOUTING = "shouting"
    ACRONYM = "acronym"
    ROMAN = "roman"
    # Numbers and signs.
    DATE = "date"
    YEAR = "year"
    TIME = "time"
    SCORE = "score"
    VERSION = "version"
    PHONE = "phone"
    RANGE = "range"
    MONEY = "money"
    PERCENT = "percent"
    UNIT = "unit"
    FRACTION = "fraction"
    NUMBER = "number"
    SIGN = "sign"
    # Any span.
    REPEAT = "repeat"
    WIDTH = "width"


@dataclass
class Span:
    kind: Kind
    start: int
    end: int
    spoken: str
    """The spoken words; "" leaves the span out."""


Say = Callable[[re.Match[str]], "str | tuple[Kind, str] | None"]
"""Returns the words of a match, with a kind if it is not the row's; None if another row should read it."""
Table = Sequence[tuple[Kind, str, Say]]
"""Rows of kind, pattern and words, in order of precedence."""


Capitals = Callable[[re.Match[str], bool], "tuple[Kind, str] | None"]
"""Reads a word in capitals, in a line that shouts (True) or does not. None leaves the word as written."""


class Readings:
    """Rows of a table, tried in order. One pattern for each chunk of rows finds the first that matches."""

    def __init__(self, table: Table) -> None:
        self._chunks = [
            (_any_of(rows), rows)
            for refers, run in groupby(table, lambda row: _REFERENCE.search(row[1]) is not None)
            for rows in _chunks(list(run), 1 if refers else CHUNK)
        ]

    def at(self, text: str, place: int) -> Span | None:
        for any_of, rows in self._chunks:
            if first := any_of.match(text, place):
                begin = int(str(first.lastgroup)[1:]) if len(rows) > 1 else 0
                for kind, pattern, say in rows[begin:]:
                    own = _compiled(pattern)
                    match = first if own is any_of else own.match(text, place)
                    if match and match.end() > place and (reading := say(match)) is not None:
                        kind, words = reading if isinstance(reading, tuple) else (kind, reading)
                        return Span(kind, place, match.end(), words)
        return None


CHUNK = 12
_REFERENCE = re.compile(r"\\[1-9]|\(\?\(")
"""Matches a reference to a group, whose number would be different in a pattern of several rows."""
_compiled = cache(re.compile)


def _chunks(rows: Table, size: int) -> Iterator[Table]:
    return (rows[at : at + size] for at in range(0, len(rows), size))


def _any_of(rows: Table) -> re.Pattern[str]:
    """Pattern that matches any row. Each row is a group, named by its index: r0, r1 …"""
    if len(rows) == 1:
        return _compiled(rows[0][1])
    plain = (re.sub(r"\(\?P<\w+>", "(?:", pattern) for _, pattern, _ in rows)
    scoped = (f"(?i:{pattern[4:]})" if pattern.startswith("(?i)") else pattern for pattern in plain)
    return re.compile("|".join(f"(?P<r{at}>{pattern})" for at, pattern in enumerate(scoped)))


def before(match: re.Match[str], most: int = 24) -> str:
    return match.string[max(match.start() - most, 0) : match.start()]


@dataclass(frozen=True)
class Language:
    code: str
    """ISO 639-1 code, which the `emoji` library needs."""
    link: str
    mail: str
    listing: str
    """Words that replace a block of code."""
    comma: str
    point: str
    """Word between a file's name and its extension, and in rc.1; "" if the point stays."""
    digit: Callable[[str], str]
    number: Callable[[str, bool], str]
    """Words of digits; of an ordinal if the second argument is True."""
    numbers: Readings
    """Readings that begin with a digit, a sign before a digit, or a currency."""
    words: Readings
    """Readings that begin with a letter and are more than a single word."""
    signs: Readings
    capitals: Capitals
    scripts: tuple[str, ...] = ("LATIN",)
    """First words of the letters' Unicode names: LATIN, CYRILLIC, CJK, HIRAGANA, DEVANAGARI, ARABIC …"""
    abbreviations: frozenset[str] = frozenset()
    """Abbreviations in lower case, without the last full stop, which ends no sentence: "z. b", "dr"."""
    heart: str = ""
    """Word for <3."""
    sample: str = ""
    """Letters of the language's words. A vocabulary that lacks a letter cannot speak the words."""
    alone: Mapping[str, str] = field(default_factory=dict)
    """Sign → its words if no reading takes it and the vocabulary lacks it: "%" → "percent"."""
    stretched: int = 4
    """Number of equal letters in a row that show a word drawn out: noooo.

    German words have three: Schifffahrt.
    """

    @property
    def says_digits(self) -> bool:
        """True if the language has words for digits. Otherwise digits stay."""
        return self.digit("1") != "1"
