"""ESPnet3's trainer of F5 (espnet3/systems/f5tts): reads its YAML file and its list of tokens.

The model is upstream's. Options have long names, and values may refer to other keys (`${sample_rate}`). A
list of tokens begins with `<blank>` and `<unk>`, and has `<space>` for the space.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from appliance.contract.tokens import Tokenizer, Vocabulary, lines, parse_vocabulary, read_vocabulary
from appliance.errors import BundleError

CLASS = "f5tts.F5TTS"
ARCH = {
    "hidden_size": ("dim", 1024),
    "depth": ("depth", 22),
    "attention_heads": ("heads", 16),
    "attention_head_size": ("dim_head", 64),
    "feed_forward_multiplier": ("ff_mult", 2),
    "text_embedding_size": ("text_dim", 512),
    "convolution_layers": ("conv_layers", 4),
    "query_key_normalization": ("qk_norm", None),
    "text_mask_padding": ("text_mask_padding", True),
    "rotary_attention_heads": ("pe_attn_head", None),
}
"""ESPnet's names → upstream's name, and the value if the key is missing."""
MELS = {"fs": "target_sample_rate", "n_mels": "n_mel_channels"}
NO_ARCH = re.compile(r"_target_|token_list|feats_\w+|sigma|\w+_probability|mask_fraction_range|ode_\w+")
FIRST = frozenset(("<blank>", "<unk>"))
_REFERENCE = re.compile(r"\$\{([\w.]+)\}")
_DEEPEST = 8
"""Longest chain of references that is followed."""


def upstreams(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options of a YAML file under upstream's names. Returns other trainers' files unchanged."""
    model = raw.get("model")
    if not isinstance(model, Mapping) or not str(model.get("_target_")).endswith(CLASS):
        return raw
    model, reads = _resolved(model, raw), _resolved(_at(raw, "dataset.preprocessor") or {}, raw)
    others = {key: value for key, value in model.items() if key not in ARCH and not NO_ARCH.fullmatch(key)}
    arch = {name: model.get(key, default) for key, (name, default) in ARCH.items()}
    mels = {MELS.get(key, key): value for key, value in (model.get("feats_extract_config") or {}).items()}
    pinyin = reads.get("g2p_type") == "f5_pinyin" or "Pinyin" in str(reads.get("_target_"))
    return {
        "model": {
            "name": "F5TTS_ESPnet3",
            "tokenizer": "pinyin" if pinyin else reads.get("token_type", "char"),
            "tokenizer_path": reads.get("vocab_file") or reads.get("token_list") or model.get("token_list"),
            "mel_spec": mels,
            "arch": arch | others,
        }
    }


def _at(raw: Mapping[str, Any], place: str) -> Any:
    """Value of a dotted key; None if a part of the path is missing."""
    value: Any = raw
    for key in place.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _resolved(value: Any, whole: Mapping[str, Any], depth: int = _DEEPEST) -> Any:
    if isinstance(value, Mapping):
        return {key: _resolved(one, whole, depth) for key, one in value.items()}
    if not isinstance(value, str) or not depth:
        return value
    if alone := _REFERENCE.fullmatch(value):
        return _resolved(_at(whole, alone[1]), whole, depth - 1)
    return _REFERENCE.sub(lambda found: str(_resolved(_at(whole, found[1]), whole, depth - 1)), value)


def places(path: Path) -> dict[str, int]:
    """Tokens of ESPnet's list → their rows, with the space first. Empty for upstream's vocabulary."""
    tokens = parse_vocabulary(lines(path.read_bytes()), "simple").tokens
    if FIRST.isdisjoint(tokens[:2]):
        return {}
    stripped = [token[:1] + token[1:].rstrip() for token in tokens]
    found = {" " if token == "<space>" else token: place for place, token in enumerate(stripped)}
    return dict(sorted(found.items(), key=lambda pair: pair[0] != " "))


def vocabulary(path: Path, tokenizer: Tokenizer = "pinyin", voice: str = "") -> Vocabulary:
    """Vocabulary from upstream's file or from ESPnet's list, with the space first. Raises BundleError."""
    try:
        if found := places(path):
            return Vocabulary(tuple(found), tokenizer, voice)
    except (OSError, ValueError) as error:
        raise BundleError(f"{path}: not a vocabulary: {error}") from error
    return read_vocabulary(path, tokenizer, voice)
