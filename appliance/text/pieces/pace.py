"""Pace of texts in different scripts: letters weighed by script, because UTF-8 bytes mislead.

A text lasts about as long as its translation (Coupé et al. 2019, doi:10.1126/sciadv.aaw2594). So a script's
weight is the number of Latin letters per letter in article 1 of the Universal Declaration of Human Rights.
Chinese characters have weight 3, as upstream's bytes weigh them against Latin letters.
"""

from __future__ import annotations

import re

from appliance.text.scripts import LETTERS

_WEIGHTS = {
    **{"CJK": 3.0, "HIRAGANA": 2.0, "KATAKANA": 2.0, "HANGUL": 2.0, "ARABIC": 1.5, "HEBREW": 1.4},
    **{"THAI": 1.3, "LAO": 1.3},
    **dict.fromkeys(("DEVANAGARI", "BENGALI", "GURMUKHI", "GUJARATI", "ORIYA"), 0.9),
    **dict.fromkeys(("TAMIL", "TELUGU", "KANNADA", "MALAYALAM", "SINHALA"), 0.9),
}
"""Latin letters per letter of each script; 1 for other scripts, spaces, digits and signs."""
_SILENT = re.compile("[\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670]")
"""Accents and short vowels, which take no time."""
_LETTERS = {name: re.compile(f"[{letters}]") for name, letters in LETTERS.items()}
_AS_UPSTREAM = ({"CJK", "HIRAGANA", "KATAKANA"}, {"LATIN", "CJK"})
"""Sets of scripts. If both texts have only scripts of one set, UTF-8 bytes compare them well."""


def exchange(transcript: str, text: str) -> float:
    """Bytes of `text` that last as long as a byte of the transcript; 1 if both have the same script."""
    if transcript.isascii() and text.isascii():
        return 1.0
    both = {name for name, letters in _LETTERS.items() if letters.search(transcript + text)}
    if len(both) < 2 or any(both <= alike for alike in _AS_UPSTREAM):
        return 1.0
    return _bytes_per_weight(text) / _bytes_per_weight(transcript)


def weight(text: str) -> float:
    """Number of Latin letters that last as long as the text."""
    audible = _SILENT.sub("", text)
    return len(audible) + sum(
        (each - 1.0) * len(_LETTERS[name].findall(audible)) for name, each in _WEIGHTS.items()
    )


def _bytes_per_weight(text: str) -> float:
    return len(text.encode()) / (weight(text) or 1.0)
