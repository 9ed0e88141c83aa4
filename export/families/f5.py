"""F5-TTS: a DiT by name, or by upstream's YAML file. Checkpoints of v0 and v1 look the same."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from appliance.contract.bundle import Arch, Text
from appliance.contract.mel import MelSpec
from appliance.contract.tokens import Tokenizer
from appliance.fields import Count, Ranged, from_mapping
from export.families.declaration import VOCOS_MEL, Declaration, Family, FamilyError, Given, Point
from export.graphs.condition import Condition
from export.graphs.modulation import ModulationGraph
from export.graphs.step import Step, StepKeys, StepReply
from export.model.arch import F5TTS, flags_of
from export.model.dit import CONV_GROUPS, DiT
from export.parity import comparison, oracles, peaks
from export.sources import checkpoint, espnet
from export.sources.checkpoint import Weights

NAMED = tuple(
    Family(name, arch, tokenizer="char" if name == "F5TTS_v1_Small" else "pinyin")
    for name, arch in F5TTS.items()
)
"""Families by `model.name` in the YAML files of f5-tts 1.1.22."""

IGNORED_ARCH_KEYS = {
    "dropout": "acts in training only",
    "checkpoint_activations": "saves memory in training only",
    "attn_backend": "chooses a kernel, not a result",
    "attn_mask_enabled": "acts on padded batches; here padding never changes a result",
}
"""Keys of `model.arch` that do not affect the result of one sentence, with the reason."""
_OFF = (None, False, 0, "none", "layernorm")
"""Values with which a switch that upstream's DiT lacks changes nothing."""
_TOKENIZERS: dict[str, Tokenizer] = {
    **{"pinyin": "pinyin", "custom": "pinyin", "char": "char"},
    "phones": "phones",  # not upstream's
}

_LENGTHS = ("duration", "durations")
"""Keys of `model` that upstream lacks; their meaning is that of a manifest's `text`."""

# Upstream's DiT uses these values for absent keys. They differ from the named families' values.
_UPSTREAM_DEFAULTS: dict[str, Any] = {"depth": 8, "heads": 8}


@dataclass(frozen=True)
class _UpstreamMel(Ranged):
    """Section `model.mel_spec`."""

    target_sample_rate: Count = 24_000
    n_mel_channels: Count = 100
    hop_length: Count = 256
    win_length: Count = 1024
    n_fft: Count = 1024
    mel_spec_type: Literal["vocos", "bigvgan"] = "vocos"

    def spec(self) -> MelSpec:
        rate, mels = self.target_sample_rate, self.n_mel_channels
        return MelSpec(self.mel_spec_type, rate, mels, self.hop_length, self.n_fft, self.win_length)


def find(name: str, raw: Mapping[str, Any]) -> Family | None:
    """Family of a YAML file, or of a mapping of `model.arch` as upstream's SHARED.md prints it.

    Raises FamilyError, also for an E2-TTS.
    """
    if name.startswith("E2TTS"):
        names = ", ".join(one.name for one in NAMED)
        raise FamilyError(f"E2-TTS has a UNetT backbone; only DiT is supported: {names}")
    if "{" in name and "model" not in raw:
        arch = _parse_arch(_mapping(raw.get("Config", raw), "--family"), VOCOS_MEL.mels)
        return next((one for one in NAMED if one.arch == arch), Family("unnamed", arch))
    is_upstreams = "{" in name or Path(name).suffix in (".yaml", ".yml")
    return parse_family(raw, name=Path(name).stem) if is_upstreams else None


def parse_family(raw: Mapping[str, Any], *, name: str) -> Family:
    """Family of a parsed YAML file. `name` is used if `model.name` is absent.

    `model` may have upstream's keys and those of _LENGTHS. Raises FamilyError.
    """
    model = _mapping(espnet.upstreams(raw).get("model"), "model")
    backbone = model.get("backbone", "DiT")
    if backbone != "DiT":
        raise FamilyError(f"model.backbone: {backbone!r} is not supported; only DiT is")
    mel_spec = _mapping(model.get("mel_spec", {}), "model.mel_spec")
    off = _off(_UpstreamMel, mel_spec)
    written = {key: mel_spec[key] for key in mel_spec if key not in off}
    upstream: _UpstreamMel = from_mapping(_UpstreamMel, written, where="model.mel_spec", error=FamilyError)
    try:
        mel = upstream.spec()
    except ValueError as error:
        raise FamilyError(f"model.mel_spec: {error}") from error
    tokenizer = str(model.get("tokenizer", "custom"))
    if tokenizer == "byte":
        raise FamilyError(
            "model.tokenizer: byte (a text's UTF-8 bytes as 256 tokens, no vocab.txt) is not supported; "
            f"weights trained with {', '.join(_TOKENIZERS)} are"
        )
    if tokenizer not in _TOKENIZERS:
        raise FamilyError(f"model.tokenizer: must be one of {', '.join(_TOKENIZERS)}, not {tokenizer!r}")
    arch = _parse_arch(_mapping(model.get("arch"), "model.arch"), mel.mels)
    lengths = {key: model[key] for key in _LENGTHS if key in model}
    text: Text = from_mapping(Text, lengths, where="model", error=FamilyError)
    if text.durations and not arch.text_embedding_average_upsampling:
        raise FamilyError("model.durations: needs model.arch.text_embedding_average_upsampling: true")
    return Family(
        str(model.get("name", name)),
        arch,
        mel,
        _TOKENIZERS[tokenizer],
        text.duration if lengths else None,
        text.durations,
    )


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
    """Architecture of upstream's section `arch`. Raises FamilyError."""
    off = _off(Arch, raw)
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


