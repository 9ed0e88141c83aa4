"""Muon in float32, all matrices of one shape at a time.

`torch.optim.Muon` works in bfloat16, matrix by matrix: on a CPU without bfloat16 that takes a third of a
training step. K. Jordan, Muon, 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

MOMENTUM = 0.95
QUINTIC = (3.4445, -4.7750, 2.0315)
"""a, b, c of X ← aX + (b(XXᵀ) + c(XXᵀ)²)X."""
ITERATIONS = 5
EPS = 1e-7


class Muon(torch.optim.Optimizer):
    """Nesterov momentum whose singular values are made about equal; steps as large as AdamW's (RMS 0.2)."""

    def __init__(self, matrices: Iterable[nn.Parameter], lr: float, weight_decay: float) -> None:
        super().__init__(matrices, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every matrix that has a gradient."""
        if closure is not None:
            raise ValueError("Muon takes no closure")
        for group in self.param_groups:
            for alike in _by_shape(group["params"]):
                self._move(alike, group)

    def _move(self, alike: list[Tensor], group: dict[str, Any]) -> None:
        directions = []
        for matrix in alike:
            assert matrix.grad is not None
            momentum = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
            momentum.lerp_(matrix.grad, 1 - MOMENTUM)
            directions.append(matrix.grad.lerp(momentum, MOMENTUM))
        rows, columns = alike[0].shape
        step = 0.2 * max(rows, columns) ** 0.5 * group["lr"]
        torch._foreach_mul_(alike, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(alike, list(orthogonal(torch.stack(directions)).unbind()), alpha=-step)


def orthogonal(matrices: Tensor) -> Tensor:
    """(K, R, C) → the same with singular values near 1 (0.7 to 1.2), by Newton and Schulz's iteration."""
    a, b, c = QUINTIC
    x = matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(EPS)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if matrices.shape[1] > matrices.shape[2] else x


def _by_shape(matrices: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    found: dict[torch.Size, list[Tensor]] = {}
    for matrix in matrices:
        if matrix.grad is not None:
            found.setdefault(matrix.shape, []).append(matrix)
    return found.values()
