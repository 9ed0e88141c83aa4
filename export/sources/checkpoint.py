"""Checkpoints of F5-TTS, Vocos and BigVGAN.

Tensors are memory-mapped, so that no export holds a model twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor, nn

from appliance.contract.bundle import Arch
from appliance.contract.mel import MelSpec, filterbank
from appliance.contract.sampler import UPSTREAM, Sampler
from export.model.bigvgan import BigVGAN, BigVGANConfig, fold, low_pass, weight_norm_pairs
from export.model.dit import DiT, rotary_frequencies
from export.model.source import Source
from export.model.vocos import Vocos, VocosConfig
from export.sources import adapter as adapters
from export.sources import merging
from export.sources import stored as files
from export.sources.header import (
    AVERAGING,
    NO_DIT,
    STUDENT,
    UNMERGED,
    Others,
    check_names,
    config_beside,
    is_averaged,
    some,
    stray,
    vocoder_file,
)
from export.sources.header import CheckpointError as CheckpointError
from export.sources.header import WeightsKind as WeightsKind
from export.sources.stored import StoredTensor
from export.sources.stored import Weights as Weights

EMBEDDING = "text_embed.text_embed.weight"
ROTARY = "rotary_embed.inv_freq"
POSITIONS = "text_embed.freqs_cis"
"""A table of constants that some checkpoints contain."""
BESIDE = re.compile(r"dur(?:ation)?_(?:pred\w*|model|net\w*)|feats?_extract\w*")
"""Matches a component of a tensor's name that belongs to a duration predictor or to ESPnet's mels."""
BLOCK = re.compile(r"transformer_blocks\.(\d+)\.")
GUIDANCE = "time_embed.guidance_embed.weight"
FILTERS, FILTERS_DIFFER = "feature_extractor.mel_spec.mel_scale.fb", 1e-3
"""Name of the mel filters that a Vocos was trained with, and the largest allowed difference of their values
(at most 1), which is rounding.


"""
MEL_ARGUMENTS = ("sample_rate", "n_fft", "hop_length", "n_mels", "padding")
"""Arguments of Vocos' mels that may have any value."""

_COUNTERS = ("initted", "step", "n_averaged")  # entries of a moving average that are no weights
_COMPILED = frozenset(("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"))
"""Components that compiling, FSDP and gradient checkpointing insert anywhere into a name."""
_WRAPPERS = AVERAGING | {"module", "model", "online_model", "base_model", "transformer"}
"""Components that moving averages, distributed training and adapters put before a model's own names."""
_DIT = frozenset(
    ("time_embed", "text_embed", "input_embed", "rotary_embed", "transformer_blocks", "norm_out", "proj_out")
) | {"long_skip_connection"}
_VOCODERS = frozenset(("vocoder", "vocos"))
_IN_TRAINING = re.compile(r"(?:^|\.)(?:\w*disc(?:riminators?)?|mpd|msd|mrd|\w*_loss)\.")
"""Matches parts of a vocoder that only its training needs."""
_VOCOS = frozenset(("feature_extractor", "backbone", "head"))
_BIGVGAN = frozenset(("conv_pre", "ups", "resblocks", "activation_post", "conv_post"))
_FLOAT32_ROUNDING = 1e-6  # relative; powers differ in their last digits between machines


class OtherVocabulary(CheckpointError):
    """The checkpoint's token embedding and the vocabulary differ in size."""


@dataclass(frozen=True)
class Kin:
    """Describes a model by its tensors' names, so that it is found in a file under any wrappers."""

    name: str
    own: Collection[str]
    """First components of the model's names."""
    mark: str
    """The beginning of a name that no other model has."""
    others: Others = ()
    """Models that look similar: a pattern of their names, and the end of the error message."""
    skipped: Collection[str] = frozenset(("mel_spec", *_VOCODERS))
    """Components of names that belong to other models in the file."""


DIT = Kin("F5-TTS", _DIT, EMBEDDING, NO_DIT)
VOCOS = Kin("Vocos", _VOCOS, "backbone.embed.", skipped=())
BIGVGAN = Kin("BigVGAN", _BIGVGAN, "conv_pre.", skipped=())


