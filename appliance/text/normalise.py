"""Unicode normalisation, and the limits of a request's text."""

from __future__ import annotations

import re
import unicodedata

from appliance.errors import InvalidRequest
from appliance.text.scripts import JOINERS

_VARIATION_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs"})
"""Categories of invisible characters: control, format (zero-width, bidirectional, BOM), lone surrogates."""
_LOOSE = re.compile(f"(?<![\u0600-\u109f\u1780-\u18af])[{JOINERS}]")
"""Joiners, except after letters of scripts that spell with them."""


def normalise(text: str, *, lines: bool = False) -> str:
    """Text in NFC, without invisible characters, with single spaces inside and none at the ends; `lines`
    keeps newlines.

    The model reads an invisible character as a space, which lengthens the speech.
    """
    if lines:
        return "\n".join(map(normalise, text.splitlines())).strip()
    text = " ".join(text.split())
    if not text.isascii() or not text.isprintable():
        text = "".join(c for c in text if c in JOINERS or unicodedata.category(c) not in _INVISIBLE)
        text = unicodedata.normalize("NFC", _LOOSE.sub("", _VARIATION_SELECTORS.sub("", text)))
        text = " ".join(text.split())
    return text


def clean(text: str, *, limit_characters: int, field: str = "text") -> str:
    """Normalise a request's text. Raises InvalidRequest naming `field` if it is empty or over the limit."""
    # The count comes before the work, so an endless text costs nothing.
    if len(text) > limit_characters:
        raise InvalidRequest(field, f"has {len(text)} characters, at most {limit_characters} are allowed")
    cleaned = normalise(text)
    if not cleaned:
        raise InvalidRequest(field, "is empty once white space and invisible characters are gone")
    return cleaned
