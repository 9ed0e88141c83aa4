"""Unicode normalisation."""

from __future__ import annotations

import re
import unicodedata

_WHITESPACE = re.compile(r"\s+")
_VARIATION_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs"})
"""Control, format (zero-width, bidirectional, BOM), lone surrogates."""


def normalise(text: str, *, lines: bool = False) -> str:
    """NFC, without invisible characters, with single spaces and none at the ends; `lines` keeps newlines.

    The model reads an invisible character as a space, and it lengthens the speech.
    """
    if lines:
        return "\n".join(map(normalise, text.splitlines())).strip()
    text = _WHITESPACE.sub(" ", text)
    if not text.isascii() or not text.isprintable():
        text = "".join(c for c in text if unicodedata.category(c) not in _INVISIBLE)
        text = unicodedata.normalize("NFC", _VARIATION_SELECTORS.sub("", text))
        text = _WHITESPACE.sub(" ", text)
    return text.strip()
