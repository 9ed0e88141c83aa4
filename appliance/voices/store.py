"""The store of reference voices.

    FOLDER/NAME/audio        the file as it was given, byte for byte
    FOLDER/NAME/voice.yaml   transcript, consent note, time, hash

Voices added or removed by hand are seen at once. A writer holds a lock on FOLDER, so several processes may
share it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import yaml

from appliance.config import VoicesConfig
from appliance.contract.bundle import Bundle
from appliance.contract.mel import MelSpec
from appliance.contract.yaml_text import parse_yaml
from appliance.durable import (
    locked,
    remove,
    replace_file,
    storage_errors,
    sweep,
    sync,
    version_of,
    write_synced,
)
from appliance.errors import (
    InvalidReference,
    InvalidRequest,
    StorageError,
    VoiceDamaged,
    VoiceExists,
    VoiceNotFound,
)
from appliance.fields import Between, Ranged, from_mapping, shown
from appliance.request import Reference
from appliance.text.normalise import normalise
from appliance.text.pronounce import check as check_pronunciations
from appliance.voices.cache import ReferenceCache
from appliance.voices.reference import complete_transcript, prepare, transcript_warnings
from appliance.voices.transcript import Reader

logger = logging.getLogger(__name__)

NAME_RULE = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
HASH_RULE = re.compile(r"[0-9a-f]{64}")
LEFTOVER_RULE = re.compile(r"\.[a-z0-9][a-z0-9_-]{0,63}\.[0-9a-f]{8}")
AUDIO = "audio"
RECORD = "voice.yaml"
REMEDY = "delete it, or create it again"
DEFAULT_PAGE = 50
MAX_PAGE = 1_000
MAX_TRANSCRIPT_CHARACTERS = 1_000
MAX_CONSENT_CHARACTERS = 2_000
MAX_DISPLAY_CHARACTERS = 100
MOST_VOICES = 10_000
SPARE_BYTES = 64 << 20
"""Space that voices leave free on the disk."""
MAX_RECORD_BYTES = 2 << 20
"""Of voice.yaml: more than the longest of each of its parts."""
NOTES = {
    "consent_note": "consent note; delete it first",
    "display_name": "display name; UpdateVoice changes it",
    "pronunciations": "list of pronunciations; UpdateVoice changes it",
}
"""Fields beside sound and words, and how another value gets there."""


@dataclass(frozen=True)
class Voice(Ranged):
    name: str
    transcript: str
    """As given."""
    consent_note: str
    created: str
    """RFC 3339, UTC."""
    sha256: str
    """SHA-256 of the audio."""
    size_bytes: Annotated[int, Between(0, 1 << 62)]
    duration_s: Annotated[float, Between(0.0, 1e9)]
    """After trimming."""
    rms: Annotated[float, Between(0.0, 1e9)]
    """Before levelling; full scale is 1."""
    warnings: tuple[str, ...] = ()
    """Reasons why it is a poor reference."""
    display_name: str = ""
    pronunciations: dict[str, str] = dataclasses.field(default_factory=dict)
    """Applied to every request with it."""
    problem: str = ""
    """Reason why it cannot be used; only in a list."""


@dataclass(frozen=True)
class Page:
    voices: tuple[Voice, ...]
    next_token: str
    """Empty on the last page."""


def open_store(config: VoicesConfig, bundle: Bundle) -> VoiceStore:
    """Raises StorageError, BundleError."""
    manifest = bundle.manifest
    return VoiceStore(
        config.folder,
        config.cache,
        manifest.mel,
        manifest.defaults.target_rms,
        memory_entries=config.memory_entries,
        max_reference_bytes=config.max_reference_bytes,
        reader=Reader.of(bundle),
    )


def stored_names(folder: Path) -> list[str]:
    """Sorted, with damaged ones. Raises StorageError."""
    with storage_errors("voices"), os.scandir(folder) as entries:
        return sorted(
            entry.name for entry in entries if NAME_RULE.fullmatch(entry.name) and _holds_voice(entry)
        )


def _holds_voice(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle, or into a folder that is closed to us: a damaged voice
        return True


def read_stored(folder: Path, name: str) -> tuple[Voice, bytes]:
    """Raises VoiceDamaged, StorageError."""
    with storage_errors(f"voice {name!r}"):
        voice = _parse_record(_content(folder / name / RECORD, MAX_RECORD_BYTES), name)
    return voice, _audio(folder, voice)


class VoiceStore:
    """Thread-safe."""

    def __init__(
        self,
        folder: Path,
        cache: Path,
        spec: MelSpec,
        level: float,
        *,
        memory_entries: int,
        max_reference_bytes: int,
        reader: Reader | None = None,
    ) -> None:
        """`level`: least RMS of references. Makes missing folders. Raises StorageError."""
        self.reader = reader
        """What the bundle in use reads."""
        self._folder = folder
        self._spec = spec
        self._level = level
        self._max_reference_bytes = max_reference_bytes
        self._prepared = ReferenceCache(cache, spec, level, memory_entries)
        self._records: dict[str, tuple[tuple[int, int, int] | None, Voice]] = {}
        for path in (folder, cache):
            with storage_errors(str(path)):
                path.mkdir(parents=True, exist_ok=True)

    def reference(self, name: str) -> Reference:
        """Raises VoiceNotFound, StorageError, InvalidReference."""
        voice = self.get(name)
        if (features := self._prepared.get(voice.sha256)) is None:
            features = prepare(_audio(self._folder, voice), self._spec, self._level)
            self._prepared.put(voice.sha256, features)
        return Reference(self._spelt(voice.transcript), features)

    def unstored(self, audio: bytes, transcript: str) -> Reference:
        """A reference that no voice is made of. Raises InvalidReference."""
        self._check("prompt", audio, transcript, "")
        self._read(transcript)
        return Reference(self._spelt(transcript), prepare(audio, self._spec, self._level))

    def with_audio(self, sha256: str) -> Voice | None:
        return next((voice for voice in self._all() if voice.sha256 == sha256), None)

    def at_hand(self, name: str) -> bool:
        """True if `reference` has this voice in memory."""
        known = self._records.get(name)
        return known is not None and self._prepared.in_memory(known[1].sha256)

    def get(self, name: str) -> Voice:
        """Raises VoiceNotFound, VoiceDamaged, StorageError."""
        if not NAME_RULE.fullmatch(name):
            raise VoiceNotFound(f"no voice is named {shown(name)}")
        path = self._folder / name / RECORD
        with storage_errors(f"voice {name!r}"):
            try:
                version, known = version_of(path), self._records.get(name)
                if known is None or version is None or known[0] != version:
                    text = _content(path, MAX_RECORD_BYTES)
                    known = self._records[name] = (version, _parse_record(text, name))
            except (FileNotFoundError, NotADirectoryError):
                if not os.path.lexists(self._folder / name):
                    raise VoiceNotFound(f"no voice is named {name!r}") from None
                raise VoiceDamaged(f"voice {name!r}: {RECORD} is missing; {REMEDY}") from None
        return known[1]

    def pronunciations(self, name: str) -> Mapping[str, str]:
        """Empty if the voice cannot be used."""
        try:
            return self.get(name).pronunciations
        except (VoiceNotFound, StorageError):
            return {}

    def page(self, page_size: int = 0, page_token: str = "") -> Page:
        """Voices after the name `page_token`; a size of 0 takes 50. Raises InvalidRequest."""
        if not 0 <= page_size <= MAX_PAGE:
            raise InvalidRequest("page_size", f"must be at most {MAX_PAGE}, not {page_size}")
        if page_token and not NAME_RULE.fullmatch(page_token):
            raise InvalidRequest("page_token", "is not one that this daemon gave out")
        size = page_size or DEFAULT_PAGE
        names = [name for name in self.names() if name > page_token]
        voices = []
        for name in names[:size]:
            try:
                voices.append(self.get(name))
            except VoiceNotFound:  # deleted meanwhile
                continue
            except StorageError as error:
                logger.warning("voice %s cannot be used: %s", name, error)
                voices.append(Voice(name, "", "", "", "", 0, 0.0, 0.0, problem=str(error)))
        return Page(tuple(voices), names[size - 1] if len(names) > size else "")

    def names(self) -> list[str]:
        return stored_names(self._folder)

    def create(
        self,
        name: str,
        audio: bytes,
        transcript: str,
        consent_note: str = "",
        *,
        display_name: str = "",
        pronunciations: Mapping[str, str] = MappingProxyType({}),
        validate_only: bool = False,
        checkpoint: Callable[[], None] = lambda: None,
    ) -> Voice:
        """Check and store a voice, in place of a damaged one of that name; one with the same content stays.

        Until something is written, `checkpoint` may raise to stop. Raises InvalidRequest, InvalidReference,
        VoiceExists, StorageError.
        """
        self._check(name, audio, transcript, consent_note)
        display_name = _display_name(display_name)
        check_pronunciations(pronunciations)
        sha256 = hashlib.sha256(audio).hexdigest()
        more: dict[str, Any] = {
            "consent_note": consent_note,
            "display_name": display_name,
            "pronunciations": dict(pronunciations),
        }
        if there := self._same(name, sha256, transcript, more):
            return there
        unread = self._read(transcript)
        checkpoint()
        features = prepare(audio, self._spec, self._level, checkpoint)
        duration_s = len(features.samples) / self._spec.sample_rate_hz
        voice = Voice(
            name=name,
            transcript=transcript,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            sha256=sha256,
            size_bytes=len(audio),
            duration_s=round(duration_s, 3),
            rms=round(features.rms, 6),
            warnings=features.warnings + transcript_warnings(transcript, duration_s) + unread,
            **more,
        )
        if validate_only:
            return voice
        with storage_errors(f"voice {name!r}"), locked(self._folder):
            checkpoint()
            if there := self._same(name, sha256, transcript, more):
                return there
            self._check_room(name, len(audio))
            self._write(voice, audio)
            self._prepared.put(sha256, features)
        return voice

    def update(
        self, name: str, display_name: str | None = None, pronunciations: Mapping[str, str] | None = None
    ) -> Voice:
        """Change what is not None. Raises VoiceNotFound, InvalidRequest, StorageError."""
        changes: dict[str, object] = {}
        if display_name is not None:
            changes["display_name"] = _display_name(display_name)
        if pronunciations is not None:
            check_pronunciations(pronunciations)
            changes["pronunciations"] = dict(pronunciations)
        with storage_errors(f"voice {name!r}"), locked(self._folder):
            voice = dataclasses.replace(self.get(name), **changes)  # type: ignore[arg-type]
            folder = self._folder / name
            replace_file(folder / RECORD, _record(voice))
        return voice

    def delete(self, name: str) -> None:
        """Remove a voice, and its prepared reference unless another voice has the same audio.

        Raises VoiceNotFound, StorageError.
        """
        with storage_errors(f"voice {name!r}"), locked(self._folder):
            try:
                sha256 = self.get(name).sha256
            except StorageError:
                sha256 = ""
            self._discard(name)
            sync(self._folder)
            if sha256 and self.with_audio(sha256) is None:
                self._prepared.forget(sha256)

    def sweep(self) -> None:
        """Remove what interrupted writing left, unless another process writes there."""
        sweep(self._folder, LEFTOVER_RULE)
        self._prepared.sweep()

    def check(self) -> list[str]:
        """A line for each stored voice that cannot be used."""
        problems = []
        for name in self.names():
            try:
                self.reference(name)
            except (StorageError, InvalidRequest) as error:
                problems.append(f"voice {name}: {str(error).removeprefix(f'voice {name!r}: ')}")
        return problems

    def misread(self) -> list[str]:
        """A line for each stored voice whose transcript the bundle does not read as it is spoken."""
        found = []
        for voice in self._all():
            try:
                reasons = self._read(voice.transcript)
            except InvalidReference as error:
                reasons = (str(error),)
            found += [f"voice {voice.name}: {reason}" for reason in reasons]
        return found

    def _read(self, transcript: str) -> tuple[str, ...]:
        """Warnings of the bundle in use. Raises InvalidReference."""
        return self.reader.warnings(transcript) if self.reader else ()

    def _spelt(self, transcript: str) -> str:
        """Transcript with upstream's ending, in the case and normal form of the bundle's vocabulary."""
        whole = complete_transcript(transcript)
        return self.reader.spelling.fitted(whole) if self.reader else whole

    def _all(self) -> Iterator[Voice]:
        for name in self.names():
            with contextlib.suppress(VoiceNotFound, StorageError):
                yield self.get(name)

    def _check(self, name: str, audio: bytes, transcript: str, consent_note: str) -> None:
        if not NAME_RULE.fullmatch(name):
            raise InvalidRequest(
                "name",
                f"must be 1 to 64 of a-z, 0-9, - and _, beginning with a letter or digit, not {shown(name)}",
            )
        if len(audio) > self._max_reference_bytes:
            raise InvalidReference(
                "audio", f"has {len(audio)} bytes; at most {self._max_reference_bytes} are allowed"
            )
        for field, text, most in (
            ("transcript", transcript, MAX_TRANSCRIPT_CHARACTERS),
            ("consent_note", consent_note, MAX_CONSENT_CHARACTERS),
        ):
            if len(text) > most:
                raise InvalidReference(field, f"has {len(text)} characters; at most {most} are allowed")
        # The appliance does not transcribe.
        if not normalise(transcript):
            raise InvalidReference("transcript", "is empty: send the words that are spoken in the audio")

    def _check_room(self, name: str, needed: int) -> None:
        """Raises StorageError."""
        names = self.names()
        if len(names) >= MOST_VOICES and name not in names:
            raise StorageError(f"voices: {len(names)} are stored, and no more may be: delete one first")
        free = shutil.disk_usage(self._folder).free
        if needed + SPARE_BYTES > free:
            raise StorageError(
                f"voice {name!r}: {needed / 1e6:.1f} MB are to be written and {SPARE_BYTES / 1e6:.0f} MB "
                f"stay free, {free / 1e6:.1f} MB are left on the disk"
            )

    def _same(self, name: str, sha256: str, transcript: str, more: Mapping[str, object]) -> Voice | None:
        """The stored voice, if it has this content; None if there is none, or a damaged one.

        Empty fields of `more` agree with any. Raises VoiceExists for other content.
        """
        try:
            there = self.get(name)
            if (there.sha256, there.transcript) != (sha256, transcript):
                raise VoiceExists(f"voice {name!r} is stored already with other content; delete it first")
            for field, given in more.items():
                if given and given != getattr(there, field):
                    raise VoiceExists(f"voice {name!r} is stored already with another {NOTES[field]}")
            _audio(self._folder, there)
        except (VoiceNotFound, VoiceDamaged):
            return None
        return there

    def _write(self, voice: Voice, audio: bytes) -> None:
        new = self._hidden(voice.name)
        try:
            new.mkdir()
            write_synced(new / AUDIO, audio)
            write_synced(new / RECORD, _record(voice))
            sync(new)
            with contextlib.suppress(VoiceNotFound):
                self._discard(voice.name)
            # Readers see the voice whole or not at all.
            os.rename(new, self._folder / voice.name)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        sync(self._folder)

    def _discard(self, name: str) -> None:
        """Raises VoiceNotFound, OSError."""
        trash = self._hidden(name)
        try:
            # The rename makes it vanish whole, also when the removal is interrupted.
            os.rename(self._folder / name, trash)
        except FileNotFoundError:
            raise VoiceNotFound(f"no voice is named {name!r}") from None
        self._records.pop(name, None)
        remove(trash)

    def _hidden(self, name: str) -> Path:
        return self._folder / f".{name}.{secrets.token_hex(4)}"


def _audio(folder: Path, voice: Voice) -> bytes:
    """Raises VoiceDamaged, StorageError."""
    audio = b""
    with storage_errors(f"voice {voice.name!r}"), contextlib.suppress(FileNotFoundError):
        audio = _content(folder / voice.name / AUDIO, voice.size_bytes)
    if hashlib.sha256(audio).hexdigest() != voice.sha256:
        raise VoiceDamaged(f"voice {voice.name!r}: {AUDIO} is not the file that {RECORD} describes; {REMEDY}")
    return audio


def _content(path: Path, most: int) -> bytes:
    """A file's bytes. Raises VoiceDamaged for a longer one and for what is no file, OSError.

    A pipe would be waited for, and a device has no end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_size > most:
            raise VoiceDamaged(
                f"voice {path.parent.name!r}: {path.name} is no file of at most {most} bytes; {REMEDY}"
            )
        with open(descriptor, "rb", closefd=False) as stream:
            return stream.read()
    finally:
        os.close(descriptor)


