"""The store of reference voices, laid out as records.py says.

Voices added or removed by hand are seen at once. A writer holds a lock on FOLDER, so several processes may
share it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Any

from appliance.config import VoicesConfig
from appliance.contract.bundle import Bundle
from appliance.contract.mel import MelSpec
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
from appliance.fields import shown
from appliance.request import Features, FloatArray, Reference
from appliance.text.normalise import normalise
from appliance.text.pronounce import check as check_pronunciations
from appliance.text.styles import NEUTRAL
from appliance.voices import echo, fit
from appliance.voices.cache import ReferenceCache
from appliance.voices.records import (
    AUDIO,
    NAME_RULE,
    REMEDY,
    STYLES,
    Place,
    R,
    Recorded,
    Style,
    Voice,
    is_style,
    read_audio,
    read_record,
    record_text,
    stored_names,
    style_names,
)
from appliance.voices.reference import prepare
from appliance.voices.rules import F5, RULES, Rule
from appliance.voices.transcript import Reader

logger = logging.getLogger(__name__)

LEFTOVER_RULE = re.compile(r"\.[a-z0-9][a-z0-9_-]{0,63}\.[0-9a-f]{8}")
DEFAULT_PAGE = 50
MAX_PAGE = 1_000
MAX_TRANSCRIPT_CHARACTERS = 1_000
MAX_CONSENT_CHARACTERS = 2_000
MAX_DISPLAY_CHARACTERS = 100
MOST_VOICES = 10_000
MOST_ECHOES = 16
MOST_STYLES = 16
"""Limit for a voice."""
SPARE_BYTES = 64 << 20
"""Space that voices leave free on the disk."""
NOTES = {
    "consent_note": "consent note; delete it first",
    "display_name": "display name; UpdateVoice changes it",
    "pronunciations": "list of pronunciations; UpdateVoice changes it",
}
"""Fields beside sound and words, and how another value gets there."""

ReplyTo = Callable[[Reference], FloatArray | None]
"""Speaks a reference's own transcript: (samples,) at its rate, or None."""


