"""Clauses as espeak reads them → phones, with the marks that piper_phonemize puts between them.

The weights were trained with piper_phonemize's phones. Its library reports the mark that ended a clause; the
system's does not, so the mark is found in the text that the clause has read.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

_LANGUAGE_FLAG = re.compile(r"\([^)]*\)?")
_READ_AS = {
    ".": "\u06d4\u0701\u0704\u1362\u166e\u1803\u1809\uff61",
    ",": "\u055d\u060c\u0702\u07f8\u1363\u1802\u1808\uff64",
    "?": "\u037e\u061f\u0709\u1367\u1945\u2047\u2753\u2754",
    "!": "\u0703\u07f9\u1944\u203c\u2755\u2757",
    ":": "\u0706\u0707\u1365\u1366\u1804",
    ";": "\u0387\u061b\u0708\u1364\u204f—–\u2e3a\u2e3b",
}
"""Mark → marks of other scripts that piper_phonemize 1.1.0 replaces by it."""
_SILENT = (
    "¡¿\u055b\u055c\u055e\u0589\u0700\u0964\u0965\u0df4\u0f0d\u0f0e\u1368"
    "\u3001\u3002\uff01\uff0c\uff0e\uff1a\uff1b\uff1f"
)
"""Marks that end a clause and that piper_phonemize drops."""
_SAME = {other: mark for mark, others in _READ_AS.items() for other in others}
_MARKS = "?!.,;:…" + "".join(_SAME)
ALL_MARKS = frozenset(_MARKS + _SILENT)
"""Marks that end a clause."""
_BRACKETS = frozenset("?\"'`()[]{}<>‘’“”„‚«»\0")
"""Characters before which a mark ends its clause without a space."""

_RUN = re.compile(rf"([{_MARKS}])[{_MARKS}]+")


def single(text: str) -> str:
    """Text with the first of each run of marks. The others do not count, but espeak-ng 1.50 speaks them."""
    return _RUN.sub(r"\1", text.replace("...", "…"))


def joined(clauses: Iterable[tuple[str, str]]) -> str:
    """Phones of clauses with their marks, in NFD."""
    marked, ahead = "", ""
    for phones, clause in clauses:
        marked += _LANGUAGE_FLAG.sub("", unicodedata.normalize("NFD", phones)) + _mark(ahead + clause)
        ahead = clause[-1:]
    return marked


def _mark(clause: str) -> str:
    """Mark that ended a clause. `clause` is its text, with one character of the next clause."""
    body, after = clause[:-1], clause[-1:]
    bare = body.rstrip()
    run = bare[len(bare.rstrip(_MARKS + _SILENT)) :]
    is_set_off = len(bare) < len(body) or after in _BRACKETS or run[-1:] in _SILENT
    if not run or not is_set_off or not any(map(str.isalnum, body)):
        return ""
    if run[0] in _SILENT or run[0] == "…" or run.startswith("...") or (run[0] == "." and after.islower()):
        return ""
    mark = _SAME.get(run[0], run[0])
    return mark + " " * (mark in ",;:")
