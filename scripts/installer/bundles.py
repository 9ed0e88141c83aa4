"""The model's files: copied beside the ones in use, proven there, and exchanged with them at one stroke."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from scripts.installer.actions import Failure
from scripts.installer.layout import BUNDLE, DATA, RELEASES
from scripts.installer.target import Target, exchange, remove, sha256

NEW = f"{DATA}/.bundle.new"
MANIFEST = "manifest.yaml"
READ_S = 600.0
READ_CODE = """
import pathlib, sys
from appliance.contract import bundle
bundle.read(pathlib.Path(sys.argv[1]))
"""


def has_bundle(target: Target) -> bool:
    """Whether the box has any."""
    return (target.at(BUNDLE) / MANIFEST).is_file()


def holds_bundle(target: Target, folder: Path) -> bool:
    """Whether the box has this one, byte for byte: a file that rotted is mended by installing it again."""
    ours = target.at(BUNDLE)
    try:
        sizes = _sizes(folder)
        return _sizes(ours) == sizes and all(sha256(ours / name) == sha256(folder / name) for name in sizes)
    except OSError:
        return False


def size_bytes(folder: Path) -> int:
    """Of all files."""
    return sum(_sizes(folder).values())


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}


def bring(target: Target, folder: Path, release: str) -> None:
    """Copy a bundle beside the one in use and have a release read and verify it. Raises Failure, OSError."""
    new = target.at(NEW)
    remove(new)
    try:
        shutil.copytree(folder, new, copy_function=shutil.copyfile)
        for path in (new, *new.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        _read(target, new, release)
        os.sync()
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise


def _read(target: Target, folder: Path, release: str) -> None:
    python = str(target.at(f"{RELEASES}/{release}") / "venv" / "bin" / "python")
    ran = target.box.tools.run(python, "-I", "-c", READ_CODE, str(folder), timeout_s=READ_S)
    if ran.code:
        last = ran.text.strip().splitlines()[-1:] or [ran.told]
        raise Failure(
            f"the bundle cannot be used: {last[0]}",
            "export it again, or copy it again: a file may be damaged",
        )


def swap(target: Target) -> None:
    """The waiting bundle and the one in use change places; a second time undoes it. Raises OSError."""
    exchange(target.at(NEW), target.at(BUNDLE))


def settle(target: Target) -> None:
    """Forget the one that is not in use. Raises OSError."""
    remove(target.at(NEW))
