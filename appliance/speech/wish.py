"""Wish: a request as its caller sent it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from appliance.encodings import Encoding
from appliance.errors import InvalidRequest
from appliance.options import AUTO
from appliance.request import AT_FIRST, Handling, Segmentation, Switch, Terms
from appliance.speech.work import LOOKUP, WORD
from appliance.text.scripts import HAN, KANA

UNSET: Any = None
"""Placeholder for a value that the caller left open."""
_HAN, _KANA = re.compile(f"[{HAN}]"), re.compile(f"[{KANA}]")
_TAGGED = re.compile(r"""\bvoice\s*(?::|name\s*=\s*["'])\s*([\w-]+)""", re.IGNORECASE)
"""Name in a tag that switches the voice."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Values that the bundle and the configuration choose, unless the caller does."""

    nfe_steps: int = UNSET
    guidance: float = UNSET
    seed: int | None = UNSET
    sample_rate_hz: int = UNSET


@dataclass(frozen=True, kw_only=True)
class Wish(Choices):
    """Values of one request. Each was checked alone, without a bundle and without the configuration.

    The parser copies each field of SynthesizeRequest with the same name.
    """

    terms: Terms
    stream: bool
    encoding: Encoding
    text: str
    voice: str
    style: str = ""
    """NEUTRAL is the voice's own recording; "" leaves the style to the table of languages."""
    language_code: str = ""
    handling: Handling = Handling.CHAT
    segmentation: Segmentation = UNSET
    min_nfe_steps: int = UNSET
    pronunciations: Mapping[str, str] = field(default_factory=dict)
    voice_tags: bool = False
    announce: str = ""
    merge_text: str = ""
    merge_count: int = 0
    """Requests that this one stands for, alone or together with those before it; 0 means one."""
    merge_count_is_total: bool = False
    speaking_rate: float = 1.0
    max_spoken_seconds: float = 0.0
    """Length to which the text is cut; 0 means no limit."""
    gain_db: float = 0.0
    word_timings: bool = False
    begin: Switch = AT_FIRST
    """Voice and style in which the text continues an earlier one."""
    goes_on: bool = False
    """True for a later clause of an utterance."""

    def over(self, usual: Choices) -> Wish:
        """The wish, with the usual choices for values that the caller left open."""
        unset = [choice.name for choice in fields(usual) if getattr(self, choice.name) is UNSET]
        return replace(self, **{name: getattr(usual, name) for name in unset})

    def size(self, most: int) -> int:
        """Work of reading the wish, in characters: text and pronunciations up to `most`, and the look-up of a
        voice that the language chooses. It is never 0.
        """
        size = 1 + len(self.text) + len(self.merge_text) + WORD * len(self.pronunciations)
        return min(size, most) + LOOKUP * (self.voice.lower() == AUTO)

    @property
    def is_by_language(self) -> bool:
        """True if the language of the text may decide the voice."""
        return self.voice.lower() in ("", AUTO)

    @property
    def may_hold_tags(self) -> bool:
        is_document = self.voice_tags and self.handling is Handling.SSML
        return self.handling is not Handling.VERBATIM and ("[" in self.text + self.merge_text or is_document)

    @property
    def tagged_voices(self) -> list[str]:
        """Names in the text that may be names of other voices."""
        return [name.lower() for name in _TAGGED.findall(self.text)] if self.voice_tags else []

    def merged(self, waiting: int) -> int:
        """Number of requests for which this one speaks after it has replaced a waiting request, which stands
        for `waiting`.
        """
        count = self.merge_count or 1
        return max(count, waiting) if self.merge_count_is_total else count + waiting

    def speaking_for(self, count: int) -> Wish:
        """The wish with a text that names how many merged requests it stands for."""
        text, end = self.text, ""
        if count <= 1:
            return self
        if self.merge_text:
            return replace(self, text=self.merge_text.replace("{count}", str(count)))
        if self.handling is Handling.SSML:
            text, end, _ = text.rpartition("</speak>")
        is_chinese = _HAN.search(self.text) and not _KANA.search(self.text)
        # The text's language later replaces it by words: "three times", "dreimal".
        return replace(self, text=f"{text}，{count}次{end}" if is_chinese else f"{text}, {count}x{end}")


def within(name: str, value: float, least: float, most: float) -> None:
    """Raise InvalidRequest naming the field, unless the value is in range."""
    # NaN is in no range.
    if not least <= value <= most:
        raise InvalidRequest(name, f"must be between {least} and {most}, not {value}")
