"""Copies this box's voices and their styles to others, by the hash of their audio.

The audio comes from the store's folder, because the API never returns recordings of people.
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
from appliance.voices.records import Place, Recorded, Voice, read_stored, stored_names, style_names

Kind = Literal["same", "add", "update", "replace", "remove", "extra"]
""""extra": only the other box has it, and keeps it."""


@dataclass(frozen=True)
class VoiceChange:
    """Change of a voice or style on another box."""

    kind: Kind
    place: Place


@dataclass(frozen=True)
class ReplicaSource:
    folder: Path
    voices: Mapping[Place, Recorded]
    """Voices and their styles."""
    damaged: Mapping[Place, str]
    """Problems of damaged voices and styles. `sync` neither copies nor removes these."""


def read_source(folder: Path) -> ReplicaSource:
    """Read every voice, and compare its audio with its hash. Raises StorageError."""
    voices: dict[Place, Recorded] = {}
    damaged: dict[Place, str] = {}

    def read(place: Place) -> None:
        try:
            voices[place] = read_stored(folder, place)[0]
        except StorageError as error:
            damaged[place] = str(error)

    for voice in stored_names(folder):
        read(Place(voice))
        if Place(voice) in voices:
            for style in style_names(folder, voice):
                read(Place(voice, style))
    return ReplicaSource(folder, voices, damaged)


def plan(source: ReplicaSource, there: Iterable[client.Voice], *, remove: bool) -> list[VoiceChange]:
    """Steps that make another box's voices equal to these, each voice before its styles."""
    found: dict[Place, client.Voice | client.Style] = {}
    for voice in there:
        found[Place(voice.name)] = voice
        found.update({Place(voice.name, style.name): style for style in voice.styles})
    kinds = {place: _kind(here, found.get(place)) for place, here in source.voices.items()}
    # The styles of a voice are removed with it.
    gone = {place.voice for place, kind in kinds.items() if kind == "replace" and not place.style}
    for place in found.keys() - kinds.keys() - source.damaged.keys():
        whole = Place(place.voice)
        if place.voice not in gone and (place == whole or whole in kinds):
            kinds[place] = "remove" if remove else "extra"
    kinds.update({place: "add" for place in source.voices if place.style and place.voice in gone})
    return [
        VoiceChange(kinds[place], place) for place in sorted(kinds, key=lambda it: (it.voice, it.style or ""))
    ]


def _kind(here: Recorded, there: client.Voice | client.Style | None) -> Kind:
    if there is None or there.state == VoiceState.DAMAGED:
        return "add"
    if any(getattr(here, f) != getattr(there, f) for f in ("sha256", "transcript", "consent_note")):
        return "replace"
    notes = ("display_name", "pronunciations") if isinstance(here, Voice) else ()
    return "update" if any(getattr(here, f) != getattr(there, f) for f in notes) else "same"


def apply(
    steps: Iterable[VoiceChange], source: ReplicaSource, box: Client
) -> Iterator[tuple[VoiceChange, str]]:
    """Apply the steps; yield each with its error, or "". Raises StorageError for a damaged voice."""
    for step in steps:
        try:
            _take(step, source, box)
        except CallFailed as error:
            yield step, str(error)
        else:
            yield step, ""


def _take(step: VoiceChange, source: ReplicaSource, box: Client) -> None:
    place = step.place
    if step.kind == "remove":
        _remove(box, place)
    elif step.kind == "update":
        here, _ = read_stored(source.folder, place)
        assert isinstance(here, Voice)
        box.update_voice(here.name, display_name=here.display_name, pronunciations=here.pronunciations)
    elif step.kind in ("add", "replace"):
        recorded, audio = read_stored(source.folder, place)
        if step.kind == "replace":
            # The check uses another name, because a stored name would be compared before anything is checked.
            _add(box, recorded, audio, Place(f"{place.voice[:58]}-check"), validate_only=True)
            _remove(box, place)
        _add(box, recorded, audio, place)


def _remove(box: Client, place: Place) -> None:
    if place.style:
        box.remove_style(place.voice, place.style)
    else:
        box.remove_voice(place.voice)


def _add(box: Client, recorded: Recorded, audio: bytes, place: Place, *, validate_only: bool = False) -> None:
    transcript, consent_note = recorded.transcript, recorded.consent_note
    if place.style:
        box.add_style(place.voice, place.style, audio, transcript, consent_note=consent_note)
        return
    voice = recorded if isinstance(recorded, Voice) else None
    box.add_voice(
        place.voice,
        audio,
        transcript,
        consent_note=consent_note,
        display_name=voice.display_name if voice else "",
        pronunciations=voice.pronunciations if voice else None,
        validate_only=validate_only,
    )
