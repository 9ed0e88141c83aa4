"""Wish: a request as its caller asked for it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from appliance.encodings import Encoding
from appliance.errors import InvalidRequest
from appliance.options import AUTO
from appliance.request import AT_FIRST, Handling, Segmentation, Switch, Terms
from appliance.speech.work import LOOKUP, WORD
from appliance.text.scripts import HAN, KANA

Number = TypeVar("Number", int, float)
NOT_SAID: Any = None
"""Stands for a value that the caller left to the configuration."""
_HAN, _KANA = re.compile(f"[{HAN}]"), re.compile(f"[{KANA}]")
_TAGGED = re.compile(r"""\bvoice\s*(?::|name\s*=\s*["'])\s*([\w-]+)""", re.IGNORECASE)
"""Name in a tag that switches the voice."""


@dataclass(frozen=True)
class Choices:
    """Values that the caller may leave to the configuration and the bundle."""

    nfe: int = NOT_SAID
    guidance: float = NOT_SAID
    seed: int | None = NOT_SAID
    sample_rate_hz: int = NOT_SAID

    def over(self, usual: Choices) -> Choices:
        """These choices; the usual ones where the caller did not say."""
        said = {name: value for name, value in vars(self).items() if value is not NOT_SAID}
        return replace(usual, **said)


@dataclass(frozen=True)
class Wish:
    """Values of one request, each right by itself: no bundle and no configuration has been asked."""

    terms: Terms
    text: str
    voice: str
    stream: bool
    encoding: Encoding
    style: str
    """NEUTRAL is the voice's own recording, "" what the configuration says."""
    language: str
    handling: Handling
    pronunciations: Mapping[str, str]
    voice_tags: bool
    merge_text: str
    merge_count: int
    """Requests that this one stands for, alone or with those before it."""
    merge_count_is_total: bool
    choices: Choices
    segmentation: Segmentation = NOT_SAID
    min_nfe: int = NOT_SAID
    speaking_rate: float = 1.0
    max_spoken_s: float = 0.0
    """The text is cut to this; 0: no limit."""
    gain_db: float = 0.0
    word_timings: bool = False
    begin: Switch = AT_FIRST
    """Voice and style in which the text goes on from an earlier one."""

    @property
    def size(self) -> int:
        """Characters that reading the wish amounts to."""
        size = len(self.text) + len(self.merge_text) + WORD * len(self.pronunciations)
        return size + LOOKUP * (self.voice.lower() == AUTO)

    @property
    def may_hold_tags(self) -> bool:
        is_document = self.voice_tags and self.handling is Handling.SSML
        return self.handling is not Handling.VERBATIM and ("[" in self.text + self.merge_text or is_document)

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
