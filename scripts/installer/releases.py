"""What is installed: each release under its name, with its own record of what belongs to it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from appliance.box.platform import Platform
from scripts.installer import environment
from scripts.installer.actions import Failure
from scripts.installer.layout import CURRENT, PREVIOUS, RECORD, RELEASES
from scripts.installer.source import Source
from scripts.installer.target import Target, remove, sha256
from scripts.installer.wheels import Wheels

SCHEMA = 1
HALF = ".new-"
"""What a release is called until it is whole."""
KEPT = 2


@dataclass(frozen=True)
class Installed:
    """The record of a release, `installed.json`: the same for the same checkout on the same box."""

    version: str
    digest: str
    """Of the checkout."""
    python: str
    """e.g. 3.10."""
    l4t: str = ""
    """e.g. 36.4.3; empty where there is none."""
    jetpack: str = ""
    module: str = ""
    tensorrt: str | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    """Of the environment: name → version."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Path in the release → sha256; the environment apart."""
    system: Mapping[str, str] = field(default_factory=dict)
    """Path on the box → sha256, or `-> target` of a link."""
    schema: int = SCHEMA


def names(target: Target) -> tuple[str, ...]:
    """Releases that are whole, by name."""
    return tuple(name for name in target.box.root.names(RELEASES) if not name.startswith("."))


def linked(target: Target, link: str = CURRENT) -> str:
    """The release that `current` or `previous` names; empty for none."""
    place = target.at(link)
    if not place.is_symlink():
        return ""
    name = PurePosixPath(os.readlink(place)).name
    return name if name in names(target) else ""


def record(target: Target, name: str) -> Installed | None:
    """The record of a release, None when it has none that can be used."""
    try:
        document = json.loads(target.box.root.read(f"{RELEASES}/{name}/{RECORD}"))
        installed = Installed(**document)
        usable = installed.schema == SCHEMA and isinstance(installed.files, dict)
    except (OSError, ValueError, TypeError):
        return None
    return installed if usable else None


def damage(target: Target, name: str) -> str:
    """What is wrong with a release's files; empty when all is as recorded."""
    installed = record(target, name)
    if installed is None:
        return f"no usable {RECORD}"
    folder = target.at(f"{RELEASES}/{name}")
    for path, digest in installed.files.items():
        if not (folder / path).is_file() or sha256(folder / path) != digest:
            return f"{path} is not as it was installed"
    if not os.path.lexists(folder / "venv" / "bin" / "python"):
        return "its environment has no Python"
    found = environment.packages(folder / "venv")
    lost = [name for name, version in installed.packages.items() if found.get(name) != version]
    return f"its environment lacks {', '.join(lost)}" if lost else ""


@dataclass(frozen=True)
class Wanted:
    """All that goes into a release and all that its record names."""

    source: Source
    python: environment.Python
    platform: Platform
    wheels: Wheels | None = None
    """None takes them from the network."""
    tensorrt: str | None = None

    def record(self, **parts: Any) -> Installed:
        """Its record."""
        return Installed(
            version=self.source.version,
            digest=self.source.digest,
            python=self.python.version,
            l4t=".".join(map(str, self.platform.l4t)),
            jetpack=self.platform.jetpack,
            module=self.platform.module,
            tensorrt=self.tensorrt,
            **parts,
        )


def choose(target: Target, wanted: Wanted) -> tuple[str, bool]:
    """The name that this release has or gets, and whether it is there and whole.

    What stands under the same version with another content, or for another JetPack, or damaged, is not
    touched: the new one comes beside it.
    """
    version, tried = wanted.source.version, 0
    while True:
        name = version if not tried else f"{version}+{wanted.source.digest[:8]}"
        name += f".{tried}" if tried > 1 else ""
        if name not in names(target):
            return name, False
        found = record(target, name)
        if found and replace(found, **BARE) == replace(wanted.record(), **BARE) and not damage(target, name):
            return name, True
        tried += 1


BARE: Any = {"packages": {}, "files": {}, "system": {}}
"""A record without what only the finished release tells."""


def build(target: Target, name: str, wanted: Wanted, system: Mapping[str, str]) -> None:
    """Make a release whole and then give it its name. Raises Failure, OSError; then nothing of it is left."""
    final = f"{RELEASES}/{name}"
    folder = target.at(f"{RELEASES}/{HALF}{name}")
    tools = target.box.tools
    remove_half(target)
    try:
        folder.mkdir(parents=True)
        _copy(wanted.source, folder)
        environment.build(tools, wanted.python.path, folder / "venv", wanted.source, wanted.wheels)
        environment.settle(tools, folder, final)
        _write_record(folder, wanted, system)
        os.sync()  # the name must not reach the disk before what it names
        folder.rename(target.at(final))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _copy(source: Source, folder: Path) -> None:
    for name, path in source.released.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
        place.chmod(0o755 if os.access(path, os.X_OK) else 0o644)


def _write_record(folder: Path, wanted: Wanted, system: Mapping[str, str]) -> None:
    installed = wanted.record(
        packages=environment.packages(folder / "venv"),
        files={name: sha256(folder / name) for name in sorted(wanted.source.released)},
        system=dict(sorted(system.items())),
    )
    (folder / RECORD).write_text(json.dumps(asdict(installed), indent=1) + "\n", "utf-8")


def halves(target: Target) -> list[Path]:
    """What interrupted installations left."""
    return sorted(target.at(RELEASES).glob(f"{HALF}*"))


def remove_half(target: Target) -> None:
    """Remove what interrupted installations left. Raises OSError."""
    for path in halves(target):
        remove(path)


def superfluous(target: Target, wanted: str = "") -> tuple[str, ...]:
    """Releases to prune: all but two, and never the current one, the one before it, or `wanted`."""
    kept = {linked(target, CURRENT), linked(target, PREVIOUS), wanted} - {""}
    others = sorted(
        set(names(target)) - kept, key=lambda name: target.at(f"{RELEASES}/{name}").stat().st_mtime
    )
    return tuple(others[: max(0, len(others) - max(0, KEPT - len(kept)))])


def prune(target: Target, wanted: str = "") -> None:
    """Remove what is superfluous. Raises OSError."""
    for name in superfluous(target, wanted):
        remove(target.at(f"{RELEASES}/{name}"))


def known(target: Target, name: str) -> None:
    """Raises Failure unless a release of that name is there and whole."""
    if name not in names(target):
        have = ", ".join(names(target)) or "none"
        raise Failure(f"there is no release {name}; installed: {have}", "see f5-switch list")
    if wrong := damage(target, name):
        raise Failure(f"release {name} is damaged: {wrong}", "install it again from its checkout")
