"""pydub's `split_on_silence` and `detect_leading_silence`, with the same cuts, on a cumulative sum of
squares.

A 10-second reference takes milliseconds instead of pydub's seconds.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.voices.recording import Recording

Milliseconds = NDArray[np.int64]


class Loudness:
    """Loudness of any part of a recording, in constant time."""

    def __init__(self, recording: Recording) -> None:
        samples = recording.samples
        # Sums of squared 32-bit samples overflow int64. Sums of shorter samples are exact.
        wide = np.float64 if samples.itemsize == 4 else np.int64
        self._sums: NDArray[Any] = np.zeros(len(samples) + 1, wide)
        np.square(samples[:, 0], out=self._sums[1:], dtype=wide)
        for channel in samples.T[1:]:
            self._sums[1:] += np.square(channel, dtype=wide)
        np.cumsum(self._sums, out=self._sums)
        self._recording = recording

    def rms(self, start_ms: Milliseconds, length_ms: int) -> NDArray[np.float64]:
        """RMS of the windows at these starts, truncated to integers as `audioop.rms` does."""
        recording, frames = self._recording, len(self._recording.samples)
        end_ms = np.minimum(start_ms + length_ms, recording.duration_ms)
        start, end = ((ms * recording.frames_per_ms).astype(np.int64) for ms in (start_ms, end_ms))
        sums = self._sums[np.minimum(end, frames)] - self._sums[np.minimum(start, frames)]
        count = (end - start) * recording.samples.shape[1]
        rms: NDArray[np.float64] = np.floor(np.sqrt(np.maximum(sums, 0) / np.maximum(count, 1)))
        return rms


@dataclass(frozen=True)
class Silence:
    """Parameters of pydub's functions."""

    minimum_ms: int
    threshold_dbfs: float
    keep_ms: int
    step_ms: int = 10


def split_on_silence(recording: Recording, silence: Silence) -> list[Recording]:
    """Pieces with up to `keep_ms` of silence at either end."""
    spans = [[start - silence.keep_ms, end + silence.keep_ms] for start, end in sounding(recording, silence)]
    for left, right in itertools.pairwise(spans):
        if right[0] < left[1]:
            left[1] = right[0] = (left[1] + right[0]) // 2
    return [recording.cut(max(start, 0), end) for start, end in spans]


def sounding(recording: Recording, silence: Silence) -> list[tuple[int, int]]:
    """(start, end) in milliseconds of each piece."""
    duration = recording.duration_ms
    silences = silent(recording, silence)
    if not silences:
        return [(0, duration)]
    if silences[0] == (0, duration):
        return []
    starts = [0, *(end for _, end in silences)]
    ends = [*(start for start, _ in silences), duration]
    if silences[-1][1] == duration:
        del starts[-1], ends[-1]
    pairs = list(zip(starts, ends, strict=True))
    return pairs[1:] if pairs[0] == (0, 0) else pairs


def silent(recording: Recording, silence: Silence) -> list[tuple[int, int]]:
    """(start, end) in milliseconds of each silence of at least `minimum_ms`."""
    last = recording.duration_ms - silence.minimum_ms
    if last < 0:
        return []
    starts: Milliseconds = np.arange(0, last + 1, silence.step_ms, dtype=np.int64)
    if last % silence.step_ms:
        starts = np.append(starts, last)
    threshold = 10 ** (silence.threshold_dbfs / 20) * recording.full_scale
    quiet = starts[Loudness(recording).rms(starts, silence.minimum_ms) <= threshold]
    if not len(quiet):
        return []
    # Overlapping quiet windows are one silence, even if windows between them are not quiet.
    apart = np.diff(quiet)
    gaps = np.flatnonzero((apart > silence.minimum_ms) & (apart != silence.step_ms))
    first, final = np.append(0, gaps + 1), np.append(gaps, len(quiet) - 1)
    return [(int(quiet[a]), int(quiet[b]) + silence.minimum_ms) for a, b in zip(first, final, strict=True)]


def leading_silence_ms(recording: Recording, threshold_dbfs: float, step_ms: int = 10) -> int:
    """Length of the first silence, a multiple of `step_ms`; the whole duration if everything is quiet."""
    starts: Milliseconds = np.arange(0, recording.duration_ms, step_ms, dtype=np.int64)
    level = Loudness(recording).rms(starts, step_ms) / recording.full_scale
    with np.errstate(divide="ignore"):
        loud = np.flatnonzero(20 * np.log10(level) >= threshold_dbfs)
    return int(starts[loud[0]]) if len(loud) else recording.duration_ms
