"""Integer samples of a file, cut by milliseconds with pydub's rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, eq=False)
class Recording:
    """Audio before its conversion to float, because upstream cuts silence on integers."""

    samples: Samples
    """(frames, channels) int8, int16 or int32."""
    rate_hz: int

    @property
    def full_scale(self) -> int:
        """Integer that stands for 1.0."""
        return 1 << (8 * self.samples.itemsize - 1)

    @property
    def duration_ms(self) -> int:
        return round(1000 * (len(self.samples) / self.rate_hz))

    @property
    def frames_per_ms(self) -> float:
        """Frames per millisecond; no whole number at 44.1 kHz."""
        return self.rate_hz / 1000.0

    def cut(self, start_ms: int, end_ms: int) -> Recording:
        """Part of the recording, clipped to it.

        The rounded duration loses, or pads with zeros, up to half a millisecond.
        """
        start, end = (int(min(ms, self.duration_ms) * self.frames_per_ms) for ms in (start_ms, end_ms))
        piece = self.samples[start:end]
        if 0 < len(piece) < end - start:
            piece = np.pad(piece, ((0, end - start - len(piece)), (0, 0)))
        return Recording(piece, self.rate_hz)

    def reversed(self) -> Recording:
        return Recording(self.samples[::-1], self.rate_hz)

    def scaled(self) -> NDArray[np.float32]:
        """(frames, channels), full scale ±1."""
        return self.samples.astype(np.float32) / np.float32(self.full_scale)

    def mono(self) -> NDArray[np.float32]:
        """(frames,) mean of the channels, full scale ±1."""
        mean: NDArray[np.float32] = self.scaled().mean(axis=1, dtype=np.float32)
        return mean


def concatenate(pieces: list[Recording]) -> Recording:
    """All pieces in order. They must have the same rate and number of channels."""
    return Recording(np.concatenate([piece.samples for piece in pieces]), pieces[0].rate_hz)
