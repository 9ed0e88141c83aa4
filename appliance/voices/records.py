"""Files of the voice store: the place of a recording, and its record.

    FOLDER/NAME/audio                      the uploaded file, byte for byte
    FOLDER/NAME/voice.yaml                 transcript, consent note, time, hash
    FOLDER/NAME/styles/STYLE/audio         another recording of the voice
    FOLDER/NAME/styles/STYLE/style.yaml

Hidden entries of FOLDER are interrupted writes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml

from appliance.contract.yaml_text import parse_yaml
from appliance.durable import storage_errors
from appliance.errors import InvalidRequest, VoiceDamaged
from appliance.fields import Between, Ranged, from_mapping, shown
from appliance.text.normalise import normalise
from appliance.text.pronounce import check as check_pronunciations
from appliance.text.styles import NEUTRAL

NAME_RULE = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
HASH_RULE = re.compile(r"[0-9a-f]{64}")
AUDIO = "audio"
RECORD, STYLE_RECORD = "voice.yaml", "style.yaml"
STYLES = "styles"
REMEDY = "delete it, or create it again"
MAX_RECORD_BYTES = 2 << 20
"""Limit of a record: more than the longest values of all its fields."""
UNRECORDED = ("problem", "styles")
"""Fields of a listed recording that its record does not contain."""


@dataclass(frozen=True)
class Recorded(Ranged):
    """A recording and its record."""

    name: str
    transcript: str
    """The transcript as its sender wrote it."""
    consent_note: str
    created: str
    """Time in UTC, by RFC 3339."""
    sha256: str
    """SHA-256 of the audio."""
    size_bytes: Annotated[int, Between(0, 1 << 62)]
    duration_s: Annotated[float, Between(0.0, 1e9)]
    """Duration after trimming."""
    rms: Annotated[float, Between(0.0, 1e9)]
    """RMS before levelling; full scale is 1."""
    warnings: tuple[str, ...] = ()
    """Reasons why the recording is a poor reference."""
    problem: str = ""
    """Reason why the recording cannot be used; "" in every record."""


@dataclass(frozen=True)
class Style(Recorded):
    pass


@dataclass(frozen=True)
class Voice(Recorded):
    display_name: str = ""
    pronunciations: dict[str, str] = dataclasses.field(default_factory=dict)
    """Word → spoken form, applied to every request with this voice."""
    styles: tuple[Style, ...] = ()
    """Styles in order of name, including damaged ones; not in the record."""


@dataclass(frozen=True)
class Place:
    """Names of a recording: a voice's own, or a style of the voice."""

    voice: str
    style: str | None = None
    """Name of a style; None: the voice's own recording. "" is a name that no style can have."""

    @property
    def name(self) -> str:
        return self.voice if self.style is None else self.style

    @property
    def kind(self) -> type[Voice] | type[Style]:
        return Voice if self.style is None else Style

    @property
    def is_named(self) -> bool:
        """True if such a recording can exist."""
        return bool(NAME_RULE.fullmatch(self.voice)) and (self.style is None or is_style(self.style))

    @property
    def folder(self) -> Path:
        """Folder inside the store's, like `record` and `audio`."""
        return Path(self.voice) if self.style is None else Path(self.voice, STYLES, self.style)

    @property
    def record(self) -> Path:
        return self.folder / (RECORD if self.style is None else STYLE_RECORD)

    @property
    def audio(self) -> Path:
        return self.folder / AUDIO

    def is_in(self, other: Place) -> bool:
        """True if this is the other place, or a style of it."""
        return self.voice == other.voice and other.style in (None, self.style)

    @property
    def label(self) -> str:
        """Words for a list."""
        return f"voice {self.voice}" + (f", style {self.style}" if self.style else "")

    def __str__(self) -> str:
        return f"voice {self.voice!r}" + (f", style {self.style!r}" if self.style else "")


def stored_names(folder: Path) -> list[str]:
    """Sorted names of voices, including damaged ones. Raises StorageError."""
    with storage_errors("voices"), os.scandir(folder) as entries:
        return sorted(
            entry.name for entry in entries if NAME_RULE.fullmatch(entry.name) and _holds_voice(entry)
        )


def style_names(folder: Path, voice: str) -> list[str]:
    """Sorted names of styles, including damaged ones. Raises StorageError."""
    with storage_errors(f"voice {voice!r}"):
        try:
            with os.scandir(folder / voice / STYLES) as entries:
                return sorted(e.name for e in entries if is_style(e.name) and _holds_voice(e))
        except (FileNotFoundError, NotADirectoryError):
            return []


def is_style(name: str) -> bool:
    return bool(NAME_RULE.fullmatch(name)) and name != NEUTRAL


def _holds_voice(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle, or into a folder that is closed to us: a damaged voice
        return True


def read_audio(folder: Path, place: Place, recorded: Recorded) -> bytes:
    """Audio of a place, checked against its record. Raises VoiceDamaged, StorageError."""
    audio = b""
    with storage_errors(str(place)), contextlib.suppress(FileNotFoundError):
        audio = _content(folder / place.audio, place, recorded.size_bytes)
    if hashlib.sha256(audio).hexdigest() != recorded.sha256:
        raise VoiceDamaged(f"{place}: {AUDIO} is not the file that {place.record.name} describes; {REMEDY}")
    return audio


def _content(path: Path, place: Place, most: int) -> bytes:
    """Bytes of a file. Raises VoiceDamaged if it is longer than `most` or no regular file, OSError.

    A pipe would block, and a device has no end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_size > most:
            raise VoiceDamaged(f"{place}: {path.name} is not a file of at most {most} bytes; {REMEDY}")
        with open(descriptor, "rb", closefd=False) as stream:
            return stream.read()
    finally:
        os.close(descriptor)


def record_text(recorded: Recorded) -> bytes:
    fields = {**dataclasses.asdict(recorded), "warnings": list(recorded.warnings)}
    for name in UNRECORDED:
        fields.pop(name, None)
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=110).encode()


def read_record(folder: Path, place: Place) -> Voice | Style:
    """Record of a place. Raises VoiceDamaged, OSError."""
    where = f"{place}: {place.record.name}"
    text = _content(folder / place.record, place, MAX_RECORD_BYTES)
    try:
        mapping = parse_yaml(text, where, ValueError)
        recorded: Voice | Style = from_mapping(place.kind, mapping, where=where, error=ValueError)
        _check_record(recorded, where)
    except ValueError as error:
        raise VoiceDamaged(f"{error}; {REMEDY}") from error
    if recorded.name != place.name:
        what = "style" if place.style else "voice"
        raise VoiceDamaged(
            f"{where} describes {what} {shown(recorded.name)}; rename the folder or the {what}"
        )
    return recorded


def _check_record(recorded: Recorded, where: str) -> None:
    """Refuse a record that no store has written, or that no reply can contain. Raises ValueError."""
    if unknown_keys := [name for name in UNRECORDED if getattr(recorded, name, None)]:
        raise ValueError(f"{where}: unknown key {unknown_keys[0]}")
    if not HASH_RULE.fullmatch(recorded.sha256):
        raise ValueError(f"{where}: sha256: must be 64 of 0-9 and a-f, not {shown(recorded.sha256)}")
    if not normalise(recorded.transcript):
        raise ValueError(f"{where}: transcript: is empty")
    try:
        check_pronunciations(recorded.pronunciations if isinstance(recorded, Voice) else {})
    except InvalidRequest as error:
        raise ValueError(f"{where}: {error}") from error
