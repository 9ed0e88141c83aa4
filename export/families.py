"""Architectures by name or upstream's YAML file; checkpoints of v0 and v1 look the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from appliance.contract.bundle import Arch, Count
from appliance.contract.mel import Kind, MelSpec
from appliance.contract.yaml_text import parse_yaml
from appliance.fields import Ranged, from_mapping

CONV_GROUPS = 16  # of the convolutional position embedding: `dim` must divide by it


VOCOS_MEL = MelSpec("vocos")


class FamilyError(ValueError):
    """An architecture is unknown, contradictory or unsupported."""


@dataclass(frozen=True)
class Family:
    """Architecture with mel specification and tokenizer."""

    name: str
    arch: Arch
    mel: MelSpec = VOCOS_MEL
    tokenizer: str = "pinyin"
    """Origin of the vocabulary; all read text alike."""


def _base(**changes: Any) -> Arch:
    return Arch(**{"dim": 1024, "depth": 22, "heads": 16, "ff_mult": 2, "conv_layers": 4, **changes})


_V0 = {"text_mask_padding": False, "pe_attn_head": 1}
_SMALL = {"dim": 768, "depth": 18, "heads": 12}

NAMED: dict[str, Family] = {
    family.name: family
    for family in (
        Family("F5TTS_v1_Base", _base()),
        Family("F5TTS_Base", _base(**_V0)),
        Family("F5TTS_v1_Small", _base(**_SMALL), tokenizer="char"),
        Family("F5TTS_Small", _base(**_SMALL, **_V0)),
    )
}
"""Families by `model.name` of the YAML files of f5-tts 1.1.22."""

IGNORED_ARCH_KEYS = {
    "dropout": "acts in training only",
    "checkpoint_activations": "saves memory in training only",
    "attn_backend": "chooses a kernel, not a result",
    "attn_mask_enabled": "acts on padded batches; here padding never changes a result",
}
"""Keys of `model.arch` that say nothing about one sentence's result, and why."""

# What upstream's DiT takes for an absent key; they differ from the named families' values.
_UPSTREAM_DEFAULTS: dict[str, Any] = {"depth": 8, "heads": 8}


@dataclass(frozen=True)
class _UpstreamMel(Ranged):
    """`model.mel_spec`; upstream's inference has one rate, hop and window."""

    target_sample_rate: Literal[24_000] = 24_000
    n_mel_channels: Count = 100
    hop_length: Literal[256] = 256
    win_length: Literal[1024] = 1024
    n_fft: Literal[1024] = 1024
    mel_spec_type: Kind = "vocos"


def family(name: str) -> Family:
    """Look up a named family, or read the YAML file at the path `name`. Raises FamilyError."""
    if name in NAMED:
        return NAMED[name]
    if name.startswith("E2TTS"):
        raise FamilyError(f"{name}: E2-TTS has a UNetT backbone; only DiT is supported: {', '.join(NAMED)}")
    if Path(name).suffix in (".yaml", ".yml"):
        return read_family(Path(name))
    raise FamilyError(f"{name}: no such family; known: {', '.join(NAMED)}; or the path of a YAML file")


def with_mels_for(family: Family, vocoder: Kind) -> Family:
    """Give a named family the mels of `vocoder`. Raises FamilyError if a YAML file says others."""
    if family is NAMED.get(family.name):
        return dataclasses.replace(family, mel=MelSpec(vocoder))
    if family.mel.kind != vocoder:
        raise FamilyError(
            f"{family.name}: its file says mel_spec_type: {family.mel.kind}, which {vocoder} cannot read; "
            f"pass --vocoder {family.mel.kind}, or change the file if the weights are of the other kind"
        )
    return family


def read_family(path: Path) -> Family:
    """Read a YAML file laid out as upstream's. Raises FamilyError naming the key."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise FamilyError(f"{path}: unreadable: {error}") from error
    raw = parse_yaml(text, path, FamilyError)
    try:
        return parse_family(raw, name=path.stem)
    except FamilyError as error:
        raise FamilyError(f"{path}: {error}") from error


def parse_family(raw: object, *, name: str) -> Family:
    """Convert a parsed YAML; `name` is the default of `model.name`. Raises FamilyError."""
    model = _mapping(_mapping(raw, "the file").get("model"), "model")
    backbone = model.get("backbone", "DiT")
    if backbone != "DiT":
        raise FamilyError(f"model.backbone: {backbone!r} is not supported; only DiT is")
    upstream: _UpstreamMel = from_mapping(
        _UpstreamMel, model.get("mel_spec", {}), where="model.mel_spec", error=FamilyError
    )
    mel = MelSpec(upstream.mel_spec_type, mels=upstream.n_mel_channels)
    arch = _parse_arch(_mapping(model.get("arch"), "model.arch"), mel.mels)
    return Family(str(model.get("name", name)), arch, mel, str(model.get("tokenizer", "custom")))


def check_arch(arch: Arch) -> None:
    """Raise FamilyError for contradictory or unsupported values."""
    if arch.dim % CONV_GROUPS:
        raise FamilyError(f"dim: must divide by {CONV_GROUPS}, not {arch.dim}")
    if arch.dim_head % 2:
        raise FamilyError(f"dim_head: must be even for the rotary embedding, not {arch.dim_head}")
    if arch.conv_layers and arch.text_dim % 2:
        raise FamilyError(f"text_dim: must be even for the position table, not {arch.text_dim}")
    if arch.pe_attn_head is not None and not 0 <= arch.pe_attn_head <= arch.heads:
        raise FamilyError(f"pe_attn_head: must be null or 0 to {arch.heads} (heads), not {arch.pe_attn_head}")
    if arch.qk_norm not in (None, "rms_norm"):
        raise FamilyError(f"qk_norm: must be null or rms_norm, not {arch.qk_norm!r}")
    if arch.text_embedding_average_upsampling and not arch.text_mask_padding:
        raise FamilyError("text_embedding_average_upsampling: needs text_mask_padding: true")


def _parse_arch(raw: Mapping[str, Any], mels: int) -> Arch:
    values = {**_UPSTREAM_DEFAULTS, **{key: raw[key] for key in raw if key not in IGNORED_ARCH_KEYS}}
    if values.get("text_dim") is None:
        values["text_dim"] = mels
    # Upstream's own files have numbers such as 2.0.
    whole = {k: int(v) if isinstance(v, float) and v.is_integer() else v for k, v in values.items()}
    arch: Arch = from_mapping(Arch, whole, where="model.arch", error=FamilyError)
    try:
        check_arch(arch)
    except FamilyError as error:
        raise FamilyError(f"model.arch: {error}") from None
    return arch


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise FamilyError(f"{where}: must be a mapping, not {type(value).__name__}")
    return value
