"""WAV, 16-bit mono."""

from __future__ import annotations

import struct

from appliance.audio.tags import info_chunk

SAMPLE_BYTES = 2
UNKNOWN_SIZE = 0xFFFFFFFF
"""Size in the header of a stream, whose length is unknown."""


def wav_header(rate_hz: int, samples: int | None = None, mark: str = "") -> bytes:
    """Header of a WAV up to the samples. `samples` None: header of a stream, whose length is unknown.

    The header of a stream contains the mark, because after endless samples nobody would find it. In a file
    the mark follows the samples, so the header has 44 bytes, which some clients skip without reading them.
    """
    info = info_chunk(mark)
    size = UNKNOWN_SIZE if samples is None else samples * SAMPLE_BYTES
    riff_size = UNKNOWN_SIZE if samples is None else 36 + size + len(info)
    head = struct.pack(
        "<4sI4s4sIHHIIHH",
        *(b"RIFF", riff_size, b"WAVE"),
        *(b"fmt ", 16, 1, 1, rate_hz, rate_hz * SAMPLE_BYTES, SAMPLE_BYTES, 16),
    )
    return head + (info if samples is None else b"") + struct.pack("<4sI", b"data", size)


def wav_file(pcm: bytes, rate_hz: int, mark: str = "") -> bytes:
    return wav_header(rate_hz, len(pcm) // SAMPLE_BYTES, mark) + pcm + info_chunk(mark)
