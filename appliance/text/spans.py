"""Spans of a text: each character belongs to a span, whose kind alone decides how it is read."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


class Kind(enum.Enum):
    """The value is the `kind` of a change."""

    # Left as written.
    SPACE = "space"
    WORD = "word"
    MARK = "mark"
    PUNCTUATION = "punctuation"
    # Markup and machines.
    THINKING = "thinking"
    MARKUP = "markup"
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
    """Words for the span; "" if it is left out."""


Say = Callable[[re.Match[str]], "str | tuple[Kind, str] | None"]
"""Words of a match, possibly with another kind than the table's; None if something else reads it."""
Table = Sequence[tuple[Kind, str, Say]]
"""Kind, pattern and words, in order of precedence."""


Capitals = Callable[[re.Match[str], bool], "tuple[Kind, str] | None"]
"""Reads capitals, in a line that shouts or does not; None leaves them as written."""


class Readings:
    def __init__(self, table: Table) -> None:
        self._table = [(kind, re.compile(pattern), say) for kind, pattern, say in table]

    def at(self, text: str, place: int) -> Span | None:
        for kind, pattern, say in self._table:
            match = pattern.match(text, place)
            if match and match.end() > place and (said := say(match)) is not None:
                kind, words = said if isinstance(said, tuple) else (kind, said)
                return Span(kind, place, match.end(), words)
        return None


def before(match: re.Match[str], most: int = 24) -> str:
    return match.string[max(match.start() - most, 0) : match.start()]


@dataclass(frozen=True)
class Language:
    code: str
    """ISO 639-1 code, which the `emoji` library needs."""
    link: str
    mail: str
    listing: str
    """Words for a block of code."""
    comma: str
    point: str
    """Word between a file's name and its ending, and in rc.1; "" if the point stays."""
    digit: Callable[[str], str]
    number: Callable[[str, bool], str]
    """Words of digits; True for an ordinal."""
    numbers: Readings
    """Spans that begin with a digit, a sign before one, or a currency."""
    words: Readings
    """Spans that begin with a letter and are more than a word."""
    signs: Readings
    capitals: Capitals
    scripts: tuple[str, ...] = ("LATIN",)
    """First words of its letters' Unicode names: LATIN, CYRILLIC, CJK, HIRAGANA, DEVANAGARI, ARABIC …"""
    abbreviations: frozenset[str] = frozenset()
    """Abbreviations in lower case, without the last full stop, which ends no sentence: "z. b", "dr"."""
    heart: str = ""
    """Word for <3."""
    sample: str = ""
    """Letters of the words. A vocabulary that lacks one of them cannot say the words."""
    alone: Mapping[str, str] = field(default_factory=dict)
    """Sign → its words, if no reading takes the sign and the vocabulary lacks it: "%" → "percent"."""
    stretched: int = 4
    """Number of equal letters in a row from which on a word is shortened: noooo.

    German has three: Schifffahrt.
    """

    @property
    def says_digits(self) -> bool:
        """True if the language has words for digits. Otherwise digits stay."""
        return self.digit("1") != "1"
