"""Reference audio → Features: trimmed, levelled, resampled, log-mel, as the rule's makers do it, with two
differences.

A reference of more than 12 s after trimming is refused, because F5's code would clip the audio but not its
text. soxr converts rates, in place of torchaudio's short kernel.
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
from appliance.voices.rules import F5, ConditioningRule
from appliance.voices.silence import Silence, leading_silence_ms, split_on_silence

TRIM_VERSION = 1
"""Version of the trimming, part of the cache key. It is increased if a file would give other samples."""

MAX_REFERENCE_MS = 1_000 * MAX_REFERENCE_S
MIN_REFERENCE_MS = 100
LONG_PAUSES = Silence(minimum_ms=1000, threshold_dbfs=-50, keep_ms=1000)
SHORT_PAUSES = Silence(minimum_ms=100, threshold_dbfs=-40, keep_ms=1000)
SILENT_HZ = 11_025
"""Rate at which pydub makes silence."""

MIN_RMS = 0.001
"""Smallest RMS of the channels' mean. Below it, levelling would amplify rounding errors."""
QUIET_RMS = 0.01
CLIPPED_SHARE = 1e-3
NOISY_DB = 20.0
"""Distance in dB from the voice to its background, below which replies reproduce the background."""
MUSIC_DB, MUSIC_FLATNESS = 26.0, 0.33


def prepare(
    audio: bytes,
    spec: MelSpec,
    level: float,
    checkpoint: Callable[[], None] = lambda: None,
    rule: ConditioningRule = F5,
) -> Features:
    """Decode, trim, level to an RMS of at least `level`, resample and transform.

    `checkpoint` may raise to stop. Raises InvalidReference for audio that cannot be decoded, is silent, is
    too long, or whose channels cancel.
    """
    recording = decode(audio)
    if rule.name == "zipvoice":
        recording = converted(recording, spec.sample_rate_hz)
    checkpoint()
    recording = trim(recording, rule)
    checkpoint()
    wave = recording.mono()
    rms = mixed = _rms(wave)
    if mixed < MIN_RMS:  # `trim` refuses only audio that is quiet in every channel
        raise InvalidReference(
            FIELD,
            f"has channels that cancel each other (RMS {mixed:.6f} of full scale when mixed): send one of "
            "them",
        )
    if rule.name == "zipvoice":
        rms = _rms(recording.scaled())
    texts = warnings(recording, wave, rms, rule)
    if rms < level:
        wave = wave * np.float32(level / rms)
    samples = resample(wave, recording.rate_hz, spec.sample_rate_hz)
    checkpoint()
    return Features(samples, log_mel(samples, spec), rms, texts)


def trim(recording: Recording, rule: ConditioningRule = F5) -> Recording:
    """Shorten pauses over 2 s, cut silent edges, append silence.

    Raises InvalidReference for silence, or if more than 12 s remain.
    """
    speech = _without_pauses(recording, LONG_PAUSES, rule)
    if rule.name == "f5" and speech.duration_ms > MAX_REFERENCE_MS:
        speech = _without_pauses(recording, SHORT_PAUSES, rule)
    if speech.samples.itemsize == 1:  # pydub widens 8-bit audio when it joins it to its 16-bit silence
        speech = Recording(speech.samples.astype(np.int16) << 8, speech.rate_hz)
    spoken = _without_edges(speech, rule)
    ends = (spoken, spoken.reversed()) if rule.edge_ms else ()
    silent_ms = sum(leading_silence_ms(end, rule.edge_dbfs) for end in ends)
    if spoken.duration_ms - silent_ms < MIN_REFERENCE_MS:
        raise _silent(rule)
    if spoken.duration_ms > MAX_REFERENCE_MS:
        raise InvalidReference(
            FIELD,
            f"lasts {spoken.duration_ms / 1000:.1f} s without its silences, "
            f"at most {MAX_REFERENCE_MS / 1000:.0f} s are allowed: cut it, and its transcript with it",
        )
    return concatenate([spoken, _closing_silence(spoken, rule)])


