"""Read-only table of byte strings in a file. A look-up reads only two places of the file.

A digest of kind and key decides the place: its first two bytes are the number of a bucket, of 65,536, and the
next four are the key's mark within the bucket. A bucket is a list of records: mark, size of the value (one
byte), value.
"""

from __future__ import annotations

import os
import struct
import weakref
from hashlib import blake2b
from pathlib import Path

MAGIC = b"f5phones 1\n".ljust(16)
STARTS = struct.Struct("<II")
"""Offsets of a bucket and of the next one, of four bytes each. They stand after MAGIC."""
ENGLISH = Path(__file__).with_name("english.bin")


def place(kind: str, key: str) -> tuple[int, bytes]:
    """Bucket and mark of a key.

    Keys are not stored. The chance that an unknown key has the mark of a stored one is about one in a
    billion.
    """
    digest = blake2b(f"{kind}{key}".encode("utf-8", "replace"), digest_size=6).digest()
    return digest[0] | digest[1] << 8, digest[2:]


class Table:
    """An open table. Thread-safe."""

    def __init__(self, path: Path) -> None:
        """Open a file. Raises OSError, and ValueError if the format is different."""
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
