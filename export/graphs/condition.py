"""Condition of a DiT: text and reference, which do not depend on time."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from appliance.contract.bundle import Arch
from appliance.contract.graphs import TAIL
from export.graphs.parts import NORM_EPS, ConvNeXt, Matrix, Weights, kept, kept_float

ROTARY_BASE = 10_000.0


class TextBlockGraph(ConvNeXt):
    """ConvNeXt V2 block over tokens.

    Its GRN sums over the true length: a position counts as often as in `counts`.
    """

    def __init__(self, weights: Weights, name: str, compute: torch.dtype) -> None:
        super().__init__(weights, name, compute)
        self.down = Matrix(weights[f"{name}.pwconv2.weight"], weights[f"{name}.pwconv2.bias"], compute)
        self.gamma = kept_float(weights[f"{name}.grn.gamma"])
        self.beta = kept_float(weights[f"{name}.grn.beta"])

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:  # (G, N, text_dim), (N)
        y = self.wide(x.transpose(1, 2)).float()
        # A product sums in blocks. ONNX Runtime's ReduceSum adds thousands of similar squares one by one.
        energy = (counts @ (y * y)).sqrt()[:, None]
        response = energy / (energy.mean(dim=-1, keepdim=True) + NORM_EPS)
        y = self.gamma * (y * response) + self.beta + y
        return x + self.down(y.to(self.compute))


class Condition(nn.Module):
    """ids (N), log_mel (N, M) → condition (G, N, D): the guided row and, if G is 2, the unguided row.

    Text that is upsampled has an upsample_index (N). If it is masked, too, ids are (T) and counts (T). The
    unguided row depends on the text's length through `text_mask_padding`.
    """

    def __init__(
        self,
        weights: Weights,
        arch: Arch,
        mels: int,
        max_frames: int,
        compute: torch.dtype,
        conditions: int = 2,
    ) -> None:
        super().__init__()
        self.compute, self.conditions = compute, conditions
        self.masks = arch.text_mask_padding and arch.conv_layers > 0
        self.embedding = kept(weights["text_embed.text_embed.weight"], compute)
        longest = max_frames + TAIL * (arch.encodes == "tokens")
        self.positions = kept_float(position_table(longest, arch.text_dim)) if arch.conv_layers else None
        self.blocks = nn.ModuleList(
            [TextBlockGraph(weights, f"text_embed.text_blocks.{i}", compute) for i in range(arch.conv_layers)]
        )
        weight = weights["input_embed.proj.weight"]  # (D, [latents M | reference M | text])
        self.from_mel = Matrix(weight[:, mels : 2 * mels], weights["input_embed.proj.bias"], compute)
        self.from_text = Matrix(weight[:, 2 * mels :], None, compute)

    def forward(
        self,
        ids: Tensor,
        log_mel: Tensor,
        upsample_index: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> Tensor:
        filler = (ids == 0)[None, :, None]
        text = F.embedding(torch.stack([ids, torch.zeros_like(ids)][: self.conditions]), self.embedding)
        if self.positions is not None:
            text = (text.float() + self.positions[: ids.shape[0]]).to(self.compute)
        if self.masks:
            text = text.masked_fill(filler, 0.0)
        counts = torch.ones_like(ids, dtype=torch.float32) if counts is None else counts
        for block in self.blocks:
            text = block(text, counts)
            if self.masks:
                text = text.masked_fill(filler, 0.0)
        shown = self.from_text(text)
        if upsample_index is not None:
            shown = shown.index_select(1, upsample_index)
        mel = torch.stack([log_mel, torch.zeros_like(log_mel)][: self.conditions]).to(self.compute)
        return self.from_mel(mel) + shown


def rates(dim: int) -> Tensor:
    """Rotary frequencies (dim / 2,) 10000^(−2i/dim) as upstream's float32 rounds them."""
    return 1.0 / ROTARY_BASE ** (torch.arange(0, dim, 2)[: dim // 2].float() / dim)


def angles(length: int, rate: Tensor) -> Tensor:
    """Angles n·w_i (length, dim / 2)."""
    return torch.outer(torch.arange(length).float(), rate.float())


def position_table(length: int, dim: int) -> Tensor:
    """Cosines, then sines (length, dim), added to token embeddings."""
    angle = angles(length, rates(dim))
    return torch.cat([angle.cos(), angle.sin()], dim=-1)
