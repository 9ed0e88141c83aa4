"""Normalise a text and check that it can be spoken: not empty, not too long."""

from __future__ import annotations

from appliance.errors import InvalidRequest
from appliance.text.normalise import normalise


def clean(text: str, *, limit_characters: int, field: str = "text") -> str:
    """The text in its normal form.

    Raises InvalidRequest naming `field` when nothing is left to speak or more than the limit was sent.
    """
    # Counted as it came, so that an endless text costs nothing.
    if len(text) > limit_characters:
        raise InvalidRequest(field, f"has {len(text)} characters, at most {limit_characters} are allowed")
    cleaned = normalise(text)
    if not cleaned:
        raise InvalidRequest(field, "is empty once white space and invisible characters are gone")
    return cleaned
