"""Streaming encoders by soundfile's libsndfile, imported at its first use because it takes 2 MB."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.audio.marking import MARK
from appliance.audio.tags import id3_tag
from appliance.encodings import Encoding


@dataclass(frozen=True)
class Format:
    container: str
    codec: str
    rates_hz: tuple[int, ...] = ()
    """Allowed sample rates; empty allows any."""
    level: float | None = None
    """Compression level of libsndfile."""
    bitrate_mode: str | None = None


FORMATS: dict[Encoding, Format] = {
    # Blocks of 1,152 samples. From level 3 (of 8) on blocks have 4,096, half a second at 8 kHz.
    Encoding.FLAC: Format("FLAC", "PCM_16", level=0.25),
    # The rate is constant, because players estimate the length of a stream from its first frames.
    Encoding.MP3: Format(
        "MP3",
        "MPEG_LAYER_III",
        (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000),
        level=0.5,
        bitrate_mode="CONSTANT",
    ),
    Encoding.OGG_OPUS: Format("OGG", "OPUS", (8_000, 12_000, 16_000, 24_000, 48_000)),
    Encoding.MULAW: Format("RAW", "ULAW"),
    Encoding.ALAW: Format("RAW", "ALAW"),
}
COMMENTED = (Encoding.FLAC, Encoding.OGG_OPUS)
"""Formats whose Vorbis comment libsndfile writes before the first sample."""
SET_OGG_PAGE_LATENCY_MS = 0x1302
"""Number of libsndfile's command of that name, which soundfile lacks."""
OGG_PAGE_MS = 50.0
"""Audio in an Ogg page, in milliseconds: libsndfile's minimum. Its default of a second would delay the stream
by a second.
"""


def is_available(encoding: Encoding) -> bool:
    """False if libsndfile is too old for MP3 or Opus."""
    if (form := FORMATS.get(encoding)) is None:
        return True
    import soundfile

    return bool(soundfile.check_format(form.container, form.codec))


class Compressor:
    """Encodes samples. The output does not depend on how they are cut into chunks."""

    def __init__(self, encoding: Encoding, rate_hz: int, mark: str = MARK) -> None:
        """Raises soundfile.SoundFileError for an unsupported rate."""
        import soundfile

        form = FORMATS[encoding]
        self._sink = _Sink()
        self._is_mp3 = encoding is Encoding.MP3
        self._file: Any = soundfile.SoundFile(
            *(self._sink, "w", rate_hz, 1, form.codec, None, form.container),
            compression_level=form.level,
            bitrate_mode=form.bitrate_mode,
        )
        if encoding is Encoding.OGG_OPUS:
            page_ms = soundfile._ffi.new("double *", OGG_PAGE_MS)
            soundfile._snd.sf_command(self._file._file, SET_OGG_PAGE_LATENCY_MS, page_ms, 8)
        if mark and encoding in COMMENTED:
            self._file.comment = mark
        self._head = id3_tag(mark) if self._is_mp3 else b""
        self._begun = False

    def push(self, samples: NDArray[np.int16], *, last: bool = False) -> bytes:
        """Encode the next (samples,); `last` also encodes everything held back."""
        if len(samples):
            self._file.write(samples)
        # This comes before `close` rewrites the header: a stream has sent the first one already.
        data = self._sink.take()
        # An MP3 begins with a frame of zeros, which `close` would replace by the file's length. A decoder
        # would play the frame as 24 ms of silence.
        if self._is_mp3 and data and not self._begun and not any(data[4:40]):
            data = data[4:].lstrip(b"\0")
        if last:
            self._file.close()
            data += self._sink.take()
        if data and not self._begun:
            data, self._begun = self._head + data, True
        return data

    def whole(self, samples: NDArray[np.int16]) -> bytes:
        """A file of all (samples,), with its length if the format has a field for it."""
        self._file.write(samples)
        self._file.close()
        return self._head + self._sink.getvalue()


class _Sink(io.BytesIO):
    """File object for libsndfile, which seeks back to the header when it closes."""

    _taken = 0

    def take(self) -> bytes:
        """Bytes since the last call."""
        with self.getbuffer() as written:
            data = bytes(written[self._taken :])
        self._taken += len(data)
        return data
