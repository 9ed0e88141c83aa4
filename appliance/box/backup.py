"""Backup and restore of configuration, voices, clock baseline and journal, also on another module or disk.

A backup is a gzipped tar that only its owner can read, because it may contain hashes of tokens and TLS keys:

    f5-backup.json      first: format, module, and every folder and file with mode, owner, size and SHA-256
    PART/…              the files in that order; PART is configuration, voices, baseline or journal

A restore verifies the whole file before it writes anything. It writes each part to FOLDER.restoring. When
that is complete, it becomes FOLDER.before-TIME and trades names with FOLDER in one rename. The last
FOLDER.before-TIME stays. If a restore is killed, the next one removes its files.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

from appliance.box import dpkg, paths, platform
from appliance.box.checks import application
from appliance.box.system import Box, open_box, program_parser
from appliance.durable import check_room, exchange, locked, replace_file, sync
from appliance.errors import StorageError
from appliance.fields import AtLeast, Between, Ranged, from_mapping, shown

FORMAT = 1
LISTING = "f5-backup.json"
CONFIG_FOLDER = os.path.dirname(paths.CONFIG)
PARTS = {
    "configuration": CONFIG_FOLDER,
    "voices": paths.VOICES,
    "baseline": paths.BASELINE_FOLDER,
    "journal": os.path.dirname(paths.JOURNAL),
}
DAMAGED = (tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile)
NAMED = re.compile(r"(?m)^\s+(tls_\w+|authority|tokens|folder):\s*[\"']?(/[^\"'#\s]*)")
"""A key of the configuration that may name files in other folders."""

Say = Callable[[str], None]


class BackupFailure(StorageError):
    """Failure of a backup or restore, as one line with the remedy."""


@dataclass(frozen=True)
class ArchiveEntry(Ranged):
    name: str
    """PART/… or PART."""
    folder: bool
    mode: Annotated[int, Between(0, 0o777)]
    user: str
    group: str
    size: Annotated[int, AtLeast(0)] = 0
    sha256: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        path = PurePosixPath(self.name)
        hidden = any(part.startswith(".") for part in path.parts)
        if str(path) != self.name or hidden or not self.name.isprintable() or self.part not in PARTS:
            raise ValueError(f"{shown(self.name)} must be a path in one of {', '.join(PARTS)}")

    @property
    def part(self) -> str:
        return self.name.partition("/")[0]


Tree = dict[ArchiveEntry, bytes]
"""Content of each entry, each folder before its files. A folder's content is empty."""


@dataclass(frozen=True)
class Backup:
    """List of a backup's entries, and its origin."""

    created: str
    """Time in UTC."""
    module: str
    """Module, as "p3701-0005"; empty if the machine was no Jetson."""
    version: str
    """Version of f5-appliance, if it was installed as a package."""
    entries: tuple[ArchiveEntry, ...]

    def __post_init__(self) -> None:
        """Check that each entry lies in a folder that precedes it."""
        folders: dict[str, bool] = {}
        for entry in self.entries:
            parent = str(PurePosixPath(entry.name).parent)
            if entry.name in folders or not folders.get(parent, parent == "." and entry.folder):
                raise ValueError(f"{LISTING}: {shown(entry.name)} is listed twice, or outside all folders")
            folders[entry.name] = entry.folder

    @property
    def parts(self) -> dict[str, list[ArchiveEntry]]:
        """Entries by part, in order."""
        return {part: own for part in PARTS if (own := [one for one in self.entries if one.part == part])}


def describe(parts: Mapping[str, Iterable[ArchiveEntry]], say: Say) -> None:
    """Print a line for each part."""
    for part, entries in parts.items():
        sizes = [entry.size for entry in entries if not entry.folder]
        say(f"{part:<14} {len(sizes):>5} files  {sum(sizes) / 1e6:>8,.1f} MB")


# Backing up.


