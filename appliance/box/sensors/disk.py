"""File systems that the appliance writes to: space, inodes, and whether they are read-only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import PurePosixPath

from appliance.box import paths
from appliance.box.system import Box


@dataclass(frozen=True)
class Volume:
    """A mounted file system."""

    mount: str
    total_bytes: int
    free_bytes: int
    """Free for users other than root."""
    inodes: int
    """0 for a file system without a fixed number."""
    free_inodes: int
    read_only: bool
    volatile: bool = False
    """True if it is in memory, so that a boot empties it."""


Mounts = dict[str, tuple[str, tuple[str, ...]]]
"""Mount point → type and options. If several are mounted on one, the last counts."""


def volumes(box: Box) -> tuple[Volume, ...]:
    """Volumes of the folders in paths.WRITTEN, each once. Raises OSError.

    A read-only root is left out if the needed folders are on other volumes: it is read-only on purpose.
    """
    lines = (line.split() for line in (box.root.text(paths.MOUNTS) or "").splitlines())
    mounts = {fields[1]: (fields[2], tuple(fields[3].split(","))) for fields in lines if len(fields) >= 4}
    used = dict.fromkeys(_mount_of(path, mounts) for path in paths.WRITTEN)
    needed = {_mount_of(path, mounts) for path in paths.NEEDED}
    mounted = []
    for mount in used:
        stat = box.statvfs(box.root.at(mount))
        total, free = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
        read_only = "ro" in mounts.get(mount, ("", ()))[1] or bool(stat.f_flag & os.ST_RDONLY)
        volatile = mount in needed and _is_volatile(mount, mounts)
        mounted.append(Volume(mount, total, free, stat.f_files, stat.f_favail, read_only, volatile))
    return tuple(one for one in mounted if one.mount in needed or not one.read_only) or tuple(mounted)


def _mount_of(path: str, mounts: Mounts) -> str:
    place = PurePosixPath(path)
    return next((str(folder) for folder in (place, *place.parents) if str(folder) in mounts), "/")


def _is_volatile(mount: str, mounts: Mounts) -> bool:
    """True for tmpfs, or for an overlay whose upper folder is on one, as with overlayroot=tmpfs."""
    kind, options = mounts.get(mount, ("", ()))
    upper = next((option[9:] for option in options if option.startswith("upperdir=")), "")
    if kind == "overlay" and upper:
        above = _mount_of(upper, mounts)
        return above != mount and _is_volatile(above, mounts)
    return kind in ("tmpfs", "ramfs")
