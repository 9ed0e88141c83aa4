"""Audio file → integer samples: wav, flac, ogg and mp3 of any usual rate, refused early when unfit."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import soundfile

from appliance.audio.recording import Recording
from appliance.errors import InvalidReference

MAX_BYTES = 16 << 20
MAX_DURATION_S = 60.0
"""Before silence is cut; enough to find a 12-second reference in, and quick to decode."""
RATES_HZ = (8_000, 192_000)
MAX_CHANNELS = 2
FORMATS = ("WAV", "WAVEX", "RF64", "FLAC", "OGG", "MP3")
FIELD = "audio"
UNKNOWN_FRAMES = (1 << 63) - 1
"""What libsndfile says of a stream whose header has no length."""

_BYTES_OF_SUBTYPE = {"PCM_S8": 1, "PCM_U8": 1, "PCM_24": 4, "PCM_32": 4, "FLOAT": 4, "DOUBLE": 4}
"""Width of the samples that upstream would get; everything else, lossy codecs too, has 2 bytes."""
_UNKNOWN_SIZES = (0, 0x7FFFFFFF, 0xFFFFFFFF)
"""What writers put into a header whose length they did not know."""


def decode(audio: bytes, *, max_bytes: int = MAX_BYTES, max_duration_s: float = MAX_DURATION_S) -> Recording:
    """The samples of a whole file. Size, format and duration are judged by its header, before decoding.

    Raises InvalidReference saying what is wrong: empty, too large, not audio, another format, too long, a
    rate or number of channels outside the allowed ones, cut off, damaged.
    """
    if not audio:
        raise InvalidReference(FIELD, "is empty")
    if len(audio) > max_bytes:
        raise InvalidReference(FIELD, f"has {len(audio)} bytes, at most {max_bytes} are allowed")
    try:
        with soundfile.SoundFile(io.BytesIO(audio)) as file:
            _check_header(file, max_duration_s)
            _check_whole(audio, file.format)
            recording = Recording(_read(file), file.samplerate)
            expected = file.frames
    except soundfile.SoundFileError as error:
        raise InvalidReference(
            FIELD, f"is not audio that can be read ({_reason(error)}): send {_FORMATS}"
        ) from error
    if not len(recording.samples):
        raise InvalidReference(FIELD, "holds no samples")
    if len(recording.samples) < expected:
        raise _cut_off(f"{len(recording.samples)} of {expected} samples can be read")
    return recording


_FORMATS = "wav, flac, ogg or mp3"


def _check_header(file: Any, max_duration_s: float) -> None:
    if file.format not in FORMATS:
        raise InvalidReference(FIELD, f"has format {file.format}, allowed are {_FORMATS}")
    if not RATES_HZ[0] <= file.samplerate <= RATES_HZ[1]:
        allowed = f"{RATES_HZ[0]} to {RATES_HZ[1]}"
        raise InvalidReference(FIELD, f"has {file.samplerate} samples a second, allowed are {allowed}")
    if file.channels > MAX_CHANNELS:
        raise InvalidReference(FIELD, f"has {file.channels} channels, at most {MAX_CHANNELS} are allowed")
    if file.frames >= UNKNOWN_FRAMES:
        raise InvalidReference(
            FIELD, "does not say how long it is: save it once more as a file, not a stream"
        )
    if file.frames > max_duration_s * file.samplerate:
        duration_s = file.frames / file.samplerate
        raise InvalidReference(FIELD, f"lasts {duration_s:.0f} s, at most {max_duration_s:.0f} s are allowed")


def _read(file: Any) -> Any:
    """(frames, channels) in the integer type that upstream would decode to."""
    width = _BYTES_OF_SUBTYPE.get(file.subtype, 2)
    if file.subtype.startswith("PCM"):
        samples = file.read(dtype="int32" if width == 4 else "int16", always_2d=True)
        return (samples >> 8).astype(np.int8) if width == 1 else samples
    scale = 1 << (8 * width - 1)
    wave = np.nan_to_num(file.read(dtype="float64", always_2d=True), nan=0.0, posinf=1.0, neginf=-1.0)
    return np.clip(np.rint(wave * scale), -scale, scale - 1).astype(f"int{8 * width}")


def _check_whole(audio: bytes, format: str) -> None:
    """The decoder passes over files that end too early; their containers tell."""
    if format in ("WAV", "WAVEX"):
        promised, found = _wav_data_bytes(audio)
        if found < promised:
            raise _cut_off(f"{found} of {promised} bytes of samples are there")
    if format == "OGG" and _last_ogg_page_lacks(audio):
        raise _cut_off("its last page is incomplete")


def _wav_data_bytes(audio: bytes) -> tuple[int, int]:
    """(promised, found) bytes of a WAV file's samples; equal where the header does not know."""
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


def _reason(error: Exception) -> str:
    return str(getattr(error, "error_string", error)).rstrip(". ")