def _off(cls: type[Any], raw: Mapping[str, Any]) -> set[str]:
    """Keys that `cls` lacks and that change nothing."""
    ours = {field.name for field in dataclasses.fields(cls)}
    return {key for key in raw if key not in ours and raw[key] in _OFF}


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise FamilyError(f"{where}: must be a mapping, not {type(value).__name__}")
    return value


def other_flags(arch: Arch) -> list[Arch]:
    """Architectures with the same weights that compute differently: masks, rotary heads, text upsampling."""
    found: list[Arch] = []
    for masks, heads, upsamples in itertools.product((True, False), (None, 1), (False, True)):
        other = dataclasses.replace(
            arch,
            text_mask_padding=masks,
            pe_attn_head=heads,
            text_embedding_average_upsampling=upsamples,
        )
        try:
            check_arch(other)
        except FamilyError:
            continue
        if _computed(other) not in map(_computed, (arch, *found)):
            found.append(other)
    return found


def _computed(arch: Arch) -> tuple[bool, int, bool]:
    """Effective values of the flags: one head means all heads; masks matter in text convolutions alone."""
    heads = arch.heads if arch.pe_attn_head is None else arch.pe_attn_head
    return arch.text_mask_padding and arch.conv_layers > 0, heads, arch.text_embedding_average_upsampling


def _is_known(arch: Arch) -> bool:
    plain = dataclasses.replace(arch, text_embedding_average_upsampling=False)
    return flags(plain) in {flags(family.arch) for family in NAMED}


def flags(arch: Arch) -> str:
    return flags_of(vars(arch))


def load(given: Given) -> Weights:
    size, mels = given.vocabulary.size, given.mel.mels
    weights = checkpoint.load_dit(
        given.checkpoint, given.arch, size, mels, given.weights, given.sampler, given.adapter
    )
    if not (places := espnet.places(given.vocab)):
        return weights
    order = [0, *(place + 1 for place in places.values())]  # after the filler's row
    return weights.replaced(checkpoint.EMBEDDING, weights.entry(checkpoint.EMBEDDING).rows(order))


def _build(weights: Mapping[str, Tensor], given: Given) -> DiT:
    return checkpoint.build_dit(weights, given.arch, given.vocabulary.size, given.mel.mels)


def _modulation(
    weights: Weights, given: Given, max_frames: int, stored: torch.dtype, compute: torch.dtype
) -> nn.Module:
    return ModulationGraph(weights, given.arch, stored)


def _condition(
    weights: Weights, given: Given, max_frames: int, stored: torch.dtype, compute: torch.dtype
) -> nn.Module:
    conditions = len(given.sampler.conditions)
    return Condition(weights, given.arch, given.mel.mels, max_frames, compute, conditions)


def _oracles(load: Callable[[], Weights], given: Given) -> Sequence[Callable[[], oracles.Oracle]]:
    arch, size, mels, sampler = given.arch, given.vocabulary.size, given.mel.mels, given.sampler
    return [
        lambda: oracles.TorchOracle(_build(load(), given), sampler),
        lambda: oracles.UpstreamOracle(load(), arch, size, mels, sampler),
    ]


def _velocity(model: DiT, at: Point) -> Tensor:
    text = model.text_embed(at.ids, len(at.latents), 1 + at.drops_text, at.index)[-1:]
    velocity: Tensor = model(at.latents, at.cond, text, torch.tensor(at.t), torch.tensor(at.w))[0]
    return velocity


DECLARATION = Declaration(
    name="F5-TTS",
    arch=Arch,
    named=NAMED,
    mark=checkpoint.EMBEDDING,
    find=find,
    load=load,
    build=_build,
    shapes=None,
    modulation=_modulation,
    condition=_condition,
    steps={"step": Step, "step_keys": StepKeys, "step_reply": StepReply},
    single=("step_keys", "step_reply"),
    samplings=comparison.CHEAPER,
    fused=True,
    precisions=("fp32", "fp16", "int8", "int8-qdq"),
    bounds=comparison.BOUNDS,
    oracles=_oracles,
    velocity=_velocity,
    others=other_flags,
    flags=flags,
    is_known=_is_known,
    peaks=peaks.measure,
    vocabulary=espnet.vocabulary,
    mel=lambda mel, path: dataclasses.replace(mel, scale=checkpoint.mel_scale(path)),
)
