"""Watermark by a trained network, on the CPU: marks segments, and detects the mark in any audio."""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path

import numpy as np
import soxr

from appliance.contract import watermark as contract
from appliance.contract.graphs import GraphSpec
from appliance.engine.backend import Graph
from appliance.engine.ort import OrtBackend
from appliance.errors import ConfigError
from appliance.request import FloatArray

LONGEST_S = 30.0
"""Seconds that are searched for a mark at a time."""


class Watermark:
    """Adds a watermark to audio, and finds it."""

    def __init__(self, folder: Path, threads: int = 0) -> None:
        """Raises ConfigError if the folder is no watermark or is damaged, BundleError, EngineFault."""
        self.manifest = manifest = contract.read(folder)
        self._window = np.hanning(manifest.window + 1)[:-1].astype(np.float32)
        self._folder, self._backend = folder, OrtBackend(threads)
        self._embedder = self._load(contract.EMBED)

    def check_rate(self, rate_hz: int) -> None:
        """Raise ConfigError if the bundle has another sample rate."""
        if rate_hz != (own := self.manifest.sample_rate_hz):
            raise ConfigError(f"audio.watermark: is for {own} samples a second, and the bundle has {rate_hz}")

    def embed(self, samples: FloatArray) -> FloatArray:
        """(samples,) of a whole segment → the same number of samples, marked. Raises EngineFault."""
        if not len(samples):
            return samples
        frames = self._frames(samples)
        gain = np.empty((len(frames), self.manifest.bands), np.float32)
        self._run(self._embedder, frames, gain)
        mark = np.zeros_like(frames)
        mark[:, : gain.shape[1]] = frames[:, : gain.shape[1]] * (gain - 1)
        return samples + self._samples(mark, len(samples))

    def confidence(self, samples: FloatArray, rate_hz: int) -> float:
        """(samples,) at any rate → 0 to 1, of the most certain piece of at most LONGEST_S."""
        own_hz = self.manifest.sample_rate_hz
        at_ours = soxr.resample(np.asarray(samples, np.float32), rate_hz, own_hz)
        pieces = np.array_split(at_ours, max(math.ceil(len(at_ours) / (LONGEST_S * own_hz)), 1))
        confidences = [self._found(piece) for piece in pieces if piece.any()]
        return min(max(confidences, default=0.0), 1.0)

    def _found(self, samples: FloatArray) -> float:
        confidence = np.zeros(1, np.float32)
        self._run(self._detector, self._frames(samples), confidence)
        return max(float(confidence[0]), 0.0)

    @cached_property
    def _detector(self) -> tuple[GraphSpec, Graph]:
        """The detector. It is larger than the embedder, and a daemon, which only marks, does not need it."""
        return self._load(contract.DETECT)

    def _load(self, name: str) -> tuple[GraphSpec, Graph]:
        spec = self.manifest.graphs[name]
        return spec, self._backend.load(spec.name, self._folder / name, spec, {})

    def _run(self, loaded: tuple[GraphSpec, Graph], frames: FloatArray, result: FloatArray) -> None:
        spec, graph = loaded
        magnitude = np.abs(frames).astype(np.float32, copy=False)
        graph.bind({spec.inputs[0].name: magnitude}, {spec.outputs[0].name: result}).run()

    def _frames(self, samples: FloatArray) -> FloatArray:
        """(samples,) → (N, bins) spectra, each around a multiple of the hop, mirrored at the ends."""
        window, hop = len(self._window), self.manifest.hop
        around = np.pad(np.asarray(samples, np.float32), window // 2, mode="reflect")
        pieces = np.lib.stride_tricks.sliding_window_view(around, window)[::hop]
        spectra: FloatArray = np.fft.rfft(pieces * self._window).astype(np.complex64, copy=False)
        return spectra

    def _samples(self, frames: FloatArray, count: int) -> FloatArray:
        """(N, bins) → (count,), the least-squares inverse of `_frames`."""
        window, hop = len(self._window), self.manifest.hop
        pieces = np.fft.irfft(frames, window).astype(np.float32, copy=False) * self._window
        shift = window // 2
        sums = np.zeros((2, max(len(pieces) * hop + window, shift + count)), np.float32)
        squares = self._window**2
        for number, piece in enumerate(pieces):
            begin = number * hop
            sums[0, begin : begin + window] += piece
            sums[1, begin : begin + window] += squares
        added, weights = sums[:, shift : shift + count]
        samples: FloatArray = added / np.maximum(weights, 1e-6)
        return samples
