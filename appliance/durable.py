"""Files that survive a power cut, the lock of a folder, and whether a file has changed."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

AT_FDCWD = -100
RENAME_EXCHANGE = 2
"""Of <linux/fs.h>."""


def write_synced(path: Path, data: bytes) -> None:
    """Write a file and its data to the disk; its name needs `sync_folder`. Raises OSError."""
    with path.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames and new files in a folder survive a power cut. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange(one: Path, other: Path) -> None:
    """Let two names, of files, folders or links, trade places in one rename. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one))


def version_of(path: Path) -> tuple[int, int, int] | None:
    """Another value whenever the file was written or replaced; None where it cannot be found."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


@contextlib.contextmanager
def locked(folder: Path, operation: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a folder's lock against other threads and processes; it ends with its holder. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)
