"""Random weights under which every path matters.

Freshly built, these networks multiply most of their layers by zero, and a comparison of two of them proves
nothing. Here every parameter is drawn by its name, in a stream of its own, so the same seed gives the same
weights whether a model is filled at once or written to a file tensor by tensor, and whoever built it.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn

_SMALL_NORMAL = ("attn_norm.linear", "norm_out.linear", "proj_out")  # zero at the start of training
_GATES = (2, 5)  # of the six modulation vectors of a block
_NORM_WEIGHTS = ("norm.weight", "q_norm.weight", "k_norm.weight")


@torch.no_grad()
def redraw(model: nn.Module, seed: int) -> None:
    """Draw every parameter of `model` anew; buffers stay as they are."""
    for name, parameter in model.named_parameters():
        parameter.copy_(draw(name, parameter.shape, seed))


def draw(name: str, shape: Sequence[int], seed: int) -> Tensor:
    """The float32 tensor of that name, shape and seed."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    normal = torch.empty(tuple(shape)).normal_(generator=generator)
    if any(layer in name for layer in _SMALL_NORMAL):
        return _with_open_gates(name, normal.mul_(0.02))
    if name.endswith(("grn.gamma", "grn.beta")):
        return normal.mul_(0.1)
    if name.endswith((".act.alpha", ".act.beta")):
        return normal.mul_(0.1).add_(0.5)  # away from 0, where Snake's 1/β has its pole
    if name.endswith((*_NORM_WEIGHTS, "gamma")):
        return normal.mul_(0.1).add_(1.0 if name.endswith("weight") else 0.3)
    if name.endswith("text_embed.weight"):
        return normal
    if len(shape) < 2:
        return normal.mul_(0.05)
    return normal.div_(math.sqrt(3.0 * math.prod(shape[1:])))  # the variance of torch's own initialisation


def _with_open_gates(name: str, values: Tensor) -> Tensor:
    if name.endswith("attn_norm.linear.bias"):
        for gate in _GATES:
            values.view(6, -1)[gate].add_(0.3)
    return values
