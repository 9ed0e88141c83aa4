"""Copying this box's voices to others, by the hash of their audio.

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
from appliance.voices.store import Voice, read_stored, stored_names

Kind = Literal["same", "add", "update", "replace", "remove", "extra"]
"""extra: only the other box has it, and keeps it."""


@dataclass(frozen=True)
class Step:
    """Change to one voice of another box."""

    kind: Kind
    name: str


@dataclass(frozen=True)
class Source:
    folder: Path
    voices: Mapping[str, Voice]
    damaged: Mapping[str, str]
    """Problems by name of voices, which are neither copied nor removed."""


def read_source(folder: Path) -> Source:
    """Read every voice and compare its audio with its hash. Raises StorageError."""
    voices, damaged = {}, {}
    for name in stored_names(folder):
        try:
            voices[name] = read_stored(folder, name)[0]
        except StorageError as error:
            damaged[name] = str(error)
    return Source(folder, voices, damaged)


def plan(source: Source, there: Iterable[client.Voice], *, remove: bool) -> list[Step]:
    """Steps that make another box's voices equal to these, in order of name."""
    found = {voice.name: voice for voice in there}
    steps = [Step(_kind(voice, found.get(name)), name) for name, voice in source.voices.items()]
    extra = found.keys() - source.voices.keys() - source.damaged.keys()
    steps += [Step("remove" if remove else "extra", name) for name in extra]
    return sorted(steps, key=lambda step: step.name)


def _kind(here: Voice, there: client.Voice | None) -> Kind:
    if there is None or there.state == VoiceState.DAMAGED:
        return "add"
    if any(getattr(here, f) != getattr(there, f) for f in ("sha256", "transcript", "consent_note")):
        return "replace"
    if (here.display_name, here.pronunciations) != (there.display_name, dict(there.pronunciations)):
        return "update"
    return "same"


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
    if step.kind == "remove":
        box.remove_voice(step.name)
    elif step.kind == "update":
        here = source.voices[step.name]
        box.update_voice(step.name, display_name=here.display_name, pronunciations=here.pronunciations)
    elif step.kind in ("add", "replace"):
        voice, audio = read_stored(source.folder, step.name)
        if step.kind == "replace":
            # Under another name, since a stored one is compared before anything is checked.
            _add(box, voice, audio, f"{step.name[:58]}-check", validate_only=True)
            box.remove_voice(step.name)
        _add(box, voice, audio, step.name)


def _add(box: Client, voice: Voice, audio: bytes, name: str, *, validate_only: bool = False) -> None:
    box.add_voice(
        name,
        audio,
        voice.transcript,
        consent_note=voice.consent_note,
        display_name=voice.display_name,
        pronunciations=voice.pronunciations,
        validate_only=validate_only,
    )
