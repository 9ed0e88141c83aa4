"""Mark of synthetic audio: one statement, in every container that has room and in the headers of replies."""

from __future__ import annotations

from importlib import metadata

from appliance.audio.tags import SOURCE_TYPE

MARK = f"digitalSourceType={SOURCE_TYPE}; software=f5-appliance/{metadata.version('f5-appliance')}"
"""ASCII, so that every container and header takes it as it is."""


def mark_of(marked: bool) -> str:
    """Mark under the configuration's `audio.marked`; empty: none."""
    return MARK if marked else ""
