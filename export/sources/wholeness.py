"""Refuses weights that are damaged by a copy, a download or a training, before any work on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from export.sources.checkpoint import CheckpointError
from export.sources.header import some
from export.sources.stored import Weights

GATE = "_norm.linear.weight"
"""End of the name of a block's modulation, which is zero at the start of training."""
EMBED = "embed.weight"
"""End of the name of a token embedding."""
SHORTEST_ROW = 32
"""Shortest row, in values, whose zeros at the end of a matrix mean that the file was cut off."""
REMEDY = "copy or download the file again, or use an earlier checkpoint of the training"


def check(path: Path, weights: Weights, tokens: Sequence[str] = ()) -> None:
    """Raise CheckpointError for NaN, infinities, matrices of zeros, and matrices whose last row is zeros.

    `tokens` name the last rows of the embedding. Biases, gates and rows of unused tokens may be zeros.
    """
    broken, empty, cut = [], [], []
    for name in weights:
        tensor = weights[name]
        if not torch.isfinite(tensor).all():
            broken.append(name + _rows(name, tensor, tokens))
        if sum(size > 1 for size in tensor.shape) < 2 or name.endswith(GATE):
            continue
        if not tensor.any():
            empty.append(name)
        elif not (name.endswith(EMBED) or tensor[-1].numel() < SHORTEST_ROW or tensor[-1].any()):
            cut.append(name)
    sentences = (
        (broken, "contain NaN or infinities"),
        (empty, "contain only zeros"),
        (cut, "end with zeros, as after a download that stopped"),
    )
    if wrong := [f"{len(names)} tensors {what}: {some(names)}" for names, what in sentences if names]:
        raise CheckpointError(f"{path}: the weights are incomplete or broken: {'; '.join(wrong)}; {REMEDY}")


def _rows(name: str, tensor: Tensor, tokens: Sequence[str]) -> str:
    """Tokens whose embedding rows are not finite, for the error message."""
    if not name.endswith(EMBED) or not tokens:
        return ""
    rows = torch.nonzero(~torch.isfinite(tensor).all(dim=-1)).flatten().tolist()
    before = len(tensor) - len(tokens)
    called = [f"token {tokens[row - before]!r}" if row >= before else "the filler" for row in rows]
    return f" ({some(called)})"
