"""Atomic, durable publication of files and folders."""

from __future__ import annotations

import os
from pathlib import Path


def publish(made: Path, place: Path) -> None:
    """Sync a file or folder tree to disk, then rename it to `place` on the same file system.

    Replaces a file at `place`. Raises OSError, also for a non-empty folder at `place`.
    """
    for path in (made, *made.rglob("*")):
        _sync(path)
    os.replace(made, place)
    _sync(place.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
