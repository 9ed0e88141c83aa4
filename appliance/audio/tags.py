"""Tags of containers, and the key of headers, that contain the mark of synthetic audio."""

from __future__ import annotations

import struct

SOURCE_TYPE = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
"""IPTC's term for media that a trained model made (NewsCodes, digital source types)."""
KEY = "x-synthetic-audio"
"""Name of the mark in HTTP headers, gRPC metadata, and Wyoming's `audio-start`."""


def info_chunk(mark: str) -> bytes:
    """RIFF chunk LIST/INFO with the mark as ICMT, the comment; b"" for no mark."""
    if not mark:
        return b""
    text = mark.encode("ascii") + b"\0"
    # Chunks begin at even places, so a reader that mistakes this one for samples stays in step.
    body = b"INFOICMT" + struct.pack("<I", len(text)) + text + b"\0" * (len(text) % 2)
    return b"LIST" + struct.pack("<I", len(body)) + body


def id3_tag(mark: str) -> bytes:
    """ID3v2.3 tag with the mark as COMM, the comment; b"" for no mark.

    libsndfile's own tag would not do: it also adds a tag of version 1 at the end, which cuts the comment at
    30 characters, and its encoder's name.
    """
    if not mark:
        return b""
    # Latin-1, English, no description.
    comment = b"\0eng\0" + mark.encode("ascii")
    frame = struct.pack(">4sIH", b"COMM", len(comment), 0) + comment
    size = bytes(len(frame) >> shift & 0x7F for shift in (21, 14, 7, 0))
    return b"ID3\3\0\0" + size + frame
