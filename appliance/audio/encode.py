"""Float samples → bytes: rate conversion, 16-bit PCM, the WAV header."""

from __future__ import annotations

import struct

import numpy as np
import soxr
from numpy.typing import NDArray

from appliance.errors import InvalidRequest
from appliance.job import Encoding

RATES_HZ = (8_000, 48_000)
"""Lowest and highest sample rate that can be asked for."""
PCM_SCALE = 32_767
BYTES_PER_SAMPLE = 2
UNKNOWN_SIZE = 0xFFFFFFFF
"""In the header of a stream, whose length its first packet cannot know; readers then read to the end."""


def check_rate(rate_hz: int, field: str = "audio_config.sample_rate_hertz") -> int:
    """The rate, if audio can be made at it. Raises InvalidRequest naming the allowed ones."""
    if not RATES_HZ[0] <= rate_hz <= RATES_HZ[1]:
        raise InvalidRequest(field, f"must be from {RATES_HZ[0]} to {RATES_HZ[1]} Hz, not {rate_hz}")
    return rate_hz


class Resampler:
    """Converts the rate of a stream; what it gives in all does not depend on how the stream was cut."""

    def __init__(self, rate_hz: int, to_rate_hz: int) -> None:
        self._stream = (
            None
            if rate_hz == to_rate_hz
            else soxr.ResampleStream(rate_hz, to_rate_hz, 1, dtype="float32", quality="VHQ")
        )

    def push(self, samples: NDArray[np.float32], *, last: bool = False) -> NDArray[np.float32]:
        """Take the next (samples,); give those at the new rate that are final. `last` gives out all."""
        if self._stream is None:
            return samples
        converted: NDArray[np.float32] = self._stream.resample_chunk(
            np.ascontiguousarray(samples, np.float32), last=last
        )
        return converted


class Encoder:
    """Encodes a stream packet by packet. The header of a WAV is in front of the first one's samples."""

    def __init__(self, encoding: Encoding, rate_hz: int) -> None:
        self._head = wav_header(rate_hz) if encoding is Encoding.WAV else b""

    def push(self, samples: NDArray[np.float32]) -> bytes:
        """The bytes of the next (samples,) at the rate of the stream."""
        head, self._head = self._head, b""
        return head + pcm16(samples)


def encode(samples: NDArray[np.float32], encoding: Encoding, rate_hz: int) -> bytes:
    """A whole reply; its samples' bytes equal those of the stream of the same samples."""
    head = wav_header(rate_hz, len(samples)) if encoding is Encoding.WAV else b""
    return head + pcm16(samples)


def pcm16(samples: NDArray[np.float32]) -> bytes:
    """16-bit little-endian: clipped to ±1, times 32,767, rounded to nearest with halves to even."""
    scaled = np.clip(samples, -1.0, 1.0) * PCM_SCALE
    return np.rint(scaled, out=scaled).astype("<i2").tobytes()


def wav_header(rate_hz: int, samples: int | None = None) -> bytes:
    """44 bytes in front of 16-bit mono samples; `samples` None: as many as come."""
    size = UNKNOWN_SIZE if samples is None else samples * BYTES_PER_SAMPLE
    riff_size = UNKNOWN_SIZE if samples is None else 36 + size
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", riff_size, b"WAVE"),
        *(b"fmt ", 16, 1, 1, rate_hz, rate_hz * BYTES_PER_SAMPLE, BYTES_PER_SAMPLE, 16),
        *(b"data", size),
    )
