"""Texts that end with a mark, as ZipVoice needs them."""

from __future__ import annotations

ENDS = tuple(";:,.!?；：，。！？")
"""Marks after which ZipVoice adds no full stop."""


def ended(text: str) -> str:
    """Text without spaces around it, with a full stop if it does not end with a mark."""
    text = text.strip()
    return text if text.endswith(ENDS) else text + "."
