"""Clauses as espeak reads them → phones with the marks that piper_phonemize puts between them.

The weights were trained with its phones. Its library tells the mark that ended a clause; the system's does
not, so that it is found in the text that the clause has read.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_LANGUAGE_FLAG = re.compile(r"\([^)]*\)?")
_MARKS = "?!.,;:…—–"
_BRACKETS = frozenset("?\"'`()[]{}<>‘’“”«»\0")
"""Before these a mark ends its clause without a space."""

_RUN = re.compile(rf"([{_MARKS}])[{_MARKS}]+")


def single(text: str) -> str:
    """Text with the first of each run of marks, which alone counts; espeak-ng 1.50 says the others."""
    return _RUN.sub(r"\1", text)


def joined(clauses: Iterable[tuple[str, str]]) -> str:
    """Phones of clauses with their marks, as NFD."""
    made, ahead = "", ""
    for phones, read in clauses:
        made += _LANGUAGE_FLAG.sub("", unicodedata.normalize("NFD", phones)) + _mark(ahead + read)
        ahead = read[-1:]
    return made


def _mark(read: str) -> str:
    """Mark that ended a clause, of what it has read with one character of the next."""
    body, after = read[:-1], read[-1:]
    bare = body.rstrip()
    run = bare[len(bare.rstrip(_MARKS)) :]
    is_set_off = len(bare) < len(body) or after in _BRACKETS
    if not run or not is_set_off or not any(map(str.isalnum, body)):
        return ""
    if run[0] == "…" or run.startswith("...") or (run[0] == "." and after.islower()):
        return ""
    mark = ";" if run[0] in "—–" else run[0]
    return mark + " " * (mark in ",;:")
