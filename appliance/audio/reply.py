"""Segments' audio → a reply's bytes: cross-faded, resampled, encoded, off the engine's thread."""

from __future__ import annotations

import math

import numpy as np

from appliance.audio import encode, join
from appliance.contract.bundle import Manifest
from appliance.job import FloatArray, Made, Request


class Reply:
    """Cross-fade, resampler and encoder of one reply."""

    def __init__(self, manifest: Manifest, request: Request, message_s: float) -> None:
        """`message_s` is the longest audio in one message of a stream."""
        model_hz, self._rate_hz = manifest.mel.sample_rate_hz, request.sample_rate_hz
        self._joiner = join.Joiner(join.overlap_samples(manifest.defaults.cross_fade_s, model_hz))
        self._resampler = encode.Resampler(model_hz, self._rate_hz)
        self._encoding = request.encoding
        self._encoder = encode.Encoder(request.encoding, self._rate_hz)
        self._longest = round(message_s * self._rate_hz)
        self._kept: list[FloatArray] = []
        self.samples = 0
        """Given out or kept."""

    @property
    def audio_s(self) -> float:
        """Seconds of it."""
        return self.samples / self._rate_hz

    def messages(self, made: Made) -> list[tuple[bytes, int]]:
        """The bytes of what is final now, and their samples: equal stretches, none over `message_s`."""
        samples = self._join(made)
        if not len(samples):
            return []
        pieces = np.array_split(samples, math.ceil(len(samples) / self._longest))
        return [(self._encoder.push(piece), len(piece)) for piece in pieces]

    def keep(self, made: Made) -> None:
        """Keep what is final now for `whole`."""
        self._kept.append(self._join(made))

    def whole(self) -> bytes:
        """Everything that was kept."""
        kept = self._kept or [np.zeros(0, np.float32)]
        samples = kept[0] if len(kept) == 1 else np.concatenate(kept)
        return encode.encode(samples, self._encoding, self._rate_hz)

    def _join(self, made: Made) -> FloatArray:
        samples = self._resampler.push(self._joiner.push(made.samples, last=made.last), last=made.last)
        self.samples += len(samples)
        return samples
