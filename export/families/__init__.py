"""Families of models. Each is one file in this folder with a DECLARATION. All files here are imported."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import json
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from appliance.contract.mel import Kind
from appliance.contract.yaml_text import parse_yaml
from appliance.fields import from_mapping
from export.families.declaration import MELS, Declaration, Family, FamilyError, Sampled
from export.sources.header import stray
from export.sources.weights import KNOWN, known

__all__ = ["DECLARATIONS", "MELS", "NAMED", "Declaration", "Family", "FamilyError", "family", "of"]

DECLARATIONS: tuple[Declaration, ...] = tuple(
    module.DECLARATION
    for found in sorted(pkgutil.iter_modules(__path__), key=lambda found: found.name)
    if hasattr(module := importlib.import_module(f"{__name__}.{found.name}"), "DECLARATION")
)
NAMED: dict[str, Family] = {one.name: one for declared in DECLARATIONS for one in declared.named}
"""Name that its makers gave a family → family."""


def of(arch: Any) -> Declaration:
    """Declaration of an architecture."""
    return next(declared for declared in DECLARATIONS if isinstance(arch, declared.arch))


def family(name: str) -> Family:
    """Family by its name, by known weights, or by `name` as a file's path or as a text.

    A file or text may have the keys `sampler` and `family`. `family`, a name or another file, replaces an
    architecture. Raises FamilyError.
    """
    raw, where = _read(name), _where(name)
    at = where
    if "family" in raw:
        name = str(raw["family"])
        raw, at = {**_read(name), **raw}, f"{where}: family: {name}"
    try:
        base = _base(name, raw)
    except FamilyError as error:
        raise FamilyError(f"{at}: {error}") from error
    where, section = f"{where}: sampler", raw.get("sampler", {})
    sampled: Sampled = from_mapping(Sampled, section, where=where, error=FamilyError)
    try:
        return sampled.of(base, of(base.arch).named)
    except ValueError as error:
        raise FamilyError(f"{where}: {error}") from error


def _base(name: str, raw: Mapping[str, Any]) -> Family:
    """Family without its section `sampler`."""
    if name in NAMED:
        return NAMED[name]
    if (row := known(name)) is not None:
        base = NAMED[row.family]
        mel = base.mel if base.mel.kind == row.vocoder else MELS[row.vocoder]
        return dataclasses.replace(base, name=row.name, mel=mel, tokenizer=row.tokenizer, known=row)
    for declared in DECLARATIONS:
        if (found := declared.find(name, raw)) is not None:
            return found
    raise FamilyError(_not_found(name))


def _read(name: str) -> Mapping[str, Any]:
    """Content of a YAML file, of a JSON file, or of a text; empty for a name. Raises FamilyError."""
    path, where = Path(name), _where(name)
    if "{" not in name and path.suffix not in (".yaml", ".yml", ".json"):
        return {}
    try:
        text = name.encode() if "{" in name else path.read_bytes()
        if "{" not in name and (said := stray(text)):
            raise FamilyError(f"{where}: {said}")
        raw = json.loads(text) if path.suffix == ".json" else parse_yaml(text, where, FamilyError)
    except FamilyError:
        raise
    except (OSError, ValueError) as error:
        raise FamilyError(f"{where}: unreadable: {error}") from error
    if not isinstance(raw, Mapping):
        raise FamilyError(f"{where}: must be a mapping, not {type(raw).__name__}")
    return raw


def _where(name: str) -> str:
    return "--family" if "{" in name else name


def _not_found(name: str) -> str:
    """Sentence about an unknown name, with similar ones."""
    path = next((path for path in (Path(f"{name}.yaml"), Path(f"{name}.yml")) if path.is_file()), None)
    example = path or f"PATH/{Path(name).stem}.yaml"
    names = {other.lower(): other for other in (*NAMED, *KNOWN)}
    close = [names[other] for other in difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.5)]
    hint = f"; close names: {', '.join(close)}" if close else ""
    return (
        "no such family; a training's own is the path of its YAML file (F5-TTS) or model.json (ZipVoice): "
        f"--family {example}{hint}; `python -m export fetch` lists all names"
    )


def with_mels_for(family: Family, vocoder: Kind) -> Family:
    """The family with the mels of `vocoder`. Raises FamilyError if a name or a YAML file specifies others."""
    if family.mel.kind == vocoder:
        return family
    named = NAMED.get(family.name)
    if named is not None and family.arch is named.arch and family.mel == MELS[family.mel.kind]:
        return dataclasses.replace(family, mel=MELS[vocoder])
    raise FamilyError(
        f"{family.name}: its mels are of the kind {family.mel.kind}, which {vocoder} cannot read; "
        f"pass --vocoder {family.mel.kind}, or a YAML file with the mel_spec_type of the weights"
    )
