"""Tags that switch the style of a voice: [happy]."""

from __future__ import annotations

import re
from collections.abc import Collection

from appliance.text.chat.marks import Marks, Silent
from appliance.text.chat.rewrite import Rewriting
from appliance.text.spans import Kind

NEUTRAL = "neutral"
"""Name of a voice's own recording, which no style can have."""
_TAG = re.compile(r"\[[ \t]*([A-Za-z0-9][A-Za-z0-9_-]{0,63})[ \t]*\](?!\()")
"""Tag, but not the text of a link in Markdown."""


def mark_styles(text: Rewriting, styles: Collection[str], marks: Marks) -> None:
    """Put marks in place of these styles' tags, and of NEUTRAL's if there are any, in upper or lower case."""

    def marked(match: re.Match[str]) -> str:
        style = match[1].lower()
        if style not in styles and style != NEUTRAL:
            return match[0]
        text.note(Kind.STYLE.value, match[0], "")
        return f" {marks.silent(Silent(style=style))} "

    if styles:
        text.text = _TAG.sub(marked, text.text)
