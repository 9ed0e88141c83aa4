"""RHVoice through its C interface, unpacked from Debian packages into a folder without installing it.

The folder holds the libraries, the English data and the two voices with suitable terms, and can be copied to
another machine.
"""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
import tempfile
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_int, c_short, c_uint, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Int16Array = NDArray[np.int16]

SAMPLE_RATE_HZ = 24_000
VOICES = {"bdl": "male", "slt": "female"}
"""RHVoice voices used; the others have unsuitable terms or sound worse."""
PACKAGES = ("librhvoice-core7", "librhvoice5", "rhvoice-english", "libsonic0")
TEXT_PACKAGES = ("fortunes", "fortunes-min", "wamerican", "festlex-cmu")
DICTIONARY = "usr/share/festival/dicts/cmu/cmudict-0.4.out"
PRONUNCIATIONS = "pronunciations"
"""File name of DICTIONARY in the text folder."""
COMPONENTS = ("main", "non-free")
"""Debian has the voices in non-free because they cannot be retrained, not for their terms."""
LIBRARIES = ("libsonic.so.0", "libRHVoice_core.so.7", "libRHVoice.so.5")
"""Shared libraries in dependency order."""
RECORD = "engine.json"
PREPARE = "python -m export.demo corpus prepare"
EVENT_STEP_S = 0.1
"""Interval of word events: a word starts up to this long before its event."""
# quality=max smooths parameters over whole sentences.
_SETTINGS = "quality=max\nlanguages.english.use_pseudo_english=false\n"
_TERMS = {
    "engine and voices": "LGPL-2.1-or-later, as Debian records RHVoice with its voices bdl and slt",
    "sentences": "Debian's fortunes (a BSD licence over quotations of many authors), and our own lines",
}


class EngineError(RuntimeError):
    """The engine's folder cannot be made or used, or a text cannot be synthesised."""


@dataclass(frozen=True, eq=False)
class Utterance:
    """Synthesised speech with word times."""

    samples: Int16Array
    """(samples,) mono at `SAMPLE_RATE_HZ`."""
    words: list[tuple[int, int, int]]
    """First and end character and start sample (± EVENT_STEP_S / 2) of each word."""


class RHVoice:
    """Synthesiser of one voice, about 70 times real time on a core."""

    def __init__(self, folder: Path, voice: str, rate: float = 1.0) -> None:
        """Load libraries and data. `rate` scales the voice's own speaking rate. Raises EngineError."""
        if voice not in VOICES:
            raise EngineError(f"{voice}: no such voice; there are {', '.join(VOICES)}")
        self._library = _load(folder)
        self._samples: list[Int16Array] = []
        self._count = 0
        self._words: list[tuple[int, int, int]] = []
        self._callbacks = self._make_callbacks()
        start = _InitParams(
            data_path=str(folder / "share").encode(),
            config_path=str(folder / "config").encode(),
            callbacks=self._callbacks,
        )
        self._engine = self._library.RHVoice_new_tts_engine(ctypes.byref(start))
        if not self._engine:
            raise EngineError(f"{folder}: RHVoice does not start on it")
        self._params = _SynthParams(
            voice_profile=voice.encode(), relative_rate=rate, relative_pitch=1.0, relative_volume=1.0
        )

    def speak(self, text: str) -> Utterance:
        """Synthesise a text with the engine's leading and trailing silence. Raises EngineError."""
        self._samples, self._count, self._words = [], 0, []
        raw = text.encode()
        message = self._library.RHVoice_new_message(
            self._engine, raw, len(raw), 0, ctypes.byref(self._params), None
        )
        if not message:
            raise EngineError(f"RHVoice does not read {text!r}")
        try:
            if not self._library.RHVoice_speak(message) or not self._samples:
                raise EngineError(f"RHVoice does not speak {text!r}")
        finally:
            self._library.RHVoice_delete_message(message)
        return Utterance(np.concatenate(self._samples), self._words)

    def _make_callbacks(self) -> _Callbacks:
        def rate(value: int, _: Any) -> int:
            return int(value == SAMPLE_RATE_HZ)

        def speech(samples: Any, count: int, _: Any) -> int:
            self._samples.append(np.ctypeslib.as_array(samples, (count,)).copy())
            self._count += count
            return 1

        def word(position: int, length: int, _: Any) -> int:
            half_step = round(SAMPLE_RATE_HZ * EVENT_STEP_S / 2)
            self._words.append((position, position + length, max(0, self._count - half_step)))
            return 1

        # Callbacks left out are null pointers, which the library skips.
        return _Callbacks(
            set_sample_rate=_Number(rate), play_speech=_Speech(speech), word_starts=_Range(word)
        )


