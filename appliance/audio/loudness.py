"""Loudness of a segment (ITU-R BS.1770-4), its true peak, and the gain that brings it to a target.

Each segment is measured alone, so a request's samples do not depend on earlier speech.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from appliance.request import AS_MADE, FloatArray, ReplyLevel

FILTER_HZ = 48_000
K_FILTER = (
    ((1.53512485958697, -2.69169618940638, 1.19839281085285), (1.0, -1.69065929318241, 0.73248077421585)),
    ((1.0, -2.0, 1.0), (1.0, -1.99004745483398, 0.99007225036621)),
)
"""(numerator, denominator) of BS.1770's two biquads at FILTER_HZ: the head's shelf, and the high-pass."""
OFFSET_LU = -0.691
HOP_S, HOPS = 0.1, 4
"""Length of a hop, and hops in a block. Blocks begin one hop apart."""
ABSOLUTE_LUFS, RELATIVE_LU = -70.0, -10.0
"""Gates: the absolute one, and the relative one below the mean of the blocks that pass the absolute one."""

QUIETEST_LUFS = -30.0
"""Loudness from which a quieter segment's gain is computed.

Upstream's speech has about -20 LUFS, so such a segment is a breath, which must not become as loud as speech.
"""
CEILING = 10 ** (-1.5 / 20)
"""Limit of the true peak. It is half a decibel below the promise, because meters interpolate differently."""
PEAK_HZ, TAPS = 192_000, 48
"""Rate at which the true peak is computed, and samples that each interpolated value depends on."""
FRAME_S = 0.01
"""Seconds between two values of the limiter's gain."""
WINDOWS_AT_ONCE = 512
"""Windows that are copied at a time: 0.1 MB, for a product that takes no second thread."""
MOST_MADE_UP, ROUNDS = 10 ** (3.0 / 20), 3
"""Largest factor that makes up for the loudness lost by limiting, and rounds that compute it."""
NEAR = 0.4
"""Share of the ceiling above which the values on both sides of a sample are interpolated.

Waves up to 0.36 of the rate have such a sample next to each peak at the ceiling.
"""


def loudness(samples: FloatArray, rate_hz: int) -> float:
    """(samples,) → LUFS; -inf if nothing is above the absolute gate.

    Samples shorter than a block count as one block, with their incomplete last hop. In longer ones it does
    not count.
    """
    return _gated(_powers(samples, rate_hz))


def levelled(samples: FloatArray, rate_hz: int, level: ReplyLevel) -> FloatArray:
    """(samples,) of a segment at its level, with no true peak above CEILING; unchanged without a level."""
    if level == AS_MADE:
        return samples
    powers, gain_db, made_lufs = _powers(samples, rate_hz), level.gain_db, -math.inf
    if level.target_lufs is not None:
        made_lufs = _gated(powers)
        gain_db += level.target_lufs - max(made_lufs, QUIETEST_LUFS)
    gain = 10 ** (gain_db / 20)
    louder = samples * np.float32(gain)
    peaks = _frame_peaks(louder, rate_hz, NEAR * CEILING)
    if peaks.max(initial=0.0) <= CEILING:
        return louder
    is_measured = made_lufs > -math.inf
    more = _make_up(louder, powers * gain**2, peaks, rate_hz) if is_measured else np.float32(1.0)
    return louder * (more * _limiter(peaks * more, rate_hz, len(samples)))


def _make_up(louder: FloatArray, powers: FloatArray, peaks: FloatArray, rate_hz: int) -> np.float32:
    """Factor that restores the loudness that limiting takes from hops of these powers.

    The limiter leaves the same share of a hop before and after the K filter, so a round needs no filter.
    """
    frame, more = round(FRAME_S * rate_hz), np.float32(1.0)
    squares = np.add.reduceat(np.square(louder), np.arange(0, len(louder), frame))
    hops = np.arange(len(powers)) * round(HOP_S * rate_hz) // frame
    per_square = powers / np.add.reduceat(squares + 1e-12, hops)
    for _ in range(ROUNDS):
        gains = more * _gains(peaks * more)
        left = np.add.reduceat(squares * (gains[:-1] + gains[1:]) ** 2 / 4, hops)
        lost_lu = _gated(powers) - _gated(per_square * left)
        more = np.float32(min(float(more) * math.pow(10, lost_lu / 20), MOST_MADE_UP))
    return more


