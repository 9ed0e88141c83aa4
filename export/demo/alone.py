"""One run at a time writes to a folder: two would write into each other's files, and nothing would say so."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold `folder`, made where it is missing, to the end of the block or of the process.

    Raises ValueError: another run holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(
                f"{folder}: another run is writing there; wait for its end, or stop it"
            ) from error
        yield
    finally:
        os.close(handle)
