"""Stretches of text without spaces → the tokens that the tagger knows (spaCy's) → parts of words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from appliance.text.phones.table import Table

KIND = "x"
"""Kind of the table of exceptions: words of several tokens, or of one with its mark (do|n't, gon|na, Mr.).

The value has a byte for the length of each token.
"""
LONGEST = 24
"""Longest exception, in characters."""

_SMALL, _CAPITAL = "a-zß-öø-ÿ", "A-ZÀ-ÖØ-Þ"
_LETTER = r"(?:[^\W\d_]|[\u0300-\u036f])"
_QUOTES = "'\"«»‚"
_MARKS = frozenset(f"…,:;!?¿¡()[]{{}}<>_#*&·—–™®©°§¶†‡•$£€¥{_QUOTES}")
_FIRST = re.compile(rf"\.{{2,}}|…+|[{re.escape(''.join(sorted(_MARKS)))}%=]|\+(?!\d)")
_ENDED = re.compile(rf"[{_SMALL}\d%+\-{re.escape(''.join(sorted(_MARKS)))}]|[{_CAPITAL}]{{2}}")
"""Characters after which a full stop ends a sentence. After a single capital it belongs to an initial."""
_WITHIN = re.compile(
    rf"\.{{2,}}|…+|(?<=[{_SMALL}{_QUOTES}])\.(?=[{_CAPITAL}{_QUOTES}])|(?<=[^\W\d_]),(?=[^\W\d_])"
    r"|(?<=[^\W_])(?:-{1,3}|[–—]{1,2}|[~:<>=/])(?=[^\W\d_])"
)
_PARTS = re.compile(rf"[-_]+|\d+(?:[.,]\d+)*|{_LETTER}+(?:'+{_LETTER}+)*|'+|[^\w\-']")
_HUMPS = re.compile(rf"(?<=[{_SMALL}])(?=[{_CAPITAL}])|(?<=[{_CAPITAL}])(?=[{_CAPITAL}][{_SMALL}])")
"""Places at which a hump of camel case begins: Pog|Champ."""


class PhonePiece(NamedTuple):
    """Part of a text that is looked up as one word or sign."""

    text: str
    begin: int
    """Index in the whole text."""

    @property
    def end(self) -> int:
        return self.begin + len(self.text)


def pieces(text: str, begin: int, end: int, table: Table) -> list[PhonePiece]:
    """Cut a stretch.

    Marks come off both ends, until an exception or no mark is left; then the stretch is cut inside.
    """
    before: list[PhonePiece] = []
    behind: list[PhonePiece] = []
    while begin < end and not _lengths(text, begin, end, table):
        first = _FIRST.match(text, begin, end)
        inner = first.end() if first else begin
        last = _last(text, inner, end)
        if first and not (last < end and _lengths(text, begin, last, table)):
            before.append(PhonePiece(first[0], begin))
            begin = inner
            if _lengths(text, begin, end, table):
                break
        if last < end:
            behind.append(PhonePiece(text[last:end], last))
            end = last
        elif not first:
            break
    if begin < end:
        before += _cut(text[begin:end], begin, _lengths(text, begin, end, table))
    return before + behind[::-1]


def parts(piece: PhonePiece) -> Iterator[PhonePiece]:
    """Words of a compound, humps of camel case, numbers, hyphens and other signs."""
    for match in _PARTS.finditer(piece.text):
        begin = piece.begin + match.start()
        for hump in _HUMPS.split(match[0]):
            yield PhonePiece(hump, begin)
            begin += len(hump)


def _lengths(text: str, begin: int, end: int, table: Table) -> bytes:
    """Lengths of an exception's tokens; empty if it is none."""
    return (table.get(KIND, text[begin:end]) or b"") if end - begin <= LONGEST else b""


def _last(text: str, begin: int, end: int) -> int:
    """Index of the mark that ends a stretch; the stretch's end if there is none."""
    if begin == end:
        return end
    mark, at = text[end - 1], end - 1
    if mark in ".…":
        while at > begin and text[at - 1] == mark:
            at -= 1
        if mark == "…" or end - at > 1 or _ENDED.match(text, max(at - 1, begin), at):
            return at
        return at if at - begin > 1 and _ENDED.match(text, at - 2, at) else end
    if text[at - 1 : end] in ("'s", "'S") and at > begin:
        return at - 1
    return at if mark in _MARKS else end


def _cut(text: str, begin: int, lengths: bytes) -> Iterator[PhonePiece]:
    places = [0, len(text)]
    if lengths:
        places += [sum(lengths[:n]) for n in range(1, len(lengths))]
    else:
        places += [place for match in _WITHIN.finditer(text) if match.start() for place in match.span()]
    places = sorted(set(places))
    for first, last in pairwise(places):
        yield PhonePiece(text[first:last], begin + first)
