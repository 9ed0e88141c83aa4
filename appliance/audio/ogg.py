"""Ogg Opus → the packets inside it, for clients that decode Opus and read no Ogg (RFC 3533, RFC 7845)."""

from __future__ import annotations

import struct

HEAD_BYTES = 27
"""Length of a page's header before the table of its segments' lengths."""
FULL_SEGMENT = 255
"""A segment of this length is followed by more of its packet."""
HEADERS = 2
"""Packets that are no audio: OpusHead and OpusTags."""


class OpusPackets:
    """A stream of Ogg pages, cut anywhere → each audio packet behind its length as little-endian int32."""

    def __init__(self) -> None:
        self._pages = b""
        self._packet = b""
        self._packets = 0

    def push(self, pages: bytes) -> bytes:
        """Take the next bytes; give the packets that are complete."""
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
