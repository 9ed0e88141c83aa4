"""The reference-voice store: a folder for each voice, and prepared references in memory and on disk.

    FOLDER/NAME/audio        the file as it was given, byte for byte
    FOLDER/NAME/voice.yaml   transcript, consent note, when, hash
    CACHE/SHA256-KIND.ref    levelled samples, log-mel and measured RMS of that audio

The folder is the truth: voices put there or taken away by hand are seen at once. A prepared reference is
named by the hash of the audio and by the kind of preparation (mel spec, trim version), and carries its own
checksum: one from memory, from disk and a new one are the same bytes, and a damaged one is made again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import logging
import os
import re
import secrets
import shutil
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

import numpy as np
import yaml

from appliance.contract.bundle import from_mapping
from appliance.errors import (
    InvalidReference,
    InvalidRequest,
    StorageError,
    VoiceExists,
    VoiceNotFound,
)
from appliance.job import FloatArray, Reference

logger = logging.getLogger(__name__)

NAME_RULE = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
LEFTOVER_RULE = re.compile(r"\.[a-z0-9][a-z0-9_-]{0,63}\.[0-9a-f]{8}")
AUDIO = "audio"
RECORD = "voice.yaml"
DEFAULT_PAGE = 50
MAX_PAGE = 1_000
MAX_TRANSCRIPT_CHARACTERS = 1_000
MAX_CONSENT_CHARACTERS = 2_000


@dataclass(frozen=True)
class Voice:
    """What is known of a stored voice."""

    name: str
    transcript: str
    """As given."""
    consent_note: str
    created: str
    """RFC 3339, UTC."""
    sha256: str
    """Of the audio file as given."""
    size_bytes: int
    duration_s: float
    """After trimming."""
    rms: float
    """Measured before levelling; full scale is 1."""
    warnings: tuple[str, ...] = ()
    """What makes it a poor reference, if anything."""


@dataclass(frozen=True, eq=False)
class Features:
    """What is prepared once for a reference; nothing here depends on its transcript."""

    samples: FloatArray
    """(samples,) mono at the model's rate, levelled."""
    log_mel: FloatArray
    """(frames, mels)"""
    rms: float


class Preparation(Protocol):
    """How a reference is prepared: decode, trim, level, log-mel."""

    @property
    def fingerprint(self) -> str:
        """Names the mel spec and the trim version."""
        ...

    @property
    def sample_rate_hz(self) -> int: ...

    def features(self, audio: bytes) -> Features:
        """Raises InvalidReference."""
        ...

    def transcript(self, text: str) -> str:
        """A transcript as the model wants it. Raises InvalidReference."""
        ...

    def warnings(self, audio: bytes) -> tuple[str, ...]:
        """What makes this audio a poor reference; plain sentences."""
        ...


@dataclass(frozen=True)
class Page:
    """A stretch of the list of voices, in order of name."""

    voices: tuple[Voice, ...]
    next_token: str
    """Empty on the last page."""


