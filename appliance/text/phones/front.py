"""English text → phones.

Words are read from the last to the first, because a word depends on the next one.
"""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from appliance.contract.placement import MARKS, SPACE
from appliance.text.languages.en.numbers import english_decimal
from appliance.text.phones import alphabet
from appliance.text.phones.lexicon import PRIMARY, Ahead, Lexicon, weakened
from appliance.text.phones.pieces import PhonePiece, parts, pieces
from appliance.text.phones.table import ENGLISH, Table
from appliance.text.phones.tagger import Tagger
from appliance.text.phones.unknown import Network

HERE = Path(__file__).parent
NETWORK, OWN = HERE / "unknown.onnx", HERE / "words.txt"
MOST_CACHED = 256
"""Texts whose readings stay in memory."""
LONGEST_CACHED = 400
"""Longest text whose reading stays in memory, in characters: transcripts, which every reply needs."""
MOST_PARTS = 16
"""Parts of a compound that may be one word of the dictionary."""
LONGEST_INITIALS = 5
"""Letters of the longest unknown word without a vowel that is spelt: brb."""
SILENT = frozenset("'\"")
"""Signs without a sound that belong to a text's words."""

_ALIKE = str.maketrans(dict.fromkeys("’‘ʼ´`", "'") | dict.fromkeys("“”„", '"') | {"‒": "-", "―": "—"})
_MARKS = frozenset(";:,.!?—…")
_MARK_TAGS = frozenset((".", ",", "-LRB-", "-RRB-", "``", "''", ":", "$", "#", "NFP"))
_JOINTS = frozenset("',-._/")
"""Signs inside a word."""
_SIGNS = frozenset("&+%@")
_WIDE = frozenset("AIOWYʤʧ")
_CONSONANTS = re.compile("[b-df-hj-np-tv-xz]+", re.I)
_DRAWN_OUT = re.compile(r"(.)\1+$")
"""Last letters of a drawn-out word such as soo, yess."""
_RUN = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*|\d+(?:[.,]\d+)*")
_BARE = str.maketrans(
    {"ß": "ss", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L"}
    | {"đ": "d", "Đ": "D", "ı": "i", "þ": "th", "Þ": "Th", "ð": "th", "Ð": "Th"}
)


class PhoneWord(NamedTuple):
    """A stretch of a text without spaces, including marks."""

    begin: int
    end: int
    first: int
    """Index of its first token."""
    last: int
    """Index after its last token; equal to `first` if it has none."""


@dataclass(frozen=True)
class Reading:
    """Phones of a text, with its words."""

    tokens: tuple[str, ...]
    """Tokens of the alphabet; a single space between words."""
    words: tuple[PhoneWord, ...]


class _Part(NamedTuple):
    text: str
    tag: str


class Phones:
    """Reads texts as phones.

    Deterministic and thread-safe. Reads any text, in linear time, and never raises.
    """

    def __init__(self, table: Path = ENGLISH, network: Path = NETWORK, own: Path = OWN) -> None:
        """Raises OSError and ValueError if a file is missing or of another format."""
        self._table = Table(table)
        self._tagger = Tagger(self._table)
        self._network = Network(network)
        self._lexicon = Lexicon(self._table, {})
        self._lexicon = Lexicon(self._table, dict(map(self._own, rows(own.read_text(encoding="utf-8")))))
        self._cached_read = functools.lru_cache(maxsize=MOST_CACHED)(self._read)

    def __call__(self, text: str) -> list[str]:
        return list(self.read(text).tokens)

    def read(self, text: str) -> Reading:
        return self._cached_read(text) if len(text) <= LONGEST_CACHED else self._read(text)

    def _own(self, row: tuple[str, str]) -> tuple[str, str]:
        """A word of our list and its reading: phones between slashes, or words."""
        word, reading = row
        if reading[0] == reading[-1] == "/":
            return word, reading[1:-1]
        return word, " ".join(self._word(part, "", Ahead()) for part in reading.split())

    def _read(self, text: str) -> Reading:
        text = text.translate(_ALIKE)
        spans = [match.span() for match in re.finditer(r"\S+", text)]
        cut = [pieces(text, *span, self._table) for span in spans]
        flat = [piece.text for stretch in cut for piece in stretch]
        tags = iter(_initials(flat, self._tagger(flat)))
        tagged = [[(piece, next(tags)) for piece in stretch] for stretch in cut]
        ahead, readings = Ahead(), list[str]()
        for stretch in reversed(tagged):
            reading, ahead = self._stretch(stretch, ahead)
            readings.append(reading)
        return _joined(text, spans, readings[::-1])

    def _stretch(self, stretch: Sequence[tuple[PhonePiece, str]], ahead: Ahead) -> tuple[str, Ahead]:
        """Reading of a stretch without spaces, and its beginning as the words before it see it."""
        readings: list[str] = []
        for is_mark, group in groupby(reversed(stretch), key=lambda one: _mark(*one) is not None):
            if is_mark:
                for piece, tag in group:
                    mark = _mark(piece, tag) or ""
                    readings.append(mark)
                    ahead = ahead.before(mark, is_to=False)
            else:
                words = list(group)[::-1]
                compound = [_Part(part.text, tag) for piece, tag in words for part in parts(piece)]
                reading, ahead = self._compound(compound, ahead)
                readings.append(reading)
        return "".join(reversed(readings)), ahead

    def _compound(self, compound: Sequence[_Part], ahead: Ahead) -> tuple[str, Ahead]:
        """Reading of parts without a space between them: from the end, as many as are one word."""
        readings = [""] * len(compound)
        outer, right = ahead, len(compound)
        while right:
            for left in range(max(right - MOST_PARTS, 0), right):
                word, tag = _merged(compound[left:right])
                reading = self._looked_up(word, tag, ahead)
                if reading is not None:
                    readings[left], right = reading, left
                    ahead = ahead.before(reading, is_to=_is_to(word, tag))
                    break
            else:
                right -= 1
                if not _JOINTS.issuperset(compound[right].text):
                    reading = self._runs(*_merged(compound), outer)
                    return reading, outer.before(reading, is_to=False)
        return _balanced([part.text for part in compound], readings), ahead

    def _looked_up(self, word: str, tag: str, ahead: Ahead) -> str | None:
        """Reading by the dictionary; a foreign word is also looked up without its accents."""
        word = unicodedata.normalize("NFKC", word)
        reading = self._lexicon.read(word, tag, ahead)
        if reading is None and not word.isascii() and (bare := _bare(word)):
            return self._lexicon.read(bare, tag, ahead)
        return reading

    def _word(self, word: str, tag: str, ahead: Ahead) -> str:
        """Reading of any word: known, drawn out, initials, else the network's."""
        if (reading := self._looked_up(word, tag, ahead)) is not None:
            return reading
        short = _DRAWN_OUT.sub(r"\1", word)
        if 1 < len(short) < len(word) and tag != "NNP" and (reading := self._looked_up(short, tag, ahead)):
            return reading
        bare = _bare(word)
        is_initials = len(bare) <= LONGEST_INITIALS and _CONSONANTS.fullmatch(bare)
        return (self._lexicon.spelt(bare) if is_initials else None) or self._network(bare)

    def _runs(self, text: str, tag: str, ahead: Ahead) -> str:
        """Reading of a text that is no word: each run of letters, each number."""
        readings: list[str] = []
        for run in _RUN.findall(text):
            if run[0].isdecimal():
                words = english_decimal(run).replace("-", " ").split()
                readings += [self._word(word, "CD", Ahead()) for word in words]
                continue
            readings.append(self._word(run, tag, ahead))
        return " ".join(filter(None, readings))


@functools.cache
def front() -> Phones:
    return Phones()


def can_say(character: str) -> bool:
    """True if a character has a token, alone or in a word. Accents are dropped."""
    if character.isalpha():
        return bool(_bare(character))
    return (
        character in SILENT
        or character in _SIGNS
        or character.isdecimal()
        or bool(alphabet.tokens(character))
    )


def rows(text: str) -> Iterator[tuple[str, str]]:
    """(word, reading) of each line of our list; # begins a remark."""
    for line in text.splitlines():
        line = line.partition("#")[0].strip()
        if line:
            word, _, reading = line.partition(" ")
            yield word.lower(), reading.strip()


def _mark(piece: PhonePiece, tag: str) -> str | None:
    """Marks of a piece that is no word; None for a word, and for a sign that joins words."""
    sign = piece.text
    if sign in _SIGNS or any(map(str.isalnum, sign)):
        return None
    if sign in ("-", "–") and tag == ":":
        return "—"
    if tag not in _MARK_TAGS and _JOINTS.issuperset(sign):
        return None
    return "".join(filter(_MARKS.__contains__, sign))


def _initials(words: Sequence[str], tags: Iterable[str]) -> list[str]:
    """Tags in which consecutive capitals are names: the A of A F K is not an article."""
    single = [len(word) == 1 and word.isupper() for word in words]
    beside = zip([False, *single], single, [*single[1:], False], strict=False)
    return [
        "NNP" if it and (one or other) else tag for (one, it, other), tag in zip(beside, tags, strict=True)
    ]


def _merged(compound: Sequence[_Part]) -> tuple[str, str]:
    """Text of adjacent parts, and the tag of the part with the most letters; a capital counts as two."""
    main = max(compound, key=lambda part: len(part.text) + sum(c != c.lower() for c in part.text))
    return "".join(part.text for part in compound), main.tag


def _is_to(word: str, tag: str) -> bool:
    return word in ("to", "To") or (word == "TO" and tag in ("TO", "IN"))


def _balanced(texts: Sequence[str], readings: Sequence[str]) -> str:
    """Readings of a compound's words as one word. The lightest half of them lose their primary stress."""
    signs = {1 if c.isdigit() else 0 if c.isalpha() else 2 for c in "".join(texts) if c not in _JOINTS}
    if len(signs) > 1 or "/" in texts:
        return " ".join(filter(None, readings))
    readings = list(readings)
    words = [at for at, reading in enumerate(readings) if reading]
    weights = {at: sum(1 + (symbol in _WIDE) for symbol in readings[at]) for at in words}
    if len(words) == 2 and len(texts[words[0]]) == 1:
        lightest = words[1:]
    elif sum(PRIMARY in readings[at] for at in words) > (len(words) + 1) // 2:
        lightest = sorted(words, key=lambda at: (PRIMARY in readings[at], weights[at], at))[: len(words) // 2]
    else:
        lightest = []
    for at in lightest:
        readings[at] = weakened(readings[at])
    return "".join(readings)


def _bare(word: str) -> str:
    """The word in letters a to z and apostrophes, without other characters."""
    decomposed = unicodedata.normalize("NFKD", word.translate(_BARE)).translate(_BARE)
    return "".join(c for c in decomposed if c == "'" or (c.isascii() and c.isalpha()))


def _joined(text: str, spans: Sequence[tuple[int, int]], readings: Sequence[str]) -> Reading:
    tokens: list[str] = []
    words: list[PhoneWord] = []
    for (begin, end), reading in zip(spans, readings, strict=True):
        phones = alphabet.tokens(" ".join(reading.split()))
        # A full stop may be an initial's, without a sound; but not at the end.
        if phones and end == spans[-1][1] and text[end - 1] == "." and phones[-1] not in MARKS:
            phones.append(".")
        if phones and tokens:
            tokens.append(SPACE)
        words.append(PhoneWord(begin, end, len(tokens), len(tokens) + len(phones)))
        tokens += phones
    return Reading(tuple(map(sys.intern, tokens)), tuple(words))
