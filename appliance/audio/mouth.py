"""Mouth track: how far a mouth is open, and in which shape, for each 20 ms of PCM16.

The track is computed from the audio that is sent. The model's log-mel would not do: it is in the
accelerator's memory, precedes loudness and cross-fades, and does not exist for a cached reply.
"""

from __future__ import annotations

import enum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

FRAME_S = 0.02
LEVELS = 15
FULL_RMS = 0.25
"""RMS at which the mouth is fully open: a loud vowel at the usual -18 LUFS."""
QUIET = 0.5
"""Exponent of the level. A smaller one makes soft speech move the mouth more."""
TINY = 1e-12


class Shape(enum.IntEnum):
    REST = 0
    CLOSED = 1
    """The sounds m, b, p."""
    OPEN = 2
    """The sound a."""
    WIDE = 3
    """The sounds e, i."""
    ROUND = 4
    """The sounds o, u."""
    TEETH = 5
    """The sounds s, f, sh."""


class Mouth:
    """Track of one reply, from its PCM16 in pieces of any size."""

    def __init__(self, rate_hz: int) -> None:
        self.hop = round(rate_hz * FRAME_S)
        """Samples of a frame."""
        self._rate_hz = rate_hz
        self._rest = np.empty(0, np.int16)

    def push(self, data: bytes) -> bytes:
        """Frames that are complete with this piece: a byte each, 16 · level (0 to 15) + Shape."""
        samples = np.concatenate([self._rest, np.frombuffer(data, "<i2")])
        count = len(samples) // self.hop
        self._rest = samples[count * self.hop :]
        if not count:
            return b""
        frames = samples[: count * self.hop].reshape(count, self.hop) / 32_768.0
        rms = np.sqrt(np.square(frames).mean(axis=1))
        levels = np.round(LEVELS * np.minimum(rms / FULL_RMS, 1.0) ** QUIET).astype(np.uint8)
        shapes = np.where(levels > 0, self._shapes(frames), Shape.REST).astype(np.uint8)
        return bytes(levels << 4 | shapes)

    def _shapes(self, frames: NDArray[np.float64]) -> NDArray[np.uint8]:
        """Shape of each frame, from the bands of a vowel's first two formants and the band above them."""
        power = np.square(np.abs(np.fft.rfft(frames * self._window, axis=1)))
        whole = self._sum(power, 0, self._rate_hz) + TINY
        above = self._sum(power, 400, self._rate_hz) / whole
        hiss = self._sum(power, 3_500, self._rate_hz) / whole
        first_hz = power[:, self._low] @ self._hz[self._low] / (power[:, self._low].sum(axis=1) + TINY)
        is_front = self._sum(power, 1_600, 3_200) > 0.5 * self._sum(power, 900, 1_600)
        kinds = [hiss > 0.5, above < 0.003, first_hz > 520, is_front, above < 0.02]
        shapes = [Shape.TEETH, Shape.CLOSED, Shape.OPEN, Shape.WIDE, Shape.CLOSED]
        return np.select(kinds, shapes, Shape.ROUND)

    def _sum(self, power: NDArray[np.float64], low_hz: int, high_hz: int) -> NDArray[np.float64]:
        total: NDArray[np.float64] = power[:, (self._hz >= low_hz) & (self._hz < high_hz)].sum(axis=1)
        return total

    @cached_property
    def _low(self) -> NDArray[np.bool_]:
        """Bins of the spectrum in the band of a vowel's first formant."""
        return (self._hz >= 200) & (self._hz <= 1_000)

    @cached_property
    def _window(self) -> NDArray[np.float64]:
        return np.hanning(self.hop).astype(np.float64)  # before 2.5 numpy reports no width

    @cached_property
    def _hz(self) -> NDArray[np.float64]:
        return np.fft.rfftfreq(self.hop, 1 / self._rate_hz).astype(np.float64)