def back_up(box: Box, file: Path, say: Say, *, dry_run: bool = False) -> None:
    """Write a backup. Raises BackupFailure, OSError."""
    if os.path.lexists(file):
        raise BackupFailure(f"{file} exists: name another file, or remove it")
    voices = _place(box, paths.VOICES)
    with locked(voices, fcntl.LOCK_SH) if voices.is_dir() else contextlib.nullcontext():
        backup, tree = _collect(box, say)
    for key, path in NAMED.findall(box.root.text(paths.CONFIG) or ""):
        folder = paths.VOICES if key == "folder" else CONFIG_FOLDER
        if not f"{path}/".startswith(f"{folder}/"):
            say(f"{key}: {path} lies outside {folder}, so the backup leaves it out")
    files = {entry.name: data for entry, data in tree.items() if not entry.folder}
    if not files:
        raise BackupFailure(f"there is nothing to back up: no file in {', '.join(PARTS.values())}")
    describe(backup.parts, say)
    if dry_run:
        return
    buffer, listing = io.BytesIO(), json.dumps({"format": FORMAT, **asdict(backup)}, indent=1).encode()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as tar:
        for name, data in {LISTING: listing, **files}.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o600
            tar.addfile(member, io.BytesIO(data))
    replace_file(file, buffer.getvalue(), 0o600)
    say(f"{file}: {file.stat().st_size / 1e6:,.1f} MB, readable only by its owner, because it may hold keys")


def _collect(box: Box, say: Say) -> tuple[Backup, Tree]:
    """Read every existing part. Raises OSError."""
    users, groups, tree = _names(box, paths.USERS), _names(box, paths.GROUPS), Tree()
    for part, path in PARTS.items():
        if not (place := _place(box, path)).is_dir():
            say(f"{part}: {path} does not exist, so the backup leaves it out")
            continue
        for name, entry in _walk(part, place, say):
            state, folder = entry.stat(), entry.is_dir()
            data = b"" if folder else entry.read_bytes()
            owners = users.get(state.st_uid, ""), groups.get(state.st_gid, "")
            content = len(data), "" if folder else hashlib.sha256(data).hexdigest()
            tree[ArchiveEntry(name, folder, state.st_mode & 0o777, *owners, *content)] = data
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(box.wall()))
    version = getattr(dpkg.packages(box.root).get("f5-appliance"), "version", "")
    return Backup(created, platform.identify(box.root).module, version, tuple(tree)), tree


def _walk(name: str, path: Path, say: Say) -> Iterator[tuple[str, Path]]:
    """Yield each folder before its content. Hidden files are skipped: they are interrupted writes."""
    yield name, path
    for entry in sorted(path.iterdir()) if path.is_dir() else ():
        if entry.is_symlink() or not (entry.is_dir() or entry.is_file()):
            say(f"{entry} is a link or a device, so the backup leaves it out")
        elif entry.name.isprintable() and not entry.name.startswith("."):
            yield from _walk(f"{name}/{entry.name}", entry, say)


# Reading.


def read(file: Path) -> tuple[Backup, Tree]:
    """Read a backup, and verify every hash. Raises BackupFailure, OSError."""
    try:
        with gzip.open(file) as plain, tarfile.open(fileobj=plain, mode="r:") as tar:
            raw = dict(json.loads(_next(tar, LISTING)))
            if (form := raw.get("format")) != FORMAT:
                raise BackupFailure(f"{file}: has format {shown(form)}, not {FORMAT}; update first")
            backup = from_mapping(Backup, raw, where=LISTING, error=ValueError, ignore_unknown=True)
            tree = {entry: b"" if entry.folder else _next(tar, entry.name, entry) for entry in backup.entries}
            if (more := tar.next()) is not None:
                raise ValueError(f"{shown(more.name)} is not listed")
            while plain.read(1 << 20):
                pass  # read to the end, because gzip's checksum is there
            return backup, tree
    except (*DAMAGED, TypeError, ValueError, OverflowError, RecursionError) as error:
        why = f"not a backup, or a damaged one ({' '.join(str(error).split())}); copy it again"
        raise BackupFailure(f"{file}: {why}") from error


def _next(tar: tarfile.TarFile, name: str, entry: ArchiveEntry | None = None) -> bytes:
    """Read the next file, which must be `name`, with the entry's size and hash. Raises ValueError."""
    if (member := tar.next()) is None:
        raise ValueError(f"truncated: {name} is missing")
    is_it = member.name == name and member.isreg() and (entry is None or member.size == entry.size)
    stream = tar.extractfile(member) if is_it else None
    if stream is None:
        raise ValueError(f"{shown(member.name)} differs from the listed {name}")
    data = stream.read()
    if entry and hashlib.sha256(data).hexdigest() != entry.sha256:
        raise ValueError(f"{name}: its hash is not the listed one")
    return data


# Restoring.


