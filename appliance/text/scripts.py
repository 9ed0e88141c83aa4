"""Scripts: their letters as ranges for patterns, and those of languages that have no module."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from itertools import chain, groupby
from types import MappingProxyType

HAN = r"\u3400-\u9fff"
KANA = r"\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9d"
WIDE = frozenset({"CJK", "HIRAGANA", "KATAKANA"})
"""Scripts without spaces, whose characters are counted in place of words."""
_BLOCKS = """
    LATIN 41-5a 61-7a aa-24f 250-2af 1d00-1d7f 1e00-1eff 2c60-2c7f a720-a7ff fb00-fb06 ff21-ff5a
    GREEK 370-3ff 1f00-1fff
    CYRILLIC 400-52f 1c80-1c8f 2de0-2dff a640-a69f
    ARMENIAN 531-589
    HEBREW 591-5f4 fb1d-fb4f
    ARABIC 610-6ff 750-77f 870-8ff fb50-fdff fe70-fefc
    DEVANAGARI 900-97f a8e0-a8ff
    BENGALI 980-9ff
    GURMUKHI a00-a7f
    GUJARATI a80-aff
    ORIYA b00-b7f
    TAMIL b80-bff
    TELUGU c00-c7f
    KANNADA c80-cff
    MALAYALAM d00-d7f
    SINHALA d80-dff
    THAI e00-e5f
    LAO e80-eff
    TIBETAN f00-fff
    MYANMAR 1000-109f aa60-aa7f
    GEORGIAN 10a0-10ff 1c90-1cbf
    HANGUL 1100-11ff 3131-318e ac00-d7a3
    ETHIOPIC 1200-139f
    KHMER 1780-17ff
    MONGOLIAN 1800-18af
    HIRAGANA 3041-309f
    KATAKANA 30a0-30ff 31f0-31ff ff66-ff9d
"""
_LANGUAGES = """
    CYRILLIC ru uk bg be sr mk kk ky mn tg tt ba cv nog
    GREEK el grc
    ARMENIAN hy hyw
    HEBREW he yi
    ARABIC ar fa ur ps ug sd
    DEVANAGARI hi mr ne sa kok
    BENGALI bn as bpy
    GURMUKHI pa
    GUJARATI gu
    ORIYA or
    TAMIL ta
    TELUGU te
    KANNADA kn
    MALAYALAM ml
    SINHALA si
    THAI th
    LAO lo
    TIBETAN bo dz
    MYANMAR my shn
    GEORGIAN ka
    HANGUL ko
    ETHIOPIC am ti
    KHMER km
    CJK zh yue cmn hak
"""
_SCRIPT_OF = {code: row.split()[0] for row in _LANGUAGES.strip().splitlines() for code in row.split()[1:]}


def _ranges(codes: Iterable[int]) -> str:
    """Ranges for a pattern's brackets; `codes` are in order."""
    runs = groupby(enumerate(codes), lambda pair: pair[1] - pair[0])
    bounds = ((run[0][1], run[-1][1]) for run in (list(run) for _, run in runs))
    return "".join(f"\\u{first:04x}-\\u{last:04x}" for first, last in bounds)


def _letters(blocks: Iterable[str]) -> str:
    bounds = ((int(start, 16), int(end, 16)) for start, end in (block.split("-") for block in blocks))
    return _ranges(c for a, b in bounds for c in range(a, b + 1) if unicodedata.category(chr(c))[0] in "LM")


LETTERS: Mapping[str, str] = MappingProxyType(
    {row.split()[0]: _letters(row.split()[1:]) for row in _BLOCKS.strip().splitlines()} | {"CJK": HAN}
)
"""Letters and marks of each script, as ranges for a pattern's brackets."""
_HOLD_MARKS = chain(
    range(0x300, 0x1E00), range(0x20D0, 0x3100), range(0xA66F, 0xAC00), [0xFB1E], range(0xFE20, 0xFE30)
)
MARKS = _ranges(c for c in _HOLD_MARKS if unicodedata.category(chr(c))[0] == "M")
"""Marks that belong to the letter before them."""
JOINERS = "\u200c\u200d"
"""Zero-width: they part or join letters of Indian and Arabic scripts."""


def script_of(code: str) -> str:
    """Script of a language; LATIN for an unlisted language."""
    return _SCRIPT_OF.get(code, "LATIN")
