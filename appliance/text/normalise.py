"""Unicode normalisation."""

from __future__ import annotations

import re
import unicodedata

_WHITESPACE = re.compile(r"\s+")
_VARIATION_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs"})
"""Categories: control, format (zero-width, bidirectional, soft hyphen, joiners, BOM), lone surrogates."""


def normalise(text: str) -> str:
    """NFC, without invisible characters, with single spaces and none at the ends.

    The model reads an invisible character as a space, and it counts in the length of the speech.
    """
    text = _WHITESPACE.sub(" ", text)
    text = "".join(c for c in text if unicodedata.category(c) not in _INVISIBLE)
    text = unicodedata.normalize("NFC", _VARIATION_SELECTORS.sub("", text))
    return _WHITESPACE.sub(" ", text).strip()
