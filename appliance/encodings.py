"""Encodings of audio. To add one, add a row here, a number in appliance.proto and a format in compress.py."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Literal


class Encoding(enum.Enum):
    WAV = "wav"
    """RIFF header, then PCM16."""
    PCM16 = "pcm16"
    """16-bit little-endian mono, without a header."""
    FLAC = "flac"
    MP3 = "mp3"
    OGG_OPUS = "ogg_opus"
    MULAW = "mulaw"
    """8-bit G.711 μ-law, without a header."""
    ALAW = "alaw"
    """8-bit G.711 A-law, without a header."""


EncodingName = Literal["wav", "pcm16", "flac", "mp3", "ogg_opus", "mulaw", "alaw"]
SUFFIXES: Mapping[str, EncodingName] = {
    ".wav": "wav",
    ".flac": "flac",
    ".mp3": "mp3",
    ".opus": "ogg_opus",
    ".ogg": "ogg_opus",
    ".ulaw": "mulaw",
    ".alaw": "alaw",
    ".pcm": "pcm16",
}
"""Suffix of a file → encoding."""
