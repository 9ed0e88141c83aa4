"""Float samples → bytes: rate conversion and 16-bit PCM. Other formats are in wav.py and compress.py."""

from __future__ import annotations

import struct

import numpy as np
import soxr
from numpy.typing import NDArray

from appliance.audio import compress
from appliance.audio.marking import MARK
from appliance.audio.wav import wav_file, wav_header
from appliance.encodings import Encoding
from appliance.errors import InvalidRequest, UnsupportedEncoding

RATES_HZ = (8_000, 48_000)
PCM_SCALE = 32_767


def check_encoding(encoding: Encoding, field: str = "audio_config.encoding") -> Encoding:
    """Return the encoding. Raises UnsupportedEncoding, which names the available ones."""
    if not compress.is_available(encoding):
        names = ", ".join(one.name for one in Encoding if compress.is_available(one))
        raise UnsupportedEncoding(
            f"{field}: {encoding.name} cannot be written by this machine's libsndfile; use {names}"
        )
    return encoding


def check_rate(rate_hz: int, encoding: Encoding, field: str = "audio_config.sample_rate_hertz") -> int:
    """Return the rate. Raises InvalidRequest, which names the allowed rates."""
    if not RATES_HZ[0] <= rate_hz <= RATES_HZ[1]:
        raise InvalidRequest(field, f"must be from {RATES_HZ[0]} to {RATES_HZ[1]} Hz, not {rate_hz}")
    form = compress.FORMATS.get(encoding)
    if form and form.rates_hz and rate_hz not in form.rates_hz:
        allowed = ", ".join(str(rate) for rate in form.rates_hz)
        raise InvalidRequest(field, f"must be one of {allowed} Hz for {encoding.name}, not {rate_hz}")
    return rate_hz


class Resampler:
    """Converts the sample rate. The output does not depend on how the samples are cut into chunks."""

    def __init__(self, rate_hz: int, to_rate_hz: int) -> None:
        self._stream = None
        if rate_hz != to_rate_hz:
            self._stream = soxr.ResampleStream(rate_hz, to_rate_hz, 1, dtype="float32", quality="VHQ")

    def push(self, samples: NDArray[np.float32], *, last: bool = False) -> NDArray[np.float32]:
        """Convert the next (samples,); `last` also converts everything held back."""
        if self._stream is None:
            return samples
        converted: NDArray[np.float32] = self._stream.resample_chunk(
            np.ascontiguousarray(samples, np.float32), last=last
        )
        return converted


class Encoder:
    """Encodes samples of a stream. The header of a WAV precedes the first samples."""

    def __init__(self, encoding: Encoding, rate_hz: int, mark: str = MARK) -> None:
        self.rate_hz, self.compresses = rate_hz, encoding in compress.FORMATS
        self._head = wav_header(rate_hz, mark=mark) if encoding is Encoding.WAV else b""
        self._compressor = compress.Compressor(encoding, rate_hz, mark) if self.compresses else None

    def push(self, samples: NDArray[np.float32], *, last: bool = False) -> bytes:
        """Encode the next (samples,); `last` also encodes everything held back."""
        return self.push_pcm16(_int16(samples), last=last)

    def push_pcm16(self, samples: NDArray[np.int16], *, last: bool = False) -> bytes:
        """Encode 16-bit samples; see `push`."""
        if self._compressor is not None:
            return self._compressor.push(samples, last=last)
        head, self._head = self._head, b""
        return head + samples.tobytes()


def encode(samples: NDArray[np.float32], encoding: Encoding, rate_hz: int, mark: str = MARK) -> bytes:
    """Audio of a stream as a file, with its length in the header."""
    if encoding in compress.FORMATS:
        return compress.Compressor(encoding, rate_hz, mark).whole(_int16(samples))
    pcm = pcm16(samples)
    return wav_file(pcm, rate_hz, mark) if encoding is Encoding.WAV else pcm


def as_file(stream: bytes, samples: int) -> bytes:
    """Write the length of a streamed WAV or FLAC, in samples, into its header."""
    if stream.startswith(b"fLaC"):
        rate_and_samples = int.from_bytes(stream[18:26], "big") | samples
        return stream[:18] + rate_and_samples.to_bytes(8, "big") + stream[26:]
    begin = stream.index(b"data")
    size = struct.pack("<I", len(stream) - 8)
    pcm = stream[begin + 8 :]
    # The mark follows the samples, as in every file.
    return b"RIFF" + size + stream[8:36] + b"data" + struct.pack("<I", len(pcm)) + pcm + stream[36:begin]


def pcm16(samples: NDArray[np.float32]) -> bytes:
    """16-bit little-endian samples: clipped to ±1, times 32,767, rounded half to even."""
    return _int16(samples).tobytes()


def _int16(samples: NDArray[np.float32]) -> NDArray[np.int16]:
    scaled = np.clip(samples, -1.0, 1.0) * PCM_SCALE
    return np.rint(scaled, out=scaled).astype("<i2")
