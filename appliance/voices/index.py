"""The index of stored voices: their records by name, and the references prepared from them."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from appliance.config import VoicesConfig
from appliance.contract.bundle import Bundle
from appliance.contract.mel import MelSpec
from appliance.durable import storage_errors, version_of
from appliance.errors import InvalidReference, InvalidRequest, StorageError, VoiceDamaged, VoiceNotFound
from appliance.fields import shown
from appliance.request import Features, Reference
from appliance.text.normalise import normalise
from appliance.text.styles import NEUTRAL
from appliance.voices.cache import ReferenceCache
from appliance.voices.records import (
    NAME_RULE,
    REMEDY,
    Place,
    Style,
    Voice,
    read_audio,
    read_record,
    stored_names,
    style_names,
)
from appliance.voices.reference import prepare
from appliance.voices.rules import F5, RULES, ConditioningRule
from appliance.voices.transcript import Reader

logger = logging.getLogger(__name__)

DEFAULT_PAGE = 50
MAX_PAGE = 1_000
MOST_NAMED = 32
"""Voices that the message about an unknown voice lists."""
MAX_TRANSCRIPT_CHARACTERS = 1_000
MAX_CONSENT_CHARACTERS = 2_000
RECENT_S = 1.0
"""Age, in seconds, up to which a request uses a record in memory without a look at the disk."""


@dataclass(frozen=True)
class Page:
    """A page of the list of voices."""

    voices: tuple[Voice, ...]
    next_token: str
    """Token of the next page; "" on the last one."""


def open_index(config: VoicesConfig, bundle: Bundle) -> VoiceIndex:
    """Index of a configuration, for a bundle. Raises StorageError, BundleError."""
    manifest = bundle.manifest
    level, rule = manifest.defaults.target_rms, RULES[manifest.reference]
    return VoiceIndex(config, manifest.mel, level, Reader.of(bundle), rule)


class VoiceIndex:
    """Reads the store's folder.

    Sees files that a person adds or removes there within RECENT_S. Thread-safe.
    """

    def __init__(
        self,
        config: VoicesConfig,
        spec: MelSpec,
        level: float,
        reader: Reader | None = None,
        rule: ConditioningRule = F5,
    ) -> None:
        """Make missing folders. `level` is the smallest RMS of references. Raises StorageError."""
        self.reader = reader
        """Reader of the current bundle."""
        self.further: list[Reader] = []
        """Readers of the secondary bundles."""
        self.folder = config.folder
        self.spec = spec
        self._level = level
        self._rule = rule
        self._max_reference_bytes = config.max_reference_bytes
        self.prepared = ReferenceCache(config.cache, spec, level, config.memory_entries, rule)
        self._records: dict[Place, tuple[tuple[int, int, int] | None, Voice | Style, float]] = {}
        """Place → version of the file, record, and time of the last comparison with the disk."""
        for path in (config.folder, config.cache):
            with storage_errors(str(path)):
                path.mkdir(parents=True, exist_ok=True)

    # Records.

    def get(self, place: Place) -> Voice | Style:
        """A style, or a voice without its styles. Raises VoiceNotFound, VoiceDamaged, StorageError."""
        if (recorded := self.find(place)) is None:
            raise self.missing(place)
        return recorded

    def find(self, place: Place) -> Voice | Style | None:
        """Like `get`, but None if the recording is not stored. Never lists the store's folder."""
        if not place.is_named:
            return None
        with storage_errors(str(place)):
            try:
                now, entry = time.monotonic(), self._records.get(place)
                version = version_of(self.folder / place.record)
                is_current = entry is not None and version is not None and entry[0] == version
                recorded = entry[1] if entry and is_current else read_record(self.folder, place)
                self._records[place] = version, recorded, now
            except (FileNotFoundError, NotADirectoryError):
                if not os.path.lexists(self.folder / place.folder):
                    return None
                raise VoiceDamaged(f"{place}: {place.record.name} is missing; {REMEDY}") from None
        return recorded

    def recent(self, place: Place) -> Voice | Style | None:
        """Like `find`, but from memory if the record was compared with the disk within RECENT_S."""
        return self._remembered(place) or self.find(place)

    def _remembered(self, place: Place) -> Voice | Style | None:
        entry = self._records.get(place)
        return entry[1] if entry and time.monotonic() < entry[2] + RECENT_S else None

    def voice(self, name: str) -> Voice:
        """A voice without its styles. Raises the errors of `get`."""
        voice = self.get(Place(name))
        assert isinstance(voice, Voice)
        return voice

    def described(self, name: str) -> Voice:
        """A voice with its styles. Raises the errors of `get`."""
        return self.with_styles(self.voice(name))

    def names(self) -> list[str]:
        return stored_names(self.folder)

    def styles(self, name: str) -> list[str]:
        """Names of usable styles; empty if there is no such voice."""
        if not NAME_RULE.fullmatch(name):
            return []
        return [place.style for place, _ in self.readable(name) if place.style]

    def is_usable(self, name: str) -> bool:
        try:
            return self.find(Place(name)) is not None
        except StorageError:
            return False

    def pronunciations(self, name: str) -> Mapping[str, str]:
        """Pronunciations of a voice; empty if the voice cannot be used."""
        try:
            voice = self.recent(Place(name))
        except StorageError:
            return {}
        return voice.pronunciations if isinstance(voice, Voice) else {}

    def page(self, page_size: int = 0, page_token: str = "") -> Page:
        """Voices after the name `page_token`. Size 0 stands for 50. Raises InvalidRequest."""
        if not 0 <= page_size <= MAX_PAGE:
            raise InvalidRequest("page_size", f"must be at most {MAX_PAGE}, not {page_size}")
        if page_token and not NAME_RULE.fullmatch(page_token):
            raise InvalidRequest("page_token", "was not issued by this daemon")
        size = page_size or DEFAULT_PAGE
        names = [name for name in self.names() if name > page_token]
        voices = []
        for name in names[:size]:
            with contextlib.suppress(VoiceNotFound):  # just deleted
                voice = self._listed(Place(name))
                assert isinstance(voice, Voice)
                voices.append(self.with_styles(voice))
        return Page(tuple(voices), names[size - 1] if len(names) > size else "")

    def with_audio(self, sha256: str) -> Voice | Style | None:
        """Voice or style with this hash of its audio; None if there is none."""
        return next((recorded for _, recorded in self.readable() if recorded.sha256 == sha256), None)

    def with_styles(self, voice: Voice, *new: Style) -> Voice:
        """The voice with its styles. `new` styles replace stored styles of the same name."""
        styles = {}
        try:
            for name in style_names(self.folder, voice.name):
                with contextlib.suppress(VoiceNotFound):  # just deleted
                    style = self._listed(Place(voice.name, name))
                    assert isinstance(style, Style)
                    styles[name] = style
        except StorageError as error:
            logger.warning("styles of voice %s cannot be used: %s", voice.name, error)
        styles |= {style.name: style for style in new}
        return dataclasses.replace(voice, styles=tuple(styles[name] for name in sorted(styles)))

    def _listed(self, place: Place) -> Voice | Style:
        """A record for a list. `problem` names the reason if it cannot be used. Raises VoiceNotFound."""
        try:
            return self.get(place)
        except StorageError as error:
            logger.warning("%s cannot be used: %s", place, error)
            return place.kind(place.name, "", "", "", "", 0, 0.0, 0.0, problem=str(error))

    def missing(self, place: Place) -> VoiceNotFound:
        name, style = place.voice, place.style
        if not (NAME_RULE.fullmatch(name) and style and os.path.lexists(self.folder / name)):
            stored = self.names()
            named = ", ".join([*stored[:MOST_NAMED], *["…"] * (len(stored) > MOST_NAMED)])
            choice = f"those here are {named}" if stored else "none is stored"
            return VoiceNotFound(f"no voice is named {shown(name)}; {choice}")
        there = ", ".join((NEUTRAL, *self.styles(name)))
        return VoiceNotFound(f"voice {name!r} has no style {shown(style)}; it has {there}")

    def _places(self, *names: str) -> Iterator[Place]:
        """Places of all voices, or of `names`. A voice precedes its styles."""
        for name in names or self.names():
            yield Place(name)
            with contextlib.suppress(StorageError):
                yield from (Place(name, style) for style in style_names(self.folder, name))

    def readable(self, *names: str) -> Iterator[tuple[Place, Voice | Style]]:
        """Readable records of all voices, or of `names`, with their styles."""
        for place in self._places(*names):
            with contextlib.suppress(StorageError):
                if (recorded := self.find(place)) is not None:
                    yield place, recorded

    def forget(self, place: Place) -> None:
        """Drop the records of a removed place, and of its styles."""
        for recorded_place in list(self._records):
            if recorded_place.is_in(place):
                self._records.pop(recorded_place, None)

    # References.

    def reference(self, name: str, style: str = "", reader: Reader | None = None) -> Reference:
        """Prepared reference of a voice. `reader` belongs to a secondary bundle; None: the current bundle's.

        Raises VoiceNotFound, StorageError, InvalidReference, and InvalidRequest for a missing style.
        """
        place = Place(name, style or None)
        if self.recent(Place(name)) is None:
            raise self.missing(place)
        if (recorded := self.recent(place)) is None:
            raise InvalidRequest("style", str(self.missing(place)))
        if (features := self.prepared.get(recorded.sha256)) is None:
            features = self.features(read_audio(self.folder, place, recorded))
            self.prepared.put(recorded.sha256, features)
        return Reference(self._spelt(recorded.transcript, reader), features)

    def unstored(self, audio: bytes, transcript: str) -> Reference:
        """Prepare a reference without storing it. Raises InvalidReference."""
        self.check_upload(audio, transcript)
        self.unread(transcript)
        return Reference(self._spelt(transcript), self.features(audio))

    def at_hand(self, name: str, style: str = "") -> bool:
        """True if `reference` and `pronunciations` need no disk for this voice."""
        voice, recorded = self._remembered(Place(name)), self._remembered(Place(name, style or None))
        return voice is not None and recorded is not None and self.prepared.in_memory(recorded.sha256)

    def check(self) -> list[str]:
        """A line for each stored voice and style that cannot be used."""
        problems = []
        for place in self._places():
            try:
                self.reference(place.voice, place.style or "")
            except (StorageError, InvalidRequest) as error:
                problems.append(f"{place.label}: {str(error).removeprefix(f'{place}: ')}")
        return problems

    def misread(self) -> list[str]:
        """A line for each stored transcript whose words the bundle would read differently."""
        lines = []
        for place, recorded in self.readable():
            try:
                reasons = self.unread(recorded.transcript)
            except InvalidReference as error:
                reasons = (str(error),)
            lines += [f"{place.label}: {reason}" for reason in reasons]
        return lines

    def check_upload(self, audio: bytes, transcript: str, consent_note: str = "") -> None:
        """Raise InvalidReference for long audio, a long text, or an empty transcript."""
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
        # The appliance does not transcribe audio.
        if not normalise(transcript):
            raise InvalidReference("transcript", "is empty: send the words that are spoken in the audio")

    def unread(self, transcript: str) -> tuple[str, ...]:
        """Warnings about a transcript by the current bundle; none if a secondary bundle reads the transcript
        without a warning. Raises InvalidReference.
        """
        for reader in self.further:
            with contextlib.suppress(InvalidReference):
                if not reader.warnings(transcript):
                    return ()
        return self.reader.warnings(transcript) if self.reader else ()

    def features(self, audio: bytes, checkpoint: Callable[[], None] = lambda: None) -> Features:
        """Prepare audio by the bundle's rule. Raises InvalidReference."""
        return prepare(audio, self.spec, self._level, checkpoint, self._rule)

    def _spelt(self, transcript: str, reader: Reader | None = None) -> str:
        """The transcript with its rule's ending, in letters of the bundle's vocabulary."""
        whole, reader = self._rule.complete(transcript), reader or self.reader
        return reader.spelling.read(whole) if reader else whole
