"""Tags that switch the voice, [voice:berta], and the style of a voice, [happy]."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from appliance.text.chat.marks import SILENT_MARK, Marks, Silent
from appliance.text.chat.rewrite import Rewriting
from appliance.text.spans import Kind

NEUTRAL = "neutral"
"""Name of a voice's own recording. No style can have it."""
_NAME = r"[ \t]*([A-Za-z0-9][A-Za-z0-9_-]{0,63})[ \t]*"
_VOICE = re.compile(rf"\[[ \t]*voice[ \t]*(?::{_NAME})?\](?!\()", re.IGNORECASE)
_TAG = re.compile(rf"\[{_NAME}\](?!\()")
"""A tag, but not the text of a link in Markdown."""
_NUMBERS_SIGN = re.compile(rf"(?<=\d)((?:[ \t]*{SILENT_MARK}[ \t]*)+)([%‰€£¥₹₽₩]|°[CF]?)")
"""Tags between a number and its sign.

Neither is read right without the other, so the tags move after both.
"""


def style_of(name: str) -> str:
    """Style by its name in any case; "" for NEUTRAL."""
    return "" if name.lower() == NEUTRAL else name.lower()


@dataclass(frozen=True)
class Voiced:
    """Pronunciations and styles of a voice."""

    words: Mapping[str, str]
    """Word → spoken form."""
    styles: Collection[str] = ()
    """Names that tags may have."""


Others = Callable[[str], "Voiced | None"]
"""(name of a voice, "" for the request's) → the voice, or None if the text may not switch to it."""


def nobody(name: str) -> None:
    """Allow no other voice."""


def mark_voices(text: Rewriting, others: Others, marks: Marks) -> None:
    """Put marks in place of these voices' tags and of [voice], the request's voice; case does not matter."""

    def marked(match: re.Match[str]) -> str:
        voice = (match[1] or "").lower()
        if others(voice) is None:
            return match[0]
        text.note(Kind.VOICE.value, match[0], "")
        return f" {marks.silent(Silent(voice=voice))} "

    text.text = _NUMBERS_SIGN.sub(r"\2\1", _VOICE.sub(marked, text.text))


def mark_styles(text: Rewriting, styles: Collection[str], marks: Marks) -> None:
    """Put marks in place of these styles' tags and, if there are any, of NEUTRAL's; case does not matter."""

    def marked(match: re.Match[str]) -> str:
        style = match[1].lower()
        if style not in styles and style != NEUTRAL:
            return match[0]
        text.note(Kind.STYLE.value, match[0], "")
        return f" {marks.silent(Silent(style=style))} "

    if styles:
        text.text = _NUMBERS_SIGN.sub(r"\2\1", _TAG.sub(marked, text.text))
