"""Integer samples as a file holds them, addressed by the millisecond with pydub's rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.signedinteger[Any]]


@dataclass(frozen=True, eq=False)
class Recording:
    """Audio before it is turned into floating point: upstream cuts silence on integers."""

    samples: Samples
    """(frames, channels) int8, int16 or int32; full scale is that of the type."""
    rate_hz: int

    @property
    def full_scale(self) -> int:
        """The value that stands for 1.0: 128, 32,768 or 2,147,483,648."""
        return 1 << (8 * self.samples.itemsize - 1)

    @property
    def duration_ms(self) -> int:
        """Rounded to the nearest millisecond."""
        return round(1000 * (len(self.samples) / self.rate_hz))

    @property
    def frames_per_ms(self) -> float:
        """Frames per millisecond; no whole number at 44.1 kHz."""
        return self.rate_hz / 1000.0

    def cut(self, start_ms: int, end_ms: int) -> Recording:
        """Return the part from `start_ms` to `end_ms`, clipped to the duration.

        Since the duration is rounded, up to half a millisecond at the end is lost or filled with zeros.
        """
        start, end = (int(min(ms, self.duration_ms) * self.frames_per_ms) for ms in (start_ms, end_ms))
        piece = self.samples[start:end]
        if 0 < len(piece) < end - start:
            piece = np.pad(piece, ((0, end - start - len(piece)), (0, 0)))
        return Recording(piece, self.rate_hz)

    def reversed(self) -> Recording:
        """Back to front."""
        return Recording(self.samples[::-1], self.rate_hz)

    def mono(self) -> NDArray[np.float32]:
        """(frames,) mean of the channels, full scale 1.0."""
        wave = self.samples.astype(np.float32) / np.float32(self.full_scale)
        mean: NDArray[np.float32] = wave.mean(axis=1, dtype=np.float32)
        return mean


def concatenate(pieces: list[Recording]) -> Recording:
    """One after the other; all have the rate and channels of the first."""
    return Recording(np.concatenate([piece.samples for piece in pieces]), pieces[0].rate_hz)
