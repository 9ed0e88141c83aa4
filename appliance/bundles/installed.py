"""The bundles of a box, and the change from one to another.

    PATH           `bundle.path`: a link to the bundle in use; a real folder until the first install
    PATH.before    the previous bundle, in the same form
    PATHs/NAME     every installed bundle, whose files never change

An install makes PATH.before name the new bundle, then exchanges the two names (RENAME_EXCHANGE). So after a
power cut PATH is a whole bundle. A real folder at PATH becomes PATH.before without a copy.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from appliance.bundles.source import copy_bundle
from appliance.contract import bundle as contract
from appliance.contract.bundle import MANIFEST, Bundle, Manifest, identity
from appliance.durable import exchange, locked, remove, sync
from appliance.errors import BundleError, StorageError

STORE_NAME = re.compile(r"\.[0-9a-f]{8}|.+-[0-9a-f]{12}(-\d+)?|unreadable-[0-9a-f]{8}")
"""Matches names of folders that installs create. Other folders belong to the operator."""

Check = Callable[[Bundle], None]
"""Raises BundleError for a bundle that this box cannot use."""
Prove = Callable[[Path], str]
"""Starts the daemon with a bundle's folder; returns the problem, or ""."""
Report = Callable[[str], None]


@dataclass(frozen=True)
class StoredBundle:
    """A folder in the store of bundles."""

    folder: Path
    use: str
    """Use of the bundle: "in use", "beside" (by a row of `text.languages`), "before" (the previous bundle) or
    "unused".
    """
    manifest: Manifest | None
    problem: str
    """Fault of the manifest, or ""."""