def warnings(
    recording: Recording, wave: NDArray[np.float32], rms: float, rule: ConditioningRule = F5
) -> tuple[str, ...]:
    """Reasons why a voice is poor, as sentences. `wave` is the mean of the trimmed channels."""
    texts = []
    behind = background(wave[: -len(_closing_silence(recording, rule).samples)], recording.rate_hz)
    least_s, most_s = rule.advised_s
    if recording.duration_ms < 1000 * least_s:
        texts.append(
            f"only {recording.duration_ms / 1000:.1f} s of speech: {least_s} to {most_s} s give a more "
            "faithful voice"
        )
    elif recording.duration_ms > 1000 * most_s:
        effect = f"over {most_s} s replies take longer and may sound worse"
        texts.append(f"{recording.duration_ms / 1000:.1f} s of speech: {effect}")
    if rms < QUIET_RMS:
        texts.append(f"very quiet (RMS {rms:.4f} of full scale): its noise is raised together with the voice")
    limit = recording.full_scale - 1
    clipped = float(np.mean((recording.samples >= limit) | (recording.samples <= -limit)))
    if clipped > CLIPPED_SHARE:
        texts.append(f"clipped: {clipped:.1%} of its samples are at full scale")
    if behind and behind.below_db < MUSIC_DB and behind.flatness < MUSIC_FLATNESS:
        texts.append("music or a hum behind the voice, which replies take over: record the voice alone")
    elif behind and behind.below_db < NOISY_DB:
        texts.append(f"noisy: only {behind.below_db:.0f} dB from the voice to what is behind it")
    return tuple(texts)


def converted(recording: Recording, rate_hz: int) -> Recording:
    """The recording at another rate, in 16 bits that are rounded towards 0."""
    wave = recording.scaled()
    channels = [resample(channel, recording.rate_hz, rate_hz) for channel in wave.T]
    # In float32, as in ZipVoice: 1.0 less half a step rounds to 1.0.
    whole = np.stack(channels, axis=1) * np.float32(32_768)
    return Recording(whole.clip(-32_768, 32_767).astype(np.int16), rate_hz)


def resample(wave: NDArray[np.float32], rate_hz: int, to_rate_hz: int) -> NDArray[np.float32]:
    """(samples,), as many as torchaudio's, because the frame count depends on their number."""
    if rate_hz == to_rate_hz:
        return wave
    length = math.ceil(len(wave) * to_rate_hz / rate_hz)
    resampled = soxr.resample(wave, rate_hz, to_rate_hz, quality="VHQ")[:length]
    return np.pad(resampled, (0, length - len(resampled))).astype(np.float32, copy=False)


def _rms(samples: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.mean(np.square(samples, dtype=np.float64))))


def _without_pauses(recording: Recording, pauses: Silence, rule: ConditioningRule) -> Recording:
    pieces = split_on_silence(recording, pauses)
    if not pieces:
        raise _silent(rule)
    return concatenate(pieces)


def _without_edges(recording: Recording, rule: ConditioningRule) -> Recording:
    """Recording without silent edges.

    Cuts round to milliseconds: F5's from the beginning, ZipVoice's from each end.
    """
    if rule.name == "zipvoice":
        return _begun(_begun(recording, rule).reversed(), rule).reversed()
    spoken = _begun(recording, rule)
    end = spoken.duration_ms - leading_silence_ms(spoken.reversed(), rule.edge_dbfs)
    return spoken if end == spoken.duration_ms else spoken.cut(0, end)


def _begun(recording: Recording, rule: ConditioningRule) -> Recording:
    silence_ms = leading_silence_ms(recording, rule.edge_dbfs)
    return recording.cut(max(silence_ms - rule.edge_ms, 0), recording.duration_ms)


def _closing_silence(recording: Recording, rule: ConditioningRule) -> Recording:
    # pydub makes silence at its own rate (551 samples for 50 ms), and converts it.
    pydub_samples = SILENT_HZ * rule.tail_ms // 1000
    frames = (pydub_samples - 1) * recording.rate_hz // SILENT_HZ + 1
    return Recording(
        np.zeros_like(recording.samples, shape=(frames, recording.samples.shape[1])), recording.rate_hz
    )


def _silent(rule: ConditioningRule) -> InvalidReference:
    return InvalidReference(
        FIELD, f"is silent: nothing in it is louder than {rule.edge_dbfs:.0f} dBFS for a tenth of a second"
    )
