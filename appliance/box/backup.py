"""Backup and restore of configuration, voices, clock baseline and journal, also on another module or disk.

A gzipped tar, readable by its owner only, since it may hold hashes of tokens and TLS keys:

    f5-backup.json      first: format, module, and every folder and file with mode, owner, size and SHA-256
    PART/…              the files in that order; PART is configuration, voices, baseline or journal

A restore verifies the whole file before it writes anything. Each part is written to FOLDER.restoring-TIME-N
beside the one that it replaces, whose inode is N; then both trade names in one rename, and the old content
is named FOLDER.before-TIME. The next restore clears what a killed one left.
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
import sys
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from appliance.box import dpkg, paths, platform
from appliance.box.root import error_text
from appliance.box.system import Box, open_box, program_parser
from appliance.durable import check_room, exchange, locked, replace_file, sha256, sync
from appliance.errors import StorageError
from appliance.fields import from_mapping, shown

FORMAT = 1
LISTING = "f5-backup.json"
CONFIG_FOLDER = os.path.dirname(paths.CONFIG)
PARTS = {
    "configuration": CONFIG_FOLDER,
    "voices": paths.VOICES,
    "baseline": paths.BASELINE_FOLDER,
    "journal": os.path.dirname(paths.JOURNAL),
}
OWNERS = {"configuration": "root", "voices": "f5-appliance", "baseline": "root", "journal": "f5-appliance"}
"""Owner where that of the backup is not known here."""
BASELINE = "baseline"
LISTING_BYTES = 16 << 20
BLOCK_BYTES = 1 << 20
DAMAGED = (
    *(tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile),
    *(ValueError, OverflowError, RecursionError),
)
STAGED = re.compile(r".+\.restoring-(?P<time>\d{8}-\d{6})-(?P<inode>\d+)")
NAMED = re.compile(r"\s+(tls_certificate|tls_key|tls_clients|tokens|folder):\s*[\"']?(/[^\"'#\s]*)")
"""A key of the configuration that may name files elsewhere."""

Say = Callable[[str], None]
Owners = Mapping["ArchiveEntry", tuple[int, int]]


class BackupFailure(Exception):
    """One line: the failure and the remedy."""


@dataclass(frozen=True)
class ArchiveEntry:
    name: str
    """PART/… or PART."""
    folder: bool
    mode: int
    user: str
    group: str
    size: int = 0
    sha256: str = ""

    def __post_init__(self) -> None:
        path = PurePosixPath(self.name)
        hidden = any(part.startswith(".") for part in path.parts)
        if str(path) != self.name or hidden or not self.name.isprintable() or self.part not in PARTS:
            raise ValueError(f"{shown(self.name)} must be a path in one of {', '.join(PARTS)}")
        if not 0 <= self.mode <= 0o777 or self.size < 0:
            raise ValueError(f"{self.name}: mode {self.mode:o} or size {self.size} is out of range")

    @property
    def part(self) -> str:
        return self.name.partition("/")[0]


@dataclass(frozen=True)
class Backup:
    """Listing of a backup."""

    created: str
    """UTC."""
    module: str
    """E.g. p3701-0005; empty where it was no Jetson."""
    version: str
    """Version of f5-appliance, if installed as a package."""
    entries: tuple[ArchiveEntry, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """Parts in the backup, in order."""
        return tuple(dict.fromkeys(entry.part for entry in self.entries))

    def of(self, part: str) -> list[ArchiveEntry]:
        return [entry for entry in self.entries if entry.part == part]

    def describe(self, say: Say) -> None:
        """One line for each part."""
        for part in self.parts:
            sizes = [entry.size for entry in self.of(part) if not entry.folder]
            say(f"{part:<14} {len(sizes):>5} files  {sum(sizes) / 1e6:>8,.1f} MB")


# Backing up.


def back_up(box: Box, file: Path, say: Say, *, dry_run: bool = False) -> None:
    """Raises Failure, OSError."""
    if os.path.lexists(file):
        raise BackupFailure(f"{file} is there already: name another, or remove it")
    voices = _place(box, paths.VOICES)
    with locked(voices, fcntl.LOCK_SH) if voices.is_dir() else contextlib.nullcontext():
        backup = _collect(box, say)
        backup.describe(say)
        if dry_run:
            return
        replace_file(file, _packed(box, backup), 0o600)
    read(file)
    say(f"{file}: {file.stat().st_size / 1e6:,.1f} MB, for its owner only: it may hold keys")


def _collect(box: Box, say: Say) -> Backup:
    users, groups = _names(box, paths.USERS), _names(box, paths.GROUPS)
    entries: list[ArchiveEntry] = []
    for part, path in PARTS.items():
        place = _place(box, path)
        if not place.is_dir():
            say(f"{part}: {path} is not there, and so not in the backup")
            continue
        for inside, found in _walk(part, place, say):
            state, folder = found.stat(), found.is_dir()
            owners = users.get(state.st_uid, ""), groups.get(state.st_gid, "")
            content = (0, "") if folder else (state.st_size, sha256(found))
            entries.append(ArchiveEntry(inside, folder, state.st_mode & 0o777, *owners, *content))
    _report_files_elsewhere(box, say)
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(box.wall()))
    return Backup(created, platform.identify(box.root).module, _version(box), tuple(entries))


def _walk(name: str, path: Path, say: Say) -> Iterator[tuple[str, Path]]:
    """Each folder before its content; hidden files are interrupted writes."""
    yield name, path
    for found in sorted(path.iterdir()):
        inside = f"{name}/{found.name}"
        if found.is_symlink() or not (found.is_dir() or found.is_file()):
            say(f"{found} is a link or a device, and so not in the backup")
        elif found.name.startswith(".") or not found.name.isprintable():
            continue
        elif found.is_dir():
            yield from _walk(inside, found, say)
        else:
            yield inside, found


def _report_files_elsewhere(box: Box, say: Say) -> None:
    named = map(NAMED.match, (box.root.text(paths.CONFIG) or "").splitlines())
    for key, path in (found.groups() for found in named if found):
        folder = paths.VOICES if key == "folder" else CONFIG_FOLDER
        if path != folder and not path.startswith(f"{folder}/"):
            say(f"{key}: {path} lies outside of {folder}, and so not in the backup")


def _packed(box: Box, backup: Backup) -> bytes:
    """Raises Failure, OSError."""
    places, buffer = {part: _place(box, path) for part, path in PARTS.items()}, io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as tar:
        _add(tar, LISTING, json.dumps({"format": FORMAT, **asdict(backup)}, indent=1).encode())
        for entry in backup.entries:
            if not entry.folder:
                data = _inside(places, entry).read_bytes()
                if hashlib.sha256(data).hexdigest() != entry.sha256:
                    raise BackupFailure(f"{entry.name} changed while it was read: try again")
                _add(tar, entry.name, data)
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), 0o600
    tar.addfile(member, io.BytesIO(data))


# Reading.

Members = Iterator[tuple[ArchiveEntry, bytes]]


def read(file: Path) -> Backup:
    """Verify every hash of a backup and return its listing. Raises Failure, OSError."""
    with _opened(file) as (backup, members):
        for _ in members:
            pass
    return backup


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[tuple[Backup, Members]]:
    """Raises Failure, OSError."""
    try:
        with gzip.open(file) as plain, tarfile.open(fileobj=plain, mode="r:") as tar:
            first = tar.next()
            if first is None or first.name != LISTING or not first.isreg() or first.size > LISTING_BYTES:
                raise BackupFailure(f"{file}: no backup of f5-backup: it does not begin with {LISTING}")
            backup = _parse(file, _data(tar, first))
            yield backup, _members(file, tar, backup)
            # Read to the end, where gzip has its checksum.
            if len(plain.read(BLOCK_BYTES)) == BLOCK_BYTES:
                raise BackupFailure(f"{file}: more lies behind its end; do not use it")
    except DAMAGED as error:
        why = " ".join(str(error).split())
        raise BackupFailure(f"{file}: damaged, or no backup ({why}); copy it again") from error


def _data(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = tar.extractfile(member)
    assert stream is not None  # it is a regular file
    return stream.read()


def _members(file: Path, tar: tarfile.TarFile, backup: Backup) -> Members:
    """Content of every file, which has the hash of its entry. Raises Failure."""
    for entry in (entry for entry in backup.entries if not entry.folder):
        member = tar.next()
        if member is None:
            raise BackupFailure(f"{file}: cut off: {entry.name} is not in it; copy it again")
        if member.name != entry.name or not member.isreg() or member.size != entry.size:
            raise BackupFailure(
                f"{file}: {shown(member.name)} is not what is listed there: {entry.name}; do not use it"
            )
        data = _data(tar, member)
        if hashlib.sha256(data).hexdigest() != entry.sha256:
            raise BackupFailure(
                f"{file}: {entry.name} is damaged: its hash is another; copy the backup again"
            )
        yield entry, data
    if (more := tar.next()) is not None:
        raise BackupFailure(f"{file}: {shown(more.name)} is not listed; do not use it")


def _parse(file: Path, text: bytes) -> Backup:
    """Raises Failure, ValueError."""
    raw = json.loads(text)
    given = raw.get("format") if isinstance(raw, dict) else None
    if given != FORMAT:
        raise BackupFailure(f"{file}: of format {shown(given)}, this f5-backup reads {FORMAT}; update first")
    backup: Backup = from_mapping(Backup, raw, where=LISTING, error=ValueError, ignore_unknown=True)
    known: dict[str, bool] = {}
    """Name → is a folder."""
    for entry in backup.entries:
        parent = str(PurePosixPath(entry.name).parent)
        if entry.name in known or not known.get(parent, parent == "." and entry.folder):
            raise ValueError(f"{LISTING}: {shown(entry.name)} is listed twice, or outside of any folder")
        known[entry.name] = entry.folder
    return backup


# Restoring.


def restore(box: Box, file: Path, say: Say, *, dry_run: bool = False) -> None:
    """The replaced folders are kept. Raises BackupFailure, StorageError, OSError."""
    backup = read(file)
    parts, module = list(backup.parts), platform.identify(box.root).module
    if BASELINE in parts and backup.module != module:
        parts.remove(BASELINE)
        other = f"baseline: of the module {backup.module or 'unknown'}, this is {module or 'unknown'}"
        say(f"{other}: not restored; f5-clock-lock writes one of this module")
    owners = {entry: _owner(box, entry) for part in parts for entry in backup.of(part)}
    if backup.version and backup.version != (here := _version(box)):
        say(f"made by f5-appliance {backup.version}, here is {here or 'none'}: appliance check --only config")
    places = {part: _place(box, PARTS[part]) for part in parts}
    for part, place in places.items():
        check_room(place, sum(entry.size for entry in backup.of(part)), place)
    backup.describe(say)
    if dry_run:
        for place in places.values():
            say(f"would {'replace' if place.exists() else 'make'} {place}")
        return
    for place in places.values():
        _sweep(place)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(box.wall()))
    staged = {part: Path(f"{place}.restoring-{stamp}-{_inode(place)}") for part, place in places.items()}
    aside = {part: Path(f"{place}.before-{stamp}") for part, place in places.items()}
    if taken := next((str(new) for new in (*staged.values(), *aside.values()) if os.path.lexists(new)), ""):
        raise BackupFailure(f"{taken} is there already: wait a second, and try again")
    try:
        with contextlib.ExitStack() as stack:
            for new in staged.values():
                new.parent.mkdir(parents=True, exist_ok=True)
                new.mkdir(mode=0o700)
                stack.enter_context(locked(new))
            _stage(file, backup, staged, owners)
            for part, place in places.items():
                _replace(place, staged[part], aside[part])
                kept = f"; what was there: {aside[part]}" if aside[part].exists() else ""
                say(f"{part}: {place}{kept}")
    except BaseException:
        for place in places.values():
            _sweep(place)
        raise
    say("the daemon takes it over after: sudo systemctl restart f5-appliance")


def _owner(box: Box, entry: ArchiveEntry) -> tuple[int, int]:
    """Find uid and gid by name. Raises Failure."""
    numbers = []
    for path, name in ((paths.USERS, entry.user), (paths.GROUPS, entry.group)):
        ids = {known: number for number, known in _names(box, path).items()}
        known = name if name in ids else OWNERS[entry.part]
        if known not in ids:
            raise BackupFailure(f"{path} has no {known}: install the package first")
        numbers.append(ids[known])
    return numbers[0], numbers[1]


def _stage(file: Path, backup: Backup, staged: Mapping[str, Path], owners: Owners) -> None:
    """Write the parts, readable by root only until they are complete."""
    for entry in owners:
        if entry.folder and "/" in entry.name:
            _inside(staged, entry).mkdir(mode=0o700)
    with _opened(file) as (again, members):
        if again != backup:
            raise BackupFailure(f"{file} changed while it was read: try again")
        for entry, data in members:
            if entry in owners:
                _inside(staged, entry).write_bytes(data)
    for entry in reversed(list(owners)):
        path = _inside(staged, entry)
        os.chown(path, *owners[entry])
        path.chmod(entry.mode)
        sync(path)


def _inside(places: Mapping[str, Path], entry: ArchiveEntry) -> Path:
    return places[entry.part] / PurePosixPath(entry.name).relative_to(entry.part)


def _replace(place: Path, new: Path, aside: Path) -> None:
    """Make `new` the folder; one that was there is `aside` then. Raises OSError."""
    if place.is_dir():
        with locked(place):
            exchange(new, place)
        os.rename(new, aside)
    else:
        os.rename(new, place)
    sync(place.parent)


def _sweep(place: Path) -> None:
    """Remove what unfinished restores left beside a folder; one that runs holds a lock. Raises OSError.

    What was there, and is replaced already, is named FOLDER.before-TIME.
    """
    for left in place.parent.glob(f"{place.name}.restoring-*"):
        if named := STAGED.fullmatch(left.name):
            with contextlib.suppress(BlockingIOError), locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB):
                if _inode(left) == int(named["inode"]):
                    os.rename(left, f"{place}.before-{named['time']}")
                    sync(place.parent)
                else:
                    shutil.rmtree(left)


def _inode(folder: Path) -> int:
    """0 without the folder."""
    return folder.stat().st_ino if folder.is_dir() else 0


# Places, users and versions on the box.


def _place(box: Box, path: str) -> Path:
    """It may be a link to a larger disk."""
    return Path(os.path.realpath(box.root.at(path)))


def _names(box: Box, path: str) -> dict[int, str]:
    """number → name, of /etc/passwd or /etc/group."""
    lines = (line.split(":") for line in (box.root.text(path) or "").splitlines())
    return {int(parts[2]): parts[0] for parts in lines if len(parts) > 2 and parts[2].isdecimal()}


def _version(box: Box) -> str:
    package = dpkg.packages(box.root).get("f5-appliance")
    return package.version if package else ""


# The commands.


def main(name: str, description: str, act: Callable[..., None]) -> int:
    """Run `back_up` or `restore` as a command; returns its exit status."""
    parser = program_parser(name, description)
    parser.add_argument("file", type=Path, metavar="FILE.tar.gz")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
    options = parser.parse_args()
    try:
        act(open_box(options.sysroot, options.tools), options.file, print, dry_run=options.dry_run)
        return 0
    except (BackupFailure, StorageError) as error:
        print(f"{name}: {error}", file=sys.stderr)
    except OSError as error:
        sudo = ": run it with sudo" if isinstance(error, PermissionError) else ""
        print(f"{name}: {error.filename or options.file}: {error_text(error)}{sudo}", file=sys.stderr)
    return 1