class BundleStore:
    """The bundles. Changes hold a lock between processes."""

    def __init__(self, path: Path, report: Report = lambda line: None, beside: Collection[Path] = ()) -> None:
        """`report` gets a line for each step. `beside` are bundles in use by rows of `text.languages`."""
        self.path, self.beside = path, beside
        self.before = path.with_name(f"{path.name}.before")
        self.folder = path.with_name(f"{path.name}s")
        self._report = report

    def stored(self) -> list[StoredBundle]:
        """All bundles; the bundle in use is first."""
        uses: dict[Path, str] = {}
        for name, use in ((self.path, "in use"), (self.before, "before")):
            if os.path.lexists(name):
                uses.setdefault(_real(name), use)
            for other in self.beside if use == "in use" else ():
                uses.setdefault(_real(other), "beside")
        with contextlib.suppress(FileNotFoundError):
            for entry in sorted(self.folder.iterdir()):
                if not entry.name.startswith("."):
                    uses.setdefault(_real(entry), "unused")
        return [_stored(folder, use) for folder, use in uses.items()]

    def install(
        self, source: Path, check: Check, *, prove: Prove | None = None, running: Path | None = None
    ) -> Path:
        """Put the bundle of a folder or archive in use, and go back if `prove` reports a problem.

        Removes unneeded bundles, except the daemon's, `running`. Returns the folder in the store. Raises
        BundleError, StorageError.
        """
        with _storage_errors(self.path), self._lock():
            self._remove_unneeded(running)
            earlier = self._keep_before()
            new = self._add(source, check)
            if new == _real(self.path):
                self._report(f"{new.name} is in use already")
                return new
            self._report_voices(contract.read(new, verify=False))
            self._link(self.before, new)
            if os.path.lexists(self.path):
                exchange(self.path, self.before)
            else:
                os.rename(self.before, self.path)
            sync(self.path.parent)
            try:
                self._prove_or_undo(prove, new, earlier)
            except BundleError:
                self._remove_unneeded(running)
                raise
            self._remove_unneeded(running)
            return new

    def add(self, source: Path, check: Check) -> Path:
        """Store the bundle of a folder or archive without using it.

        Returns its folder. Raises what `install` raises.
        """
        with _storage_errors(self.path), self._lock():
            return self._add(source, check)

    def back(self, *, prove: Prove | None = None) -> Path:
        """Put the previous bundle in use again. Raises BundleError, StorageError."""
        with _storage_errors(self.path), self._lock():
            if not os.path.lexists(self.before):
                raise BundleError(f"there is no previous bundle: {self.before} does not exist")
            new = _real(self.before)
            if new == _real(self.path):
                raise BundleError(f"the previous bundle is the one in use: {new}")
            self._report_voices(contract.read(new))
            exchange(self.path, self.before)
            sync(self.path.parent)
            self._prove_or_undo(prove, _real(self.path), new)
            return _real(self.path)

    # Before the change.

    def _keep_before(self) -> Path | None:
        """Move a real folder at PATH.before into the store, because PATH.before will be a link."""
        if self.before.is_dir() and not self.before.is_symlink():
            manifest = _stored(self.before, "").manifest
            name = _store_name(Bundle(self.before, manifest)) if manifest else ""
            place = self._unused(name or f"unreadable-{secrets.token_hex(4)}")
            os.rename(self.before, place)
            sync(self.folder)
            self._link(self.before, place)
        return _real(self.before) if os.path.lexists(self.before) else None

    def _add(self, source: Path, check: Check) -> Path:
        """Copy, verify, check and sync a bundle, unless an equal undamaged one is in use or was before.

        Returns its folder. Raises BundleError, OSError.
        """
        new = self.folder / f".{secrets.token_hex(4)}"
        try:
            copy_bundle(source, new)
            copy = contract.read(new)
            name = _store_name(copy)
            for present in self._named():
                if present.name == name or _same_manifest(present, new):
                    with contextlib.suppress(BundleError):
                        return contract.read(present).folder
            self._report(f"{copy.manifest.family} {copy.manifest.precision}: every hash is right; loading it")
            check(copy)
            for folder in (new, *(path for path in new.rglob("*") if path.is_dir())):
                folder.chmod(0o755)
                sync(folder)
            place = self._unused(name)
            os.rename(new, place)
            sync(self.folder)
            return place
        except BundleError as error:
            # An operator knows the source, not the copy.
            raise BundleError(str(error).replace(str(new), str(source))) from error
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def _report_voices(self, new: Bundle) -> None:
        """Report whether the prepared references of voices stay valid with the new bundle."""
        now, then = new.manifest, _stored(_real(self.path), "").manifest
        if then is None:
            return
        if now.prepares == then.prepares:
            self._report("stored voices and their prepared features stay as they are")
        else:
            self._report(
                "stored voices stay as they are; its mel, level or rule of references is another, so each is "
                "prepared anew at its first use"
            )

    # After the change.

    def _prove_or_undo(self, prove: Prove | None, new: Path, earlier: Path | None) -> None:
        """Undo the change and raise BundleError if `prove` fails.

        `earlier` was PATH.before until the change.
        """
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
                f"the daemon does not work with {new.name} ({problem}); there is no previous bundle"
            )
        self._report(f"the daemon does not work with {new.name} ({problem}); going back")
        self._undo(earlier)
        old = _real(self.path)
        if again := prove(old):
            state = f"{old.name} is back and is not well either ({again})"
        else:
            state = f"{old.name} is back and runs"
        raise BundleError(f"the daemon does not work with {new.name} ({problem}); {state}")

    def _undo(self, earlier: Path | None) -> None:
        """Put the previous bundle back into use. `earlier` becomes the one before it."""
        if not os.path.lexists(self.before):
            return
        exchange(self.path, self.before)
        if earlier is None:
            self.before.unlink()
        elif earlier != _real(self.before):
            self._link(self.before, earlier)
        sync(self.path.parent)

    def _remove_unneeded(self, running: Path | None) -> None:
        """Remove stored bundles that nothing names and that the daemon does not run."""
        for leftover in self.path.parent.glob(f".{self.path.name}*.????????"):
            if leftover.is_symlink():
                leftover.unlink()
        needed = {*self._named(), _real(running) if running else None}
        for entry in self.folder.iterdir():
            if STORE_NAME.fullmatch(entry.name) and _real(entry) not in needed:
                remove(entry)

    # Names.

    def _link(self, name: Path, folder: Path) -> None:
        """Make `name` a link in one rename.

        Inside the store's folder it is relative, so that a disk can be moved.
        """
        new = name.with_name(f".{name.name}.{secrets.token_hex(4)}")
        inside = folder.parent == self.folder and name.parent == self.folder.parent
        new.symlink_to(f"{self.folder.name}/{folder.name}" if inside else folder)
        os.rename(new, name)
        sync(name.parent)

    def _named(self) -> list[Path]:
        names = (self.path, self.before, *self.beside)
        return list(dict.fromkeys(_real(name) for name in names if name.exists()))

    def _unused(self, name: str) -> Path:
        """Path that no bundle has yet. A damaged bundle may occupy the usual path."""
        number = 1
        while os.path.lexists(place := self.folder / (f"{name}-{number}" if number > 1 else name)):
            number += 1
        return place

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Let one install run at a time. Raises StorageError if another is running."""
        self.folder.mkdir(mode=0o755, exist_ok=True)
        try:
            with locked(self.folder, fcntl.LOCK_EX | fcntl.LOCK_NB):
                yield
        except BlockingIOError:
            raise StorageError(
                f"{self.folder}: another install is running; wait until it has ended"
            ) from None


def _store_name(bundle: Bundle) -> str:
    """Family, and hash of the manifest, which contains all other hashes."""
    family = re.sub(r"[^A-Za-z0-9_-]+", "-", bundle.manifest.family).strip("-") or "bundle"
    return f"{family}-{identity(bundle.folder)[:12]}"


def _same_manifest(folder: Path, other: Path) -> bool:
    try:
        return (folder / MANIFEST).read_bytes() == (other / MANIFEST).read_bytes()
    except OSError:
        return False


def _stored(folder: Path, use: str) -> StoredBundle:
    try:
        return StoredBundle(folder, use, contract.read(folder, verify=False).manifest, "")
    except BundleError as error:
        return StoredBundle(folder, use, None, str(error))


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


@contextlib.contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into a StorageError that names the file."""
    try:
        yield
    except (BundleError, StorageError):
        raise
    except PermissionError as error:
        raise StorageError(f"{error.filename or path}: {error.strerror}; run it with sudo") from error
    except OSError as error:
        raise StorageError(f"{error.filename or path}: {error.strerror or error}") from error
