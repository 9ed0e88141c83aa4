"""Random weights for comparisons: unlike fresh initialisation, no layer is multiplied by zero.

Each parameter has a random stream seeded by its name, so results do not depend on order or storage.
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
    """Redraw every parameter of `model`; buffers are unchanged."""
    for name, parameter in model.named_parameters():
        parameter.copy_(draw(name, parameter.shape, seed))


def draw(name: str, shape: Sequence[int], seed: int) -> Tensor:
    """Draw the float32 tensor of a name, shape and seed."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    normal = torch.empty(tuple(shape)).normal_(generator=generator)
    if any(layer in name for layer in _SMALL_NORMAL):
        normal.mul_(0.02)
        if name.endswith("attn_norm.linear.bias"):
            for gate in _GATES:
                normal.view(6, -1)[gate].add_(0.3)
        return normal
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
