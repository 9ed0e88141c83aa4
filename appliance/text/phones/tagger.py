"""Part-of-speech tags of the Penn Treebank, by hibari's averaged perceptron."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from appliance.text.phones.table import Table

ONE_TAG, FEATURE_WORDS, WEIGHTS, NAMES = "t", "k", "f", "n"
"""Kinds in the table: words that nearly always have one tag, words that features name, weights of a feature,
the tags.
"""
WEIGHT = np.dtype([("tag", "u1"), ("tenths", "<i2")])
"""Weight of a feature for one tag; `tag` is the index in the list of names."""
BEFORE, AFTER = ("-START2-", "-START-"), ("-END-", "-END2-")
MOST_CACHED = 4096
"""Features whose weights stay in memory."""


class Tagger:
    """The tagger. Thread-safe."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._tags = (table.get(NAMES, "") or b"").decode().split()
        self._weights = lru_cache(maxsize=MOST_CACHED)(self._read_weights)

    def __call__(self, words: Sequence[str]) -> list[str]:
        """A tag for each word. Its features are neighbouring words and the two tags before it."""
        around = [*BEFORE, *map(self._named, words), *AFTER]
        tags: list[str] = list(BEFORE)
        for at, word in enumerate(words):
            one = self._table.get(ONE_TAG, word)
            tags.append(self._best(word, around[at : at + 5], tags[-2:]) if one is None else one.decode())
        return tags[2:]

    def _best(self, word: str, around: Sequence[str], tags: Sequence[str]) -> str:
        """Tag with the largest sum of weights.

        `around` has two words before it, the word and two after it.
        """
        far_before, before, own, after, far_after = around
        features = (
            *("b", f"s3={word[-3:]}", f"p1={word[0]}", f"w={own}", f"sh={_shape(word)}"),
            "i0" if before == BEFORE[1] else "i+",
            *(f"t-1={tags[1]}", f"t-2={tags[0]}", f"t-12={tags[1]},{tags[0]}"),
            *(f"w-1={before}", f"s3-1={before[-3:]}", f"w-2={far_before}"),
            *(f"w+1={after}", f"s3+1={after[-3:]}", f"w+2={far_after}"),
        )
        scores = sum(weights for weights in map(self._weights, features) if weights is not None)
        return self._tags[int(np.argmax(scores))]

    def _read_weights(self, feature: str) -> NDArray[np.int32] | None:
        """(tags,) weights in tenths; None for an unknown feature."""
        value = self._table.get(WEIGHTS, feature)
        if value is None:
            return None
        pairs = np.frombuffer(value, WEIGHT)
        weights = np.zeros(len(self._tags), np.int32)
        weights[pairs["tag"]] = pairs["tenths"]
        return weights

    def _named(self, word: str) -> str:
        """A word as features name it; a rare word is named by its shape."""
        if "-" in word[1:] and word[0] != "-":
            name = "!HYPHEN"
        elif word[0].isdigit():
            name = "!YEAR" if len(word) == 4 and word.isdigit() else "!DIGITS"
        else:
            name = word.lower()
        return name if self._table.get(FEATURE_WORDS, name) is not None else f"<{_shape(word)}>"


def _shape(word: str) -> str:
    if word.isalpha():
        if word.islower():
            return "x"
        if word.isupper():
            return "XX" if len(word) > 1 else "X1"
        return "Xx" if word[0].isupper() and word[1:].islower() else "xX"
    if word.isdigit():
        return "d"
    return "".join("d" if c.isdigit() else "x" if c.isalpha() else c for c in word[:4])
