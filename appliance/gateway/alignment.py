"""Times of a text's characters in ElevenLabs' formats, from the daemon's times of its words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from appliance.audio.captions import TOKEN, Changes, matched_tokens
from appliance.client import Header, WordTiming

UNSPACED = "\u2e80"
"""First character of the scripts without spaces."""


class Timed(NamedTuple):
    """A character and the time when it is spoken."""

    character: str
    start_s: float
    end_s: float


Alignment = list[Timed]
"""Characters of a text in order. Each begins at or after the end of the character before it."""


def in_seconds(timed: Alignment) -> dict[str, Any]:
    """Alignment in the format of the HTTP API."""
    return {
        "characters": [one.character for one in timed],
        "character_start_times_seconds": [round(one.start_s, 3) for one in timed],
        "character_end_times_seconds": [round(one.end_s, 3) for one in timed],
    }


class Untold:
    """Characters of a stream whose audio has not been sent yet."""

    def __init__(self, timed: Sequence[Timed] = ()) -> None:
        self._timed: Alignment = [*timed]
        self._told_ms = 0

    def add(self, clause: Alignment) -> None:
        """Add a clause and a space after it, because clients end a word at a space."""
        end_s = clause[-1].end_s if clause else 0.0
        self._timed += [*clause, Timed(" ", end_s, end_s)]

    def take(self, end_s: float) -> Alignment:
        """Remove and return the words that end by `end_s`; infinity returns all words."""
        size = len(self._timed) * (end_s == math.inf)
        for number, one in enumerate(self._timed, 1):
            if one.end_s > end_s:
                break
            if one.character.isspace() or one.character >= UNSPACED:
                size = max(size, number)
        characters, self._timed = self._timed[:size], self._timed[size:]
        return characters

    def until(self, end_s: float) -> dict[str, Any] | None:
        """Words that end by `end_s`, in the WebSocket's format: times count from the end of earlier words."""
        if not (characters := self.take(end_s)):
            return None
        # The last message may end a few milliseconds later.
        starts, ends = (
            [max(round(time_s * 1e3) - self._told_ms, 0) for time_s in times]
            for times in ([one.start_s for one in characters], [one.end_s for one in characters])
        )
        self._told_ms += ends[-1]
        return {
            "chars": [one.character for one in characters],
            "charStartTimesMs": starts,
            "charDurationsMs": [end - start for start, end in zip(starts, ends, strict=True)],
        }


def align_spoken(header: Header, words: Sequence[WordTiming] = (), begin_s: float = 0.0) -> Alignment:
    """Align the spoken text, which begins at `begin_s`. `words` has more exact times than the header."""
    timed: Alignment = []
    for word in words or header.words:
        timed += _spread(word.word, begin_s + word.start_s, begin_s + word.end_s)
        timed += _spread(" ", begin_s + word.end_s, begin_s + word.end_s)
    return _aligned(header.text, timed, ())


def align_written(text: str, header: Header, spoken: Alignment) -> Alignment:
    """Align every character of the written text; `spoken` is the alignment of the spoken text.

    A rewritten part gets the time of the words that replace it. A dropped part gets the pause at its place.
    """
    changes = [(change.before, change.after) for change in header.changes]
    return _aligned(text, spoken, changes)


def _aligned(text: str, normalized: Alignment, changes: Changes) -> Alignment:
    """Times for the characters of `text`, from those of the text as spoken, `normalized`, word by word."""
    theirs = [*TOKEN.finditer(text)]
    ours = [*TOKEN.finditer("".join(one.character for one in normalized))]
    timed: Alignment = []
    at = 0
    at_s = 0.0
    pairs = matched_tokens([one[0] for one in theirs], [one[0] for one in ours], changes)
    for (first, last), (first_said, last_said) in pairs:
        start_s = max(normalized[ours[first_said].start()].start_s, at_s)
        end_s = max(normalized[ours[last_said - 1].end() - 1].end_s, start_s)
        begin, end = theirs[first].start(), theirs[last - 1].end()
        timed += _spread(text[at:begin], at_s, start_s)
        timed += _spread(text[begin:end], start_s, end_s)
        at, at_s = end, end_s
    return [*timed, *_spread(text[at:], at_s, at_s)]


def _spread(text: str, start_s: float, end_s: float) -> Iterator[Timed]:
    """Divide the time equally between the characters."""
    step_s = max(end_s - start_s, 0.0) / max(len(text), 1)
    for number, character in enumerate(text):
        yield Timed(character, start_s + number * step_s, start_s + (number + 1) * step_s)
