"""Puts files and links below a folder, as the kernel shows them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tests.fakes.jetson.profiles import Profile

Files = Mapping[str, str]


class Planter:
    def __init__(self, root: Path, profile: Profile) -> None:
        self.root = root
        self.profile = profile
        self._made: set[Path] = set()

    def put(self, path: str, text: str = "") -> None:
        """Create a file, and the folders above it."""
        where = self.root / path[1:]
        if where.parent not in self._made:
            where.parent.mkdir(parents=True, exist_ok=True)
            self._made.add(where.parent)
        where.write_text(text, encoding="utf-8")

    def put_all(self, folder: str, files: Files) -> None:
        """Create several attributes of a folder, each with the kernel's newline at its end."""
        for name, text in files.items():
            self.put(f"{folder}/{name}", f"{text}\n")

    def link(self, path: str, target: str, *, absolute: bool = False) -> None:
        """Create a link to a path of this tree: relative like sysfs' links, or absolute."""
        where = self.root / path[1:]
        where.parent.mkdir(parents=True, exist_ok=True)
        where.unlink(missing_ok=True)
        where.symlink_to(target if absolute else os.path.relpath(target, os.path.dirname(path)))
