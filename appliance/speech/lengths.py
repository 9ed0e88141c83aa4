"""Length of a text after a reference, by the measure that the weights were trained with.

`ByBytes` follows F5's `infer_process` and `infer_batch_process` (f5-tts 1.1.22), `ByTokens` follows ZipVoice.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from appliance.contract.bundle import Manifest
from appliance.contract.placement import SPACE, Placement
from appliance.contract.tokens import Vocabulary
from appliance.errors import InvalidRequest
from appliance.speech.budget import SHORT_TEXT_BYTES, TextBudget
from appliance.text.pieces.ended import ended
from appliance.text.pieces.pace import exchange
from appliance.text.pieces.split import size_of

LEAST_SPEED = 0.3
"""Speed of the shortest texts; 1 is the reference's pace."""
SHORT_TEXT_SPEED = (LEAST_SPEED, 0.0)
"""Speed of a short text: a constant, and a part that each byte adds."""
SPREAD_TEXT_SPEED = (0.15, 0.06)
"""SHORT_TEXT_SPEED for models that spread letters over all frames.

At upstream's speed, words from the end of the reference are repeated in the reply: 126 errors in 100 words
instead of 28.
"""
TEXTS_KEPT = 64
"""Texts whose tokens stay in memory.

A plan needs them several times, and every plan needs the transcript's.
"""
SHOWN = 40
"""Characters of a text in an error message."""

Tokens = tuple[Sequence[str], Sequence[str]]
"""Tokens of the transcript, and of the text."""


@dataclass(frozen=True)
class Placed:
    """Places of tokens and words in a segment's frames."""

    tokens: NDArray[np.int32] | None = None
    """Token of each frame; None if tokens are spread evenly."""
    words: Sequence[tuple[float, float]] = ()
    """(begin, end) of each word, in frames after the reference."""


class Lengths(Protocol):
    """Estimates how long a text lasts. Each class measures texts differently."""

    def ratio(self, transcript: str, text: str) -> float:
        """Bytes of the text that last as long as a byte of the transcript."""
        return 1.0

    def reply(self, budget: TextBudget, text: str) -> int:
        """Frames of the text, without the reference's."""

    def fits(self, budget: TextBudget, text: str) -> bool:
        """False if the text, whose bytes fit the budget, exceeds `max_frames` and must be cut again."""
        return True

    def tokens(self, budget: TextBudget, text: str) -> Tokens:
        """Tokens of the transcript and of the text, which the model reads in this order.

        Raises InvalidRequest for a text without tokens, whose speech would have no length.
        """

    def place(self, tokens: Tokens, reference_frames: int, frames: int) -> Placed:
        return Placed()


def lengths_of(manifest: Manifest, vocabulary: Vocabulary, make: Callable[[str], Sequence[str]]) -> Lengths:
    def split(text: str) -> tuple[str, ...]:
        return tuple(vocabulary.split(text, make))

    if manifest.text.durations:
        return ByTable(split, Placement(manifest.text.durations))
    return ByTokens(split) if manifest.text.duration == "tokens" else ByBytes(split, manifest)


class ByBytes(Lengths):
    """Measure in which every byte lasts as long as a byte of the transcript. Short texts are slower.

    `duration: script` weighs letters if text and transcript differ in script.
    """

    def __init__(self, split: Callable[[str], Sequence[str]], manifest: Manifest) -> None:
        self._split, self._framed = split, manifest.text.framed
        self._weighs = manifest.text.duration == "script"
        arch = manifest.arch
        spreads = arch is not None and arch.text_embedding_average_upsampling
        # Upstream's own measure, `bytes`, has upstream's speeds, too.
        self._short = SPREAD_TEXT_SPEED if spreads and self._weighs else SHORT_TEXT_SPEED

    def ratio(self, transcript: str, text: str) -> float:
        return exchange(transcript, text) if self._weighs else 1.0

    def reply(self, budget: TextBudget, text: str) -> int:
        transcript = spoken_transcript(budget)
        size, speed = size_of(text), budget.speed
        if size < SHORT_TEXT_BYTES:
            least, more = self._short
            speed *= max(LEAST_SPEED, least + more * size)
        speed *= self.ratio(transcript, text)
        return int(budget.reference_frames / size_of(transcript) * size / speed)

    def tokens(self, budget: TextBudget, text: str) -> Tokens:
        return (), self._split(self._framed(spoken_transcript(budget) + text))


class ByTokens(Lengths):
    """Measure in which every token lasts as long as a token of the transcript, in float32, as in ZipVoice."""

    def __init__(self, split: Callable[[str], Sequence[str]]) -> None:
        self._split = functools.lru_cache(TEXTS_KEPT)(split)

    def reply(self, budget: TextBudget, text: str) -> int:
        before, after = self._parts(budget.reference.transcript, text)
        each = np.float32(budget.reference_frames) / np.float32(max(len(before), 1))
        return math.ceil(each * np.float32(len(after)) / np.float32(budget.speed))

    def fits(self, budget: TextBudget, text: str) -> bool:
        return budget.reference_frames + self.reply(budget, text) <= budget.manifest.max_frames

    def tokens(self, budget: TextBudget, text: str) -> Tokens:
        before, after = self._parts(budget.reference.transcript, text)
        if not after:
            raise InvalidRequest("text", f"{quoted(ended(text))} has nothing that the bundle can say")
        return before, after

    def _parts(self, transcript: str, text: str) -> Tokens:
        return self._split(transcript.rstrip()), self._split(ended(text))


class ByTable(ByTokens):
    """Measure in which every token lasts as long as the bundle's table says, at the reference's pace."""

    def __init__(self, split: Callable[[str], Sequence[str]], placement: Placement) -> None:
        super().__init__(split)
        self._placement = placement

    def ratio(self, transcript: str, text: str) -> float:
        before, after = map(self._placement.weights, self._parts(transcript, text))
        pace = size_of(transcript) / float(before.sum())
        return size_of(text) / float(after.sum()) / pace if len(after) else 1.0

    def reply(self, budget: TextBudget, text: str) -> int:
        tokens = self._parts(budget.reference.transcript, text)
        return max(self._placement.reply(budget.reference_frames, *tokens, budget.speed), len(tokens[1]))

    def place(self, tokens: Tokens, reference_frames: int, frames: int) -> Placed:
        return Placed(
            self._placement.index(reference_frames, *tokens, frames),
            self._placement.words(tokens[1], frames - reference_frames),
        )

    def _parts(self, transcript: str, text: str) -> Tokens:
        # F5's rule for transcripts adds a full stop after any mark but a full stop.
        transcript = ended(transcript.rstrip().removesuffix("."))
        return (*self._split(transcript), SPACE), self._split(ended(text))


def spoken_transcript(budget: TextBudget) -> str:
    """The reference's transcript, as the model reads it before the text. After ASCII it ends with an
    additional space, as upstream's.
    """
    transcript = budget.reference.transcript
    return transcript + " " if transcript[-1:].isascii() else transcript


def quoted(text: str) -> str:
    return repr(text if len(text) <= SHOWN else text[: SHOWN - 1] + "…")