def no_reply(reference: Reference) -> None:
    """Speak nothing, as without an engine."""


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
        rule=RULES[manifest.reference],
    )


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
        rule: Rule = F5,
    ) -> None:
        """`level`: least RMS of references. Makes missing folders. Raises StorageError."""
        self.reader = reader
        """What the bundle in use reads."""
        self._folder = folder
        self._spec = spec
        self._level = level
        self._rule = rule
        self._max_reference_bytes = max_reference_bytes
        self._prepared = ReferenceCache(cache, spec, level, memory_entries, rule)
        self._echoes: dict[tuple[str, str], tuple[str, ...]] = {}
        """Warnings by hash of the audio and transcript: a recording is often checked before it is stored."""
        self._records: dict[Place, tuple[tuple[int, int, int] | None, Recorded]] = {}
        for path in (folder, cache):
            with storage_errors(str(path)):
                path.mkdir(parents=True, exist_ok=True)

    def reference(self, name: str, style: str = "") -> Reference:
        """Raises VoiceNotFound, StorageError, InvalidReference, and InvalidRequest for a missing style."""
        recorded: Recorded = self.get(name)
        if style:
            try:
                recorded = self.style(name, style)
            except VoiceNotFound as error:
                raise InvalidRequest("style", str(error)) from None
        if (features := self._prepared.get(recorded.sha256)) is None:
            place = Place(self._folder, name, style)
            features = self._features(read_audio(place, recorded))
            self._prepared.put(recorded.sha256, features)
        return Reference(self._spelt(recorded.transcript), features)

    def unstored(self, audio: bytes, transcript: str) -> Reference:
        """A reference that no voice is made of. Raises InvalidReference."""
        self._check(audio, transcript, "")
        self._read(transcript)
        return Reference(self._spelt(transcript), self._features(audio))

    def with_audio(self, sha256: str) -> Recorded | None:
        """A voice or style."""
        return next((recorded for _, recorded in self._all() if recorded.sha256 == sha256), None)

    def at_hand(self, name: str, style: str = "") -> bool:
        """True if `reference` has this voice in memory."""
        known = self._records.get(Place(self._folder, name, style))
        return known is not None and self._prepared.in_memory(known[1].sha256)

    def get(self, name: str) -> Voice:
        """A voice without its styles. Raises VoiceNotFound, VoiceDamaged, StorageError."""
        if not NAME_RULE.fullmatch(name):
            raise self._missing(name)
        return self._get(Place(self._folder, name), Voice)

    def style(self, name: str, style: str) -> Style:
        """Raises VoiceNotFound for a style that there is not, too, VoiceDamaged, StorageError."""
        if not (NAME_RULE.fullmatch(name) and is_style(style)):
            raise self._missing(name, style)
        return self._get(Place(self._folder, name, style), Style)

    def described(self, name: str) -> Voice:
        """A voice with its styles. Raises as `get` does."""
        return self._with_styles(self.get(name))

    def styles(self, name: str) -> list[str]:
        """Names of those that can be used; empty without such a voice."""
        if not NAME_RULE.fullmatch(name):
            return []
        return [place.style for place, _ in self._all(name) if place.style]

    def _with_styles(self, voice: Voice) -> Voice:
        styles = []
        try:
            for style in style_names(self._folder, voice.name):
                with contextlib.suppress(VoiceNotFound):  # deleted meanwhile
                    styles.append(self._listed(Place(self._folder, voice.name, style), Style))
        except StorageError as error:
            logger.warning("styles of voice %s cannot be used: %s", voice.name, error)
        return dataclasses.replace(voice, styles=tuple(styles))

    def _listed(self, place: Place, kind: type[R]) -> R:
        """One that is damaged says so. Raises VoiceNotFound."""
        try:
            return self._get(place, kind)
        except StorageError as error:
            logger.warning("%s cannot be used: %s", place, error)
            return kind(place.name, "", "", "", "", 0, 0.0, 0.0, problem=str(error))

    def _get(self, place: Place, kind: type[R]) -> R:
        """Raises VoiceNotFound, VoiceDamaged, StorageError."""
        with storage_errors(str(place)):
            try:
                version, known = version_of(place.record), self._records.get(place)
                if known is None or version is None or known[0] != version:
                    known = self._records[place] = (version, read_record(place, kind))
            except (FileNotFoundError, NotADirectoryError):
                if not os.path.lexists(place.folder):
                    raise self._missing(place.voice, place.style) from None
                raise VoiceDamaged(f"{place}: {place.record.name} is missing; {REMEDY}") from None
        recorded = known[1]
        assert isinstance(recorded, kind)
        return recorded

    def _missing(self, name: str, style: str = "") -> VoiceNotFound:
        if not (NAME_RULE.fullmatch(name) and style and os.path.lexists(self._folder / name)):
            return VoiceNotFound(f"no voice is named {shown(name)}")
        there = ", ".join((NEUTRAL, *self.styles(name)))
        return VoiceNotFound(f"voice {name!r} has no style {shown(style)}; it has {there}")

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
            with contextlib.suppress(VoiceNotFound):  # deleted meanwhile
                voices.append(self._with_styles(self._listed(Place(self._folder, name), Voice)))
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
        reply_to: ReplyTo = no_reply,
    ) -> Voice:
        """Check and store a voice, in place of a damaged one of that name; one with the same content stays.

        Until something is written, `checkpoint` may raise to stop. `reply_to` speaks a new recording's
        transcript. Raises InvalidRequest, InvalidReference, VoiceExists, StorageError, and what both raise.
        """
        _check_name("name", name)
        more = {
            "consent_note": consent_note,
            "display_name": _display_name(display_name),
            "pronunciations": dict(pronunciations),
        }
        check_pronunciations(pronunciations)
        place = Place(self._folder, name)
        return self._with_styles(
            self._create(
                *(place, Voice, audio, transcript, more, checkpoint, reply_to), validate_only=validate_only
            )
        )

    def create_style(
        self,
        name: str,
        style: str,
        audio: bytes,
        transcript: str,
        consent_note: str = "",
        *,
        validate_only: bool = False,
        checkpoint: Callable[[], None] = lambda: None,
        reply_to: ReplyTo = no_reply,
    ) -> Voice:
        """Check and store another recording of a voice, as `create` does; returns the voice with its styles.

        Raises VoiceNotFound, and what `create` raises.
        """
        _check_name("style", style)
        if style == NEUTRAL:
            raise InvalidRequest("style", f"must not be {NEUTRAL!r}: that is the voice's own recording")
        self.get(name)
        place, more = Place(self._folder, name, style), {"consent_note": consent_note}
        made = self._create(
            *(place, Style, audio, transcript, more, checkpoint, reply_to), validate_only=validate_only
        )
        voice = self.described(name)
        styles = {**{there.name: there for there in voice.styles}, style: made}
        return dataclasses.replace(voice, styles=tuple(styles[name] for name in sorted(styles)))

    def _create(
        self,
        place: Place,
        kind: type[R],
        audio: bytes,
        transcript: str,
        more: Mapping[str, Any],
        checkpoint: Callable[[], None],
        reply_to: ReplyTo,
        *,
        validate_only: bool,
    ) -> R:
        self._check(audio, transcript, more["consent_note"])
        sha256 = hashlib.sha256(audio).hexdigest()
        if there := self._same(place, kind, sha256, transcript, more):
            return there
        unread = self._read(transcript)
        checkpoint()
        features = self._features(audio, checkpoint)
        duration_s = len(features.samples) / self._spec.sample_rate_hz
        checkpoint()
        doubts = self._doubts(sha256, transcript, features, reply_to)
        recorded = kind(
            name=place.name,
            transcript=transcript,
            created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            sha256=sha256,
            size_bytes=len(audio),
            duration_s=round(duration_s, 3),
            rms=round(features.rms, 6),
            warnings=features.warnings + doubts + unread,
            **more,
        )
        if validate_only:
            return recorded
        with storage_errors(str(place)), locked(self._folder):
            checkpoint()
            if there := self._same(place, kind, sha256, transcript, more):
                return there
            self._check_room(place, len(audio))
            self._write(place, recorded, audio)
            self._prepared.put(sha256, features)
        return recorded

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
            replace_file(Place(self._folder, name).record, record_text(voice))
        return self._with_styles(voice)

    def delete(self, name: str) -> None:
        """Remove a voice with its styles. Raises VoiceNotFound, StorageError."""
        if not NAME_RULE.fullmatch(name):
            raise self._missing(name)
        self._delete(Place(self._folder, name))

    def delete_style(self, name: str, style: str) -> None:
        """Raises VoiceNotFound, StorageError."""
        if not (NAME_RULE.fullmatch(name) and is_style(style)):
            raise self._missing(name, style)
        self._delete(Place(self._folder, name, style))

    def _delete(self, place: Place) -> None:
        """Also the prepared references, unless others have the same audio."""
        with storage_errors(str(place)), locked(self._folder):
            gone = {recorded.sha256 for within, recorded in self._all(place.voice) if within.is_in(place)}
            remove(self._set_aside(place))
            sync(place.folder.parent)
            for sha256 in gone - {recorded.sha256 for _, recorded in self._all()}:
                self._prepared.forget(sha256)

    def sweep(self) -> None:
        """Remove what interrupted writing left, unless another process writes there."""
        sweep(self._folder, LEFTOVER_RULE)
        self._prepared.sweep()

    def check(self) -> list[str]:
        """A line for each stored voice and style that cannot be used."""
        problems = []
        for place in self._places():
            try:
                self.reference(place.voice, place.style)
            except (StorageError, InvalidRequest) as error:
                problems.append(f"{place.label}: {str(error).removeprefix(f'{place}: ')}")
        return problems

    def misread(self) -> list[str]:
        """A line for each stored transcript that the bundle does not read as it is spoken."""
        found = []
        for place, recorded in self._all():
            try:
                reasons = self._read(recorded.transcript)
            except InvalidReference as error:
                reasons = (str(error),)
            found += [f"{place.label}: {reason}" for reason in reasons]
        return found

    def _read(self, transcript: str) -> tuple[str, ...]:
        """Warnings of the bundle in use. Raises InvalidReference."""
        return self.reader.warnings(transcript) if self.reader else ()

    def _doubts(self, sha256: str, transcript: str, features: Features, reply_to: ReplyTo) -> tuple[str, ...]:
        """Warnings of a transcript beside its recording; what was spoken is remembered."""
        languages = self.reader.languages if self.reader else ()
        samples, rate_hz, key = features.samples, self._spec.sample_rate_hz, (sha256, transcript)
        unmarked = fit.mark_warnings(transcript, len(samples) / rate_hz)
        if miscounted := fit.count_warnings(transcript, samples, rate_hz, languages):
            return miscounted + unmarked
        if key not in self._echoes:
            reply = reply_to(Reference(self._spelt(transcript), features))
            if reply is None:
                return unmarked
            self._echoes[key] = echo.warnings(samples, reply, rate_hz)
            for old in list(self._echoes)[:-MOST_ECHOES]:
                self._echoes.pop(old, None)
        return self._echoes[key] + unmarked

    def _features(self, audio: bytes, checkpoint: Callable[[], None] = lambda: None) -> Features:
        """Raises InvalidReference."""
        return prepare(audio, self._spec, self._level, checkpoint, self._rule)

    def _spelt(self, transcript: str) -> str:
        """Transcript with its rule's ending, in letters of the bundle's vocabulary."""
        whole = self._rule.complete(transcript)
        return self.reader.spelling.read(whole) if self.reader else whole

    def _places(self, *names: str) -> Iterator[Place]:
        """Records of all voices, or these, each before its styles."""
        for name in names or self.names():
            yield Place(self._folder, name)
            with contextlib.suppress(StorageError):
                yield from (Place(self._folder, name, style) for style in style_names(self._folder, name))

    def _all(self, *names: str) -> Iterator[tuple[Place, Recorded]]:
        """Those that can be read, of all voices, or of these."""
        for place in self._places(*names):
            with contextlib.suppress(VoiceNotFound, StorageError):
                yield place, self._get(place, Style if place.style else Voice)

    def _check(self, audio: bytes, transcript: str, consent_note: str) -> None:
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

    def _check_room(self, place: Place, needed: int) -> None:
        """Raises StorageError, and VoiceNotFound for a style of none."""
        names, most, what = self.names(), MOST_VOICES, "voices"
        if place.style:
            self.get(place.voice)
            names, most = style_names(self._folder, place.voice), MOST_STYLES
            what = f"styles of voice {place.voice!r}"
        if len(names) >= most and place.name not in names:
            raise StorageError(f"{what}: {len(names)} are stored, and no more may be: delete one first")
        free = shutil.disk_usage(self._folder).free
        if needed + SPARE_BYTES > free:
            raise StorageError(
                f"{place}: {needed / 1e6:.1f} MB are to be written and {SPARE_BYTES / 1e6:.0f} MB "
                f"stay free, {free / 1e6:.1f} MB are left on the disk"
            )

    def _same(
        self, place: Place, kind: type[R], sha256: str, transcript: str, more: Mapping[str, object]
    ) -> R | None:
        """The stored recording, if it has this content; None if there is none, or a damaged one.

        Empty fields of `more` agree with any. Raises VoiceExists for other content.
        """
        try:
            there = self._get(place, kind)
            if (there.sha256, there.transcript) != (sha256, transcript):
                raise VoiceExists(f"{place} is stored already with other content; delete it first")
            for field, given in more.items():
                if given and given != getattr(there, field):
                    raise VoiceExists(f"{place} is stored already with another {NOTES[field]}")
            read_audio(place, there)
        except (VoiceNotFound, VoiceDamaged):
            return None
        return there

    def _write(self, place: Place, recorded: Recorded, audio: bytes) -> None:
        """A voice in place of a damaged one keeps the styles of that."""
        new, aside, parent = self._hidden(place.name), None, place.folder.parent
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
            os.rename(new, place.folder)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        sync(parent)
        if aside is not None:
            remove(aside)

    def _set_aside(self, place: Place) -> Path:
        """Make a recording vanish whole, also if removing it fails. Raises VoiceNotFound, OSError."""
        trash = self._hidden(place.name)
        try:
            os.rename(place.folder, trash)
        except (FileNotFoundError, NotADirectoryError):
            raise self._missing(place.voice, place.style) from None
        for known in list(self._records):
            if known.is_in(place):
                self._records.pop(known, None)
        return trash

    def _hidden(self, name: str) -> Path:
        return self._folder / f".{name}.{secrets.token_hex(4)}"


def _check_name(field: str, name: str) -> None:
    """Raises InvalidRequest."""
    if not NAME_RULE.fullmatch(name):
        raise InvalidRequest(
            field,
            f"must be 1 to 64 of a-z, 0-9, - and _, beginning with a letter or digit, not {shown(name)}",
        )


def _display_name(given: str) -> str:
    """Raises InvalidRequest."""
    name = normalise(given)
    if len(name) > MAX_DISPLAY_CHARACTERS:
        raise InvalidRequest(
            "display_name", f"has {len(name)} characters; at most {MAX_DISPLAY_CHARACTERS} are allowed"
        )
    return name