def load_dit(
    path: Path,
    arch: Arch,
    vocab_size: int,
    mels: int = 100,
    kind: WeightsKind = "ema",
    sampler: Sampler = UPSTREAM,
    adapter: Path | None = None,
) -> Weights:
    """Load a DiT from safetensors or from a full or pruned `.pt`. Names are as in `export.model.dit`.

    Ignores wrappers before a name, and a vocoder in the same file. `ema` prefers the moving average; `raw`
    requires weights that are not averaged. Replaces a rounded rotary table by the exact one. `vocab_size`
    does not count the row of the filler. A DMOSpeech 2 file contains several models: this takes the student,
    without its second time embedding, which its own inference never uses. Raises CheckpointError.
    """
    stored = read(path, kind)
    if any(name.startswith(STUDENT) for name in stored):
        if sampler.update != "renoise":
            raise CheckpointError(
                f"{path}: is a distilled student (DMOSpeech 2, {STUDENT}*), which re-noises between its "
                "steps: its family needs sampler: {update: renoise, guidance: none, steps: [4], grid: sway}"
            )
        names = [name for name in stored if name.startswith(STUDENT) and ".time_embed2." not in name]
        stored = Weights({name.removeprefix(STUDENT): stored.entry(name) for name in names})
    beside = [name for name in stored if is_beside(name)]
    notes = [f"{path}: {some(beside)} are not part of the DiT and are ignored"] if beside else []
    dit = unwrapped(path, stored, kind, DIT, adapter)
    table = rotary_frequencies(arch.dim_head)
    exact = {ROTARY: StoredTensor(tuple(table.shape), lambda: table)}
    entries = exact | {_renumbered(name, dit): dit.entry(name) for name in dit if name != POSITIONS}
    if entries.keys() - exact.keys() - set(dit):
        notes.append(f"{path}: its blocks are numbered with gaps, and get new numbers")
    if (rows := entries[EMBEDDING].shape[0]) != vocab_size + 1:
        raise OtherVocabulary(
            f"{path}: was trained with {rows - 1} vocabulary entries ({rows} rows less the filler's), "
            f"but the vocabulary has {vocab_size}; pass the vocab.txt of this checkpoint as --vocab"
        )
    embeds = check_guidance(path, entries, GUIDANCE, sampler)
    weights = checked(path, entries, lambda: DiT(arch, vocab_size, mels, embeds_guidance=embeds))
    _check_rotary(path, weights.entry(ROTARY).read(), table)
    whole = {name: weights.entry(name) for name in weights} | exact
    return Weights(whole, averaged=dit.averaged, notes=notes)


def is_beside(name: str) -> bool:
    """True for a tensor of an additional model that some trainers store with the DiT."""
    return any(BESIDE.fullmatch(part) for part in name.split("."))


def _renumbered(name: str, names: Collection[str]) -> str:
    """A tensor's name with a new number for its block, because pruning leaves gaps in the numbers."""
    if not (block := BLOCK.match(name)):
        return name
    numbers = sorted({int(match[1]) for other in names if (match := BLOCK.match(other))})
    return f"transformer_blocks.{numbers.index(int(block[1]))}.{name[block.end() :]}"


def check_guidance(path: Path, names: Collection[str], embedding: str, sampler: Sampler) -> bool:
    """True if the checkpoint embeds the guidance strength, in the tensor `embedding`.

    Raises CheckpointError if `sampler` expects the other kind of checkpoint.
    """
    embeds = sampler.guidance == "embedded"
    if embeds != (embedding in names):
        has, guidance = ("does not have", "two-row") if embeds else ("has", "embedded")
        raise CheckpointError(
            f"{path}: {embedding} embeds a strength, and this checkpoint {has} it: "
            f"its family needs sampler: {{guidance: {guidance}}}"
        )
    return embeds


def read(path: Path, kind: WeightsKind = "raw") -> Weights:
    """A file's tensors by their stored names. Raises CheckpointError."""
    if adapters.is_adapter(path):
        raise CheckpointError(f"{path}: {UNMERGED}")
    return files.read(path).weights(kind)


def load(path: Path, kind: WeightsKind, kin: Kin, adapter: Path | None = None) -> Weights:
    """A model's tensors by its own names, with an adapter merged. Raises CheckpointError."""
    return unwrapped(path, read(path, kind), kind, kin, adapter)


