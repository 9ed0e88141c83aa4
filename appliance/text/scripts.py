"""Scripts: their letters as ranges for patterns, and the scripts of languages that have no module."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from itertools import chain, groupby
from pathlib import Path
from types import MappingProxyType

HAN = r"\u3400-\u9fff"
KANA = r"\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9d"
WIDE = frozenset({"CJK", "HIRAGANA", "KATAKANA"})
"""Scripts without spaces. Their characters are counted in place of words."""
_ROWS = [row.partition(":") for row in Path(__file__).with_suffix(".txt").read_text("utf-8").splitlines()]
"""Rows of scripts.txt: a script and its blocks, and the languages that are written in it."""
_SCRIPT_OF = {code: script.split()[0] for script, _, codes in _ROWS for code in codes.split()}


def _ranges(codes: Iterable[int]) -> str:
    """Ranges for a pattern's brackets. `codes` are in order."""
    runs = groupby(enumerate(codes), lambda pair: pair[1] - pair[0])
    bounds = ((run[0][1], run[-1][1]) for run in (list(run) for _, run in runs))
    return "".join(f"\\u{first:04x}-\\u{last:04x}" for first, last in bounds)


def _letters(blocks: Iterable[str]) -> str:
    bounds = ((int(start, 16), int(end, 16)) for start, end in (block.split("-") for block in blocks))
    return _ranges(c for a, b in bounds for c in range(a, b + 1) if unicodedata.category(chr(c))[0] in "LM")


LETTERS: Mapping[str, str] = MappingProxyType(
    {name: _letters(blocks) for name, *blocks in (row[0].split() for row in _ROWS)} | {"CJK": HAN}
)
"""Script → its letters and marks, as ranges for a pattern's brackets."""
_HOLD_MARKS = chain(
    range(0x300, 0x1E00), range(0x20D0, 0x3100), range(0xA66F, 0xAC00), [0xFB1E], range(0xFE20, 0xFE30)
)
MARKS = _ranges(c for c in _HOLD_MARKS if unicodedata.category(chr(c))[0] == "M")
"""Marks that belong to the letter before them."""
JOINERS = "\u200c\u200d"
"""Zero-width characters that separate or join letters of Indian and Arabic scripts."""


def script_of(code: str) -> str:
    """Script of a language; LATIN for an unlisted language."""
    return _SCRIPT_OF.get(code, "LATIN")
