"""Validation of a request's text."""

from __future__ import annotations

from appliance.errors import InvalidRequest
from appliance.text.normalise import normalise


def clean(text: str, *, limit_characters: int, field: str = "text") -> str:
    """Raises InvalidRequest naming `field` for a text that is empty or over the limit."""
    # Counted before the work, so that an endless text costs nothing.
    if len(text) > limit_characters:
        raise InvalidRequest(field, f"has {len(text)} characters, at most {limit_characters} are allowed")
    cleaned = normalise(text)
    if not cleaned:
        raise InvalidRequest(field, "is empty once white space and invisible characters are gone")
    return cleaned
