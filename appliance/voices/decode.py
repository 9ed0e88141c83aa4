"""Audio file (wav, flac, ogg, mp3) → integer samples."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from appliance.errors import InvalidReference
from appliance.voices.containers import FIELD, FORMATS, UNSAID, check_whole, cut_off, least_samples, untagged
from appliance.voices.recording import Recording

MAX_DURATION_S = 60.0
"""Longest recording, in seconds, before silence is cut. A reference has at most 12 s."""
MAX_SAMPLES = 60 * 48_000 * 2
"""Limit over all channels: a minute of 48 kHz stereo. Decoding and trimming that takes under 100 MB."""
BLOCK_FRAMES = 1 << 16
RATES_HZ = (8_000, 192_000)
MAX_CHANNELS = 2
UNKNOWN_FRAMES = (1 << 63) - 1
"""Count of frames that libsndfile reports if the header has no length."""

_BYTES_OF_SUBTYPE = {"PCM_S8": 1, "PCM_U8": 1, "PCM_24": 4, "PCM_32": 4, "FLOAT": 4, "DOUBLE": 4}
"""Sample width in upstream. All other subtypes, including lossy ones, have 2 bytes."""


def decode(audio: bytes) -> Recording:
    """Decode a whole file, after checking its header.

    Raises InvalidReference for a file that is no audio, damaged, cut off, too long, or of a format, codec,
    rate or number of channels that is not allowed.
    """
    import soundfile  # here, because it takes 2 MB

    if not audio:
        raise InvalidReference(FIELD, f"is empty: send {FORMATS}")
    audio = untagged(audio)
    check_whole(audio)
    try:
        with soundfile.SoundFile(io.BytesIO(audio)) as file:
            _check_header(file)
            recording = Recording(_read(file), file.samplerate)
            expected, unsaid = file.frames, least_samples(audio)
    except soundfile.SoundFileError as error:
        reason = str(getattr(error, "error_string", error)).rstrip(". ")
        raise InvalidReference(FIELD, f"is not audio that can be read ({reason}): send {FORMATS}") from error
    if not len(recording.samples):
        raise InvalidReference(FIELD, "contains no samples")
    if unsaid is not None and len(recording.samples) < unsaid:
        raise InvalidReference(FIELD, UNSAID)
    if unsaid is None and len(recording.samples) < expected:
        raise cut_off(f"{len(recording.samples)} of {expected} samples can be read")
    return recording


def _check_header(file: Any) -> None:
    """Check sample rate, channels and duration before decoding. Raises InvalidReference."""
    rate_hz, channels = file.samplerate, file.channels
    if not file.seekable():
        # GSM 6.10, G.721 and NMS ADPCM, which libsndfile only reads sequentially.
        raise InvalidReference(FIELD, f"has samples of kind {file.subtype}: save it as 16-bit PCM")
    if not RATES_HZ[0] <= rate_hz <= RATES_HZ[1]:
        allowed = f"{RATES_HZ[0]} to {RATES_HZ[1]}"
        raise InvalidReference(FIELD, f"has {rate_hz} samples a second, allowed are {allowed}")
    if channels > MAX_CHANNELS:
        raise InvalidReference(FIELD, f"has {channels} channels, at most {MAX_CHANNELS} are allowed")
    if file.frames >= UNKNOWN_FRAMES:
        raise InvalidReference(FIELD, UNSAID)
    allowed_s = min(MAX_DURATION_S, MAX_SAMPLES / channels / rate_hz)
    if file.frames > allowed_s * rate_hz:
        kind = "" if allowed_s == MAX_DURATION_S else f" with {channels} channels at {rate_hz} Hz"
        raise InvalidReference(
            FIELD, f"lasts {file.frames / rate_hz:.0f} s, at most {allowed_s:.0f} s are allowed{kind}"
        )


def _read(file: Any) -> Any:
    """(frames, channels) in upstream's integer type."""
    width = _BYTES_OF_SUBTYPE.get(file.subtype, 2)
    if file.subtype.startswith("PCM"):
        samples = file.read(dtype="int32" if width == 4 else "int16", always_2d=True)
        return (samples >> 8).astype(np.int8) if width == 1 else samples
    wave = file.read(dtype="float64", always_2d=True)
    scale = 1 << (8 * width - 1)
    samples = np.empty(wave.shape, f"int{8 * width}")
    for start in range(0, len(wave), BLOCK_FRAMES):
        block = np.nan_to_num(wave[start : start + BLOCK_FRAMES], nan=0.0, posinf=1.0, neginf=-1.0)
        samples[start : start + BLOCK_FRAMES] = np.clip(np.rint(block * scale), -scale, scale - 1)
    return samples
