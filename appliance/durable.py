"""Files that survive a power cut: written, exchanged, locked, hashed."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from appliance.errors import ApplianceError, StorageError

logger = logging.getLogger(__name__)

AT_FDCWD = -100
RENAME_EXCHANGE = 2
"""Constants of <fcntl.h> and <linux/fs.h>."""
NEW = re.compile(r"\..+\.[0-9a-f]{8}\.new")
"""Name of a file that will replace another."""
BLOCK_BYTES = 1 << 20
SPARE_BYTES = 64 << 20
"""Bytes of a disk that stay free for other programs."""


def write_synced(path: Path, data: bytes) -> None:
    """Write a file's data to the disk. Its name needs a `sync` of the folder. Raises OSError."""
    with path.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def replace_file(path: Path, data: bytes, mode: int | None = None) -> None:
    """Write a file so that readers find the old content or the new, never a part, even after a power cut.

    `mode` applies whatever the umask is; None: 0666 less the umask. The new file `.NAME.RANDOM.new` is never
    opened through a link, so others may write in the folder too. If a kill leaves it, the next writer in the
    folder removes it. Raises OSError.
    """
    _remove_leftovers(path.parent)
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(new, flags, 0o666 if mode is None else mode)
    try:
        with os.fdopen(handle, "wb") as stream:
            fcntl.flock(handle, fcntl.LOCK_EX)
            stream.write(data)
            stream.flush()
            if mode is not None:
                os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise
    sync(path.parent)


def _remove_leftovers(folder: Path) -> None:
    """Remove new files whose writers were killed. A living writer holds its file's lock."""
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            if NEW.fullmatch(path.name) and path.is_file():
                with contextlib.suppress(OSError), locked(path, fcntl.LOCK_EX | fcntl.LOCK_NB):
                    path.unlink()


def publish(new: Path, place: Path) -> None:
    """Sync a file or tree, then rename it to `place`, replacing a file there.

    Raises OSError, also if the folder is full.
    """
    for path in (new, *new.rglob("*")):
        sync(path)
    os.replace(new, place)
    sync(place.parent)


def sync(path: Path) -> None:
    """Make a file's data, or a folder's renames and new files, survive a power cut. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exchange(one: Path, other: Path) -> None:
    """Exchange two names in one rename. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(one))


def free_bytes(folder: Path) -> int:
    """Free bytes of the disk of the folder, which need not exist yet."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def check_room(folder: Path, needed_bytes: int, what: object) -> None:
    """Raise StorageError about `what` unless the disk has these bytes and SPARE_BYTES free."""
    if needed_bytes + SPARE_BYTES > (free := free_bytes(folder)):
        raise StorageError(
            f"{what}: {needed_bytes / 1e6:,.1f} MB are needed and {SPARE_BYTES / 1e6:.0f} MB must stay "
            f"free, but the disk has {free / 1e6:,.1f} MB left"
        )


def version_of(path: Path) -> tuple[int, int, int] | None:
    """Version of a file, different after each write or replacement; None if it does not exist."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


@contextlib.contextmanager
def locked(folder: Path, operation: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a folder's lock against threads and processes. It ends with its holder. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hex. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def sweep(folder: Path, leftovers: re.Pattern[str]) -> None:
    """Remove entries with such names, and new files at any depth, unless another process writes there."""
    with storage_errors(str(folder)):
        try:
            with locked(folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
                for path in folder.iterdir():
                    if leftovers.fullmatch(path.name):
                        remove(path)
                for inside, _, _ in os.walk(folder):
                    _remove_leftovers(Path(inside))
        except BlockingIOError:
            logger.info("%s: not swept, another process is writing there", folder)


def remove(path: Path) -> None:
    """Remove a file or tree. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Turn OSError into StorageError about `what`. Clients see the message; the path is only logged."""
    try:
        yield
    except ApplianceError:
        raise
    except OSError as error:
        if error.filename and str(error.filename) != what:
            logger.error("%s: %s", error.filename, error.strerror or error)
        raise StorageError(f"{what}: {error.strerror or error}") from error
