"""Mark of synthetic audio: one statement, in every container with room for it and in replies' headers."""

from __future__ import annotations

from importlib import metadata

from appliance.audio.tags import SOURCE_TYPE

MARK = f"digitalSourceType={SOURCE_TYPE}; software=f5-appliance/{metadata.version('f5-appliance')}"
"""The statement, in ASCII, so that every container and header can contain it unchanged."""


def mark_of(marked: bool) -> str:
    """Mark that the configuration's `audio.marked` asks for; "" for none."""
    return MARK if marked else ""
