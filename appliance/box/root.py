"""Root: the file tree of the box, `/` or a folder that replaces it (F5_SYSROOT).

Kernel attributes are read with plain system calls: a thermal zone without power answers EAGAIN, which
Python's buffered readers turn into a TypeError.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from appliance.durable import replace_file
from appliance.fields import from_mapping

T = TypeVar("T")

READ_BYTES = 1 << 16
MAX_LINKS = 40
MAX_RECORD_BYTES = 1 << 24


def error_text(error: Exception) -> str:
    """Message of an error; of an OSError, without number and path."""
    return (error.strerror if isinstance(error, OSError) else "") or str(error) or "it cannot be used"


def error_location(error: Exception) -> str:
    """File and line of an error, for a bug report."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    return f"{Path(last[0].filename).name}:{last[0].lineno}" if last else "an unknown place"


def parse_int(text: str | None) -> int | None:
    """Integer of a decimal or a 0x… number; None for anything else."""
    match = re.fullmatch(r"-?[0-9]{1,19}|0(x)[0-9a-fA-F]{1,16}", (text or "").strip())
    return int(match[0], 16 if match[1] else 10) if match else None


@dataclass(frozen=True)
class Root:
    """A file tree. Paths and the targets of symbolic links are absolute inside it."""

    folder: Path = Path("/")

    def at(self, path: str) -> Path:
        """Resolve `path` to a path of this machine, following links as a process inside the tree would.

        Raises OSError if links form a loop.
        """
        if self.folder == Path("/"):
            return Path(path)
        # Strings instead of Paths, which are ten times slower here.
        todo = [part for part in reversed(path.split("/")) if part not in ("", ".")]
        top = folder = str(self.folder)
        links = 0
        while todo:
            part = todo.pop()
            here = f"{folder}/{part}"
            if part == "..":
                folder = top if folder == top else folder.rpartition("/")[0]
            elif not os.path.islink(here):
                folder = here
            elif links == MAX_LINKS:
                raise OSError(f"{path}: too many symbolic links")
            else:
                links += 1
                target = os.readlink(here)
                if target.startswith("/"):
                    folder = top
                todo.extend(part for part in reversed(target.split("/")) if part not in ("", "."))
        return Path(folder)

    def read(self, path: str) -> str:
        """Read a file, and strip it. Raises OSError; BlockingIOError for a part without power."""
        if "\0" in path:
            raise OSError(errno.EINVAL, "its name holds a NUL")
        handle = os.open(self.at(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            data = b"".join(iter(lambda: os.read(handle, READ_BYTES), b""))
        finally:
            os.close(handle)
        return data.decode("utf-8", "replace").strip("\0\n\t ")

    def text(self, path: str) -> str | None:
        """Content of a file, stripped; None if it cannot be read."""
        with contextlib.suppress(OSError):
            return self.read(path)
        return None

    def number(self, path: str) -> int | None:
        """Number in a file; None if it holds no whole number or cannot be read."""
        return parse_int(self.text(path))

    def record(self, path: str) -> dict[str, Any]:
        """Read a JSON object. Raises OSError, or ValueError with a readable message."""
        text = self.read(path)
        try:
            raw = json.loads(text) if len(text) <= MAX_RECORD_BYTES else None
        except (ValueError, RecursionError):
            raw = None
        if not isinstance(raw, dict):
            raise ValueError("it is damaged")
        return raw

    def load(self, path: str, kind: type[T]) -> T:
        """Read a JSON object into a dataclass, and ignore other keys. Raises OSError, ValueError."""
        return from_mapping(kind, self.record(path), where=path, error=ValueError, ignore_unknown=True)

    def names(self, folder: str) -> tuple[str, ...]:
        """Names in a folder, cpu2 before cpu10; () if it cannot be read."""
        try:
            names = os.listdir(self.at(folder))
        except OSError:
            return ()
        return tuple(sorted(names, key=_natural_order))

    def exists(self, path: str) -> bool:
        with contextlib.suppress(OSError):
            return self.at(path).exists()
        return False

    def write(self, path: str, text: str) -> None:
        """Write to an existing file, as a kernel attribute. Raises OSError."""
        handle = os.open(self.at(path), os.O_WRONLY | os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(handle, text.encode())
        finally:
            os.close(handle)

    def replace(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file atomically, and create its folder. Raises OSError.

        Safe in a folder that others can write to: the new file has a random name.
        """
        target = self.at(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        replace_file(target, text.encode(), mode)

    def unresolved(self, path: str) -> Path:
        """Resolve all parts but the last, so that a link gives its own path and not its target's."""
        folder, name = os.path.split(path)
        return self.at(folder) / name

    # Files and folders that only root can have written. Root acts on them: it restores a baseline, for
    # example.

    def private_folder(self, path: str) -> Path:
        """Path of a folder on this machine. Makes it with mode 700 if it does not exist.

        Raises PermissionError if it belongs to another user, OSError if it cannot be made.
        """
        place = self.unresolved(path)
        # The folder above has the usual mode, because its other files may be public.
        place.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            place.mkdir(mode=0o700)
        _check_owner(place, path, stat.S_ISDIR, "folder")
        return place

    def is_private(self, path: str) -> bool:
        """True if the file exists. Raises PermissionError if others may have written to it or its folder."""
        place = self.unresolved(path)
        try:
            _check_owner(place.parent, str(PurePosixPath(path).parent), stat.S_ISDIR, "folder")
            _check_owner(place, path, stat.S_ISREG, "file")
        except FileNotFoundError:
            return False
        return True


def _check_owner(place: Path, path: str, is_kind: Callable[[int], bool], kind: str) -> None:
    info = os.lstat(place)
    if not is_kind(info.st_mode):
        raise PermissionError(f"{path} is a link, or no {kind}: remove it")
    if info.st_uid not in (0, os.geteuid()) or info.st_mode & 0o022:
        whose = f"belongs to user {info.st_uid} with mode {stat.S_IMODE(info.st_mode):o}"
        raise PermissionError(f"{path} {whose}, so users other than root may have written it: remove it")


def _natural_order(name: str) -> tuple[tuple[int, str], ...]:
    parts = re.split(r"([0-9]{1,19})", name)
    return tuple((int(part), "") if part.isdecimal() and part.isascii() else (0, part) for part in parts)