class VoiceStore:
    """Voices on disk. Safe to use from several threads."""

    def __init__(
        self,
        folder: Path,
        cache: Path,
        preparation: Preparation,
        *,
        memory_entries: int,
        max_reference_bytes: int,
    ) -> None:
        """Makes both folders where they are missing. Raises StorageError."""
        self._folder = folder
        self._cache = cache
        self._preparation = preparation
        self._max_reference_bytes = max_reference_bytes
        self._features = _Recent(memory_entries)
        self._records: dict[str, tuple[tuple[int, int], Voice]] = {}
        self._writing = threading.Lock()
        for path in (folder, cache):
            with _storage(path):
                path.mkdir(parents=True, exist_ok=True)

    def reference(self, name: str) -> Reference:
        """A voice ready to condition on. Raises VoiceNotFound, StorageError."""
        voice = self.get(name)
        features = self._prepared(voice)
        return Reference(
            name=name,
            transcript=self._preparation.transcript(voice.transcript),
            samples=features.samples,
            log_mel=features.log_mel,
            rms=features.rms,
        )

    def get(self, name: str) -> Voice:
        """What is known of a voice. Raises VoiceNotFound, StorageError."""
        if not NAME_RULE.fullmatch(name):
            raise VoiceNotFound(f"no voice is named {name!r}")
        path = self._folder / name / RECORD
        try:
            stat = path.stat()
        except FileNotFoundError:
            raise VoiceNotFound(f"no voice is named {name!r}") from None
        except OSError as error:
            raise StorageError(f"{path}: {error.strerror}") from error
        version = (stat.st_mtime_ns, stat.st_size)
        known = self._records.get(name)
        if known is None or known[0] != version:
            known = (version, _read_record(path, name))
            self._records[name] = known
        return known[1]

    def page(self, page_size: int = 0, page_token: str = "") -> Page:
        """Voices after the one that `page_token` names; a size of 0 takes 50. Raises InvalidRequest."""
        if not 0 <= page_size <= MAX_PAGE:
            raise InvalidRequest("page_size", f"must be at most {MAX_PAGE}, not {page_size}")
        if page_token and not NAME_RULE.fullmatch(page_token):
            raise InvalidRequest("page_token", "is not one that this daemon gave out")
        size = page_size or DEFAULT_PAGE
        names = [name for name in self.names() if name > page_token]
        voices = []
        for name in names[:size]:
            # A voice may be deleted, or its record spoiled by hand, while others are listed.
            try:
                voices.append(self.get(name))
            except (VoiceNotFound, StorageError) as error:
                logger.warning("voice %s left out of the list: %s", name, error)
        return Page(tuple(voices), names[size - 1] if len(names) > size else "")

    def names(self) -> list[str]:
        """Names of all stored voices, sorted."""
        with _storage(self._folder):
            return sorted(
                entry.name
                for entry in os.scandir(self._folder)
                if NAME_RULE.fullmatch(entry.name) and (self._folder / entry.name / RECORD).is_file()
            )

    def create(
        self, name: str, audio: bytes, transcript: str, consent_note: str = "", *, validate_only: bool = False
    ) -> Voice:
        """Check and store a voice; one with the same content already is returned as it is.

        Raises InvalidRequest, InvalidReference, VoiceExists, StorageError.
        """
        voice, features = self._checked(name, audio, transcript, consent_note)
        with self._writing:
            with contextlib.suppress(VoiceNotFound):
                there = self.get(name)
                if (there.sha256, there.transcript) == (voice.sha256, voice.transcript):
                    return there
                raise VoiceExists(f"voice {name!r} is stored already with other content; delete it first")
            if not validate_only:
                self._write(voice, audio)
                self._remember(self._key(voice), features)
        return voice

    def delete(self, name: str) -> None:
        """Remove a voice, and what was prepared of it unless another voice has the same audio.

        Raises VoiceNotFound, StorageError.
        """
        with self._writing:
            voice = self.get(name)
            trash = self._folder / f".{name}.{secrets.token_hex(4)}"
            with _storage(self._folder):
                # The rename makes it vanish whole, also when the removal is interrupted.
                os.rename(self._folder / name, trash)
                shutil.rmtree(trash)
            self._records.pop(name, None)
            if all(other.sha256 != voice.sha256 for other in self._all()):
                self._features.forget(self._key(voice))
                with _storage(self._cache):
                    for path in self._cache.glob(f"{voice.sha256}-*.ref"):
                        path.unlink(missing_ok=True)

    def sweep(self) -> None:
        """Remove what an interrupted create or delete left behind; for the one writer, at its start."""
        with _storage(self._folder):
            for entry in os.scandir(self._folder):
                if LEFTOVER_RULE.fullmatch(entry.name):
                    shutil.rmtree(entry.path)

    def check(self) -> list[str]:
        """What is wrong with stored voices, a line for each; empty when all can be used."""
        problems = []
        for name in self.names():
            try:
                self.reference(name)
            except (StorageError, InvalidRequest) as error:
                problems.append(f"voice {name}: {error}")
        return problems

    def _all(self) -> Iterator[Voice]:
        for name in self.names():
            with contextlib.suppress(VoiceNotFound, StorageError):
                yield self.get(name)

    def _checked(self, name: str, audio: bytes, transcript: str, consent_note: str) -> tuple[Voice, Features]:
        if not NAME_RULE.fullmatch(name):
            raise InvalidRequest(
                "name",
                f"must be 1 to 64 of a-z, 0-9, - and _, beginning with a letter or digit, not {name!r}",
            )
        if not audio:
            raise InvalidReference("audio", "is empty; send a WAV, FLAC, Ogg or MP3 file")
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
        self._preparation.transcript(transcript)
        features = self._preparation.features(audio)
        voice = Voice(
            name=name,
            transcript=transcript,
            consent_note=consent_note,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            sha256=hashlib.sha256(audio).hexdigest(),
            size_bytes=len(audio),
            duration_s=round(len(features.samples) / self._preparation.sample_rate_hz, 3),
            rms=round(float(features.rms), 6),
            warnings=self._preparation.warnings(audio),
        )
        return voice, features

    def _write(self, voice: Voice, audio: bytes) -> None:
        new = self._folder / f".{voice.name}.{secrets.token_hex(4)}"
        fields = {**dataclasses.asdict(voice), "warnings": list(voice.warnings)}
        record = yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=110)
        with _storage(self._folder):
            new.mkdir()
            try:
                _write_synced(new / AUDIO, audio)
                _write_synced(new / RECORD, record.encode())
                # Readers see the voice whole or not at all.
                os.rename(new, self._folder / voice.name)
            except BaseException:
                shutil.rmtree(new, ignore_errors=True)
                raise

    # Prepared references.

    def _key(self, voice: Voice) -> str:
        kind = hashlib.sha256(self._preparation.fingerprint.encode()).hexdigest()[:16]
        return f"{voice.sha256}-{kind}"

    def _prepared(self, voice: Voice) -> Features:
        key = self._key(voice)
        if (features := self._features.get(key)) is not None:
            return features
        path = self._cache / f"{key}.ref"
        features = _read_features(path)
        if features is not None:
            self._features.put(key, features)
            return features
        features = self._preparation.features(self._audio(voice))
        self._remember(key, features)
        return features

    def _audio(self, voice: Voice) -> bytes:
        path = self._folder / voice.name / AUDIO
        with _storage(path):
            audio = path.read_bytes()
        if hashlib.sha256(audio).hexdigest() != voice.sha256:
            raise StorageError(f"{path}: is not the file that {RECORD} describes; delete and add the voice")
        return audio

    def _remember(self, key: str, features: Features) -> None:
        self._features.put(key, features)
        path = self._cache / f"{key}.ref"
        new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            _write_synced(new, _pack(features))
            os.replace(new, path)
        except OSError as error:
            # Without the cache everything works, only slower after a restart.
            logger.warning("%s: prepared reference not kept: %s", path, error)
            new.unlink(missing_ok=True)


