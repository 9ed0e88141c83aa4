"""The demo's vocabulary: letters and the signs of plain prose, one vocabulary entry each.

A capital sounds like its small letter, so training knows small letters only; when the voice is shipped, the
capitals get copies of their embeddings, and signs that were never trained get those of their nearest kin.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SMALL = "abcdefghijklmnopqrstuvwxyz"
TRAINED = f" {SMALL}.,?!'-"
"""The entries that training sees; a character's index is its place in this string. The space is first."""
KIN = {**{letter.upper(): letter for letter in SMALL}, ":": ",", '"': " ", "(": " ", ")": " ", "…": "."}
"""What is added when the voice is shipped, and whose embedding it gets."""

_INDEX = {character: index for index, character in enumerate(TRAINED)}


def vocabulary() -> list[str]:
    """The shipped voice's `vocab.txt`, in order."""
    return [*TRAINED, *KIN]


def copies() -> list[int]:
    """For each entry of `vocabulary`, the entry of `TRAINED` whose embedding it has."""
    return [*range(len(TRAINED)), *(_INDEX[kin] for kin in KIN.values())]


def ids(text: str) -> NDArray[np.int64]:
    """(characters,) indices into `TRAINED`; what the vocabulary lacks reads as a space, as on the device."""
    folded = (KIN.get(character, character) for character in text)
    return np.array([_INDEX.get(character, 0) for character in folded], dtype=np.int64)
