"""The bundles of a box: a new one is verified beside the one in use and takes its name in one rename.

    PATH           `bundle.path`: a link to the bundle in use; a real folder until the first install
    PATH.before    the one before, in the same way
    PATHs/NAME     every installed bundle in a folder of its own, whose files never change

Installing makes PATH.before name the new bundle, then the two names trade places (RENAME_EXCHANGE): whenever
the power goes, PATH is a whole bundle. A real folder at PATH becomes PATH.before as it is, without a copy.
Folders that neither name nor the running daemon needs are removed by the next install.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import lzma
import os
import re
import secrets
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from appliance.box.tools import Tools
from appliance.client import CallFailed, Client, Operator
from appliance.config import Config, EngineConfig
from appliance.contract import bundle as contract
from appliance.contract.bundle import MANIFEST, Bundle, Manifest, sha256
from appliance.durable import exchange, locked, sync_folder
from appliance.errors import BundleError, StorageError

SERVICE = "f5-appliance.service"
ARCHIVES = ".tar, .tar.gz, .tar.bz2 or .tar.xz"
SPARE_BYTES = 64 << 20
"""Space that an install leaves free on the disk."""
MAX_MEMBERS = 1_000
BLOCK_BYTES = 1 << 20
PATIENCE_S = 900.0
"""Time until a daemon is ready: engines are built at its first start with a bundle."""
SPEAK_S = 60.0
SENTENCE = "This box speaks from its new bundle."
MADE = re.compile(r"\.[0-9a-f]{8}|.+-[0-9a-f]{12}(-\d+)?|unreadable-[0-9a-f]{8}")
"""Names in the store that an install gave: others are an operator's own."""
AUDIBLE = 100
"""Peak of 16-bit samples below which a reply is silence."""
DAMAGED = (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError, OSError)
"""Exceptions that reading a damaged archive raises."""

Check = Callable[[Bundle], None]
"""Raises BundleError for a bundle that this box cannot use."""
Prove = Callable[[Path], str]
"""Starts the daemon on the bundle in a folder; returns what is wrong, or an empty string."""
Report = Callable[[str], None]


@dataclass(frozen=True)
class Stored:
    """One bundle of a box."""

    folder: Path
    use: str
    """"in use", "before", or "unused"."""
    manifest: Manifest | None
    problem: str
    """Why it cannot be read; its hashes are not compared."""


