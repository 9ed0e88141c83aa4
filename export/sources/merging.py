"""Merges an adapter into weights, in float32.

Hu et al. 2021 (arXiv 2106.09685), LoRA: W + s·B·A. Kalajdzievski 2023 (2312.03732): s = α/√r in place of α/r.
Liu et al. 2024 (2402.09353), DoRA: each row of W + s·B·A is scaled to a trained length. Hyeon-Woo et al. 2021
(2108.06098), LoHa: W + s·(B₁·A₁)∘(B₂·A₂).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from pathlib import Path

from torch import Tensor

from export.sources import stored as files
from export.sources.adapter import WRAPPED, Adapter, of_base
from export.sources.header import CheckpointError, some
from export.sources.stored import StoredTensor, Weights

FACTORS: tuple[tuple[tuple[str, str], ...], ...] = (
    (("lora_B", "lora_A"),),
    (("lora_embedding_B", "lora_embedding_A"),),
    (("hada_w1_a", "hada_w1_b"), ("hada_w2_a", "hada_w2_b")),
)
"""Left and right factor of each product.

If a change has two products, they are multiplied element by element.
"""
LENGTHS = "lora_magnitude_vector"
_NAMES = "|".join([LENGTHS, *(name for pairs in FACTORS for pair in pairs for name in pair)])
_PART = re.compile(rf"\.({_NAMES})(?:\.default)?(?:\.weight)?$")
_OUTER = "base_model.model."

Parts = Mapping[str, StoredTensor]


def base(stored: Weights) -> Weights:
    """The base weights in a file that may contain an adapter as well."""
    own = of_base(stored)
    return Weights({name: stored.entry(own[name]) for name in own}, averaged=stored.averaged)


def merged(path: Path, weights: Weights, adapter: Adapter, own: Callable[[str], str]) -> Weights:
    """The weights of `path` with the adapter's changes. `own` maps a stored name to the model's own name.

    Raises CheckpointError if the adapter is for another model.
    """
    stored = files.read(adapter.file).weights("raw")
    if broken := [name for name in stored if not stored[name].isfinite().all()]:
        raise CheckpointError(f"{adapter.file}: NaN or infinities in {some(broken)}")
    entries = {name: weights.entry(name) for name in weights}
    modules: dict[str, dict[str, StoredTensor]] = {}
    changed: dict[str, StoredTensor] = {}
    for name in stored:
        if part := _PART.search(name):
            module = WRAPPED.sub("", name[: part.start()])
            modules.setdefault(module, {})[part[1]] = stored.entry(name)
        elif ".original_module." not in name:  # a copy of the base's module
            changed[own(WRAPPED.sub("", name))] = stored.entry(name)
    for module, parts in modules.items():
        weight = own(f"{module}.weight")
        if weight in entries:
            pairs, scale = _factors(adapter, module, entries[weight].shape, parts)
            read_merged = partial(_merge, entries[weight], parts, pairs, scale)
            changed[weight] = StoredTensor(entries[weight].shape, read_merged)
        else:
            changed[weight] = next(iter(parts.values()))
    if strangers := [name for name in changed if name not in entries]:
        raise CheckpointError(f"{adapter.file}: changes {some(strangers)}, which {path} does not have")
    return Weights(entries | changed, averaged=weights.averaged, notes=weights.notes)


def _factors(
    adapter: Adapter, module: str, shape: tuple[int, ...], parts: Parts
) -> tuple[tuple[tuple[str, str], ...], float]:
    """Pairs of factors for a module's change, and its scale. Raises CheckpointError if shapes do not fit."""
    pairs = next((one for one in FACTORS if {name for pair in one for name in pair} <= parts.keys()), None)
    if pairs is None:
        raise CheckpointError(f"{adapter.file}: {module} has {', '.join(parts)} without the other factor")
    for left, right in pairs:
        (rows, *inner), (rank, *columns) = parts[left].shape, parts[right].shape
        if prod(inner) != rank or rows * prod(columns) != prod(shape):
            raise CheckpointError(
                f"{adapter.file}: {module} has {left} of {parts[left].shape} and {right} of "
                f"{parts[right].shape}, whose product is not {shape}"
            )
    if adapter.config.use_dora and (LENGTHS not in parts or prod(parts[LENGTHS].shape) != shape[0]):
        raise CheckpointError(f"{adapter.file}: {module} has no {LENGTHS} of {shape[0]} rows, as DoRA needs")
    return pairs, adapter.scale(module.removeprefix(_OUTER), rank)


def _merge(weight: StoredTensor, parts: Parts, pairs: tuple[tuple[str, str], ...], scale: float) -> Tensor:
    """The weight plus the scaled change. DoRA then scales each row to its trained length."""
    whole = weight.read().float()
    products = [
        parts[left].read().float().flatten(1) @ parts[right].read().float().flatten(1)
        for left, right in pairs
    ]
    change = products[0] * products[1] if len(products) > 1 else products[0]
    if "lora_embedding_A" in parts:
        change = change.T
    whole = whole + (scale * change).reshape(whole.shape)
    if LENGTHS in parts:
        rows = parts[LENGTHS].read().float().flatten() / whole.flatten(1).norm(dim=1)
        whole = whole * rows.view(-1, *(1 for _ in whole.shape[1:]))
    return whole
