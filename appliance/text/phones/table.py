"""Read-only table of byte strings by kind and key, in a file of which only what is asked for is read.

The first two bytes of a key's digest are its bucket, of 65,536; the next four are its mark within the bucket.
A record of a bucket is the mark, the value's size in one byte, and the value.
"""

from __future__ import annotations

import os
import struct
import weakref
from hashlib import blake2b
from pathlib import Path

MAGIC = b"f5phones 1\n".ljust(16)
STARTS = struct.Struct("<II")
"""Offsets of a bucket and of the next one. All offsets follow MAGIC, four bytes each."""
ENGLISH = Path(__file__).with_name("english.bin")


def place(kind: str, key: str) -> tuple[int, bytes]:
    """Bucket and mark of a key.

    Keys are not stored, so a string that is no key matches one with a chance of about one in a billion.
    """
    digest = blake2b(f"{kind}{key}".encode("utf-8", "replace"), digest_size=6).digest()
    return digest[0] | digest[1] << 8, digest[2:]


class Table:
    """The mapped file. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, and ValueError for a file of another format."""
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        if (begin := self._read(0, len(MAGIC))) != MAGIC:
            raise ValueError(f"{path}: begins with {begin!r}, not {MAGIC!r}")

    def _read(self, at: int, size: int) -> bytes:
        return os.pread(self._descriptor, size, at)

    def get(self, kind: str, key: str) -> bytes | None:
        bucket, mark = place(kind, key)
        start, end = STARTS.unpack(self._read(len(MAGIC) + 4 * bucket, STARTS.size))
        data, at = self._read(start, end - start), 0
        while at < len(data):
            size = data[at + 4]
            if data[at : at + 4] == mark:
                return data[at + 5 : at + 5 + size]
            at += 5 + size
        return None