class BundleStore:
    """The bundles around `bundle.path`. Who changes them holds a lock."""

    def __init__(self, path: Path, report: Report = lambda line: None) -> None:
        """`report` is given one line for each thing that was done."""
        self.path = path
        self.before = path.with_name(f"{path.name}.before")
        self.folder = path.with_name(f"{path.name}s")
        self._report = report

    def stored(self) -> list[Stored]:
        """All bundles, the one in use first."""
        uses: dict[Path, str] = {}
        for name, use in ((self.path, "in use"), (self.before, "before")):
            if os.path.lexists(name):
                uses.setdefault(_real(name), use)
        with contextlib.suppress(FileNotFoundError):
            for entry in sorted(self.folder.iterdir()):
                if not entry.name.startswith("."):
                    uses.setdefault(_real(entry), "unused")
        return [_look(folder, use) for folder, use in uses.items()]

    def install(
        self, source: Path, check: Check, *, prove: Prove | None = None, running: Path | None = None
    ) -> Path:
        """Put a bundle, a folder or an archive, in use; returns its folder.

        `running` is the folder that the daemon reads now. What `prove` finds wrong is undone.
        Raises BundleError, StorageError.
        """
        with _storage(self.path), self._alone():
            self._prune(running)
            earlier = self._parted()
            new = self._placed(source, check)
            if new == _real(self.path):
                self._report(f"{new.name} is in use already")
                return new
            self._tell_about_voices(contract.read(new, verify=False))
            self._link(self.before, new)
            if os.path.lexists(self.path):
                exchange(self.path, self.before)
            else:
                os.rename(self.before, self.path)
            sync_folder(self.path.parent)
            try:
                self._prove(prove, new, earlier)
            except BundleError:
                self._prune(running)
                raise
            self._prune(running)
            return new

    def back(self, *, prove: Prove | None = None) -> Path:
        """Put the bundle before in use again; returns its folder. Raises BundleError, StorageError."""
        with _storage(self.path), self._alone():
            new = self._before()
            if new is None:
                raise BundleError(f"there is no bundle before this one: {self.before} does not exist")
            if new == _real(self.path):
                raise BundleError(f"the bundle before is the one in use: {new}")
            self._tell_about_voices(contract.read(new))
            exchange(self.path, self.before)
            sync_folder(self.path.parent)
            self._prove(prove, _real(self.path), new)
            return _real(self.path)

    def _prove(self, prove: Prove | None, new: Path, earlier: Path | None) -> None:
        """Undo the change where `prove` finds something wrong or is interrupted; `earlier` was before's."""
        if prove is None:
            return
        try:
            problem = prove(new)
        except BaseException:
            self._undo(earlier)
            raise
        if not problem:
            return
        if not os.path.lexists(self.before):
            raise BundleError(
                f"the daemon is not well with {new.name} ({problem}); there is none to go back to"
            )
        self._report(f"the daemon is not well with {new.name} ({problem}); going back")
        self._undo(earlier)
        old = _real(self.path)
        again = prove(old)
        runs = (
            f"{old.name} is back and is not well either ({again})"
            if again
            else f"{old.name} is back and runs"
        )
        raise BundleError(f"the daemon is not well with {new.name} ({problem}); {runs}")

    def _undo(self, earlier: Path | None) -> None:
        if not os.path.lexists(self.before):
            return
        exchange(self.path, self.before)
        if earlier is None:
            self.before.unlink()
        elif earlier != _real(self.before):
            self._link(self.before, earlier)
        sync_folder(self.path.parent)

    def _before(self) -> Path | None:
        return _real(self.before) if os.path.lexists(self.before) else None

    def _parted(self) -> Path | None:
        """The bundle before, in the store from now on: its name is about to be another's."""
        if self.before.is_dir() and not self.before.is_symlink():
            look = _look(self.before, "")
            known = look.manifest and _name_of(Bundle(self.before, look.manifest))
            place = self._free(known or f"unreadable-{secrets.token_hex(4)}")
            os.rename(self.before, place)
            sync_folder(self.folder)
            self._link(self.before, place)
        return self._before()

    def _link(self, name: Path, folder: Path) -> None:
        """A link of that name, at once; relative where both lie together, so that the disk can be moved."""
        new = name.with_name(f".{name.name}.{secrets.token_hex(4)}")
        inside = folder.parent == self.folder and name.parent == self.folder.parent
        new.symlink_to(f"{self.folder.name}/{folder.name}" if inside else folder)
        os.rename(new, name)
        sync_folder(name.parent)

    def _placed(self, source: Path, check: Check) -> Path:
        """The folder of a bundle, copied, verified, loaded and synced. Raises BundleError, OSError."""
        new = self.folder / f".{secrets.token_hex(4)}"
        try:
            if source.is_dir():
                _copy(source, new)
            else:
                _unpack(source, new)
            read = contract.read(new)
            name = _name_of(read)
            for there in self._linked():
                if there.name == name or _has_manifest(there, new):
                    with contextlib.suppress(BundleError):
                        return contract.read(there).folder
            self._report(f"{read.manifest.family} {read.manifest.precision}: every hash is right; loading it")
            check(read)
            for folder in (new, *(path for path in new.rglob("*") if path.is_dir())):
                folder.chmod(0o755)
                sync_folder(folder)
            place = self._free(name)
            os.rename(new, place)
            sync_folder(self.folder)
            return place
        except BundleError as error:
            # The copy's name would lead nobody to the file that is wrong.
            raise BundleError(str(error).replace(str(new), str(source))) from error
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def _linked(self) -> list[Path]:
        return list(dict.fromkeys(_real(name) for name in (self.path, self.before) if name.exists()))

    def _free(self, name: str) -> Path:
        """A name in the store that nothing has: a damaged bundle may be in use under the first."""
        number = 1
        while os.path.lexists(place := self.folder / (f"{name}-{number}" if number > 1 else name)):
            number += 1
        return place

    def _prune(self, running: Path | None) -> None:
        """Remove bundles that nothing needs, and what an interrupted install left."""
        for leftover in self.path.parent.glob(f".{self.path.name}*.????????"):
            if leftover.is_symlink():
                leftover.unlink()
        needed = {*self._linked(), _real(running) if running else None}
        for entry in self.folder.iterdir():
            if MADE.fullmatch(entry.name) and _real(entry) not in needed:
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def _tell_about_voices(self, new: Bundle) -> None:
        then, now = new.manifest, _look(_real(self.path), "").manifest
        if now is None:
            return
        if (then.mel, then.defaults.target_rms) == (now.mel, now.defaults.target_rms):
            self._report("stored voices stay as they are, and so does what was prepared of them")
        else:
            self._report(
                "stored voices stay as they are; its mel or level is another, so each is prepared anew "
                "at its first use"
            )

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        self.folder.mkdir(mode=0o755, exist_ok=True)
        try:
            with locked(self.folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
                yield
        except BlockingIOError:
            raise StorageError(
                f"{self.folder}: another install is at work; wait until it has ended"
            ) from None


def loads(bundle: Bundle, config: EngineConfig) -> None:
    """Load a bundle on the CPU and let it compute a silence; one for another backend is refused.

    Engines for a GPU are built and compared by the daemon's start. Raises BundleError, EngineFault.
    """
    from appliance.engine import loading

    backends = bundle.manifest.backends
    if config.backend not in ("auto", *backends):
        raise BundleError(
            f"{bundle.folder}: engine.backend is {config.backend}, the bundle is for {', '.join(backends)}"
        )
    backend = "ort-cpu" if "ort-cpu" in backends else config.backend
    engine = loading.load_for(bundle, dataclasses.replace(config, backend=backend, lanes=1))
    try:
        engine.prove()
    except Exception as error:
        raise BundleError(f"{bundle.folder}: cannot be used: {' '.join(str(error).split())}") from error
    finally:
        engine.shutdown()


def running_folder(config: Config) -> Path | None:
    """The folder that the daemon reads; None where none answers."""
    socket = config.server.admin
    if socket is None:
        return None
    try:
        with Operator(str(socket)) as operator:
            return Path(operator.status().bundle)
    except CallFailed:
        return None


@dataclass(frozen=True)
class Restart:
    """Restarts the daemon and lets it speak."""

    config: Config
    tools: Tools
    patience_s: float = PATIENCE_S

    def __call__(self, folder: Path) -> str:
        """Return what is wrong with the daemon on the bundle in `folder`; empty if it speaks from it."""
        # One that failed five times must not keep the next from being started.
        self.tools.run("systemctl", "reset-failed", SERVICE)
        # The service says itself when it is ready, and systemctl waits for that.
        ran = self.tools.run("systemctl", "restart", SERVICE, timeout_s=self.patience_s)
        if ran.timed_out:
            return f"it was not ready after {self.patience_s:.0f} s"
        if ran.code:
            return f"it did not start: {ran.summary}"
        try:
            return self._speak(folder)
        except CallFailed as error:
            return f"it does not speak: {error}"

    def _speak(self, folder: Path) -> str:
        server = self.config.server
        with Client(f"unix:{server.socket}" if server.socket else server.listen) as client:
            if (health := client.health()) != "SERVING":
                return f"it is {health}"
            if (speaks_from := running_folder(self.config)) not in (None, folder):
                return (
                    f"it speaks from {speaks_from}, not from {folder}: does it have the same configuration?"
                )
            voice = next((voice.name for voice in client.voices() if not voice.problem), "")
            if not voice:
                return ""
            # A seed that was used before could be answered without the engine.
            seed = secrets.randbits(32)
            reply = client.stream(SENTENCE, voice, seed=seed, encoding="pcm16", timeout=SPEAK_S).reply()
        samples = memoryview(reply.audio).cast("h")
        silent = not len(samples) or max(max(samples), -min(samples)) < AUDIBLE
        return f"it answered with silence in the voice {voice}" if silent else ""


def _copy(source: Path, new: Path) -> None:
    """Copy the files that a folder's manifest lists. Raises BundleError, OSError."""
    manifest = contract.read(source, verify=False).manifest
    names = (*manifest.files, MANIFEST)
    if missing := [name for name in names if not (source / name).is_file()]:
        raise BundleError(f"{source / missing[0]}: missing, or no file; copy the bundle again")
    _check_room(new.parent, sum((source / name).stat().st_size for name in names))
    for name in names:
        with (source / name).open("rb") as stream:
            _write(stream, new / name)


def _unpack(archive: Path, new: Path) -> None:
    """Unpack an archive's bundle. Raises BundleError, OSError."""
    with _damage_of(archive), tarfile.open(archive, "r:*") as tar:
        files = _members(archive, tar, shutil.disk_usage(new.parent).free)
        _check_room(new.parent, sum(member.size for member in files.values()))
        top = _top(archive, files)
        for path, member in files.items():
            stream = tar.extractfile(member)
            assert stream is not None  # it is a regular file
            _write(stream, new / path.relative_to(top))


@contextlib.contextmanager
def _damage_of(archive: Path) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except DAMAGED as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's, not the archive's
        raise BundleError(
            f"{archive}: damaged, or no archive ({' '.join(str(error).split())}); "
            f"must be a bundle's folder, {ARCHIVES}; copy it again"
        ) from error


def _members(archive: Path, tar: tarfile.TarFile, most_bytes: int) -> dict[PurePosixPath, tarfile.TarInfo]:
    """The files of an archive by path; sizes beyond `most_bytes` are not read on. Raises BundleError."""
    files: dict[PurePosixPath, tarfile.TarInfo] = {}
    for count, member in enumerate(tar, 1):
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or (member.isreg() and not path.name):
            raise BundleError(f"{archive}: names a file outside of itself: {member.name!r}")
        if not (member.isreg() or member.isdir()):
            raise BundleError(f"{archive}: {member.name!r} is a link or a device; only files are allowed")
        if count > MAX_MEMBERS:
            raise BundleError(f"{archive}: holds more than {MAX_MEMBERS} files")
        if member.isreg():
            if path in files:
                raise BundleError(f"{archive}: names {member.name!r} twice")
            files[path] = member
            if sum(file.size for file in files.values()) > most_bytes:
                raise _no_room(archive, most_bytes, sum(file.size for file in files.values()))
    return files


def _top(archive: Path, files: dict[PurePosixPath, tarfile.TarInfo]) -> PurePosixPath:
    """The folder in an archive that is the bundle: the archive itself, or its only folder."""
    tops = [path.parent for path in files if path.name == MANIFEST and len(path.parts) <= 2]
    if len(tops) != 1:
        raise BundleError(
            f"{archive}: not one bundle: it has {len(tops)} {MANIFEST}, at its top or in a folder"
        )
    if outside := [str(path) for path in files if tops[0] not in path.parents]:
        raise BundleError(f"{archive}: {outside[0]!r} is not in the bundle's folder {str(tops[0])!r}")
    return tops[0]


def _write(stream: IO[bytes], path: Path) -> None:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with path.open("xb") as out:
        shutil.copyfileobj(stream, out, BLOCK_BYTES)
        os.fchmod(out.fileno(), 0o644)
        out.flush()
        os.fsync(out.fileno())


def _check_room(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed + SPARE_BYTES > free:
        raise _no_room(folder, free, needed)


def _no_room(path: Path, free: int, needed: int) -> StorageError:
    return StorageError(
        f"{path}: the bundle takes {needed / 1e6:,.0f} MB and {SPARE_BYTES / 1e6:,.0f} MB stay free, "
        f"{free / 1e6:,.0f} MB are left on the disk"
    )


def _name_of(read: Bundle) -> str:
    """Family and hash of the manifest, which holds all other hashes."""
    family = re.sub(r"[^A-Za-z0-9_-]+", "-", read.manifest.family).strip("-") or "bundle"
    return f"{family}-{sha256(read.folder / MANIFEST)[:12]}"


def _has_manifest(folder: Path, other: Path) -> bool:
    try:
        return (folder / MANIFEST).read_bytes() == (other / MANIFEST).read_bytes()
    except OSError:
        return False


def _look(folder: Path, use: str) -> Stored:
    try:
        return Stored(folder, use, contract.read(folder, verify=False).manifest, "")
    except BundleError as error:
        return Stored(folder, use, None, str(error))


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


@contextlib.contextmanager
def _storage(path: Path) -> Iterator[None]:
    """Turn an OSError into a StorageError."""
    try:
        yield
    except (BundleError, StorageError):
        raise
    except PermissionError as error:
        raise StorageError(f"{error.filename or path}: {error.strerror}; run it with sudo") from error
    except OSError as error:
        raise StorageError(f"{error.filename or path}: {error.strerror or error}") from error
