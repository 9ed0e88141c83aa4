"""Copying this box's voices and their styles to others, by the hash of their audio.

The audio comes from the store's folder: the API gives out no recordings of people.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from appliance import client
from appliance.client import CallFailed, Client
from appliance.errors import StorageError
from appliance.rpc.appliance_pb2 import VoiceState
from appliance.voices.records import Recorded, Voice, read_stored, read_style, stored_names, style_names

Kind = Literal["same", "add", "update", "replace", "remove", "extra"]
"""extra: only the other box has it, and keeps it."""


@dataclass(frozen=True, order=True)
class Name:
    """Recording of a voice, or of one of its styles."""

    voice: str
    style: str = ""

    def __str__(self) -> str:
        return f"{self.voice}/{self.style}" if self.style else self.voice


@dataclass(frozen=True)
class Step:
    """Change to one voice or style of another box."""

    kind: Kind
    name: Name


@dataclass(frozen=True)
class Source:
    folder: Path
    voices: Mapping[Name, Recorded]
    """With their styles."""
    damaged: Mapping[Name, str]
    """Problems of those that are neither copied nor removed, nor are their styles."""


def read_source(folder: Path) -> Source:
    """Read every voice and compare its audio with its hash. Raises StorageError."""
    voices: dict[Name, Recorded] = {}
    damaged: dict[Name, str] = {}

    def read(name: Name) -> None:
        try:
            voices[name] = _stored(folder, name)[0]
        except StorageError as error:
            damaged[name] = str(error)

    for voice in stored_names(folder):
        read(Name(voice))
        if Name(voice) in voices:
            for style in style_names(folder, voice):
                read(Name(voice, style))
    return Source(folder, voices, damaged)


def _stored(folder: Path, name: Name) -> tuple[Recorded, bytes]:
    """Raises StorageError."""
    return read_style(folder, name.voice, name.style) if name.style else read_stored(folder, name.voice)


def plan(source: Source, there: Iterable[client.Voice], *, remove: bool) -> list[Step]:
    """Steps that make another box's voices equal to these, a voice before its styles."""
    found: dict[Name, client.Voice | client.Style] = {}
    for voice in there:
        found[Name(voice.name)] = voice
        found.update({Name(voice.name, style.name): style for style in voice.styles})
    kinds = {name: _kind(here, found.get(name)) for name, here in source.voices.items()}
    # The styles of a voice go with it.
    gone = {name.voice for name, kind in kinds.items() if kind == "replace" and not name.style}
    for name in found.keys() - kinds.keys() - source.damaged.keys():
        whole = Name(name.voice)
        if name.voice not in gone and (name == whole or whole in kinds):
            kinds[name] = "remove" if remove else "extra"
    kinds.update({name: "add" for name in source.voices if name.style and name.voice in gone})
    return [Step(kinds[name], name) for name in sorted(kinds)]


def _kind(here: Recorded, there: client.Voice | client.Style | None) -> Kind:
    if there is None or there.state == VoiceState.DAMAGED:
        return "add"
    if any(getattr(here, f) != getattr(there, f) for f in ("sha256", "transcript", "consent_note")):
        return "replace"
    notes = ("display_name", "pronunciations") if isinstance(here, Voice) else ()
    return "update" if any(getattr(here, f) != getattr(there, f) for f in notes) else "same"


def apply(steps: Iterable[Step], source: Source, box: Client) -> Iterator[tuple[Step, str]]:
    """Take the steps; yields each with its error, or "". Raises StorageError for a damaged voice."""
    for step in steps:
        try:
            _take(step, source, box)
        except CallFailed as error:
            yield step, str(error)
        else:
            yield step, ""


def _take(step: Step, source: Source, box: Client) -> None:
    name = step.name
    if step.kind == "remove":
        _remove(box, name)
    elif step.kind == "update":
        here, _ = read_stored(source.folder, name.voice)
        box.update_voice(here.name, display_name=here.display_name, pronunciations=here.pronunciations)
    elif step.kind in ("add", "replace"):
        recorded, audio = _stored(source.folder, name)
        if step.kind == "replace":
            # Under another name, since a stored one is compared before anything is checked.
            _add(box, recorded, audio, Name(f"{name.voice[:58]}-check"), validate_only=True)
            _remove(box, name)
        _add(box, recorded, audio, name)


def _remove(box: Client, name: Name) -> None:
    if name.style:
        box.remove_style(name.voice, name.style)
    else:
        box.remove_voice(name.voice)


def _add(box: Client, recorded: Recorded, audio: bytes, name: Name, *, validate_only: bool = False) -> None:
    transcript, consent_note = recorded.transcript, recorded.consent_note
    if name.style:
        box.add_style(name.voice, name.style, audio, transcript, consent_note=consent_note)
        return
    voice = recorded if isinstance(recorded, Voice) else None
    box.add_voice(
        name.voice,
        audio,
        transcript,
        consent_note=consent_note,
        display_name=voice.display_name if voice else "",
        pronunciations=voice.pronunciations if voice else None,
        validate_only=validate_only,
    )
