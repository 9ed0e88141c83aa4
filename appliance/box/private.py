"""Folders that are root's alone.

What root writes down and later acts on – a baseline to restore, a wish to leave clocks alone – must not be
something that the daemon's user or a technician's could have put there.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from appliance.box.root import Root

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def private_folder(root: Root, path: str) -> Path:
    """Where the folder lies; made, for its owner only, when absent.

    Raises PermissionError when it is somebody else's, OSError when it cannot be made.
    """
    place = _place(root, path)
    # The folder above is made as others are: what lies beside may be for all to read.
    place.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
    _insist(place, path, stat.S_ISDIR, "folder")
    return place


def is_private_file(root: Root, path: str) -> bool:
    """Whether there is a file that only root can have written, in a folder of which the same holds.

    False when there is nothing. Raises PermissionError when it is somebody else's.
    """
    place = _place(root, path)
    try:
        _insist(place.parent, str(PurePosixPath(path).parent), stat.S_ISDIR, "folder")
        _insist(place, path, stat.S_ISREG, "file")
    except FileNotFoundError:
        return False
    return True


def _place(root: Root, path: str) -> Path:
    """The path itself: should it be a link, the link."""
    pure = PurePosixPath(path)
    return root.at(str(pure.parent)) / pure.name


def _insist(place: Path, path: str, is_kind: Callable[[int], bool], kind: str) -> None:
    info = os.lstat(place)
    if not is_kind(info.st_mode):
        raise PermissionError(f"{path} is no {kind} of its own: remove it")
    if info.st_uid not in (0, os.geteuid()) or info.st_mode & OTHERS_WRITE:
        raise PermissionError(
            f"{path} belongs to user {info.st_uid} with mode {stat.S_IMODE(info.st_mode):o}, "
            "so others than root may have written it: remove it"
        )