def prepare(folder: Path, texts: Path) -> None:
    """Download packages with apt and unpack engine and texts, each folder atomically. Raises EngineError."""
    if not shutil.which("apt-get"):
        raise EngineError(
            f"{folder}: there is no engine, and without apt-get none can be fetched; bring the folder"
        )
    with tempfile.TemporaryDirectory() as scratch:
        unpacked, versions = _download(Path(scratch))
        made = Path(scratch) / "engine"
        _assemble(unpacked, made)
        record = {"packages": versions, "terms": _TERMS, "voices": VOICES, "sample_rate_hz": SAMPLE_RATE_HZ}
        (made / RECORD).write_text(json.dumps(record, indent=2) + "\n", "utf-8")
        _move(made, folder)
        wanted = Path(scratch) / "texts"
        wanted.mkdir()
        indexes = shutil.ignore_patterns("*.dat", "*.u8")
        shutil.copytree(unpacked / "usr/share/games/fortunes", wanted / "fortunes", ignore=indexes)
        shutil.copy(unpacked / "usr/share/dict/american-english", wanted / "words")
        shutil.copy(unpacked / DICTIONARY, wanted / PRONUNCIATIONS)
        for package in ("fortunes", "festlex-cmu"):
            shutil.copy(unpacked / f"usr/share/doc/{package}/copyright", wanted / f"copyright.{package}")
        _move(wanted, texts)


