"""Files and folders that only root can have written: root acts on them, e.g. restores a baseline."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from appliance.box.root import Root

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def private_folder(root: Root, path: str) -> Path:
    """Make the folder with mode 700 unless it is there, and return its path on this machine.

    Raises PermissionError when it belongs to another user, OSError when it cannot be made.
    """
    place = _place(root, path)
    # The folder above has the usual mode: its other files may be public.
    place.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        place.mkdir(mode=0o700)
    _check_owner(place, path, stat.S_ISDIR, "folder")
    return place


def is_private_file(root: Root, path: str) -> bool:
    """True if the file exists; only root can have written it and its folder.

    Raises PermissionError when another user may have written either.
    """
    place = _place(root, path)
    try:
        _check_owner(place.parent, str(PurePosixPath(path).parent), stat.S_ISDIR, "folder")
        _check_owner(place, path, stat.S_ISREG, "file")
    except FileNotFoundError:
        return False
    return True


def _place(root: Root, path: str) -> Path:
    """Resolve all but the last part: a link is checked itself, not its target."""
    pure = PurePosixPath(path)
    return root.at(str(pure.parent)) / pure.name


def _check_owner(place: Path, path: str, is_kind: Callable[[int], bool], kind: str) -> None:
    info = os.lstat(place)
    if not is_kind(info.st_mode):
        raise PermissionError(f"{path} is no {kind} of its own: remove it")
    if info.st_uid not in (0, os.geteuid()) or info.st_mode & OTHERS_WRITE:
        raise PermissionError(
            f"{path} belongs to user {info.st_uid} with mode {stat.S_IMODE(info.st_mode):o}, "
            "so others than root may have written it: remove it"
        )
