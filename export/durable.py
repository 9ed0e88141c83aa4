"""Files and folders that are whole under their name or absent, even when the power is cut."""

from __future__ import annotations

import os
from pathlib import Path


def publish(made: Path, place: Path) -> None:
    """Sync a file or a folder with all that is in it, then rename it to `place` on the same file system.

    A file at `place` is replaced. Raises OSError: also when `place` is a folder with something in it.
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