def record(folder: Path) -> dict[str, Any]:
    """Versions and terms of the engine in `folder`. Raises EngineError."""
    try:
        read: dict[str, Any] = json.loads((folder / RECORD).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise EngineError(f"{folder}: no engine; make it with `{PREPARE}`: {error}") from error
    return read


def _download(scratch: Path) -> tuple[Path, dict[str, str]]:
    """Download and unpack all packages; return the folder and their versions."""
    options = _private_apt(scratch)
    debs, unpacked = scratch / "debs", scratch / "unpacked"
    debs.mkdir()
    packages = (*PACKAGES, *TEXT_PACKAGES)
    _run(["apt-get", *options, "update"])
    _run(["apt-get", *options, "download", *packages], cwd=debs)
    versions = {}
    for deb in sorted(debs.glob("*.deb")):
        _run(["dpkg", "-x", str(deb), str(unpacked)])
        name, version = _run(
            ["dpkg-deb", "--show", "--showformat", "${Package} ${Version}", str(deb)]
        ).split()
        versions[name] = version
    return unpacked, versions


def _private_apt(scratch: Path) -> list[str]:
    """Options for apt with a private list: this machine's Debian release and COMPONENTS only.

    The machine's own lists stay unchanged; a second suite in them could replace its C library.
    """
    release = dict(re.findall(r"^(\w+)=\"?([^\"\n]*)", Path("/etc/os-release").read_text(), re.MULTILINE))
    suite = release.get("VERSION_CODENAME", "")
    targets = _run(["apt-get", "indextargets", "--format", "$(CODENAME)|$(COMPONENT)|$(SITE)"]).splitlines()
    sites = [line.split("|")[2] for line in targets if line.startswith(f"{suite}|main|")]
    if release.get("ID") != "debian" or not sites:
        raise EngineError(
            "apt knows no Debian main archive here; bring the engine's folder from a machine that does"
        )
    parts = scratch / "apt" / "sources"
    for path in (parts, scratch / "apt/lists/partial", scratch / "apt/cache/archives/partial"):
        path.mkdir(parents=True)
    (parts / "corpus.list").write_text(f"deb {sites[0]} {suite} {' '.join(COMPONENTS)}\n")
    settings = {
        "Dir::Etc::sourcelist": "/dev/null",
        "Dir::Etc::sourceparts": parts,
        "Dir::State::lists": scratch / "apt/lists",
        "Dir::Cache": scratch / "apt/cache",
        "APT::Sandbox::User": "root",
    }
    return [argument for name, value in settings.items() for argument in ("-o", f"{name}={value}")]


def _assemble(unpacked: Path, folder: Path) -> None:
    for name in LIBRARIES:
        found = next(unpacked.glob(f"usr/lib/*/{name}"), None)
        if found is None:
            raise EngineError(f"the packages hold no {name}")
        (folder / "lib").mkdir(parents=True, exist_ok=True)
        shutil.copy(found.resolve(), folder / "lib" / name)
    data = unpacked / "usr/share/RHVoice"
    shutil.copytree(data / "languages/English", folder / "share/languages/English")
    for voice in VOICES:
        # The 16 kHz models are never asked for.
        ignore = shutil.ignore_patterns("16000")
        shutil.copytree(data / "voices" / voice, folder / "share/voices" / voice, ignore=ignore)
    shutil.copy(unpacked / "usr/share/doc/rhvoice-english/copyright", folder / "copyright")
    (folder / "config").mkdir()
    (folder / "config/RHVoice.conf").write_text(_SETTINGS)


def _move(made: Path, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder.exists():
        shutil.rmtree(folder)
    shutil.move(made, folder)


def _run(command: list[str], cwd: Path | None = None) -> str:
    try:
        return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout
    except OSError as error:
        raise EngineError(f"{command[0]}: {error.strerror}") from error
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise EngineError(f"{' '.join(command[:1])} failed: {said}") from error


# The C interface (RHVoice.h, versions 1.x).

_Number = CFUNCTYPE(c_int, c_int, c_void_p)
_Speech = CFUNCTYPE(c_int, POINTER(c_short), c_uint, c_void_p)
_Name = CFUNCTYPE(c_int, c_char_p, c_void_p)
_Range = CFUNCTYPE(c_int, c_uint, c_uint, c_void_p)
_Nothing = CFUNCTYPE(None, c_void_p)


class _Callbacks(Structure):
    _fields_ = (
        ("set_sample_rate", _Number),
        ("play_speech", _Speech),
        ("process_mark", _Name),
        ("word_starts", _Range),
        ("word_ends", _Range),
        ("sentence_starts", _Range),
        ("sentence_ends", _Range),
        ("play_audio", _Name),
        ("done", _Nothing),
    )


class _InitParams(Structure):
    _fields_ = (
        ("data_path", c_char_p),
        ("config_path", c_char_p),
        ("resource_paths", POINTER(c_char_p)),
        ("callbacks", _Callbacks),
        ("options", c_uint),
    )


class _SynthParams(Structure):
    _fields_ = (
        ("voice_profile", c_char_p),
        ("absolute_rate", c_double),
        ("absolute_pitch", c_double),
        ("absolute_volume", c_double),
        ("relative_rate", c_double),
        ("relative_pitch", c_double),
        ("relative_volume", c_double),
        ("punctuation_mode", c_int),
        ("punctuation_list", c_char_p),
        ("capitals_mode", c_int),
        ("flags", c_int),
    )


def _load(folder: Path) -> ctypes.CDLL:
    paths = [folder / "lib" / name for name in LIBRARIES]
    for path in paths:
        if not path.exists():
            raise EngineError(f"{path}: missing; make the engine's folder with `{PREPARE}`")
    try:
        # Loaded in dependency order, each is found by name without a search path.
        *_, library = [ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL) for path in paths]
    except OSError as error:
        raise EngineError(f"{folder}: its libraries do not load here: {error}") from error

    library.RHVoice_new_tts_engine.argtypes = [POINTER(_InitParams)]
    library.RHVoice_new_tts_engine.restype = c_void_p
    library.RHVoice_new_message.argtypes = [
        c_void_p,
        c_char_p,
        c_uint,
        c_int,
        POINTER(_SynthParams),
        c_void_p,
    ]
    library.RHVoice_new_message.restype = c_void_p
    library.RHVoice_speak.argtypes = [c_void_p]
    library.RHVoice_delete_message.argtypes = [c_void_p]
    return library
