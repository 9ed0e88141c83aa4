"""Loudness of a segment (ITU-R BS.1770-4), its true peak, and the gain that brings it to a target.

Each segment is measured alone, so the same request has the same samples, whatever was spoken before.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

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
FRAMES_AT_ONCE = 32
"""Frames whose windows are copied at a time: 1.5 MB at 24 kHz."""
NOTICEABLE_LU, MADE_UP_LU, ROUNDS = 0.1, 3.0, 3
"""Gain that makes up for the loudness lost by limiting: losses below the first value (LU) get none, the
second value is the largest gain, and the third the number of rounds.
"""
NEAR = 0.5
"""Share of the ceiling above which a frame's interpolated values are computed, too."""


def loudness(samples: FloatArray, rate_hz: int) -> float:
    """(samples,) → LUFS; -inf if nothing is above the absolute gate.

    Samples shorter than a block count as one block, with their incomplete last hop. In longer ones it does
    not count.
    """
    hop = round(HOP_S * rate_hz)
    if len(samples) < hop * HOPS:
        padded = np.zeros(hop * HOPS, np.float32)
        padded[: len(samples)] = samples
        power = np.array([_hop_powers(padded, rate_hz).sum() * hop / max(len(samples), 1)])
    else:
        total = np.cumsum(np.append(0.0, _hop_powers(samples, rate_hz)))
        power = (total[HOPS:] - total[:-HOPS]) / HOPS
    power = power[power > 10 ** ((ABSOLUTE_LUFS - OFFSET_LU) / 10)]
    if not len(power):
        return -math.inf
    power = power[power > power.mean() * 10 ** (RELATIVE_LU / 10)]
    return OFFSET_LU + 10 * math.log10(power.mean())


def levelled(samples: FloatArray, rate_hz: int, level: ReplyLevel) -> FloatArray:
    """(samples,) of a segment at its level, with no true peak above CEILING; unchanged without a level."""
    if level == AS_MADE:
        return samples
    gain_db, made_lufs = level.gain_db, -math.inf
    if level.target_lufs is not None:
        made_lufs = loudness(samples, rate_hz)
        gain_db += level.target_lufs - max(made_lufs, QUIETEST_LUFS)
    gain = 10 ** (gain_db / 20)
    louder = samples * np.float32(gain)
    peaks = _frame_peaks(louder, rate_hz, NEAR * CEILING)
    if peaks.max(initial=0.0) <= CEILING:
        return louder
    limited = louder * _limiter(peaks, rate_hz, len(samples))
    more_db, rounds = 0.0, 0 if level.target_lufs is None else ROUNDS
    for _ in range(rounds):
        lost_lu = made_lufs + gain_db - loudness(limited, rate_hz)
        if lost_lu < NOTICEABLE_LU or more_db >= MADE_UP_LU:
            break
        more_db = min(more_db + lost_lu, MADE_UP_LU)
        more = np.float32(10 ** (more_db / 20))
        limited = louder * (more * _limiter(peaks * more, rate_hz, len(samples)))
    return limited


def true_peak(samples: FloatArray, rate_hz: int) -> float:
    """(samples,) → largest magnitude of the wave through the samples."""
    return float(_frame_peaks(samples, rate_hz, 0.0).max(initial=0.0))


def _hop_powers(samples: FloatArray, rate_hz: int) -> FloatArray:
    """(hops,) mean squares after the K filter, by Parseval's theorem."""
    hop = round(HOP_S * rate_hz)
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
    """(samples,) → (frames,) true peak of each FRAME_S; up to `near` it is the peak of the samples."""
    frame = round(FRAME_S * rate_hz)
    frames = -(-len(samples) // frame)
    before = TAPS // 2 - 1
    around = np.zeros(before + frames * frame + TAPS, np.float32)
    around[before : before + len(samples)] = samples
    heights = np.abs(around[before : before + frames * frame].reshape(frames, frame))
    peaks: FloatArray = heights.max(axis=1, initial=0)
    windows = np.lib.stride_tricks.sliding_window_view(around, TAPS)[: frames * frame]
    weights = _between(-(-PEAK_HZ // rate_hz))
    high = np.flatnonzero(peaks > near)
    for some in np.array_split(high, -(-len(high) // FRAMES_AT_ONCE)) if len(high) else ():
        between = np.abs(windows.reshape(frames, frame, TAPS)[some] @ weights)
        peaks[some] = np.maximum(peaks[some], between.max(axis=(1, 2), initial=0))
    return peaks


def _limiter(peaks: FloatArray, rate_hz: int, samples: int) -> FloatArray:
    """(frames,) true peaks → (samples,) gains that lower peaks above CEILING to it.

    The gains fall and rise in straight lines over 30 ms on either side of a peak.
    """
    allowed = np.ones(len(peaks) + 6)
    allowed[3:-3] = np.minimum(1.0, CEILING / np.maximum(peaks, CEILING))
    # Between two frames, the least of the two on either side; then the mean of three. Each of the three
    # includes both frames, so no gain between them is above what either allows.
    least = np.minimum.reduce([allowed[k : k + len(peaks) + 3] for k in range(4)])
    at = (least[:-2] + least[1:-1] + least[2:]) / 3
    rising = np.arange(frame := round(FRAME_S * rate_hz)) / frame
    gains = at[:-1, None] + (at[1:] - at[:-1])[:, None] * rising
    limiter: FloatArray = gains.reshape(-1)[:samples].astype(np.float32)
    return limiter


@lru_cache(maxsize=4)
def _between(phases: int) -> FloatArray:
    """(TAPS, phases - 1) windowed sinc: weights of the values between the middle two of TAPS samples."""
    places = np.arange(TAPS)[:, None] - (TAPS // 2 - 1) - np.arange(1, phases) / phases
    weights = np.sinc(places) * np.cos(np.pi * places / (TAPS + 1)) ** 2
    shares: FloatArray = (weights / weights.sum(axis=0)).astype(np.float32)
    return shares
