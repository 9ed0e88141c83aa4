"""The store of reference voices: creates, updates and deletes the files that its index reads (records.py).

A writer holds a lock on FOLDER, so several processes may share it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

from appliance.durable import (
    check_room,
    locked,
    remove,
    replace_file,
    storage_errors,
    sweep,
    sync,
    write_synced,
)
from appliance.errors import InvalidRequest, StorageError, VoiceDamaged, VoiceExists, VoiceNotFound
from appliance.fields import shown
from appliance.request import Features
from appliance.text.normalise import normalise
from appliance.text.pronounce import check as check_pronunciations
from appliance.text.styles import NEUTRAL
from appliance.voices import syllables
from appliance.voices.index import VoiceIndex
from appliance.voices.records import (
    AUDIO,
    NAME_RULE,
    STYLES,
    Place,
    Recorded,
    Style,
    Voice,
    read_audio,
    record_text,
    style_names,
)

LEFTOVER_RULE = re.compile(r"\.[a-z0-9][a-z0-9_-]{0,63}\.[0-9a-f]{8}")
MAX_DISPLAY_CHARACTERS = 100
MOST_VOICES = 10_000
MOST_STYLES = 16
"""Limit of styles of one voice."""
NOTES = {
    "consent_note": "consent note; delete it first",
    "display_name": "display name; UpdateVoice changes it",
    "pronunciations": "list of pronunciations; UpdateVoice changes it",
}
"""Fields of a record besides audio and transcript → name of the field and how to change it, for an error
message.
"""


@dataclass(frozen=True)
class Upload:
    """A recording to store, and the fields of its record that its sender chooses."""

    place: Place
    audio: bytes
    transcript: str
    consent_note: str = ""
    display_name: str = ""
    """Only voices have this field and `pronunciations`; styles do not."""
    pronunciations: dict[str, str] = field(default_factory=dict)

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.audio).hexdigest()

    @property
    def notes(self) -> dict[str, Any]:
        """Fields of NOTES that the place has. An empty field agrees with any stored value."""
        names = NOTES if self.place.style is None else ("consent_note",)
        return {name: getattr(self, name) for name in names}


class VoiceStore:
    """Writes the files that its index reads. Thread-safe."""

    def __init__(self, index: VoiceIndex) -> None:
        self.index, self._folder = index, index.folder

    def create(
        self,
        place: Place,
        audio: bytes,
        transcript: str,
        consent_note: str = "",
        *,
        validate_only: bool = False,
        checkpoint: Callable[[], None] = lambda: None,
        **notes: Any,
    ) -> Voice:
        """Check and store a recording. Replaces a damaged one, and leaves one with the same content as it is.

        `notes` are further fields of Upload. Returns the voice with its styles. Until something is written,
        `checkpoint` may raise to stop. Raises InvalidRequest, InvalidReference, VoiceExists, VoiceNotFound,
        StorageError, and the errors of `checkpoint`.
        """
        index, upload = self.index, Upload(place, audio, transcript, consent_note, **notes)
        _check_name(place)
        if place.style is None:
            upload = dataclasses.replace(upload, display_name=_display_name(upload.display_name))
            check_pronunciations(upload.pronunciations)
        else:
            index.voice(place.voice)
        index.check_upload(upload.audio, upload.transcript, upload.consent_note)
        if (recorded := self._same(upload)) is None:
            recorded, features = self._examined(upload, checkpoint)
            if not validate_only:
                with storage_errors(str(place)), locked(self._folder):
                    checkpoint()
                    if there := self._same(upload):
                        recorded = there
                    else:
                        self._check_room(place, len(upload.audio))
                        self._write(place, recorded, upload.audio)
                        index.prepared.put(upload.sha256, features)
        if isinstance(recorded, Voice):
            return index.with_styles(recorded)
        return index.with_styles(index.voice(place.voice), recorded)

    def update(
        self, name: str, display_name: str | None = None, pronunciations: Mapping[str, str] | None = None
    ) -> Voice:
        """Change those notes of a voice that are not None.

        Raises VoiceNotFound, InvalidRequest, StorageError.
        """
        changes: dict[str, object] = {}
        if display_name is not None:
            changes["display_name"] = _display_name(display_name)
        if pronunciations is not None:
            check_pronunciations(pronunciations)
            changes["pronunciations"] = dict(pronunciations)
        with storage_errors(f"voice {name!r}"), locked(self._folder):
            voice = dataclasses.replace(self.index.voice(name), **changes)  # type: ignore[arg-type]
            replace_file(self._folder / Place(name).record, record_text(voice))
            self.index.forget(Place(name))
        return self.index.with_styles(voice)

    def delete(self, place: Place) -> None:
        """Remove a style, or a voice with its styles. Raises VoiceNotFound, StorageError.

        Prepared references are removed too. Another recording with the same audio is prepared again.
        """
        index = self.index
        if not place.is_named:
            raise index.missing(place)
        with storage_errors(str(place)), locked(self._folder):
            gone = {recorded.sha256 for at, recorded in index.readable(place.voice) if at.is_in(place)}
            remove(self._set_aside(place))
            sync((self._folder / place.folder).parent)
            for sha256 in gone:
                index.prepared.forget(sha256)

    def sweep(self) -> None:
        """Remove the leftovers of interrupted writes, unless another process writes there."""
        sweep(self._folder, LEFTOVER_RULE)
        self.index.prepared.sweep()

    def _same(self, upload: Upload) -> Voice | Style | None:
        """The stored recording if it has this content; None if there is none, or a damaged one.

        Raises VoiceExists for other content.
        """
        place = upload.place
        try:
            there = self.index.get(place)
            if (there.sha256, there.transcript) != (upload.sha256, upload.transcript):
                raise VoiceExists(f"{place} is stored already with other content; delete it first")
            for name, value in upload.notes.items():
                if value and value != getattr(there, name):
                    raise VoiceExists(f"{place} is stored already with another {NOTES[name]}")
            read_audio(self._folder, place, there)
        except (VoiceNotFound, VoiceDamaged):
            return None
        return there

    def _examined(self, upload: Upload, checkpoint: Callable[[], None]) -> tuple[Voice | Style, Features]:
        """Prepare a recording; return its record, with warnings. Raises InvalidReference."""
        unread = self.index.unread(upload.transcript)
        checkpoint()
        features = self.index.features(upload.audio, checkpoint)
        checkpoint()
        recorded = upload.place.kind(
            name=upload.place.name,
            transcript=upload.transcript,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            sha256=upload.sha256,
            size_bytes=len(upload.audio),
            duration_s=round(len(features.samples) / self.index.spec.sample_rate_hz, 3),
            rms=round(features.rms, 6),
            warnings=features.warnings + self._doubts(upload.transcript, features) + unread,
            **upload.notes,
        )
        return recorded, features

    def _doubts(self, transcript: str, features: Features) -> tuple[str, ...]:
        """Compare the syllables of a transcript and of its recording; return warnings."""
        reader, samples, rate_hz = self.index.reader, features.samples, self.index.spec.sample_rate_hz
        languages = reader.languages if reader else ()
        miscounted = syllables.count_warnings(transcript, samples, rate_hz, languages)
        return miscounted + syllables.mark_warnings(transcript, len(samples) / rate_hz)

    def _check_room(self, place: Place, needed: int) -> None:
        """Raise StorageError if the disk is full, and VoiceNotFound for a style without a voice."""
        names, most, what = self.index.names(), MOST_VOICES, "voices"
        if place.style:
            self.index.voice(place.voice)
            names, most = style_names(self._folder, place.voice), MOST_STYLES
            what = f"styles of voice {place.voice!r}"
        if len(names) >= most and place.name not in names:
            raise StorageError(f"{what}: {len(names)} are stored, which is the limit: delete one first")
        check_room(self._folder, needed, place)

    def _write(self, place: Place, recorded: Recorded, audio: bytes) -> None:
        """Write a recording. A voice that replaces a damaged one keeps its styles."""
        folder = self._folder / place.folder
        parent, new, aside = folder.parent, self._hidden(place.name), None
        try:
            new.mkdir()
            write_synced(new / AUDIO, audio)
            write_synced(new / place.record.name, record_text(recorded))
            if place.style and not parent.is_dir():
                parent.mkdir()
                sync(parent.parent)
            with contextlib.suppress(VoiceNotFound):
                aside = self._set_aside(place)
                with contextlib.suppress(OSError):
                    os.rename(aside / STYLES, new / STYLES)
            sync(new)
            # Readers see the recording whole or not at all.
            os.rename(new, folder)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        sync(parent)
        if aside is not None:
            remove(aside)

    def _set_aside(self, place: Place) -> Path:
        """Rename a recording out of sight at once, even if removing it fails later.

        Raises VoiceNotFound, OSError.
        """
        trash = self._hidden(place.name)
        try:
            os.rename(self._folder / place.folder, trash)
        except (FileNotFoundError, NotADirectoryError):
            raise self.index.missing(place) from None
        self.index.forget(place)
        return trash

    def _hidden(self, name: str) -> Path:
        return self._folder / f".{name}.{secrets.token_hex(4)}"


def _check_name(place: Place) -> None:
    """Raise InvalidRequest for a name that a place cannot have."""
    field, name = "name" if place.style is None else "style", place.name
    if not NAME_RULE.fullmatch(name):
        raise InvalidRequest(
            field,
            f"must be 1 to 64 of a-z, 0-9, - and _, beginning with a letter or digit, not {shown(name)}",
        )
    if place.style == NEUTRAL:
        raise InvalidRequest(field, f"must not be {NEUTRAL!r}: that is the voice's own recording")


def _display_name(text: str) -> str:
    """Display name as stored. Raises InvalidRequest."""
    name = normalise(text)
    if len(name) > MAX_DISPLAY_CHARACTERS:
        raise InvalidRequest(
            "display_name", f"has {len(name)} characters; at most {MAX_DISPLAY_CHARACTERS} are allowed"
        )
    return name
