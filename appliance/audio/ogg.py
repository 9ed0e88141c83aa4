"""Ogg Opus → bare Opus packets, for clients that cannot read Ogg (RFC 3533, RFC 7845)."""

from __future__ import annotations

import struct

HEAD_BYTES = 27
"""Length of a page's header before its table of segment lengths."""
FULL_SEGMENT = 255
"""Length of a segment whose packet continues."""
HEADERS = 2
"""Number of packets without audio: OpusHead and OpusTags."""


class OpusPackets:
    """Converts Ogg pages to audio packets, each preceded by its length as little-endian int32."""

    def __init__(self) -> None:
        self._pages = b""
        self._packet = b""
        self._packets = 0

    def push(self, pages: bytes) -> bytes:
        """Add the next bytes, cut anywhere; return the completed packets."""
        self._pages += pages
        framed = []
        while len(self._pages) >= HEAD_BYTES:
            lengths = self._pages[HEAD_BYTES : HEAD_BYTES + self._pages[HEAD_BYTES - 1]]
            begin = HEAD_BYTES + self._pages[HEAD_BYTES - 1]
            if len(self._pages) < begin + sum(lengths):
                break
            for length in lengths:
                self._packet += self._pages[begin : begin + length]
                begin += length
                if length < FULL_SEGMENT:
                    self._packets += 1
                    if self._packets > HEADERS:
                        framed.append(struct.pack("<i", len(self._packet)) + self._packet)
                    self._packet = b""
            self._pages = self._pages[begin:]
        return b"".join(framed)