def _display_name(given: str) -> str:
    """Raises InvalidRequest."""
    name = normalise(given)
    if len(name) > MAX_DISPLAY_CHARACTERS:
        raise InvalidRequest(
            "display_name", f"has {len(name)} characters; at most {MAX_DISPLAY_CHARACTERS} are allowed"
        )
    return name


def _record(voice: Voice) -> bytes:
    fields = {**dataclasses.asdict(voice), "warnings": list(voice.warnings)}
    del fields["problem"]
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=110).encode()


def _parse_record(text: bytes, name: str) -> Voice:
    """Raises VoiceDamaged."""
    where = f"voice {name!r}: {RECORD}"
    try:
        raw = parse_yaml(text, where, ValueError)
        voice: Voice = from_mapping(Voice, raw, where=where, error=ValueError)
        _check_record(voice, where)
    except ValueError as error:
        raise VoiceDamaged(f"{error}; {REMEDY}") from error
    if voice.name != name:
        raise VoiceDamaged(f"{where} describes voice {shown(voice.name)}; rename the folder or the voice")
    return voice


def _check_record(voice: Voice, where: str) -> None:
    """Refuse what no store has written and what a reply cannot carry. Raises ValueError."""
    if not HASH_RULE.fullmatch(voice.sha256):
        raise ValueError(f"{where}: sha256: must be 64 of 0-9 and a-f, not {shown(voice.sha256)}")
    if not normalise(voice.transcript):
        raise ValueError(f"{where}: transcript: is empty")
    try:
        json.dumps(dataclasses.asdict(voice), ensure_ascii=False).encode()
    except UnicodeError as error:
        raise ValueError(f"{where}: holds half a character") from error
    try:
        check_pronunciations(voice.pronunciations)
    except InvalidRequest as error:
        raise ValueError(f"{where}: {error}") from error
