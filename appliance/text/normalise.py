"""One form for each text: what looks the same is the same, and what cannot be seen is gone."""

from __future__ import annotations

import re
import unicodedata

_WHITESPACE = re.compile(r"\s+")
_VARIATION_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs"})
"""Control, format (zero-width, bidirectional, soft hyphen, joiners, byte order mark), lone surrogates."""


def normalise(text: str) -> str:
    """Composed (NFC), without invisible characters, each run of white space a single space, none at the ends.

    An invisible character would read as a space to the model and count in the length of the speech.
    """
    text = _WHITESPACE.sub(" ", text)
    text = "".join(c for c in text if unicodedata.category(c) not in _INVISIBLE)
    text = unicodedata.normalize("NFC", _VARIATION_SELECTORS.sub("", text))
    return _WHITESPACE.sub(" ", text).strip()
