"""The licence of weights, by the record that `fetch` writes, a known hash or an official name."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from appliance.contract.bundle import Licence
from appliance.durable import sha256
from export.sources.header import TRAINED_VOCODERS, newest
from export.sources.weights import HUB, KNOWN, VOCODERS, Known

RECORD = "licence.yaml"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class LicenceTerms:
    """Licence and source of a file or folder of weights."""

    licence: str
    source: str
    note: str = ""
    files: dict[str, str] = field(default_factory=dict)
    """File name → SHA-256 of the licensed files."""
    model: str = ""
    """Name of a row in `weights.KNOWN`."""


def terms(row: Known) -> LicenceTerms:
    return LicenceTerms(row.licence, row.source, row.warning, model=row.name)


VOCODER_TERMS: dict[str, LicenceTerms] = {
    vocoder.repository: LicenceTerms(vocoder.licence, f"{HUB}/{vocoder.repository}")
    for vocoder in VOCODERS.values()
}
_BY_HASH = {row.sha256: terms(row) for row in KNOWN.values() if row.sha256} | {
    vocoder.sha256: VOCODER_TERMS[vocoder.repository] for vocoder in VOCODERS.values() if vocoder.sha256
}
_OFFICIAL_PLACES = {
    Path(row.checkpoint).with_suffix("").as_posix(): terms(row)
    for row in KNOWN.values()
    if row.repository == "SWivid/F5-TTS"
}
_VOCODER_FOLDERS = {vocoder.folder: vocoder.repository for vocoder in VOCODERS.values()}
_VOCODER_FILES = ("pytorch_model.bin", "model.safetensors", "bigvgan_generator.pt")
_VOCODERS_LEFT = tuple(dict.fromkeys(name for names in TRAINED_VOCODERS.values() for name in names))


def licence(
    checkpoint: Path, vocoder: Path, *, weights: str | None = None, vocoder_terms: str | None = None
) -> Licence:
    """Terms of a checkpoint and of a vocoder's folder or file.

    `weights` and `vocoder_terms` override them.
    """
    voice_file = vocoder
    if not vocoder.is_file():
        voice_file = newest(vocoder, (*_VOCODER_FILES, *_VOCODERS_LEFT)) or vocoder / "weights"
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


def terms_of(file: Path, *, vocoder: bool = False) -> LicenceTerms:
    """Terms by record, by hash or by name: the folder's name for a vocoder, else folder and file."""
    digest = sha256(file) if file.is_file() else ""
    recorded = read_record(file.parent)
    if recorded is not None and recorded.files.get(file.name) == digest:
        return recorded
    if digest in _BY_HASH:
        return _BY_HASH[digest]
    folder = file.absolute().parent.name
    if vocoder:
        named = VOCODER_TERMS.get(_VOCODER_FOLDERS.get(folder, ""))
    else:
        named = _OFFICIAL_PLACES.get(f"{folder}/{file.stem}")
    if named is None:
        return LicenceTerms(UNKNOWN, file.name)
    note = "; ".join(filter(None, (named.note, "recognised by its name, not by its hash")))
    return dataclasses.replace(named, note=note)


def stated_by(file: Path) -> LicenceTerms | None:
    """Terms by record or by name; None if both are unknown. Does not hash the file."""
    recorded = read_record(file.parent)
    if recorded is not None and file.name in recorded.files:
        return recorded
    return _OFFICIAL_PLACES.get(f"{file.absolute().parent.name}/{file.stem}")


def recognised(checkpoint: Path) -> Known | None:
    """Row of a checkpoint among the known weights, by the record of `fetch`, its hash or an official name;
    None if it is unknown.
    """
    return KNOWN.get(terms_of(checkpoint).model)


def is_known(digest: str) -> bool:
    return digest in _BY_HASH


def write_record(folder: Path, terms: LicenceTerms) -> None:
    """Write `licence.yaml` into a folder."""
    text = yaml.safe_dump(dataclasses.asdict(terms), sort_keys=False, allow_unicode=True)
    (folder / RECORD).write_text(text, "utf-8")


def read_record(folder: Path) -> LicenceTerms | None:
    """Read the record of a folder; None if it is missing or invalid."""
    try:
        raw = yaml.safe_load((folder / RECORD).read_text("utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None
    if not isinstance(raw, Mapping) or not isinstance(raw.get("files"), Mapping):
        return None
    values: dict[str, Any] = {f.name: raw[f.name] for f in dataclasses.fields(LicenceTerms) if f.name in raw}
    return LicenceTerms(**values) if {"licence", "source"} <= values.keys() else None


def _stated(terms: LicenceTerms, licence: str | None) -> LicenceTerms:
    if licence is None:
        return terms
    return LicenceTerms(licence, terms.source, "as stated by whoever exported the bundle")