def preferred(path: Path, kind: WeightsKind) -> WeightsKind:
    """`kind`, or `ema` if a file has only averaged weights. Raises CheckpointError."""
    names = read(path, kind)
    return "ema" if names.averaged or all(map(is_averaged, names)) else kind


def mel_scale(path: Path) -> float:
    """The number that a DMOSpeech 2 file divides its log-mels by; 1 for other files.

    Raises CheckpointError.
    """
    if not path.is_file():
        return 1.0
    whole = files.read(path)
    if not any(name.startswith(STUDENT) for name in whole.dicts.get("model_state_dict", ())):
        return 1.0
    if "scale" not in whole.settings:
        raise CheckpointError(f"{path}: contains no scale of its log-mels, as DMOSpeech 2's files do")
    return float(whole.settings["scale"])


def unwrapped(
    path: Path, stored: Weights, kind: WeightsKind, kin: Kin, adapter: Path | None = None
) -> Weights:
    """A model's tensors by its own names, with an adapter merged. Raises CheckpointError if the file has
    none.

    A file may contain several models. The prefix before a model's own names tells them apart: whether it
    marks an average, and its components that are not wrappers.
    """
    if adapter is not None:
        stored = merging.base(stored)
    check_names(path, stored, kin.others)
    models: dict[tuple[bool, str], dict[str, StoredTensor]] = {}
    for raw in stored:
        prefix, name = _split(raw, kin.own)
        if name in _COUNTERS or not set(raw.split(".")).isdisjoint(kin.skipped) or is_beside(raw):
            continue
        averaged = stored.averaged or not AVERAGING.isdisjoint(prefix)
        key = averaged, ".".join(part for part in prefix if part not in _WRAPPERS)
        entries = models.setdefault(key, {})
        if name in entries:
            raise CheckpointError(f"{path}: contains {name} twice, under different prefixes")
        entries[name] = stored.entry(raw)
    whole = [key for key, entries in models.items() if any(name.startswith(kin.mark) for name in entries)]
    if not whole:
        have = some([name for entries in models.values() for name in entries])
        raise CheckpointError(
            f"{path}: not a checkpoint of {kin.name}: it lacks {kin.mark.rstrip('.')} and has {have}"
        )
    if kind == "raw" and all(averaged for averaged, _ in whole):
        averages = [n for n in stored if stored.averaged or is_averaged(n)]
        raise CheckpointError(
            f"{path}: has no raw weights, only the moving average: {some(averages)}; --weights ema uses it"
        )
    candidates = [key for key in whole if key[0] == (kind == "ema")] or whole
    chosen = [key for key in candidates if not key[1]] or candidates
    if len(chosen) > 1:
        raise CheckpointError(f"{path}: contains several models: {', '.join(name for _, name in chosen)}")
    loose = {k: v for key, entries in models.items() if key not in whole for k, v in entries.items()}
    weights = Weights(loose | models[chosen[0]], averaged=chosen[0][0])
    if adapter is None:
        return weights
    return merging.merged(path, weights, adapters.read(adapter), lambda name: _split(name, kin.own)[1])


def _split(name: str, own: Collection[str]) -> tuple[list[str], str]:
    """Split a stored name into its wrappers and the model's own name, which begins with one of `own`."""
    parts = [part for part in name.split(".") if part not in _COMPILED]
    at = next((i for i, part in enumerate(parts) if part in own), None)
    if at is None:
        at = next((i for i, part in enumerate(parts) if part not in _WRAPPERS), 0)
    return parts[:at], ".".join(parts[at:])


def _vocoder_in(path: Path, kin: Kin, kind: WeightsKind) -> Weights:
    """A vocoder's tensors by its own names. In a file that also has a DiT, takes those under `vocoder.`."""
    stored = read(path, kind)
    mixed = [name for name in stored if not _VOCODERS.isdisjoint(name.split("."))]
    names = [name for name in mixed or stored if not _IN_TRAINING.search(name)]
    weights = Weights({name: stored.entry(name) for name in names}, averaged=stored.averaged)
    return unwrapped(path, weights, kind, kin)


