"""Tokens → frames, by the mean duration of each token."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MARKS = (".", ",", "?", "!", "-")
ENDING = 4
"""Number of tokens before a mark, or before the end, that are spoken more slowly."""
INSIDE, PHRASE_END, END = range(3)
"""Places of a token: inside a phrase, among its last ones, or the mark that ends the text (its pause is cut).
"""
PLACES = END + 1
SPACE = " "
SHORTEST, UNKNOWN = 0.5, 5.0
"""Fewest frames of a token, and frames of a token that the table lacks."""

Table = Mapping[str, Sequence[float]]
"""Token → its mean frames at each place."""


@dataclass(frozen=True)
class Placement:
    """Spreads the tokens of reference and reply over their own frames, each as wide as its mean duration."""

    table: Table

    def weights(self, tokens: Sequence[str]) -> NDArray[np.float64]:
        """(T,) mean frames of consecutive tokens."""
        table = self.table
        frames = [
            table[token][place] if token in table else UNKNOWN
            for token, place in zip(tokens, places(tokens), strict=True)
        ]
        return np.maximum(np.array(frames, np.float64), SHORTEST)

    def words(self, tokens: Sequence[str], frames: int) -> list[tuple[float, float]]:
        """(begin, end), in frames, of each word between spaces, without marks at its ends."""
        weights = self.weights(tokens)
        ends = np.cumsum(weights) * (frames / weights.sum())
        begins = np.concatenate(([0.0], ends[:-1]))
        spans: list[tuple[float, float]] = []
        for is_word, group in itertools.groupby(range(len(tokens)), lambda at: tokens[at] != SPACE):
            spoken = [at for at in group if tokens[at] not in MARKS]
            if is_word and spoken:
                spans.append((float(begins[spoken[0]]), float(ends[spoken[-1]])))
        return spans

    def reply(self, reference_frames: int, before: Sequence[str], after: Sequence[str], speed: float) -> int:
        """Frames of the reply, at the reference's pace times `speed`."""
        pace = reference_frames / max(float(self.weights(before).sum()), SHORTEST)
        return max(math.ceil(pace * float(self.weights(after).sum()) / speed), 1)

    def index(
        self, reference_frames: int, before: Sequence[str], after: Sequence[str], frames: int
    ) -> NDArray[np.int32]:
        """(N,) token of each frame. The tokens `before` share the first `reference_frames`."""
        parts = [(before, 0, reference_frames), (after, len(before), frames - reference_frames)]
        return np.concatenate([first + spread(self.weights(some), n) for some, first, n in parts if some])


def spread(weights: NDArray[np.float64], frames: int) -> NDArray[np.int32]:
    """(frames,) index of the token at the middle of each frame.

    A token's width is its share of the weights.
    """
    ends = np.cumsum(weights) * (frames / weights.sum())
    indices = np.searchsorted(ends, np.arange(frames) + 0.5, side="right")
    return np.minimum(indices, len(weights) - 1).astype(np.int32)


def places(tokens: Sequence[str]) -> list[int]:
    """Place of each token. Spaces after the text do not count as its end."""
    token_places, left = [INSIDE] * len(tokens), ENDING
    last = len(tokens) - 1
    while last > 0 and tokens[last] == SPACE:
        last -= 1
    for at in range(last, -1, -1):
        if tokens[at] in MARKS:
            left = ENDING
            token_places[at] = END if at == last else PHRASE_END
            continue
        token_places[at] = PHRASE_END if left > 0 else INSIDE
        left -= 1
    return token_places
