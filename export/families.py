"""Model architectures: named families and upstream's YAML files.

The family must be given, because checkpoints of v0 and v1 have the same keys and shapes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from appliance.contract.bundle import Arch
from appliance.contract.mel import Kind, MelSpec

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
    """Origin of the vocabulary; given a vocabulary file, all read text alike."""


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
_ARCH_KEYS = {field.name: field for field in dataclasses.fields(Arch)}
_MEL_KEYS = {
    "target_sample_rate": "sample_rate_hz",
    "n_mel_channels": "mels",
    "hop_length": "hop",
    "win_length": "win",
    "n_fft": "n_fft",
    "mel_spec_type": "kind",
}
_MEL_FIXED = ("target_sample_rate", "hop_length", "win_length", "n_fft")  # upstream's inference has no others


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
    """Set a named family's mels to those of `vocoder`; checkpoints do not record which they use.

    Raises FamilyError if a YAML file specifies other mels.
    """
    if family is NAMED.get(family.name):
        return dataclasses.replace(family, mel=MelSpec(vocoder))
    if family.mel.kind != vocoder:
        raise FamilyError(
            f"{family.name}: its file says mel_spec_type: {family.mel.kind}, which {vocoder} cannot read; "
            f"pass --vocoder {family.mel.kind}, or change the file if the weights are of the other kind"
        )
    return family


def read_family(path: Path) -> Family:
    """Read a YAML file laid out as upstream's: `model.arch`, `model.mel_spec`, `model.tokenizer`.

    Raises FamilyError naming the file and the key.
    """
    try:
        raw = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise FamilyError(f"{path}: unreadable: {error}") from error
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
    mel = _parse_mel(_mapping(model.get("mel_spec", {}), "model.mel_spec"))
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
    if unknown := [key for key in raw if key not in _ARCH_KEYS and key not in IGNORED_ARCH_KEYS]:
        valid = ", ".join((*_ARCH_KEYS, *IGNORED_ARCH_KEYS))
        raise FamilyError(f"model.arch: unknown key {', '.join(map(str, unknown))}; valid keys: {valid}")
    if "dim" not in raw:
        raise FamilyError("model.arch: missing key dim")
    values = {**_UPSTREAM_DEFAULTS, **{key: value for key, value in raw.items() if key in _ARCH_KEYS}}
    if values.get("text_dim") is None:
        values["text_dim"] = mels
    typed = {key: _typed(key, value) for key, value in values.items()}
    try:
        arch = Arch(**typed)
        check_arch(arch)
    except ValueError as error:
        raise FamilyError(f"model.arch.{error}") from None
    return arch


def _parse_mel(raw: Mapping[str, Any]) -> MelSpec:
    if unknown := [key for key in raw if key not in _MEL_KEYS]:
        raise FamilyError(
            f"model.mel_spec: unknown key {', '.join(map(str, unknown))}; valid keys: {', '.join(_MEL_KEYS)}"
        )
    for key in _MEL_FIXED:
        if raw.get(key, want := getattr(VOCOS_MEL, _MEL_KEYS[key])) != want:
            raise FamilyError(f"model.mel_spec.{key}: must be {want}, not {raw[key]!r}")
    mels = raw.get("n_mel_channels", VOCOS_MEL.mels)
    if not isinstance(mels, int) or isinstance(mels, bool) or mels < 1:
        raise FamilyError(f"model.mel_spec.n_mel_channels: must be a positive integer, not {mels!r}")
    kind = raw.get("mel_spec_type", "vocos")
    if kind not in ("vocos", "bigvgan"):
        raise FamilyError(f"model.mel_spec.mel_spec_type: must be vocos or bigvgan, not {kind!r}")
    return MelSpec(kind, mels=mels)


def _typed(key: str, value: object) -> Any:
    """Convert `value` to the field's type: 2.0 counts as 2, booleans not as numbers. Raises FamilyError."""
    kind = str(_ARCH_KEYS[key].type)
    if value is None and "None" in kind:
        return None
    if isinstance(value, bool) or kind == "bool":
        accepted = isinstance(value, bool) and kind == "bool"
    elif kind.startswith("int"):
        accepted = isinstance(value, (int, float)) and int(value) == value
        value = int(value) if isinstance(value, (int, float)) and accepted else value
    else:
        accepted = isinstance(value, str)
    if not accepted:
        raise FamilyError(f"model.arch.{key}: must be {kind.replace(' | None', ' or null')}, not {value!r}")
    return value


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise FamilyError(f"{where}: must be a mapping, not {type(value).__name__}")
    return value
