"""Audio file (wav, flac, ogg, mp3) → integer samples."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import soundfile

from appliance.errors import InvalidReference
from appliance.voices.recording import Recording

MAX_DURATION_S = 60.0
"""Before silence is cut: ample for a 12-second reference."""
MAX_SAMPLES = 60 * 48_000 * 2
"""Over all channels: a minute of 48 kHz stereo. Decoding and trimming them takes under 100 MB."""
BLOCK_FRAMES = 1 << 16
RATES_HZ = (8_000, 192_000)
MAX_CHANNELS = 2
FORMATS = ("WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3")
FIELD = "audio"
UNKNOWN_FRAMES = (1 << 63) - 1
"""libsndfile's count without a length in the header."""

_BYTES_OF_SUBTYPE = {"PCM_S8": 1, "PCM_U8": 1, "PCM_24": 4, "PCM_32": 4, "FLOAT": 4, "DOUBLE": 4}
"""Sample width in upstream; all other subtypes, lossy ones too, have 2 bytes."""
_UNKNOWN_SIZES = (0, 0x7FFFFFFF, 0xFFFFFFFF)
"""Data sizes in headers of unknown length."""


def decode(audio: bytes) -> Recording:
    """Decode a whole file, after checking its header.

    Raises InvalidReference for a file that is no audio, damaged, cut off, too long, or of another format,
    codec, rate or number of channels than allowed.
    """
    if not audio:
        raise InvalidReference(FIELD, f"is empty: send {_FORMATS}")
    try:
        with soundfile.SoundFile(io.BytesIO(audio)) as file:
            _check_header(file)
            _check_complete(audio, file.format)
            recording = Recording(_read(file), file.samplerate)
            expected = file.frames
    except soundfile.SoundFileError as error:
        reason = str(getattr(error, "error_string", error)).rstrip(". ")
        raise InvalidReference(FIELD, f"is not audio that can be read ({reason}): send {_FORMATS}") from error
    if not len(recording.samples):
        raise InvalidReference(FIELD, "holds no samples")
    if len(recording.samples) < expected:
        raise _cut_off(f"{len(recording.samples)} of {expected} samples can be read")
    return recording


_FORMATS = "wav, flac, ogg or mp3"


def _check_header(file: Any) -> None:
    rate_hz, channels = file.samplerate, file.channels
    if file.format not in FORMATS:
        raise InvalidReference(FIELD, f"has format {file.format}, allowed are {_FORMATS}")
    if not file.seekable():
        # GSM 6.10, G.721 and NMS ADPCM, which libsndfile only reads sequentially.
        raise InvalidReference(FIELD, f"has samples of kind {file.subtype}: save it as 16-bit PCM")
    if not RATES_HZ[0] <= rate_hz <= RATES_HZ[1]:
        allowed = f"{RATES_HZ[0]} to {RATES_HZ[1]}"
        raise InvalidReference(FIELD, f"has {rate_hz} samples a second, allowed are {allowed}")
    if channels > MAX_CHANNELS:
        raise InvalidReference(FIELD, f"has {channels} channels, at most {MAX_CHANNELS} are allowed")
    if file.frames >= UNKNOWN_FRAMES:
        raise InvalidReference(
            FIELD, "does not say how long it is: save it once more as a file, not a stream"
        )
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


def _check_complete(audio: bytes, format: str) -> None:
    """Check the container's length: the decoder accepts files that end too early."""
    if format in ("WAV", "WAVEX"):
        promised, found = _wav_data_bytes(audio)
        if found < promised:
            raise _cut_off(f"{found} of {promised} bytes of samples are there")
    if format == "OGG" and _last_ogg_page_lacks(audio):
        raise _cut_off("its last page is incomplete")


def _wav_data_bytes(audio: bytes) -> tuple[int, int]:
    """(promised, found) bytes of a WAV file's samples; equal where the header has no length."""
    position, chunk = 12, struct.Struct(">4sI" if audio.startswith(b"RIFX") else "<4sI")
    while position + chunk.size <= len(audio):
        name, size = chunk.unpack_from(audio, position)
        position += chunk.size
        if name == b"data":
            found = len(audio) - position
            return (found, found) if size in _UNKNOWN_SIZES else (size, found)
        position += size + size % 2
    return 0, 0


def _last_ogg_page_lacks(audio: bytes) -> bool:
    start = audio.rfind(b"OggS")
    if start + 27 > len(audio):
        return True
    segments = audio[start + 26]
    body = start + 27 + segments
    return body + sum(audio[start + 27 : body]) > len(audio)


def _cut_off(how: str) -> InvalidReference:
    return InvalidReference(FIELD, f"is cut off: {how}; send the whole file")