def load_vocos(place: Path, kind: WeightsKind = "ema") -> tuple[VocosConfig, Weights]:
    """Load a Vocos from a folder with `config.yaml`, from a file there, or from a file with a DiT and its
    vocoder.

    The folder may be a published one or a trainer's. A file with a DiT (IndicF5's) has no configuration:
    sizes come from its tensors, other values from charactr/vocos-mel-24khz. Raises CheckpointError.
    """
    beside = config_beside(place if place.is_file() else place / "config.yaml", "config.yaml")
    alone = not place.is_file() or (beside.is_file() and DIT.mark not in "".join(read(place)))
    config = _config(beside, yaml.safe_load, _vocos) if alone else None
    path = vocoder_file(place, "vocos")
    try:
        stored = _vocoder_in(path, VOCOS, kind)
    except CheckpointError as error:
        if alone:
            raise
        raise CheckpointError(
            f"{path}: no Vocos in it; pass a folder with config.yaml and weights"
        ) from error
    entries = {name: stored.entry(name) for name in stored if not name.startswith("feature_extractor.")}
    config = config or _vocos_config(path, stored)
    if FILTERS in stored:
        sizes = config.sample_rate, config.mels, config.hop, config.n_fft, config.n_fft
        ours = filterbank(MelSpec("vocos", *sizes))
        theirs = stored[FILTERS].numpy()
        if theirs.shape != ours.shape or not np.abs(theirs - ours).max() <= FILTERS_DIFFER:
            raise CheckpointError(
                f"{path}: {FILTERS}, the filters of its mels, are not those of charactr/vocos-mel-24khz "
                "(HTK, up to half the sample rate), which alone are supported"
            )
    return config, checked(path, entries, lambda: _vocoder(config))


def _vocos(raw: object) -> VocosConfig:
    """Parse the configuration. Raises ValueError if its mels differ from charactr/vocos-mel-24khz."""
    config = VocosConfig.parse(raw)
    top = raw if isinstance(raw, Mapping) else {}
    sections = top["model"]["init_args"] if isinstance(top.get("model"), Mapping) else top
    usual: dict[str, tuple[object, ...]] = {
        "f_min": (None, 0),
        "f_max": (None, config.sample_rate / 2),
        "norm": (None,),
        "power": (1,),
    }
    usual |= {"mel_scale": ("htk",), "center": (True,), "win_length": (None, config.n_fft)}
    for name, value in (sections["feature_extractor"].get("init_args") or {}).items():
        if name not in MEL_ARGUMENTS and value not in usual.get(name, ()):
            raise ValueError(
                f"feature_extractor.init_args.{name}: {value!r} makes other mels than "
                f"charactr/vocos-mel-24khz; allowed are {', '.join(MEL_ARGUMENTS)}"
            )
    return config


def _vocoder(config: VocosConfig | BigVGANConfig) -> nn.Module:
    if isinstance(config, BigVGANConfig):
        return BigVGAN(config)
    return Vocos(config) if config.head == "ISTFTHead" else Source(config)


