"""Copies a bundle from a folder or a possibly hostile archive."""

from __future__ import annotations

import contextlib
import lzma
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from appliance.contract import bundle as contract
from appliance.contract.bundle import MANIFEST
from appliance.durable import check_room
from appliance.errors import BundleError, StorageError
from appliance.fields import shown

ARCHIVES = ".tar, .tar.gz, .tar.bz2 or .tar.xz"
MAX_MEMBERS = 1_000
BLOCK_BYTES = 1 << 20
DAMAGED = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError, OSError)


def copy_bundle(source: Path, new: Path) -> None:
    """Copy a bundle to `new`. Raises BundleError, StorageError, OSError."""
    if source.is_dir():
        _copy_folder(source, new)
    else:
        _unpack(source, new)


def _copy_folder(source: Path, new: Path) -> None:
    """Copy the files of a bundle that its manifest names."""
    manifest = contract.read(source, verify=False).manifest
    names = (*manifest.files, MANIFEST)
    if missing := [name for name in names if not (source / name).is_file()]:
        raise BundleError(f"{source / missing[0]}: missing, or not a file; copy the bundle again")
    check_room(new.parent, sum((source / name).stat().st_size for name in names), source)
    for name in names:
        with (source / name).open("rb") as stream:
            _write(stream, new / name)


def _unpack(archive: Path, new: Path) -> None:
    """Unpack the bundle in an archive."""
    with _archive_errors(archive), tarfile.open(archive, "r:*") as tar:
        files = _checked_files(archive, tar, new.parent)
        top = _bundle_folder(archive, files)
        for path, member in files.items():
            stream = tar.extractfile(member)
            assert stream is not None  # it is a regular file
            _write(stream, new / path.relative_to(top))


@contextlib.contextmanager
def _archive_errors(archive: Path) -> Iterator[None]:
    """Raise BundleError for a damaged archive. Errors of the disk pass."""
    try:
        yield
    except StorageError:
        raise
    except DAMAGED as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise BundleError(
            f"{archive}: not an archive, or a damaged one ({' '.join(str(error).split())}); "
            f"must be a bundle's folder, {ARCHIVES}; copy it again"
        ) from error


def _checked_files(archive: Path, tar: tarfile.TarFile, folder: Path) -> dict[PurePosixPath, tarfile.TarInfo]:
    """Regular files by path. Raises BundleError for links, devices, and paths out of the archive.

    Raises StorageError as soon as they exceed the free space at `folder`.
    """
    files: dict[PurePosixPath, tarfile.TarInfo] = {}
    size = 0
    for count, member in enumerate(tar, 1):
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or (member.isreg() and not path.name):
            raise BundleError(f"{archive}: names a file outside of itself: {shown(member.name)}")
        if not (member.isreg() or member.isdir()):
            raise BundleError(
                f"{archive}: {shown(member.name)} is a link or a device; only files are allowed"
            )
        if count > MAX_MEMBERS:
            raise BundleError(f"{archive}: has more than {MAX_MEMBERS} files")
        if member.isreg():
            if path in files:
                raise BundleError(f"{archive}: names {shown(member.name)} twice")
            files[path] = member
            size += member.size
            check_room(folder, size, archive)
    return files


def _bundle_folder(archive: Path, files: dict[PurePosixPath, tarfile.TarInfo]) -> PurePosixPath:
    """Folder of the bundle: the archive's top, or its only folder. Raises BundleError."""
    tops = [path.parent for path in files if path.name == MANIFEST and len(path.parts) <= 2]
    if len(tops) != 1:
        raise BundleError(
            f"{archive}: not one bundle: it has {len(tops)} {MANIFEST}, at its top or in a folder"
        )
    if outside := [str(path) for path in files if tops[0] not in path.parents]:
        raise BundleError(
            f"{archive}: {shown(outside[0])} is not in the bundle's folder {shown(str(tops[0]))}"
        )
    return tops[0]


def _write(stream: IO[bytes], path: Path) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with path.open("xb") as out:
        shutil.copyfileobj(stream, out, BLOCK_BYTES)
        os.fchmod(out.fileno(), 0o644)
        out.flush()
        os.fsync(out.fileno())
