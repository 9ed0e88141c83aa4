"""Reference audio → Features: trimmed, levelled, resampled, log-mel, as in upstream, with two differences.

Over 12 s after trimming is refused, where upstream clips the audio but not its text. Rates are converted by
soxr, not by torchaudio's short kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import soxr
from numpy.typing import NDArray

from appliance.contract.mel import MelSpec, log_mel
from appliance.errors import InvalidReference
from appliance.request import MAX_REFERENCE_S, Features
from appliance.voices.background import background
from appliance.voices.containers import FIELD
from appliance.voices.decode import decode
from appliance.voices.recording import Recording, concatenate
from appliance.voices.silence import Silence, leading_silence_ms, split_on_silence

TRIM_VERSION = 1
"""Part of the cache key; incremented when a file would give other samples."""

MAX_REFERENCE_MS = 1_000 * MAX_REFERENCE_S
MIN_REFERENCE_MS = 100
LONG_PAUSES = Silence(minimum_ms=1000, threshold_dbfs=-50, keep_ms=1000)
SHORT_PAUSES = Silence(minimum_ms=100, threshold_dbfs=-40, keep_ms=1000)
EDGE_DBFS = -42.0

SHORT_MS = 3_000
MIN_RMS = 0.001
"""Least RMS of the channels' mean; less would be amplified rounding errors."""
QUIET_RMS = 0.01
CLIPPED_SHARE = 1e-3
NOISY_DB = 20.0
"""Below, replies reproduce the background."""
MUSIC_DB, MUSIC_FLATNESS = 26.0, 0.33
PACES_BYTES_PER_S = (3.0, 50.0)
"""UTF-8 bytes: speech has 8 to 25 in most languages, up to 45 in fast Hindi or Thai."""


def prepare(
    audio: bytes, spec: MelSpec, level: float, checkpoint: Callable[[], None] = lambda: None
) -> Features:
    """Decode, trim, level to an RMS of at least `level`, resample and transform.

    `checkpoint` may raise to stop. Raises InvalidReference for audio that cannot be decoded, is silent, too
    long, or whose channels cancel.
    """
    recording = decode(audio)
    checkpoint()
    recording = trim(recording)
    checkpoint()
    wave = recording.mono()
    rms = float(np.sqrt(np.mean(np.square(wave, dtype=np.float64))))
    if rms < MIN_RMS:  # though `trim` refuses audio that is quiet in every channel
        raise InvalidReference(
            FIELD,
            f"has channels that cancel each other (RMS {rms:.6f} of full scale when mixed): send one of them",
        )
    found = warnings(recording, wave, rms)
    if rms < level:
        wave = wave * np.float32(level / rms)
    samples = resample(wave, recording.rate_hz, spec.sample_rate_hz)
    checkpoint()
    return Features(samples, log_mel(samples, spec), rms, found)


def complete_transcript(transcript: str) -> str:
    """Add upstream's ending: ". " or "。"."""
    if transcript.endswith((". ", "。")):
        return transcript
    return transcript + (" " if transcript.endswith(".") else ". ")


def trim(recording: Recording) -> Recording:
    """Shorten pauses over 2 s, cut silent edges, append 50 ms of silence, all as upstream.

    Raises InvalidReference for silence, or when more than 12 s remain.
    """
    kept = _without_pauses(recording, LONG_PAUSES)
    if kept.duration_ms > MAX_REFERENCE_MS:
        kept = _without_pauses(recording, SHORT_PAUSES)
    if kept.samples.itemsize == 1:  # pydub widens 8-bit audio when it joins it to its 16-bit silence
        kept = Recording(kept.samples.astype(np.int16) << 8, kept.rate_hz)
    spoken = kept.cut(leading_silence_ms(kept, EDGE_DBFS), kept.duration_ms)
    end = spoken.duration_ms - leading_silence_ms(spoken.reversed(), EDGE_DBFS)
    if end != spoken.duration_ms:
        spoken = spoken.cut(0, end)
    if spoken.duration_ms < MIN_REFERENCE_MS:
        raise _silent()
    if spoken.duration_ms > MAX_REFERENCE_MS:
        raise InvalidReference(
            FIELD,
            f"lasts {spoken.duration_ms / 1000:.1f} s without its silences, "
            f"at most {MAX_REFERENCE_MS / 1000:.0f} s are allowed: cut it, and its transcript with it",
        )
    return concatenate([spoken, _closing_silence(spoken)])


def warnings(recording: Recording, wave: NDArray[np.float32], rms: float) -> tuple[str, ...]:
    """Reasons for a poor voice, as sentences; `wave` is the mean of the trimmed channels."""
    found = []
    behind = background(wave[: -len(_closing_silence(recording).samples)], recording.rate_hz)
    if recording.duration_ms < SHORT_MS:
        found.append(
            f"only {recording.duration_ms / 1000:.1f} s of speech: {SHORT_MS / 1000:.0f} to "
            f"{MAX_REFERENCE_MS / 1000:.0f} s give a more faithful voice"
        )
    if rms < QUIET_RMS:
        found.append(f"very quiet (RMS {rms:.4f} of full scale): its noise is raised together with the voice")
    limit = recording.full_scale - 1
    clipped = float(np.mean((recording.samples >= limit) | (recording.samples <= -limit)))
    if clipped > CLIPPED_SHARE:
        found.append(f"clipped: {clipped:.1%} of its samples are at full scale")
    if behind and behind.below_db < MUSIC_DB and behind.flatness < MUSIC_FLATNESS:
        found.append("music or a hum behind the voice, which replies take over: record the voice alone")
    elif behind and behind.below_db < NOISY_DB:
        found.append(f"noisy: only {behind.below_db:.0f} dB from the voice to what is behind it")
    return tuple(found)


def transcript_warnings(transcript: str, duration_s: float) -> tuple[str, ...]:
    """Replies adopt the pace."""
    pace = len(transcript.encode()) / duration_s
    if PACES_BYTES_PER_S[0] <= pace <= PACES_BYTES_PER_S[1]:
        return ()
    lack, effect = ("lacks words", "slow") if pace < PACES_BYTES_PER_S[0] else ("has words too many", "fast")
    return (
        f"the transcript probably {lack}: {len(transcript)} characters for {duration_s:.1f} s of speech; "
        f"replies will be too {effect}",
    )


def resample(wave: NDArray[np.float32], rate_hz: int, to_rate_hz: int) -> NDArray[np.float32]:
    """(samples,), as many as torchaudio's, since the frame count depends on it."""
    if rate_hz == to_rate_hz:
        return wave
    length = math.ceil(len(wave) * to_rate_hz / rate_hz)
    converted = soxr.resample(wave, rate_hz, to_rate_hz, quality="VHQ")[:length]
    return np.pad(converted, (0, length - len(converted))).astype(np.float32, copy=False)


def _without_pauses(recording: Recording, pauses: Silence) -> Recording:
    kept = split_on_silence(recording, pauses)
    if not kept:
        raise _silent()
    return concatenate(kept)


def _closing_silence(recording: Recording) -> Recording:
    # pydub makes 551 samples at 11,025 Hz and converts the rate.
    frames = 550 * recording.rate_hz // 11_025 + 1
    return Recording(
        np.zeros_like(recording.samples, shape=(frames, recording.samples.shape[1])), recording.rate_hz
    )


def _silent() -> InvalidReference:
    return InvalidReference(FIELD, "is silent: nothing in it is louder than -42 dBFS for a tenth of a second")
