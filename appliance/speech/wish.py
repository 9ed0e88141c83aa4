"""Wish: a request as its caller asked for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from appliance.encodings import Encoding
from appliance.errors import InvalidRequest
from appliance.options import AUTO
from appliance.request import AT_FIRST, Handling, Segmentation, Switch, Terms
from appliance.speech.work import WORD
from appliance.text.scripts import HAN, KANA

Number = TypeVar("Number", int, float)
_HAN, _KANA = re.compile(f"[{HAN}]"), re.compile(f"[{KANA}]")
_TAGGED = re.compile(r"""\bvoice\s*(?::|name\s*=\s*["'])\s*([\w-]+)""", re.IGNORECASE)
"""Name in a tag that switches the voice."""


@dataclass(frozen=True)
class Wish:
    """Values of one request that are right by themselves; no bundle has been asked.

    None means that the caller did not say.
    """

    terms: Terms
    text: str
    voice: str
    stream: bool
    encoding: Encoding
    style: str | None
    """ "" is the voice's own recording."""
    language: str
    handling: Handling
    pronunciations: Mapping[str, str]
    voice_tags: bool
    merge_text: str
    merge_count: int
    """Requests that this one stands for, alone or with those before it."""
    merge_count_is_total: bool
    nfe: int | None
    min_nfe: int | None
    seed: int | None
    guidance: float | None
    segmentation: Segmentation | None
    sample_rate_hz: int | None
    speaking_rate: float
    max_spoken_s: float
    """The text is cut to this; 0: no limit."""
    gain_db: float
    word_timings: bool
    begin: Switch = AT_FIRST
    """Voice and style in which the text goes on from an earlier one."""

    @property
    def size(self) -> int:
        """Characters that reading the wish amounts to."""
        return len(self.text) + len(self.merge_text) + WORD * len(self.pronunciations)

    @property
    def is_by_language(self) -> bool:
        """True if the language of the text may decide the voice."""
        return self.voice.lower() in ("", AUTO)

    @property
    def may_hold_tags(self) -> bool:
        if self.handling is Handling.VERBATIM:
            return False
        text = self.text + self.merge_text
        return "[" in text or (self.voice_tags and self.handling is Handling.SSML)

    @property
    def tagged_voices(self) -> list[str]:
        """Names in the text that may be those of other voices."""
        return [name.lower() for name in _TAGGED.findall(self.text)] if self.voice_tags else []

    def merged(self, waiting: int) -> int:
        """Count of requests that this one speaks for, in place of a request that stands for `waiting`."""
        return max(self.merge_count, waiting) if self.merge_count_is_total else self.merge_count + waiting

    def speaking_for(self, count: int) -> Wish:
        """The wish with a text that says how many merged requests it stands for."""
        if count <= 1:
            return self
        if self.merge_text:
            return replace(self, text=self.merge_text.replace("{count}", str(count)))
        text, end = self.text, ""
        if self.handling is Handling.SSML:
            text, end, _ = text.rpartition("</speak>")
        is_chinese = _HAN.search(self.text) and not _KANA.search(self.text)
        # The text's language has the words: "three times", "dreimal".
        return replace(self, text=f"{text}，{count}次{end}" if is_chinese else f"{text}, {count}x{end}")


def within(name: str, value: Number, least: Number, most: Number) -> Number:
    """A value in its range. Raises InvalidRequest naming the field."""
    # NaN is in no range.
    if not least <= value <= most:
        raise InvalidRequest(name, f"must be between {least} and {most}, not {value}")
    return value
