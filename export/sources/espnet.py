"""ESPnet3's trainer of F5 (espnet3/systems/f5tts): reads its YAML file and its list of tokens.

The model is upstream's. Options have long names, and values may refer to other keys (`${sample_rate}`). A
list of tokens begins with `<blank>` and `<unk>`, and has `<space>` for the space.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from appliance.contract.tokens import Tokenizer, Vocabulary, lines, parse_vocabulary, read_vocabulary
from appliance.errors import BundleError
from export.sources.header import section

CLASS = "f5tts.F5TTS"
OPTIONS: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
FIRST = frozenset(("<blank>", "<unk>"))
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_DEEPEST = 4
"""Longest chain of references between keys that the reader follows."""


def upstreams(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of a YAML file under upstream's names. Returns other trainers' files unchanged."""
    model = _resolved(section(raw, "model"), raw)
    if not str(model.get("_target_")).endswith(CLASS):
        return raw
    reads = _resolved(section(raw, "dataset", "preprocessor"), raw)
    names, training = OPTIONS["arch"], OPTIONS["training"]
    arch = {name: model.get(key, default) for key, (name, default) in names.items()}
    arch |= {key: value for key, value in model.items() if key not in names and key not in training}
    mels = section(model, "feats_extract_config").items()
    pinyin = reads.get("g2p_type") == "f5_pinyin" or "Pinyin" in str(reads.get("_target_"))
    path = reads.get("vocab_file") or reads.get("token_list") or model.get("token_list")
    upstream = {
        "name": "F5TTS_ESPnet3",
        "tokenizer": "pinyin" if pinyin else reads.get("token_type", "char"),
        "tokenizer_path": path if isinstance(path, str) else None,
        "mel_spec": {OPTIONS["mels"].get(key, key): value for key, value in mels},
        "arch": arch,
    }
    return {"model": upstream}


def _resolved(value: Any, whole: Mapping[str, Any], depth: int = _DEEPEST) -> Any:
    if isinstance(value, Mapping):
        return {key: _resolved(one, whole, depth) for key, one in value.items()}
    if not isinstance(value, str) or not depth:
        return value

    def referred(reference: re.Match[str]) -> Any:
        *outer, key = reference[1].split(".")
        return _resolved(section(whole, *outer).get(key), whole, depth - 1)

    if alone := _REFERENCE.fullmatch(value):
        return referred(alone)
    return _REFERENCE.sub(lambda reference: str(referred(reference)), value)


def places(path: Path) -> dict[str, int]:
    """Tokens of ESPnet's list → their rows, with the space first. Empty for upstream's vocabulary."""
    tokens = parse_vocabulary(lines(path.read_bytes()), "simple").tokens
    if FIRST.isdisjoint(tokens[:2]):
        return {}
    stripped = [token[:1] + token[1:].rstrip() for token in tokens]
    rows = {" " if token == "<space>" else token: place for place, token in enumerate(stripped)}
    return dict(sorted(rows.items(), key=lambda pair: pair[0] != " "))


def vocabulary(path: Path, tokenizer: Tokenizer = "pinyin", voice: str = "") -> Vocabulary:
    """Vocabulary from upstream's file or from ESPnet's list, with the space first. Raises BundleError."""
    try:
        if rows := places(path):
            return Vocabulary(tuple(rows), tokenizer, voice)
    except (OSError, ValueError) as error:
        raise BundleError(f"{path}: not a vocabulary: {error}") from error
    return read_vocabulary(path, tokenizer, voice)
