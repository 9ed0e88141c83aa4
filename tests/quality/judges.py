"""Naturalness, silence and word times of a sound; see `export.demo.speech_metrics` for words and speakers."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import re
import sys
import types
from dataclasses import dataclass

import numpy as np

from export.demo.speech_metrics import PADDING_S, RATE_HZ, Sound, imported, resample


class Naturalness:
    """DistillMOS. Recorded speech scores 3.8 to 4.7, the corpus' engine about 3.5."""

    def __init__(self) -> None:
        # Only its command line needs torchaudio, which has no build for this torch.
        absent = "torchaudio" not in sys.modules and importlib.util.find_spec("torchaudio") is None
        if absent:
            sys.modules["torchaudio"] = types.ModuleType("torchaudio")
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                self._model = imported("distillmos").ConvTransformerSQAModel()
        finally:
            if absent:
                del sys.modules["torchaudio"]
        self._model.eval()

    def score(self, sound: Sound, rate_hz: int) -> float:
        """Predicted mean opinion score, 1 (bad) to 5 (excellent)."""
        import torch

        with torch.inference_mode():
            return float(self._model(torch.from_numpy(resample(sound, rate_hz))[None])[0])


@dataclass(frozen=True)
class Silence:
    """Silence around and within speech, in seconds."""

    before: float
    after: float
    longest_pause: float
    speech: float

    @property
    def total(self) -> float:
        """Leading and trailing silence; pauses count as speech."""
        return self.before + self.after


class VoiceActivity:
    """Voice activity detector Silero VAD."""

    def __init__(self) -> None:
        self._silero = imported("silero_vad")
        self._model = self._silero.load_silero_vad(onnx=True)

    def silence(self, sound: Sound, rate_hz: int) -> Silence:
        """Measure silence; a sound without speech is all `before`."""
        import torch

        wave = resample(sound, rate_hz)
        length = len(wave) / RATE_HZ
        stretches = self._silero.get_speech_timestamps(
            torch.from_numpy(wave), self._model, sampling_rate=RATE_HZ
        )
        if not stretches:
            return Silence(length, 0.0, 0.0, 0.0)
        edges = [(s["start"] / RATE_HZ, s["end"] / RATE_HZ) for s in stretches]
        pauses = [after[0] - before[1] for before, after in itertools.pairwise(edges)]
        speech = sum(end - start for start, end in edges)
        return Silence(edges[0][0], max(0.0, length - edges[-1][1]), max(pauses, default=0.0), speech)


class Aligner:
    """Forced alignment of known words with PocketSphinx."""

    def __init__(self) -> None:
        self._decoder = imported("pocketsphinx").Decoder(samprate=RATE_HZ, loglevel="FATAL", bestpath=False)

    def align(self, sound: Sound, rate_hz: int, text: str) -> list[tuple[str, float, float]]:
        """Each word with its start and end in seconds.

        Raises ValueError if a word is not in the dictionary or the alignment fails.
        """
        said = re.findall(r"[a-z']+", text.lower())
        if unknown := [word for word in said if self._decoder.lookup_word(word) is None]:
            raise ValueError(f"the aligner does not know {', '.join(unknown)}")
        silence = np.zeros(round(PADDING_S * RATE_HZ), np.float32)
        wave = np.concatenate([silence, resample(sound, rate_hz), silence])
        pcm = np.rint(np.clip(wave, -1.0, 1.0) * 32_767).astype("<i2").tobytes()
        self._decoder.set_align_text(" ".join(said))
        # Two passes: the first chooses pronunciations and silences, the second times them.
        for second in (False, True):
            if second:
                self._decoder.set_alignment()
            self._decoder.start_utt()
            self._decoder.process_raw(pcm, full_utt=True)
            self._decoder.end_utt()
        found = [
            (re.sub(r"\(\d+\)$", "", word.name), word.start / 100, (word.start + word.duration) / 100)
            for word in self._decoder.get_alignment()
        ]
        words = [
            (name, start - PADDING_S, end - PADDING_S) for name, start, end in found if name[0] not in "<[("
        ]
        if [name for name, _, _ in words] != said:
            raise ValueError(f"the aligner does not find the words of {text!r}")
        return words
