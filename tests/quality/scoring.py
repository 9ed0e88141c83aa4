"""A set of replies before the judges: one row of figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Protocol

from tests.quality.judges import (
    Errors,
    FloatArray,
    Naturalness,
    Recogniser,
    Silence,
    Sound,
    Speaker,
    VoiceActivity,
)

NOBODY = -1.0
"""Similarity to the others where there is no other voice: the lowest that a cosine can be."""


@dataclass(frozen=True, eq=False)
class Reply:
    """What was to be said, and what came out."""

    text: str
    voice: str
    samples: Sound
    """(samples,)"""
    rate_hz: int
    wall_s: float | None = None
    """How long it took; None where nothing was synthesised."""

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.rate_hz


class Judges(Protocol):
    def errors(self, reply: Reply) -> Errors: ...

    def embed(self, sound: Sound, rate_hz: int) -> FloatArray: ...

    def naturalness(self, reply: Reply) -> float: ...

    def silence(self, reply: Reply) -> Silence: ...


class Panel:
    def __init__(self) -> None:
        """Raises MetricError where one is not installed."""
        self._recogniser, self._speaker = Recogniser(), Speaker()
        self._naturalness, self._activity = Naturalness(), VoiceActivity()

    def errors(self, reply: Reply) -> Errors:
        return self._recogniser.errors(reply.text, self._recogniser.transcribe(reply.samples, reply.rate_hz))

    def embed(self, sound: Sound, rate_hz: int) -> FloatArray:
        return self._speaker.embed(sound, rate_hz)

    def naturalness(self, reply: Reply) -> float:
        return self._naturalness.score(reply.samples, reply.rate_hz)

    def silence(self, reply: Reply) -> Silence:
        return self._activity.silence(reply.samples, reply.rate_hz)


@dataclass(frozen=True)
class Scores:
    """What the judges found in a set of replies; rates are shares of 1, times are seconds."""

    replies: int
    words: int
    wer: float
    """Word error rate, pooled over all words."""
    own_voice: float
    """Share of replies that are nearer to their own reference voice than to any other."""
    similarity: float
    """Mean cosine to the own reference voice."""
    similarity_other: float
    """Mean cosine to the nearest other voice."""
    naturalness: float
    silence_before: float
    silence_after: float
    longest_pause: float
    rtf: float | None = None
    """Wall time for a second of sound."""
    over_teacher: float | None = None
    """Word error rate above that of the demo's teachers on the same sentences and voices."""

    def against(self, teacher: Scores) -> Scores:
        """With the distance to the teachers' row."""
        return replace(self, over_teacher=self.wer - teacher.wer)


def score(replies: Iterable[Reply], voices: Mapping[str, FloatArray], judges: Judges) -> Scores:
    """Judge every reply. `voices` holds the embedding of each reference; there are at least two.

    Raises ValueError when there is no reply.
    """
    total, seconds, walls = Errors(0, 0), 0.0, []
    own, other, moods, silences = [], [], [], []
    for reply in replies:
        total = total + judges.errors(reply)
        heard = judges.embed(reply.samples, reply.rate_hz)
        own.append(float(heard @ voices[reply.voice]))
        others = (float(heard @ vector) for name, vector in voices.items() if name != reply.voice)
        other.append(max(others, default=NOBODY))
        moods.append(judges.naturalness(reply))
        silences.append(judges.silence(reply))
        seconds += reply.seconds
        walls += [] if reply.wall_s is None else [reply.wall_s]
    if not own:
        raise ValueError("there is nothing to judge")
    return Scores(
        replies=len(own),
        words=total.words,
        wer=total.rate,
        own_voice=fmean(mine > theirs for mine, theirs in zip(own, other, strict=True)),
        similarity=fmean(own),
        similarity_other=fmean(other),
        naturalness=fmean(moods),
        silence_before=fmean(s.before for s in silences),
        silence_after=fmean(s.after for s in silences),
        longest_pause=max(s.longest_pause for s in silences),
        rtf=sum(walls) / seconds if walls else None,
    )
