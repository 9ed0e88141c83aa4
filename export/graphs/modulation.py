"""Modulation of a DiT, which depends on time and guidance alone."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from appliance.contract.bundle import Arch
from export.graphs.parts import RowLinear, Weights, kept, kept_float, silu

TIME_FREQUENCIES = 128
TIME_SCALE = 1000.0


class ModulationGraph(nn.Module):
    """t (K) → rows (K, 6·depth + 2, D): each block's six AdaLN rows, then the final shift and scale.

    If the weights embed a guidance strength, a strength (K) accompanies the times.
    """

    def __init__(self, weights: Weights, arch: Arch, stored: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.dim = arch.dim
        fall = -math.log(10_000.0) / (TIME_FREQUENCIES - 1)
        self.frequencies = kept_float(torch.exp(torch.arange(TIME_FREQUENCIES).float() * fall))
        self.hidden = self._linear(weights, "time_embed.time_mlp.0", stored)
        self.out = self._linear(weights, "time_embed.time_mlp.2", stored)
        embed = weights.get("time_embed.guidance_embed.weight")
        self.guidance = None if embed is None else kept(embed, stored)
        names = [f"transformer_blocks.{i}.attn_norm.linear" for i in range(arch.depth)] + ["norm_out.linear"]
        self.heads = nn.ModuleList([self._linear(weights, name, stored) for name in names])

    @staticmethod
    def _linear(weights: Weights, name: str, stored: torch.dtype) -> RowLinear:
        return RowLinear(weights[f"{name}.weight"], weights[f"{name}.bias"], stored)

    def _waves(self, t: Tensor) -> Tensor:
        angle = TIME_SCALE * t[:, None] * self.frequencies
        return torch.cat([angle.sin(), angle.cos()], dim=-1)

    def forward(self, t: Tensor, strength: Tensor | None = None) -> Tensor:
        wave = self._waves(t)
        if self.guidance is not None and strength is not None:
            wave = wave + F.linear(self._waves(strength), self.guidance.float())
        seen = silu(self.out(silu(self.hidden(wave))))
        *blocks, last = [head(seen).unflatten(-1, (-1, self.dim)) for head in self.heads]
        scale, shift = last.unbind(1)  # upstream's final linear has scale first, unlike its blocks
        return torch.cat([*blocks, torch.stack([shift, scale], dim=1)], dim=1)