class _Recent:
    """The most recently used features; frozen, since they are shared between requests."""

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._kept: OrderedDict[str, Features] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str) -> Features | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: str, features: Features) -> None:
        features.samples.flags.writeable = False
        features.log_mel.flags.writeable = False
        with self._lock:
            self._kept[key] = features
            self._kept.move_to_end(key)
            while len(self._kept) > self._entries:
                self._kept.popitem(last=False)

    def forget(self, key: str) -> None:
        with self._lock:
            self._kept.pop(key, None)


def _pack(features: Features) -> bytes:
    buffer = io.BytesIO()
    np.savez(
        buffer,
        samples=features.samples,
        log_mel=features.log_mel,
        rms=np.float64(features.rms),
    )
    body = buffer.getvalue()
    return hashlib.sha256(body).digest() + body


def _read_features(path: Path) -> Features | None:
    """None when there is no such file or it is damaged."""
    try:
        packed = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        logger.warning("%s: unreadable: %s", path, error)
        return None
    size = hashlib.sha256().digest_size
    if hashlib.sha256(packed[size:]).digest() != packed[:size]:
        logger.warning("%s: damaged; prepared again", path)
        return None
    try:
        with np.load(io.BytesIO(packed[size:]), allow_pickle=False) as arrays:
            return Features(arrays["samples"], arrays["log_mel"], float(arrays["rms"]))
    except (KeyError, ValueError, zipfile.BadZipFile):
        logger.warning("%s: not a prepared reference; prepared again", path)
        return None


def _read_record(path: Path, name: str) -> Voice:
    try:
        raw = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise StorageError(f"{path}: unreadable: {' '.join(str(error).split())}") from error
    voice: Voice = from_mapping(Voice, raw, where=str(path), error=StorageError)
    if voice.name != name:
        raise StorageError(f"{path}: describes voice {voice.name!r}; rename the folder or the voice")
    return voice


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


@contextlib.contextmanager
def _storage(path: Path) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(f"{error.filename or path}: {error.strerror or error}") from error
