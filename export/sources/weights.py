"""Known weights: repository, files, architecture, language and licence. Each is a row of weights.yaml."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from appliance.contract.mel import Kind
from appliance.contract.tokens import Tokenizer
from appliance.fields import from_mapping

HUB = "https://huggingface.co"
TABLE = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True)
class VocoderWeights:
    repository: str
    files: tuple[str, ...]
    licence: str
    sha256: str | None = None
    """SHA-256 of the weights."""

    @property
    def folder(self) -> str:
        return self.repository.split("/")[1]


@dataclass(frozen=True)
class Known:
    name: str
    repository: str
    checkpoint: str
    vocab: str
    family: str
    """Name in `families.NAMED` of the family that has the architecture."""
    languages: tuple[str, ...]
    """ISO 639-1 codes, the main language first."""
    licence: str
    note: str = ""
    """Uses that the licence forbids, or may forbid."""
    config: str = ""
    """YAML file in the repository with more details than `family`; `bundle` must read it."""
    vocab_repository: str = ""
    vocoder: Kind = "vocos"
    own_vocoder: bool = False
    """True if the checkpoint's file contains the vocoder too."""
    tokenizer: Tokenizer = "pinyin"
    weights: Literal["ema", "raw"] = "ema"
    gated: bool = False
    dialects: Mapping[str, tuple[str, str]] = field(default_factory=dict, hash=False)
    """Dialect → the signs that mark it before and after each text. The most common dialect is first."""
    sha256: str | None = None
    """SHA-256 of the checkpoint. None: the first download records it."""
    unverified: str = ""

    @property
    def source(self) -> str:
        return f"{HUB}/{self.repository}"

    @property
    def warning(self) -> str:
        return "; ".join(filter(None, (self.note, "gated: accept its terms there" if self.gated else "")))


def _read(cls: type[Any], raw: object) -> Any:
    return from_mapping(cls, raw, where=TABLE.name, error=ValueError)


_RAW = yaml.safe_load(TABLE.read_text("utf-8"))
VOCODERS: dict[Kind, VocoderWeights] = {
    kind: _read(VocoderWeights, raw) for kind, raw in _RAW["vocoders"].items()
}
KNOWN: dict[str, Known] = {raw["name"]: _read(Known, raw) for raw in _RAW["rows"]}


def known(name: str) -> Known | None:
    """A row by its name, or by its repository if that has a single row."""
    there = [row for row in KNOWN.values() if row.repository == name]
    return KNOWN.get(name) or (there[0] if len(there) == 1 else None)


def listing() -> str:
    """Markdown list of all rows: terms, and below them the weights. A repository's weights share a line."""
    lines = []
    for terms, rows in itertools.groupby(KNOWN.values(), lambda row: f"- **{row.licence}**: {row.warning}"):
        lines.append(terms)
        for details, alike in itertools.groupby(rows, _details):
            lines.append(f"  - {', '.join(f'`{row.name}`' for row in alike)}: {details}")
    return "\n".join(lines)


def _details(row: Known) -> str:
    """Repository, languages and unverified facts of a row."""
    unverified = f"; unverified: {row.unverified}" if row.unverified else ""
    return f"{row.repository} ({', '.join(row.languages)}){unverified}"
