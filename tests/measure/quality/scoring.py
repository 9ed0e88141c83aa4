"""A set of replies before the judges: one row of figures."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Protocol

import numpy as np

from appliance.request import FloatArray
from export.hearing import Errors, recogniser, word_errors
from export.recogniser import Sound
from tests.measure.quality.judges import MIN_SIMILARITY_S, Naturalness, Silence, Speaker, VoiceActivity

NOBODY = -1.0
"""Similarity to the others if there is no other voice: the lowest value of a cosine."""


@dataclass(frozen=True, eq=False)
class Reply:
    """A text and the samples that a model spoke for it."""

    text: str
    voice: str
    samples: Sound
    """(samples,)"""
    rate_hz: int
    spellings: tuple[str, ...] = field(default=(), kw_only=True)
    """Other ways to write the sound of the text."""

    @property
    def sound(self) -> tuple[Sound, int]:
        return self.samples, self.rate_hz


class Judges(Protocol):
    def transcript(self, sound: Sound, rate_hz: int) -> str: ...

    def embed(self, sound: Sound, rate_hz: int) -> FloatArray: ...

    def naturalness(self, sound: Sound, rate_hz: int) -> float: ...

    def silence(self, sound: Sound, rate_hz: int) -> Silence: ...


class Panel:
    def __init__(self) -> None:
        """Raises MetricError if a judge is not installed."""
        judge, speaker, naturalness, activity = recogniser(), Speaker(), Naturalness(), VoiceActivity()
        self.transcript, self.embed = judge.transcribe, speaker.embed
        self.naturalness, self.silence = naturalness.score, activity.silence


@dataclass(frozen=True)
class Scores:
    """Scores of a set of replies; rates are shares of 1, times are seconds."""

    replies: int
    wrong: int
    words: int
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
    embedded: int
    """Number of replies that are long enough for a speaker embedding. The shares and cosines count these
    alone, and are 0 without any."""

    @property
    def wer(self) -> float:
        """Word error rate, pooled over all words."""
        return self.wrong / self.words


def errors(reply: Reply, judges: Judges) -> Errors:
    return word_errors(reply.text, judges.transcript(*reply.sound), *reply.spellings)


def score(replies: Iterable[Reply], voices: Mapping[str, FloatArray], judges: Judges) -> Scores:
    """Judge every reply.

    `voices` holds the embedding of each reference, of two or more. Raises ValueError if there is no reply.
    """
    total, own, other, moods, silences = Errors(0, 0), [], [], [], []
    for reply in replies:
        total = total + errors(reply, judges)
        if len(reply.samples) >= MIN_SIMILARITY_S * reply.rate_hz:
            heard = judges.embed(*reply.sound)
            own.append(float(heard @ voices[reply.voice]))
            others = (float(heard @ vector) for name, vector in voices.items() if name != reply.voice)
            other.append(max(others, default=NOBODY))
        moods.append(judges.naturalness(*reply.sound))
        silences.append(judges.silence(*reply.sound))
    if not moods:
        raise ValueError("there is nothing to judge")
    return Scores(
        replies=len(moods),
        wrong=total.wrong,
        words=total.words,
        own_voice=_mean([mine > theirs for mine, theirs in zip(own, other, strict=True)]),
        similarity=_mean(own),
        similarity_other=_mean(other),
        naturalness=fmean(moods),
        silence_before=fmean(s.before for s in silences),
        silence_after=fmean(s.after for s in silences),
        longest_pause=max(s.longest_pause for s in silences),
        embedded=len(own),
    )


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def pooled(parts: Sequence[Scores]) -> Scores:
    """Scores of all replies together, from the scores of parts."""

    def mean(name: str, weight: str) -> float:
        weights = [getattr(part, weight) for part in parts]
        values = [getattr(part, name) for part in parts]
        return float(np.dot(values, weights)) / max(sum(weights), 1)

    return Scores(
        replies=sum(part.replies for part in parts),
        wrong=sum(part.wrong for part in parts),
        words=sum(part.words for part in parts),
        longest_pause=max(part.longest_pause for part in parts),
        embedded=sum(part.embedded for part in parts),
        **{name: mean(name, "embedded") for name in ("own_voice", "similarity", "similarity_other")},
        **{name: mean(name, "replies") for name in ("naturalness", "silence_before", "silence_after")},
    )
