"""The demo's vocabulary: one entry per character, of which only lower-case letters are trained."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

SMALL = "abcdefghijklmnopqrstuvwxyz"
TRAINED = f" {SMALL}.,?!'-"
"""Trained entries in index order."""
COPIES = {**{letter.upper(): letter for letter in SMALL}, ":": ",", '"': " ", "(": " ", ")": " ", "…": "."}
"""Entries added on shipping → the trained entry whose embedding each copies."""

_INDEX = {character: index for index, character in enumerate(TRAINED)}


def vocabulary() -> list[str]:
    """Entries of the shipped `vocab.txt`, in order."""
    return [*TRAINED, *COPIES]


def copies() -> list[int]:
    """Index into `TRAINED` of each entry of `vocabulary`."""
    return [*range(len(TRAINED)), *(_INDEX[source] for source in COPIES.values())]


@functools.cache
def ids(text: str) -> NDArray[np.int64]:
    """(characters,) indices into `TRAINED`; unknown characters map to the space, as on the device."""
    folded = (COPIES.get(character, character) for character in text)
    return np.array([_INDEX.get(character, 0) for character in folded], dtype=np.int64)
