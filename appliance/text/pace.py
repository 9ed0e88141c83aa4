"""How long texts of different scripts take: letters weighed by script, where UTF-8 bytes mislead.

A text takes about as long as its translation (Coupé et al. 2019, doi:10.1126/sciadv.aaw2594): a weight says
for how many Latin letters a letter of the script stands in article 1 of the Universal Declaration of Human
Rights, but for Chinese characters, which upstream's bytes weigh with 3 beside Latin letters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_MARKS = "\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0670"
"""Accents and short vowels, which take no time."""
_SCRIPTS: dict[str, tuple[str, float]] = {
    "latin": ("A-Za-z\u00aa\u00ba\u00c0-\u024f\u1e00-\u1eff", 1.0),
    "han": ("\u2e80-\u2fdf\u3005-\u3007\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff", 3.0),
    "kana": ("\u3040-\u30ff\u31f0-\u31ff\uff66-\uff9f", 2.0),
    "hangul": ("\u1100-\u11ff\u3130-\u318f\uac00-\ud7af", 2.0),
    "cyrillic": ("\u0400-\u052f", 1.0),
    "greek": ("\u0370-\u03ff\u1f00-\u1fff", 1.0),
    "arabic": ("\u0620-\u064a\u066e-\u06d3\u06fa-\u06ff\u0750-\u077f", 1.5),
    "hebrew": ("\u05d0-\u05f2", 1.4),
    "thai": ("\u0e01-\u0e4e\u0e81-\u0ece", 1.3),
    "indic": ("\u0900-\u0963\u0971-\u0dff", 0.9),
    "other": ("\u0530-\u058f\u0710-\u074f\u0f00-\u109f\u10a0-\u10ff\u1200-\u137f\u1780-\u17d3", 1.0),
}
"""Letters and weight."""
_LETTERS = {name: (re.compile(f"[{letters}]"), weight) for name, (letters, weight) in _SCRIPTS.items()}
_NOT_WEIGHED = re.compile(f"[{_MARKS}{''.join(letters for letters, _ in _SCRIPTS.values())}]")
_AS_UPSTREAM = ({"han", "kana"}, {"latin", "han"})
"""Scripts for which, together, bytes do."""


def exchange(transcript: str, text: str) -> float:
    """Bytes of `text` that take as long as one of the transcript; 1 where both are of one script."""
    if transcript.isascii() and text.isascii():
        return 1.0
    both = {name for name, _, _ in _counted(transcript + text)}
    if len(both) < 2 or any(both <= alike for alike in _AS_UPSTREAM):
        return 1.0
    return _bytes_per_weight(text) / _bytes_per_weight(transcript)


def _bytes_per_weight(text: str) -> float:
    # Spaces, digits and signs have the weight of a Latin letter.
    others = len(text) - len(_NOT_WEIGHED.findall(text))
    weight = others + sum(count * each for _, count, each in _counted(text))
    return len(text.encode()) / weight if weight else 1.0


def _counted(text: str) -> Iterator[tuple[str, int, float]]:
    """(script, its letters in the text, weight)."""
    for name, (letters, weight) in _LETTERS.items():
        if count := len(letters.findall(text)):
            yield name, count, weight
