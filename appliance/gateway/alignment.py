"""Times of a text's characters in ElevenLabs' shapes, from the daemon's times of its words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from appliance.client import Header, WordTiming


class Timed(NamedTuple):
    character: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Alignment:
    """Characters of a text in order, each beginning where the one before has ended, or later."""

    timed: Sequence[Timed]

    def in_seconds(self) -> dict[str, Any]:
        """HTTP's shape."""
        return {
            "characters": [one.character for one in self.timed],
            "character_start_times_seconds": [round(one.start_s, 3) for one in self.timed],
            "character_end_times_seconds": [round(one.end_s, 3) for one in self.timed],
        }

    def in_ms(self, since_ms: int) -> dict[str, Any]:
        """WebSocket's shape: times after the end of the message's before, which was at `since_ms`.

        A space ends it, since clients end a word there.
        """
        spans = [(round(one.start_s * 1e3), round(one.end_s * 1e3)) for one in self.timed]
        # What was told before may reach further, by a few milliseconds.
        spans = [(max(start - since_ms, 0), max(end - since_ms, 0)) for start, end in spans]
        return {
            "chars": [*(one.character for one in self.timed), " "],
            "charStartTimesMs": [*(start for start, _ in spans), spans[-1][1] if spans else 0],
            "charDurationsMs": [*(end - start for start, end in spans), 0],
        }

    @property
    def end_ms(self) -> int:
        return round(self.timed[-1].end_s * 1e3)

    def moved(self, seconds: float) -> Alignment:
        return Alignment(
            [Timed(one.character, one.start_s + seconds, one.end_s + seconds) for one in self.timed]
        )


def spoken(header: Header, words: Sequence[WordTiming] = ()) -> Alignment:
    """Characters of the text as it is spoken; `words` are better times than the header's."""
    text, timed, at_s = header.text, list[Timed](), 0.0
    for word in words or header.words:
        found = text.find(word.word, len(timed))
        if found < 0:
            continue
        timed += _spread(text[len(timed) : found], at_s, word.start_s)
        timed += _spread(word.word, word.start_s, word.end_s)
        at_s = word.end_s
    return Alignment([*timed, *_spread(text[len(timed) :], at_s, at_s)])


def written(header: Header, alignment: Alignment) -> Alignment:
    """Characters of the text before it was rewritten, where the header tells how."""
    timed, at = list[Timed](), 0
    for start, end, before in sorted(_rewritten(header)):
        timed += alignment.timed[at:start]
        timed += _spread(before, alignment.timed[start].start_s, alignment.timed[end - 1].end_s)
        at = end
    return Alignment([*timed, *alignment.timed[at:]])


def _rewritten(header: Header) -> Iterator[tuple[int, int, str]]:
    """Spans of the spoken text, and what was written there."""
    taken = bytearray(len(header.text))
    since: dict[str, int] = {}
    for change in header.changes:
        # Changes of a kind are in the text's order; what was shortened for the header is not found.
        start = header.text.find(change.after, since.get(change.kind, 0)) if change.after else -1
        end = start + len(change.after)
        if start >= 0 and not any(taken[start:end]):
            taken[start:end] = b"\1" * (end - start)
            since[change.kind] = end
            yield start, end, change.before


def _spread(text: Iterable[str], start_s: float, end_s: float) -> Iterator[Timed]:
    """Equal times for each character."""
    characters = list(text)
    step_s = max(end_s - start_s, 0.0) / max(len(characters), 1)
    for number, character in enumerate(characters):
        yield Timed(character, start_s + number * step_s, start_s + (number + 1) * step_s)
