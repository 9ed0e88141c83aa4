"""Level and tonality of a recording's background."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FRAME_S = 0.04
LOUD_PERCENTILE = 90
QUIET_PERCENTILE = 4
"""Percentile of the quiet frames: even 3 s without a pause have this share of frames between words."""
BAND_HZ = (150.0, 3_800.0)
SMOOTHING_HZ = 500.0
"""Width of the smoothing: above a hum's harmonic spacing, below the scale of a noise's slope."""
SMALL = 1e-12


@dataclass(frozen=True)
class Background:
    """Background of a recording, measured in its quietest frames."""

    below_db: float
    """Distance in dB below the loud frames."""
    flatness: float
    """Geometric mean of the spectrum over its smoothed self: 0.56 for noise, near 0 for tones."""


def background(wave: NDArray[np.float32], rate_hz: int) -> Background | None:
    """Measure (samples,). None if they are shorter than 0.4 s."""
    size = round(FRAME_S * rate_hz)
    if len(wave) < 10 * size:
        return None
    frames = np.lib.stride_tricks.sliding_window_view(wave, size)[:: size // 2]
    power = np.einsum("ij,ij->i", frames, frames, dtype=np.float64) / size + SMALL
    loud, quiet = np.percentile(power, (LOUD_PERCENTILE, QUIET_PERCENTILE))
    quietest = frames[power <= quiet]
    spectra = np.abs(np.fft.rfft(quietest * np.hanning(size), axis=1)) ** 2 + SMALL
    width = round(SMOOTHING_HZ * FRAME_S) | 1
    smooth = np.stack([np.convolve(one, np.full(width, 1.0 / width), "same") for one in spectra])
    frequencies = np.fft.rfftfreq(size, 1.0 / rate_hz)
    inside = (frequencies >= BAND_HZ[0]) & (frequencies <= BAND_HZ[1])
    flatness = np.exp(np.median(np.mean(np.log(spectra / smooth)[:, inside], axis=1)))
    below_db = 10.0 * np.log10(loud / np.median(power[power <= quiet]))
    return Background(float(below_db), float(flatness))