def restore(box: Box, file: Path, say: Say, *, dry_run: bool = False) -> None:
    """Replace the parts that differ, and keep the old folders.

    Raises BackupFailure, StorageError, OSError.
    """
    backup, tree = read(file)
    parts, module = backup.parts, platform.identify(box.root).module
    present = _collect(box, list[str]().append)[0].parts
    describe(parts, say)
    if backup.module != module and parts.pop("baseline", []):
        other = f"baseline: for module {backup.module or 'unknown'}, not {module or 'unknown'}"
        say(f"{other}: not restored; f5-clock-lock writes one for this module")
    files = {entry.name: data for entry, data in tree.items()}
    refused = application.refused(box, files.get("configuration/appliance.yaml", b""))
    fits = f"refused by this version: {refused}" if refused else "fits this version"
    say(f"configuration: {fits}")
    new = {part: entries for part, entries in parts.items() if entries != present.get(part)}
    places = {part: _place(box, PARTS[part]) for part in new}
    for part in parts:
        say(f"{part}: goes to {places[part]}" if part in new else f"{part}: equals the backup")
    for part, place in places.items():
        check_room(place, sum(entry.size for entry in new[part]), place)
    if dry_run or not new:
        return
    (state := _place(box, paths.STATE)).mkdir(parents=True, exist_ok=True)
    with locked(state, fcntl.LOCK_EX | fcntl.LOCK_NB):
        try:
            for part, place in places.items():
                _stage(box, Path(f"{place}.restoring"), {entry: tree[entry] for entry in new[part]})
            stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(box.wall()))
            for place in places.values():
                _replace(place, Path(f"{place}.restoring"), Path(f"{place}.before-{stamp}"), say)
        finally:
            for place in places.values():
                shutil.rmtree(f"{place}.restoring", ignore_errors=True)
    if refused:
        raise BackupFailure(f"restored, but the daemon does not start until this is corrected: {refused}")
    restart = "sudo systemctl restart f5-appliance f5-gateway"
    say(f"sudo appliance check --only config --config {paths.CONFIG} && {restart}")


def _stage(box: Box, new: Path, tree: Tree) -> None:
    """Write a part, which only root can read until it is complete. Raises BackupFailure, OSError."""
    shutil.rmtree(new, ignore_errors=True)  # left by a restore that was killed
    new.parent.mkdir(parents=True, exist_ok=True)
    places = {entry: new / PurePosixPath(entry.name).relative_to(entry.part) for entry in tree}
    for entry, path in places.items():
        path.mkdir(mode=0o700) if entry.folder else path.write_bytes(tree[entry])
    users, groups = ({n: i for i, n in _names(box, p).items()} for p in (paths.USERS, paths.GROUPS))
    for entry, path in reversed(places.items()):
        # This owner is used if the backup's owner does not exist on this machine.
        owner = "root" if entry.part in ("configuration", "baseline") else "f5-appliance"
        uid, gid = users.get(entry.user, users.get(owner)), groups.get(entry.group, groups.get(owner))
        if uid is None or gid is None:
            raise BackupFailure(f"there is no user or group {owner} here: install the package first")
        os.chown(path, uid, gid)
        path.chmod(entry.mode)
        sync(path)


def _replace(place: Path, new: Path, aside: Path, say: Say) -> None:
    """Make `new` the folder, and its previous content `aside`. Raises OSError."""
    if place.is_dir():
        os.rename(new, aside)
        with locked(place):
            exchange(aside, place)
        say(f"previous content: {aside}")
        for older in set(place.parent.glob(f"{place.name}.before-*")) - {aside}:
            shutil.rmtree(older)
    else:
        os.rename(new, place)
    sync(place.parent)


# Places and users on the box.


def _place(box: Box, path: str) -> Path:
    """Path of a folder on this machine. It may be a link to a larger disk."""
    return Path(os.path.realpath(box.root.at(path)))


def _names(box: Box, path: str) -> dict[int, str]:
    """Number → name, of /etc/passwd or /etc/group."""
    lines = (line.split(":") for line in (box.root.text(path) or "").splitlines())
    return {int(parts[2]): parts[0] for parts in lines if len(parts) > 2 and parts[2].isdecimal()}


# The commands.


def main(name: str, description: str, act: Callable[..., None]) -> int:
    """Run `back_up` or `restore` as a command; return its exit status."""
    parser = program_parser(name, description)
    parser.add_argument("file", type=Path, metavar="FILE.tar.gz")
    parser.add_argument("--dry-run", action="store_true", help="print the steps and change nothing")
    options = parser.parse_args()
    act(open_box(options.sysroot, options.tools), options.file, print, dry_run=options.dry_run)
    return 0
