"""Where things are installed: this box, or a tree that stands in for it. Files arrive whole or not."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from appliance.box.system import Box
from scripts.installer.actions import Failure
from scripts.installer.layout import Folder

READ_BYTES = 1 << 20
AT_FDCWD = -100
RENAME_EXCHANGE = 2


@dataclass(frozen=True)
class Target:
    """A box, and whether it is a tree in which nothing runs."""

    box: Box
    staged: bool = False

    def at(self, path: str) -> Path:
        """Where `path` lies, a link itself rather than what it points to."""
        inside = PurePosixPath(path)
        return self.box.root.at(str(inside.parent)) / inside.name

    @property
    def owns(self) -> bool:
        """Whether owners can be set; a tree may be staged by anybody."""
        return self.box.is_root

    def ids(self, owner: str, group: str) -> tuple[int, int]:
        """The numbers of a user and a group of that box. Raises Failure."""
        return self._number("/etc/passwd", owner), self._number("/etc/group", group)

    def has_user(self, name: str) -> bool:
        """Whether the box knows the user, and a group of that name."""
        return all(_entry(self.box.root.text(path), name) for path in ("/etc/passwd", "/etc/group"))

    def _number(self, path: str, name: str) -> int:
        if name == "root":
            return 0
        entry = _entry(self.box.root.text(path), name)
        if entry is None:
            raise Failure(f"{path} has no {name}", "run this again: the user is made by the step before")
        return int(entry[2])


def _entry(text: str | None, name: str) -> list[str] | None:
    entries = (line.split(":") for line in (text or "").splitlines())
    return next((entry for entry in entries if entry[0] == name and len(entry) > 2), None)


# Folders.


def has_folder(target: Target, folder: Folder) -> bool:
    """Whether it is there, with its mode and owner."""
    try:
        found = os.lstat(target.at(folder.path))
    except OSError:
        return False
    owners = not target.owns or (found.st_uid, found.st_gid) == target.ids(folder.owner, folder.group)
    return stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == folder.mode and owners


def put_folder(target: Target, folder: Folder) -> None:
    """Make it, or correct it. Raises OSError, Failure."""
    place = target.at(folder.path)
    if place.is_symlink():
        # A link could lead root's chown anywhere.
        raise Failure(f"{folder.path} is a link, not a folder", f"remove it: rm {folder.path}")
    place.mkdir(parents=True, exist_ok=True)
    if target.owns:
        os.chown(place, *target.ids(folder.owner, folder.group), follow_symlinks=False)
    place.chmod(folder.mode)


# Files and links.


@dataclass(frozen=True)
class Content:
    """What is to be at a path: bytes, or a link."""

    data: bytes = b""
    link: str = ""
    mode: int = 0o644
    group: str = "root"

    @property
    def record(self) -> str:
        """How a manifest notes it: a sha256, or `-> target`."""
        return f"-> {self.link}" if self.link else hashlib.sha256(self.data).hexdigest()


def holds(target: Target, path: str, content: Content) -> bool:
    """Whether exactly that is there."""
    place = target.at(path)
    if content.link:
        return place.is_symlink() and os.readlink(place) == content.link
    try:
        found = os.lstat(place)
        same = stat.S_ISREG(found.st_mode) and place.read_bytes() == content.data
    except OSError:
        return False
    owners = not target.owns or (found.st_uid, found.st_gid) == target.ids("root", content.group)
    return same and stat.S_IMODE(found.st_mode) == content.mode and owners


def put(target: Target, path: str, content: Content) -> bool:
    """Put a file or link there in one rename; whether that changed anything. Raises OSError, Failure."""
    if holds(target, path, content):
        return False
    place = target.at(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    with _beside(place) as name:
        if content.link:
            os.symlink(content.link, name)
        else:
            _write(target, name, content)
        os.replace(name, place)
    return True


def _write(target: Target, name: Path, content: Content) -> None:
    handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(content.data)
        stream.flush()
        if target.owns:
            os.fchown(stream.fileno(), *target.ids("root", content.group))
        os.fchmod(stream.fileno(), content.mode)
        os.fsync(stream.fileno())


@contextlib.contextmanager
def _beside(place: Path) -> Iterator[Path]:
    """A name in the same folder that is not taken; whatever is left there in the end is removed."""
    folder = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        yield folder / "new"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove(place: Path) -> None:
    """Remove a file, link or folder, if it is there. Raises OSError."""
    if place.is_symlink() or place.is_file():
        place.unlink()
    elif place.exists():
        shutil.rmtree(place)


def remove_if_empty(place: Path) -> None:
    """Remove a folder in which nothing is left."""
    with contextlib.suppress(OSError):
        place.rmdir()


def exchange(one: Path, other: Path) -> None:
    """Two folders take each other's name at one stroke, so that no name is ever empty. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE) == 0:
        return
    number = ctypes.get_errno()
    if number not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(number, os.strerror(number), str(one))
    aside = one.with_name(f"{one.name}.aside")  # a file system without exchange
    os.rename(one, aside)
    os.rename(other, one)
    os.rename(aside, other)


def sha256(path: Path) -> str:
    """Of a file's bytes. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while part := stream.read(READ_BYTES):
            digest.update(part)
    return digest.hexdigest()
