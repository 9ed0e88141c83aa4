"""Exclusive lock of an output folder, so that two runs do not overwrite each other's files."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from appliance.durable import locked


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Create `folder` if missing and lock it until the block ends. Raises ValueError if it is locked."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise ValueError(
                f"{folder}: another run is writing there; wait for its end, or stop it"
            ) from error
        yield
