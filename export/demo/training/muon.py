"""Muon (K. Jordan, 2024), batched over matrices of one shape, in bfloat16 where the processor has it.

`torch.optim.Muon` always uses bfloat16, one matrix at a time: a third of a training step on a CPU without it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from export.demo.training.loop import autocast

MOMENTUM = 0.95
QUINTIC = (3.4445, -4.7750, 2.0315)
"""a, b, c of X ← aX + (b(XXᵀ) + c(XXᵀ)²)X."""
ITERATIONS = 5
EPS = 1e-7


class Muon(torch.optim.Optimizer):
    """Orthogonalised Nesterov momentum, scaled to the update size of AdamW (RMS 0.2)."""

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for matrix in group["params"]:
                if matrix.grad is not None:
                    by_shape[matrix.shape].append(matrix)
            for matrices in by_shape.values():
                self._update(matrices, group)

    def _update(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        directions = []
        for matrix in matrices:
            assert matrix.grad is not None
            momentum = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
            momentum.lerp_(matrix.grad, 1 - MOMENTUM)
            directions.append(matrix.grad.lerp(momentum, MOMENTUM))
        rows, columns = matrices[0].shape
        step = 0.2 * max(rows, columns) ** 0.5 * group["lr"]
        torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
        with autocast(matrices[0].device.type):
            turned = orthogonal(torch.stack(directions)).float()
        torch._foreach_add_(matrices, list(turned.unbind()), alpha=-step)


def orthogonal(matrices: Tensor) -> Tensor:
    """Newton-Schulz iteration: (K, R, C) → (K, R, C) with singular values of 0.7 to 1.2."""
    a, b, c = QUINTIC
    x = matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(EPS)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if matrices.shape[1] > matrices.shape[2] else x
