"""File systems that the appliance writes to: space, inodes, and whether they are read-only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import PurePosixPath

from appliance.box import paths
from appliance.box.system import Box


@dataclass(frozen=True)
class Volume:
    mount: str
    total_bytes: int
    free_bytes: int
    """For others than root."""
    inodes: int
    """0 for a file system without a fixed number."""
    free_inodes: int
    read_only: bool


def volumes(box: Box) -> tuple[Volume, ...]:
    """Volume of each folder of paths.WRITTEN, once. Raises OSError."""
    mounts = _mounts(box)
    found = {
        mount: _volume(box, mount, options)
        for mount, options in (_mount_of(p, mounts) for p in paths.WRITTEN)
    }
    return tuple(found.values())


def _mounts(box: Box) -> dict[str, tuple[str, ...]]:
    """Mount point → options; of several on one the last counts."""
    lines = (line.split() for line in (box.root.text(paths.MOUNTS) or "").splitlines())
    return {fields[1]: tuple(fields[3].split(",")) for fields in lines if len(fields) >= 4}


def _mount_of(path: str, mounts: dict[str, tuple[str, ...]]) -> tuple[str, tuple[str, ...]]:
    place = PurePosixPath(path)
    for folder in (place, *place.parents):
        if str(folder) in mounts:
            return str(folder), mounts[str(folder)]
    return "/", ()


def _volume(box: Box, mount: str, options: tuple[str, ...]) -> Volume:
    stat = box.statvfs(box.root.at(mount))
    return Volume(
        mount=mount,
        total_bytes=stat.f_blocks * stat.f_frsize,
        free_bytes=stat.f_bavail * stat.f_frsize,
        inodes=stat.f_files,
        free_inodes=stat.f_favail,
        read_only="ro" in options or bool(stat.f_flag & os.ST_RDONLY),
    )
