"""The corpus on disk: shards of clips with audio, log-mels, phones and pitch, and their reader.

    VOICE-00000.npz     audio (samples,) int16, mels (frames, M) float16, spoken (frames,) int16: the index
                        among its phones of the one that a frame speaks, pitch (frames,) float16 in Hz or 0
    VOICE-00000.json    its clips: id, voice, text, phones, split, frames, samples

A shard is written at once, its .json last: an interruption loses the shards in progress.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.contract.bundle import Defaults
from appliance.contract.mel import MelSpec, log_mel
from export.demo.corpus.teachers import PITCH_HOP, SAMPLE_RATE_HZ, Utterance

SPEC = MelSpec("vocos")
TARGET_RMS = Defaults.target_rms
"""Level of every clip; the device raises quiet references to the same."""
FULL_SCALE = 32768.0
MARGIN_S = 0.03
"""Silence kept at either end of a clip."""
SILENCE_DB = -50.0
"""Below the loudest window of the clip."""
WINDOW_S = 0.01
NEAR_OCTAVES, NEAR_STEPS = 0.2, 16
"""Range around a teacher's pitch in which the sound's is looked for, and steps to either side."""
PERIODIC, PERIODIC_WINDOW = 0.5, 512
"""Likeness of neighbouring periods in a voiced frame, and the samples that are compared."""


@dataclass(frozen=True)
class Clip:
    id: str
    """Sentence: "live-…" and "chat-…" are our own texts, "fort-…" quotations."""
    voice: str
    text: str
    phones: str
    """Its tokens, joined."""
    split: str
    frames: int
    samples: int
    start: int = 0
    """First frame among all clips."""
    begin: int = 0
    """First sample among all clips."""


class Store:
    """Clips of all shards; each of their arrays is joined in memory when first asked for."""

    def __init__(self, folder: Path) -> None:
        """Read what `folder` has. Raises ValueError if there are no shards."""
        self.shards = sorted(folder.glob("*.json"))
        if not self.shards:
            raise ValueError(f"{folder}: has no clips; `python -m export.demo corpus` makes them")
        self.folder = folder
        self.clips: list[Clip] = []
        start = begin = 0
        for shard in self.shards:
            for raw in json.loads(shard.read_text("utf-8")):
                self.clips.append(Clip(**{**raw, "start": start, "begin": begin}))
                start, begin = start + raw["frames"], begin + raw["samples"]

    @functools.cached_property
    def audio(self) -> NDArray[np.int16]:
        return self._joined("audio")

    @functools.cached_property
    def mels(self) -> NDArray[np.float16]:
        return self._joined("mels")

    @functools.cached_property
    def spoken(self) -> NDArray[np.int16]:
        return self._joined("spoken")

    @functools.cached_property
    def pitch(self) -> NDArray[np.float16]:
        return self._joined("pitch")

    def _joined(self, name: str) -> NDArray[Any]:
        parts = []
        for shard in self.shards:
            with np.load(shard.with_suffix(".npz")) as arrays:
                parts.append(arrays[name])
        return np.concatenate(parts)


def write(path: Path, spoken: Sequence[tuple[Mapping[str, str], Utterance]], *, pitch: bool = True) -> float:
    """Write a shard from sentences (id, voice, text, split) and how they were spoken; return its seconds.

    Without `pitch`, which takes most of the time, it is 0: only the vocoder learns from it.
    """
    arrays = [_clip(trimmed(utterance), pitch) for _, utterance in spoken]
    said = ["".join(token for token, _, _ in utterance.phones) for _, utterance in spoken]
    sizes = [{"frames": len(clip["mels"]), "samples": len(clip["audio"])} for clip in arrays]
    clips = [
        {**sentence, "phones": phones, **size}
        for (sentence, _), phones, size in zip(spoken, said, sizes, strict=True)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    joined = {name: np.concatenate([clip[name] for clip in arrays]) for name in arrays[0]}
    np.savez(path.with_suffix(".npz"), allow_pickle=False, **joined)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(clips), "utf-8")
    os.replace(partial, path.with_suffix(".json"))
    return len(joined["audio"]) / SAMPLE_RATE_HZ


def _clip(spoken: Utterance, pitched: bool) -> dict[str, NDArray[Any]]:
    wave = level(spoken.samples / np.float32(FULL_SCALE))
    mel = log_mel(wave, SPEC)
    at = np.arange(len(mel)) * SPEC.hop
    pitch: NDArray[np.float32] = np.zeros(len(at), np.float32)
    if pitched:
        pitch = refined(wave, spoken.pitch[np.minimum(at // PITCH_HOP, len(spoken.pitch) - 1)], at)
    return {
        "audio": np.round(wave.clip(-1, 1) * (FULL_SCALE - 1)).astype(np.int16),
        "mels": mel.astype(np.float16),
        "spoken": tokens_at(spoken, at),
        "pitch": pitch.astype(np.float16),
    }


def refined(wave: NDArray[np.float32], hz: NDArray[np.float32], at: NDArray[Any]) -> NDArray[np.float32]:
    """Pitch near `hz` at which the wave around each sample of `at` repeats itself best; 0 where it does not.

    A teacher's own pitch is what it asked its filters for: in a fifth of the frames the sound is half a
    semitone away, and fricatives have one too.
    """
    steps = np.exp(np.linspace(-NEAR_OCTAVES, NEAR_OCTAVES, 2 * NEAR_STEPS + 1) * np.log(2))
    known = np.flatnonzero(hz > 0)
    lags = np.round(SAMPLE_RATE_HZ / (hz[known, None] * steps)).astype(np.int64)
    reach = PERIODIC_WINDOW // 2 + int(lags.max(initial=0))
    padded = np.pad(wave, reach).astype(np.float32)
    window = np.arange(PERIODIC_WINDOW) - PERIODIC_WINDOW // 2 + reach
    first = at[known, None, None] + window - lags[..., None] // 2
    a, b = padded[first], padded[first + lags[..., None]]
    power = np.sqrt((a * a).sum(axis=-1) * (b * b).sum(axis=-1))
    likeness = (a * b).sum(axis=-1) / np.maximum(power, 1e-3)
    best = likeness.argmax(axis=1)
    row = np.arange(len(known))
    found, voiced = np.zeros_like(hz), np.zeros(len(hz))
    found[known] = SAMPLE_RATE_HZ / lags[row, best]
    voiced[known] = likeness[row, best] >= PERIODIC
    majority = np.convolve(voiced, np.ones(3), "same") >= 2
    return np.where(majority, found, 0).astype(np.float32)


def tokens_at(spoken: Utterance, at: NDArray[Any]) -> NDArray[np.int16]:
    """Index among its phones of the one spoken at each sample of `at`."""
    ends = np.array([end for _, _, end in spoken.phones])
    return np.minimum(np.searchsorted(ends, at, side="right"), len(ends) - 1).astype(np.int16)


def trimmed(spoken: Utterance) -> Utterance:
    """Cut silence to MARGIN_S at either end; times of phones and pitch follow."""
    window = round(SAMPLE_RATE_HZ * WINDOW_S)
    wave = spoken.samples[: len(spoken.samples) // window * window].astype(np.float64)
    power = np.square(wave.reshape(-1, window)).mean(axis=1)
    loud = np.flatnonzero(power > power.max() * 10 ** (SILENCE_DB / 10))
    margin = round(SAMPLE_RATE_HZ * MARGIN_S)
    start = max(0, int(loud[0]) * window - margin) // PITCH_HOP * PITCH_HOP
    end = min(len(spoken.samples), (int(loud[-1]) + 1) * window + margin)
    phones = [(token, max(begin - start, 0), max(stop - start, 0)) for token, begin, stop in spoken.phones]
    return Utterance(spoken.samples[start:end], phones, spoken.pitch[start // PITCH_HOP :])


def level(wave: NDArray[Any]) -> NDArray[np.float32]:
    """Scale a wave to TARGET_RMS."""
    rms = float(np.sqrt(np.mean(np.square(wave, dtype=np.float64))))
    return (wave * np.float32(TARGET_RMS / max(rms, 1e-4))).astype(np.float32)