def _gated(powers: NDArray[np.floating]) -> float:
    """(hops,) mean squares, or (1,) of less than a block → LUFS."""
    if len(powers) >= HOPS:
        total = np.cumsum(np.append(0.0, powers))
        powers = (total[HOPS:] - total[:-HOPS]) / HOPS
    powers = powers[powers > 10 ** ((ABSOLUTE_LUFS - OFFSET_LU) / 10)]
    if not len(powers):
        return -math.inf
    powers = powers[powers > powers.mean() * 10 ** (RELATIVE_LU / 10)]
    return OFFSET_LU + 10 * math.log10(powers.mean())


def _powers(samples: FloatArray, rate_hz: int) -> FloatArray:
    """(hops,) mean squares after the K filter, by Parseval's theorem; (1,) for less than a block."""
    hop = round(HOP_S * rate_hz)
    if len(samples) < hop * HOPS:
        padded = np.pad(samples, (0, hop * HOPS - len(samples)))
        return np.array([_powers(padded, rate_hz).sum() * hop / max(len(samples), 1)], np.float32)
    hops = len(samples) // hop
    spectrum = np.fft.rfft(np.asarray(samples[: hops * hop], np.float32).reshape(hops, hop))
    powers = (spectrum.real**2 + spectrum.imag**2) @ _weights(rate_hz, hop)
    return powers.astype(np.float32, copy=False)


@lru_cache(maxsize=4)
def _weights(rate_hz: int, size: int) -> FloatArray:
    """(size // 2 + 1,) share of each power of a spectrum in the mean square, after the K filter."""
    z = np.exp(-2j * np.pi * np.fft.rfftfreq(size, 1 / rate_hz) / FILTER_HZ)
    weights = np.full(len(z), 2.0 / size**2)
    weights[0] /= 2
    if size % 2 == 0:
        weights[-1] /= 2
    for numerator, denominator in K_FILTER:
        weights *= np.abs(np.polyval(numerator[::-1], z) / np.polyval(denominator[::-1], z)) ** 2
    return weights.astype(np.float32)


def _frame_peaks(samples: FloatArray, rate_hz: int, near: float) -> FloatArray:
    """(samples,) → (frames,) true peak of each FRAME_S, interpolated next to samples above `near`."""
    frame = round(FRAME_S * rate_hz)
    frames = -(-len(samples) // frame)
    before = TAPS // 2 - 1
    around = np.zeros(before + frames * frame + TAPS, np.float32)
    around[before : before + len(samples)] = samples
    heights = np.abs(around[before : before + frames * frame + 1])
    peaks: FloatArray = heights[:-1].reshape(frames, frame).max(axis=1, initial=0)
    windows = np.lib.stride_tricks.sliding_window_view(around, TAPS)
    weights = _between(-(-PEAK_HZ // rate_hz))
    high = np.flatnonzero(np.maximum(heights[:-1], heights[1:]) > near)
    for some in np.array_split(high, len(high) // WINDOWS_AT_ONCE + 1):
        between = np.abs(windows[some] @ weights).max(axis=1, initial=0)
        np.maximum.at(peaks, some // frame, between)
    return peaks


def _limiter(peaks: FloatArray, rate_hz: int, samples: int) -> FloatArray:
    """(frames,) true peaks → (samples,) gains that lower peaks above CEILING to it.

    The gains fall and rise in straight lines over 30 ms on either side of a peak.
    """
    at = _gains(peaks)
    rising = np.arange(frame := round(FRAME_S * rate_hz), dtype=np.float32) / np.float32(frame)
    gains = at[:-1, None] + (at[1:] - at[:-1])[:, None] * rising
    return gains.reshape(-1)[:samples]


def _gains(peaks: FloatArray) -> FloatArray:
    """(frames,) true peaks → (frames + 1,) gains at the ends of the frames."""
    allowed = np.ones(len(peaks) + 6)
    allowed[3:-3] = np.minimum(1.0, CEILING / np.maximum(peaks, CEILING))
    # Between two frames, the least of the two on either side; then the mean of three. Each of the three
    # includes both frames, so no gain between them is above what either allows.
    least = np.minimum.reduce([allowed[k : k + len(peaks) + 3] for k in range(4)])
    return np.asarray((least[:-2] + least[1:-1] + least[2:]) / 3, np.float32)


@lru_cache(maxsize=4)
def _between(phases: int) -> FloatArray:
    """(TAPS, phases - 1) windowed sinc: weights of the values between the middle two of TAPS samples."""
    places = np.arange(TAPS)[:, None] - (TAPS // 2 - 1) - np.arange(1, phases) / phases
    weights = np.sinc(places) * np.cos(np.pi * places / (TAPS + 1)) ** 2
    shares: FloatArray = (weights / weights.sum(axis=0)).astype(np.float32)
    return shares
