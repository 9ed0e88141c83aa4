"""A reply of a reference's own transcript beside its recording: are they the same words?

A reply's length is planned from the transcript, so it tells nothing; its words do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from appliance.contract.mel import MelSpec, log_mel
from appliance.request import FloatArray

MOST_DISTANCE = 0.8
"""Distance of a reply over that of the recording played backwards. With true transcripts the demo's voices
had 0.37 to 0.59, 0.67 with an echo; with other words at least 0.91, with a half or a double 0.51 to 0.94."""
LEAST_LIKENESS = 0.9
"""Correlation of spectra. Below, the bundle does not speak in this voice, and words are not compared: the
demo's had 0.90 to 0.99 with any transcript, voices that its model has not learnt at most 0.73."""
CEPSTRA = 13
LEAST_FRAMES = 20
STEP = 2
"""Frames whose mean is taken."""
SOUNDING, LOUD = 5.0, 3.0
"""Nepers below the 95th percentile."""

Frames = NDArray[np.float64]


def warnings(recording: FloatArray, reply: FloatArray, rate_hz: int) -> tuple[str, ...]:
    """Reasons to doubt a transcript, as sentences: (samples,) of its recording, and of it spoken."""
    spec = MelSpec("vocos", sample_rate_hz=rate_hz)
    mels = [log_mel(samples.astype(np.float32), spec).astype(np.float64) for samples in (recording, reply)]
    if min(map(len, mels)) < LEAST_FRAMES:
        return ()
    if _likeness(*map(_timbre, mels)) < LEAST_LIKENESS:
        return ()
    heard, said = map(_cepstra, mels)
    if distance(heard, said) <= MOST_DISTANCE * distance(heard, said[::-1]):
        return ()
    return ("the transcript is probably not what is said: spoken by this voice, it sounds like other words",)


def distance(one: Frames, other: Frames) -> float:
    """Mean distance of two (frames, features) along the best alignment in time.

    Symmetric dynamic time warping, as Sakoe and Chiba (1978, doi:10.1109/TASSP.1978.1163055).
    """
    squares: Frames = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1) - 2.0 * one @ other.T
    apart: Frames = np.sqrt(np.maximum(squares, 0.0))
    rows, columns = len(one), len(other)
    # Diagonals from the first corner on, by row: each follows from the two before it.
    before, last = np.full(rows + 1, np.inf), np.full(rows + 1, np.inf)
    before[0] = 0.0
    for diagonal in range(2, rows + columns + 1):
        first, end = max(1, diagonal - columns), min(rows, diagonal - 1) + 1
        row = np.arange(first, end)
        here = apart[row - 1, diagonal - row - 1]
        present = np.full(rows + 1, np.inf)
        present[first:end] = np.minimum(
            before[first - 1 : end - 1] + 2.0 * here,
            np.minimum(last[first - 1 : end - 1], last[first:end]) + here,
        )
        before, last = last, present
    return float(last[rows]) / (rows + columns)


def _likeness(one: Frames, other: Frames) -> float:
    """Correlation."""
    one, other = one - one.mean(), other - other.mean()
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(np.dot(one, other)) / size if size else 0.0


def _timbre(mel: Frames) -> Frames:
    """(mels,) of loud frames."""
    level = mel.mean(axis=1)
    mean: Frames = mel[level > np.percentile(level, 95) - LOUD].mean(axis=0)
    return mean


def _cepstra(mel: Frames) -> Frames:
    """(frames, CEPSTRA) from the first to the last sound, each of mean 0 and variance 1."""
    count, mels = len(mel) // STEP, mel.shape[1]
    mel = mel[: count * STEP].reshape(count, STEP, mels).mean(axis=1)
    level = mel.mean(axis=1)
    sounding = np.flatnonzero(level > np.percentile(level, 95) - SOUNDING)
    basis = np.cos(np.pi * np.outer(np.arange(mels) + 0.5, np.arange(1, CEPSTRA + 1)) / mels)
    cepstra = mel[sounding[0] : sounding[-1] + 1] @ basis
    whitened: Frames = (cepstra - cepstra.mean(axis=0)) / (cepstra.std(axis=0) + 1e-9)
    return whitened