def _vocos_config(path: Path, stored: Weights) -> VocosConfig:
    try:
        dim, mels, _ = stored.entry("backbone.embed.weight").shape
        intermediate, _ = stored.entry("backbone.convnext.0.pwconv1.weight").shape
        n_fft = stored.entry("head.out.weight").shape[0] - 2
    except (KeyError, ValueError):
        raise CheckpointError(f"{path}: no Vocos in it; pass a folder with config.yaml and weights") from None
    layers = sum(name.endswith("pwconv1.weight") for name in stored)
    return VocosConfig(mels, dim, intermediate, layers, n_fft, n_fft // 4, "center")


def load_bigvgan(place: Path, kind: WeightsKind = "ema") -> tuple[BigVGANConfig, Weights]:
    """Load a BigVGAN from a folder with `config.json` or a file there, with weight norm folded into the
    weights.

    Raises CheckpointError.
    """
    beside = config_beside(place, "config.json") if place.is_file() else place / "config.json"
    config = _config(beside, json.loads, BigVGANConfig.parse)
    path = vocoder_file(place, "bigvgan")
    entries = _folded(path, _vocoder_in(path, BIGVGAN, kind))
    model = _blank(lambda: _vocoder(config))
    for name, tensor in model.named_buffers():  # some files lack the filters, which are constants
        entries.setdefault(name, StoredTensor(tuple(tensor.shape), low_pass))
    return config, checked(path, entries, lambda: model)


def build_dit(weights: Mapping[str, Tensor], arch: Arch, vocab_size: int, mels: int = 100) -> DiT:
    return filled(lambda: DiT(arch, vocab_size, mels, embeds_guidance=GUIDANCE in weights), weights)


def build_vocoder(config: VocosConfig | BigVGANConfig, weights: Mapping[str, Tensor]) -> Any:
    """A Vocos, Source or BigVGAN with these weights."""
    return filled(lambda: _vocoder(config), weights)


def _folded(path: Path, stored: Weights) -> dict[str, StoredTensor]:
    pairs = weight_norm_pairs(stored)
    halves = {half for pair in pairs.values() for half in pair}
    entries = {name: stored.entry(name) for name in stored if name not in halves}
    for name, (magnitude, direction) in pairs.items():
        if direction not in stored:
            raise CheckpointError(f"{path}: has {magnitude} without {direction}")
        entries[name] = _folding(stored, magnitude, direction)
    return entries


def _folding(stored: Weights, magnitude: str, direction: str) -> StoredTensor:
    return StoredTensor(stored.entry(direction).shape, lambda: fold(stored[magnitude], stored[direction]))


def _check_rotary(path: Path, stored: Tensor, exact: Tensor) -> None:
    """Raise CheckpointError unless `stored` is a rounding of `exact`.

    A table rounded to bfloat16 would rotate frame 1000 by 0.44 rad too much or too little.
    """
    difference = float(((stored.float() - exact) / exact).abs().max())
    rounding = torch.finfo(stored.dtype).eps / 2 if stored.is_floating_point() else 0.0
    if not difference <= rounding + _FLOAT32_ROUNDING:
        raise CheckpointError(
            f"{path}: {ROTARY} differs from 10000^(-2i/{2 * len(exact)}) by up to {difference:.1e} of its "
            f"values, more than {stored.dtype} rounds; only that table is supported"
        )


def checked(path: Path, entries: Mapping[str, StoredTensor], make: Callable[[], nn.Module]) -> Weights:
    """Entries in the order of the model from `make`. Raises CheckpointError if names or shapes differ."""
    shapes = {name: tuple(tensor.shape) for name, tensor in _blank(make).state_dict().items()}
    wrong = []
    if missing := [name for name in shapes if name not in entries]:
        wrong.append(f"{len(missing)} tensors are missing: {some(missing)}")
    if extra := [name for name in entries if name not in shapes]:
        wrong.append(f"{len(extra)} are unknown: {some(extra)}")
    other = [
        f"{name} is {entries[name].shape}, not {shape}"
        for name, shape in shapes.items()
        if name in entries and entries[name].shape != shape
    ]
    if other:
        wrong.append(f"{len(other)} have another shape: {some(other)}")
    if other and all(
        sorted(entries[name].shape) == sorted(shapes[name]) and len(shapes[name]) == 3
        for name in shapes
        if name in entries and entries[name].shape != shapes[name]
    ):
        wrong.append("all of these are convolutions, transposed as in MLX")
    if wrong:
        raise CheckpointError(f"{path}: does not fit the family's architecture: {'; '.join(wrong)}")
    return Weights({name: entries[name] for name in shapes})


def _blank(make: Callable[[], nn.Module]) -> Any:
    """A model whose tensors have shapes and use no memory."""
    with torch.device("meta"):
        return make()


def filled(make: Callable[[], nn.Module], weights: Mapping[str, Tensor]) -> Any:
    """The model from `make` with these weights."""
    model = _blank(make)
    model.load_state_dict({name: weights[name] for name in weights}, strict=True, assign=True)
    return model.requires_grad_(False).eval()


def _config(path: Path, decode: Callable[[str], Any], parse: Callable[[Any], Any]) -> Any:
    try:
        raw = path.read_bytes()
        if problem := stray(raw):
            raise ValueError(problem)
        return parse(decode(raw.decode("utf-8")))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file; the folder must have the vocoder's config") from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise CheckpointError(f"{path}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0]
