"""Architectures by name or upstream's YAML file; checkpoints of v0 and v1 look the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from appliance.contract.bundle import Arch, Count
from appliance.contract.mel import Kind, MelSpec
from appliance.contract.tokens import Tokenizer
from appliance.contract.yaml_text import parse_yaml
from appliance.fields import Ranged, from_mapping
from export.weights import KNOWN, Known, known

CONV_GROUPS = 16  # of the convolutional position embedding: `dim` must divide by it


VOCOS_MEL = MelSpec("vocos")
MELS: dict[Kind, MelSpec] = {
    "vocos": VOCOS_MEL,
    "bigvgan": MelSpec("bigvgan"),
    "hifigan": MelSpec("hifigan", sample_rate_hz=16_000, mels=80),
}
"""Mels of the published vocoders."""


class FamilyError(ValueError):
    """An architecture is unknown, contradictory or unsupported."""


@dataclass(frozen=True)
class Family:
    """Architecture with mel specification and tokenizer."""

    name: str
    arch: Arch
    mel: MelSpec = VOCOS_MEL
    tokenizer: Tokenizer = "pinyin"
    known: Known | None = None
    """Row of `weights.KNOWN` that was named."""


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
_OFF = (None, False, 0, "none", "layernorm")
"""Values of a switch that upstream's DiT lacks with which it changes nothing."""
_TOKENIZERS: dict[str, Tokenizer] = {"pinyin": "pinyin", "custom": "pinyin", "char": "char"}
_MEL_KINDS: dict[str, Kind] = {"vocos": "vocos", "bigvgan": "bigvgan", "sbhifigan16k": "hifigan"}

# What upstream's DiT takes for an absent key; they differ from the named families' values.
_UPSTREAM_DEFAULTS: dict[str, Any] = {"depth": 8, "heads": 8}


@dataclass(frozen=True)
class _UpstreamMel(Ranged):
    """`model.mel_spec`."""

    target_sample_rate: Count = 24_000
    n_mel_channels: Count = 100
    hop_length: Count = 256
    win_length: Count = 1024
    n_fft: Count = 1024
    mel_spec_type: Literal["vocos", "bigvgan", "sbhifigan16k"] = "vocos"

    def spec(self) -> MelSpec:
        kind, rate, mels = _MEL_KINDS[self.mel_spec_type], self.target_sample_rate, self.n_mel_channels
        return MelSpec(kind, rate, mels, self.hop_length, self.n_fft, self.win_length)


def family(name: str) -> Family:
    """Look up a family or known weights, read the YAML file at the path `name`, or a mapping of `model.arch`
    as upstream's SHARED.md prints it. Raises FamilyError.
    """
    if name in NAMED:
        return NAMED[name]
    if (row := known(name)) is not None:
        return Family(row.name, NAMED[row.family].arch, MELS[row.vocoder], row.tokenizer, row)
    if name.startswith("E2TTS"):
        raise FamilyError(f"{name}: E2-TTS has a UNetT backbone; only DiT is supported: {', '.join(NAMED)}")
    if "{" in name:
        return _printed_family(name)
    if Path(name).suffix in (".yaml", ".yml"):
        return read_family(Path(name))
    there = ", ".join([*NAMED, *(other for other in KNOWN if other not in NAMED)])
    raise FamilyError(f"{name}: no such family; known: {there}; or the path of a YAML file")


def _printed_family(text: str) -> Family:
    raw = parse_yaml(text.encode(), Path("--family"), FamilyError)
    arch = _parse_arch(_mapping(raw.get("Config", raw), "--family"), VOCOS_MEL.mels)
    return next((one for one in NAMED.values() if one.arch == arch), Family("unnamed", arch))


def with_mels_for(family: Family, vocoder: Kind) -> Family:
    """Give a named family the mels of `vocoder`. Raises FamilyError if a YAML file says others."""
    if family is NAMED.get(family.name):
        return dataclasses.replace(family, mel=MELS[vocoder])
    if family.mel.kind != vocoder:
        raise FamilyError(
            f"{family.name}: its mels are of the kind {family.mel.kind}, which {vocoder} cannot read; "
            f"pass --vocoder {family.mel.kind}, or a YAML file with the mel_spec_type of the weights"
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
    try:
        mel = upstream.spec()
    except ValueError as error:
        raise FamilyError(f"model.mel_spec: {error}") from error
    tokenizer = str(model.get("tokenizer", "custom"))
    if tokenizer not in _TOKENIZERS:
        raise FamilyError(f"model.tokenizer: must be one of {', '.join(_TOKENIZERS)}, not {tokenizer!r}")
    arch = _parse_arch(_mapping(model.get("arch"), "model.arch"), mel.mels)
    return Family(str(model.get("name", name)), arch, mel, _TOKENIZERS[tokenizer])


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
    ours = {field.name for field in dataclasses.fields(Arch)}
    off = {key for key in raw if key not in ours and raw[key] in _OFF}
    if "post_norm" in off:
        off.add("norm_type")  # of the norms that it adds
    unread = off | IGNORED_ARCH_KEYS.keys()
    values = {**_UPSTREAM_DEFAULTS, **{key: raw[key] for key in raw if key not in unread}}
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
