"""The checkout that is installed from: which version it is, and what of it goes where."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scripts.installer.actions import Failure
from scripts.installer.layout import COMMANDS, UNIT_ENDINGS
from scripts.installer.target import sha256

RELEASED = ("appliance/__init__.py", "appliance/box",
            "configs/appliance.yaml", "systemd", "scripts/__init__.py", "scripts/installer",
            *(f"scripts/{script}" for script in COMMANDS.values()))  # fmt: skip
"""What root's scripts need, and nothing of the daemon: that is in the release's environment."""
LOCK = "scripts/requirements/device.txt"
DIGESTED = (*RELEASED, "appliance", "pyproject.toml", LOCK)
VERSION = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)
VERSION_FORM = re.compile(r"[0-9][0-9A-Za-z.+-]*")
WEAK = "tests/tiny/bundle"


@dataclass(frozen=True)
class Source:
    """A checkout."""

    folder: Path

    @cached_property
    def version(self) -> str:
        """As pyproject.toml says. Raises Failure."""
        try:
            found = VERSION.search((self.folder / "pyproject.toml").read_text("utf-8"))
        except OSError:
            found = None
        if found is None or not VERSION_FORM.fullmatch(found[1]):
            raise Failure(
                f"{self.folder} is not a checkout: no pyproject.toml with a version",
                "run scripts/install of a complete checkout",
            )
        return found[1]

    @property
    def lock(self) -> Path:
        """What the daemon's environment holds."""
        return self.folder / LOCK

    @cached_property
    def released(self) -> dict[str, Path]:
        """Path in a release → file here. Raises Failure when a part is missing."""
        files = {str(path.relative_to(self.folder)): path for path in self._files(RELEASED)}
        missing = [name for name in _required() if name not in files]
        if missing:
            raise Failure(
                f"the checkout lacks {', '.join(missing)}", "run scripts/install of a complete checkout"
            )
        return files

    @cached_property
    def digest(self) -> str:
        """Of everything that a release of this checkout depends on."""
        digest = hashlib.sha256()
        for path in sorted(set(self._files(DIGESTED))):
            digest.update(
                f"{path.relative_to(self.folder)} {sha256(path)} {os.access(path, os.X_OK)}\n".encode()
            )
        return digest.hexdigest()

    @property
    def bundle(self) -> tuple[Path, bool]:
        """The bundle that comes with the checkout, and whether it speaks rather than makes noise."""
        demo = self.folder / "appliance" / "demo" / "bundle"
        speaks = (demo / "manifest.yaml").is_file()
        return (demo, True) if speaks else (self.folder / WEAK, False)

    @property
    def recording(self) -> Path | None:
        """A reference recording that comes with the checkout, its transcript beside it in a .txt."""
        voices = self.folder / "appliance" / "demo" / "voices"
        found = sorted((*voices.rglob("*.flac"), *voices.rglob("*.wav")))
        return next((path for path in found if path.with_suffix(".txt").is_file()), None)

    def _files(self, names: Iterable[str]) -> Iterator[Path]:
        for name in names:
            path = self.folder / name
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                if file.is_file() and _belongs(file):
                    yield file


def _belongs(file: Path) -> bool:
    """Not what Python leaves behind, and of the texts only the technician's page, which the units name."""
    return file.suffix != ".pyc" and (file.suffix != ".md" or file.parent.name == "systemd")


def _required() -> tuple[str, ...]:
    scripts = (f"scripts/{script}" for script in COMMANDS.values())
    units = ("systemd/f5-appliance.service", "systemd/f5-appliance.sysusers.conf",
             "systemd/f5-appliance.tmpfiles.conf")  # fmt: skip
    return (
        "appliance/__init__.py",
        "appliance/box/__init__.py",
        "configs/appliance.yaml",
        *scripts,
        *units,
    )


def is_unit(name: str) -> bool:
    """Whether a file of the systemd folder is a unit."""
    return name.endswith(UNIT_ENDINGS)
