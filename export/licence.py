"""Licence of weights by the record of `fetch`, a known hash or an official name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from appliance.contract.bundle import Licence
from appliance.durable import sha256

RECORD = "licence.yaml"
UNKNOWN = "unknown"
NON_COMMERCIAL = "not for commercial use"


@dataclass(frozen=True)
class Terms:
    """Licence and source of a file or folder of weights."""

    licence: str
    source: str
    note: str = ""
    files: dict[str, str] = field(default_factory=dict)
    """File name → sha256 of the files covered by the record."""


REPOSITORIES: dict[str, Terms] = {
    "SWivid/F5-TTS": Terms("CC-BY-NC-4.0", "https://huggingface.co/SWivid/F5-TTS", NON_COMMERCIAL),
    "charactr/vocos-mel-24khz": Terms("MIT", "https://huggingface.co/charactr/vocos-mel-24khz"),
    "nvidia/bigvgan_v2_24khz_100band_256x": Terms(
        "MIT", "https://huggingface.co/nvidia/bigvgan_v2_24khz_100band_256x"
    ),
}
"""Official repositories on the hub with the terms of their model cards."""

KNOWN_HASHES: dict[str, str] = {
    "670900fd14e6c458b95da6e9ed317cdb20dbaf7a1c02ac06a05475a9d32b6a38": "SWivid/F5-TTS",
    "4180310f91d592cee4bc14998cd37c781f779cf105e8ca8744d9bd48ca7046ae": "SWivid/F5-TTS",
    "97ec976ad1fd67a33ab2682d29c0ac7df85234fae875aefcc5fb215681a91b2a": "charactr/vocos-mel-24khz",
}
"""sha256 of v1_Base, Base and Vocos → repository."""

_KNOWN_PLACES: dict[str, str] = {
    "F5TTS_v1_Base/model_1250000.safetensors": "SWivid/F5-TTS",
    "F5TTS_v1_Base_no_zero_init/model_1250000.safetensors": "SWivid/F5-TTS",
    "F5TTS_Base/model_1200000.safetensors": "SWivid/F5-TTS",
    "F5TTS_Base/model_1200000.pt": "SWivid/F5-TTS",
    "F5TTS_Base_bigvgan/model_1250000.pt": "SWivid/F5-TTS",
}
_VOCODER_FOLDERS = {name.split("/")[1]: name for name in REPOSITORIES if name != "SWivid/F5-TTS"}
_VOCODER_FILES = ("pytorch_model.bin", "model.safetensors", "bigvgan_generator.pt")


def licence(
    checkpoint: Path, vocoder: Path, *, weights: str | None = None, vocoder_terms: str | None = None
) -> Licence:
    """Terms of a checkpoint and of a vocoder's folder or file; `weights`, `vocoder_terms` override them."""
    files = (vocoder, *(vocoder / name for name in _VOCODER_FILES))
    voice_file = next((file for file in files if file.is_file()), vocoder / "weights")
    model = _stated(terms_of(checkpoint), weights)
    voice = _stated(terms_of(voice_file, vocoder=True), vocoder_terms)
    notes = {f"weights {checkpoint.name}": model.note, f"vocoder {voice_file.name}": voice.note}
    return Licence(
        weights=model.licence,
        source=model.source,
        vocoder=voice.licence,
        vocoder_source=voice.source,
        note="; ".join(f"{file}: {note}" for file, note in notes.items() if note),
    )


def terms_of(file: Path, *, vocoder: bool = False) -> Terms:
    """Terms by record, by hash, or by name: of a vocoder its folder's, else with the file's."""
    digest = sha256(file) if file.is_file() else ""
    recorded = read_record(file.parent)
    if recorded is not None and recorded.files.get(file.name) == digest:
        return recorded
    if digest in KNOWN_HASHES:
        return REPOSITORIES[KNOWN_HASHES[digest]]
    folder = file.absolute().parent.name
    repository = _VOCODER_FOLDERS.get(folder) if vocoder else _KNOWN_PLACES.get(f"{folder}/{file.name}")
    if repository is None:
        return Terms(UNKNOWN, file.name)
    terms = REPOSITORIES[repository]
    note = "; ".join(filter(None, (terms.note, "recognised by its name, not by its hash")))
    return dataclasses.replace(terms, note=note)


def write_record(folder: Path, terms: Terms) -> None:
    """Write `licence.yaml` beside the files that it covers."""
    text = yaml.safe_dump(dataclasses.asdict(terms), sort_keys=False, allow_unicode=True)
    (folder / RECORD).write_text(text, "utf-8")


def read_record(folder: Path) -> Terms | None:
    """Read the record of a folder; None if it is missing or unreadable."""
    try:
        raw = yaml.safe_load((folder / RECORD).read_text("utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    if not isinstance(raw, Mapping) or not isinstance(raw.get("files"), Mapping):
        return None
    known: dict[str, Any] = {f.name: raw[f.name] for f in dataclasses.fields(Terms) if f.name in raw}
    return Terms(**known) if {"licence", "source"} <= known.keys() else None


def _stated(terms: Terms, licence: str | None) -> Terms:
    if licence is None:
        return terms
    return Terms(licence, terms.source, "as stated by whoever exported the bundle")
