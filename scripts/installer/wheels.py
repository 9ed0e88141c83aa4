"""A folder of wheels for a box without a network, and the manifest by which each file is checked."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.installer.actions import Failure
from scripts.installer.source import Source
from scripts.installer.target import sha256

MANIFEST = "manifest.json"
SCHEMA = 1
AGAIN = "make it anew with scripts/make-offline-bundle and copy it whole"


@dataclass(frozen=True)
class Wheels:
    """The folder, and what its manifest says it holds."""

    folder: Path
    pythons: tuple[str, ...]
    """e.g. 3.10."""
    machine: str
    """As uname calls it, e.g. aarch64."""
    files: dict[str, str]
    """Name → sha256."""

    @property
    def pip(self) -> Path:
        """pip's own wheel; it runs from there. Raises Failure."""
        return self._only("pip-")

    @property
    def ours(self) -> Path:
        """The daemon's wheel. Raises Failure."""
        return self._only("f5_appliance-")

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum((self.folder / name).stat().st_size for name in self.files)

    def _only(self, prefix: str) -> Path:
        found = [name for name in self.files if name.startswith(prefix) and name.endswith(".whl")]
        if len(found) != 1:
            raise Failure(f"{self.folder} holds {len(found)} wheels {prefix}*, not one", AGAIN)
        return self.folder / found[0]


def write(folder: Path, pythons: tuple[str, ...], machine: str) -> Wheels:
    """Write the manifest of a folder of wheels."""
    files = {path.name: sha256(path) for path in sorted(folder.glob("*.whl"))}
    document = {"schema": SCHEMA, "pythons": pythons, "machine": machine, "files": files}
    (folder / MANIFEST).write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    return Wheels(folder, pythons, machine, files)


def read(folder: Path) -> Wheels:
    """The folder by its manifest; nothing is hashed yet. Raises Failure."""
    try:
        document = json.loads((folder / MANIFEST).read_text("utf-8"))
        return _parse(folder, document)
    except FileNotFoundError:
        raise Failure(f"{folder} has no {MANIFEST}: it is no offline folder", AGAIN) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Failure(f"{folder / MANIFEST} cannot be used: {error}", AGAIN) from error


def _parse(folder: Path, document: dict[str, Any]) -> Wheels:
    if document["schema"] != SCHEMA:
        raise ValueError(f"schema is not {SCHEMA}")
    files = {str(name): str(digest) for name, digest in document["files"].items()}
    if wrong := [name for name in files if Path(name).name != name]:
        raise ValueError(f"{wrong[0]} is not the name of a file")
    return Wheels(folder, tuple(map(str, document["pythons"])), str(document["machine"]), files)


def verify(wheels: Wheels) -> None:
    """Each file is as the manifest says, and there is no other that pip could take. Raises Failure."""
    for name, digest in wheels.files.items():
        path = wheels.folder / name
        if not path.is_file():
            raise Failure(f"{path} is missing", AGAIN)
        if sha256(path) != digest:
            raise Failure(f"{path} is damaged: its sha256 is not the manifest's", AGAIN)
    others = {path.name for path in wheels.folder.iterdir()} - set(wheels.files) - {MANIFEST}
    if others:
        raise Failure(f"{wheels.folder} holds {min(others)}, which its manifest does not name", AGAIN)


def suits(wheels: Wheels, python: str, machine: str, source: Source) -> str:
    """Why this folder is not for that Python, machine and checkout; empty when it is."""
    if python not in wheels.pythons:
        return f"{wheels.folder} holds wheels for Python {' and '.join(wheels.pythons)}, here is {python}"
    if machine != wheels.machine:
        return f"{wheels.folder} holds wheels for {wheels.machine}, here is {machine}"
    return _other_code(wheels.ours, source)


def _other_code(wheel: Path, source: Source) -> str:
    """The wheel must be of this checkout: root's scripts and the daemon read each other's files."""
    version = wheel.name.split("-")[1]
    if version != source.version:
        return f"{wheel.name} is not of this checkout, which is {source.version}"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for path in sorted((source.folder / "appliance").rglob("*.py")):
            name = str(path.relative_to(source.folder))
            if name not in names or archive.read(name) != path.read_bytes():
                return f"{wheel.name} is not of this checkout: its {name} differs"
    return ""
