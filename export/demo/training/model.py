"""Batched DiT for training, on the weights of `export.model.dit`.

Axes: B sentences, N frames, T tokens, M mels, D model width. Padding is masked, so each sentence's result
equals that of the reference model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from export.model.dit import (
    EPS,
    FILLER,
    Attention,
    Block,
    DiT,
    TextBlock,
    normalise,
    position_table,
    time_features,
)

MASKED_SCORE = -1e4
"""Added to masked attention scores; representable in bfloat16."""
MIN_ATTENTION = 1e-9
"""Lower bound before the logarithm; smaller attention gives no gradient."""
TAIL = 4
"""Filler positions computed after the longest text; the convolutions reach 3."""


@dataclass(frozen=True)
class Sentences:
    """Texts of a batch and lengths of its sentences."""

    ids: Tensor
    """Vocabulary indices (B, T), padded with -1."""
    tokens: Tensor
    """Text lengths (B,) int64, at most `frames` - TAIL."""
    frames: Tensor
    """Lengths in frames (B,) int64."""
    index: Tensor
    """Token of each frame (B, N) int64; 0 in padding."""

    @property
    def longest(self) -> int:
        """N, the largest of `frames`."""
        return self.index.shape[1]

    @property
    def mask(self) -> Tensor:
        """Frames that are not padding (B, N)."""
        return torch.arange(self.longest, device=self.frames.device) < self.frames[:, None]


@dataclass(frozen=True)
class Prediction:
    velocity: Tensor
    """(B, N, M); undefined in padding."""
    guided: tuple[Tensor, Tensor] | None
    """Output (B, N, D) of the guided block, and log attention (B, N) of its heads to the aligned token."""


@dataclass(frozen=True)
class AttentionGuide:
    """Guided attention: heads trained to attend to the aligned token."""

    block: int
    """Number of the block, from 1."""
    heads: int
    alignment: Tensor
    """Token index of each frame (B, N) int64; negative if unknown."""


class BatchedDiT(nn.Module):
    """DiT over a batch, for families that mask fillers and upsample text.

    Raises ValueError for other architectures.
    """

    def __init__(self, dit: DiT) -> None:
        super().__init__()
        arch = dit.arch
        text = arch.text_mask_padding and arch.text_embedding_average_upsampling and arch.conv_layers
        if not text or arch.qk_norm or arch.long_skip_connection:
            raise ValueError(
                "training needs text_mask_padding, text_embedding_average_upsampling and text convolutions, "
                "and neither qk_norm nor a long skip connection"
            )
        self.dit = dit

    def forward(
        self,
        latents: Tensor,
        cond: Tensor,
        sentences: Sentences,
        t: Tensor,
        drop_text: Tensor,
        guide: AttentionGuide | None = None,
    ) -> Prediction:
        """Predict the velocity at times `t` (B,) from zero-padded latents and cond (B, N, M).

        `drop_text` (B,) marks sentences whose text is dropped.
        """
        dit, mask = self.dit, sentences.mask
        text = self.text(sentences, drop_text)
        index = sentences.index
        shown = text.gather(1, index[..., None].expand(-1, -1, text.shape[-1])).to(latents.dtype)
        x = self.embed(torch.cat((latents, cond, shown), dim=-1), mask)
        time = dit.time_embed.time_mlp(torch.vmap(time_features)(t))
        angles = dit.rotary_embed(sentences.longest)
        rotation = angles.cos(), angles.sin()
        guided = None
        for number, layer in enumerate(dit.transformer_blocks, start=1):
            block = cast(Block, layer)
            if guide is not None and number == guide.block:
                right = index[:, None, :] == guide.alignment[:, :, None]  # which frames carry the token
                aim = _guided_attention(block, x, time, rotation, mask, guide.heads, right)
                x = _block(block, x, time, rotation, mask)
                guided = x, aim
            else:
                x = _block(block, x, time, rotation, mask)
        scale, shift = dit.norm_out.linear(F.silu(time))[:, None].chunk(2, dim=-1)
        return Prediction(dit.proj_out(normalise(x) * (1 + scale) + shift), guided)

    def text(self, sentences: Sentences, drop_text: Tensor) -> Tensor:
        """Encode texts: (B, T, text_dim), zeros after each text.

        Fillers after the TAIL are equal, so the response norm weights the last one by their number.
        """
        embedding = self.dit.text_embed
        width = sentences.ids.shape[1] + TAIL
        ids = F.pad(sentences.ids + 1, (0, TAIL), value=FILLER)
        shown = (ids != FILLER)[..., None]
        x = embedding.text_embed(ids.masked_fill(drop_text[:, None], FILLER))
        x = (x + position_table(width, x.shape[-1]).to(x)) * shown
        weights = torch.ones_like(x[..., :1])
        weights[:, -1, 0] = (sentences.frames - width + 1).to(x.dtype)
        for block in embedding.text_blocks:
            x = _text_block(cast(TextBlock, block), x, weights) * shown
        return x[:, :-TAIL]

    def embed(self, x: Tensor, mask: Tensor) -> Tensor:
        """Input embedding with masked convolutions: (B, N, 2·M + text_dim) → (B, N, D)."""
        layer = self.dit.input_embed
        x = layer.proj(x)
        seen = mask[:, None]
        first, act, second, _ = layer.conv_pos_embed.conv1d
        h = act(first(x.mT * seen)) * seen
        return act(second(h)).mT * mask[..., None] + x


def _text_block(block: TextBlock, x: Tensor, weights: Tensor) -> Tensor:
    h = block.norm(block.dwconv(x.mT).mT)
    h = F.gelu(block.pwconv1(h))
    energy = (h.float().square() * weights).sum(dim=1, keepdim=True).sqrt()
    share = energy / (energy.mean(dim=-1, keepdim=True) + EPS)
    return x + block.pwconv2(block.grn.gamma * (h * share) + block.grn.beta + h)


Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of rotary angles, (N, C / 2) each."""


def _block(block: Block, x: Tensor, time: Tensor, rotation: Rotation, mask: Tensor) -> Tensor:
    rows = block.attn_norm.linear(F.silu(time))[:, None]
    shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = rows.chunk(6, dim=-1)
    x = x + gate_a * _attend(block.attn, normalise(x) * (1 + scale_a) + shift_a, rotation, mask)
    return x + gate_m * block.ff(normalise(x) * (1 + scale_m) + shift_m)


def _attend(attention: Attention, x: Tensor, rotation: Rotation, mask: Tensor) -> Tensor:
    q, k = (_rotate(_heads(attention, linear, x), rotation) for linear in (attention.to_q, attention.to_k))
    v = _heads(attention, attention.to_v, x)
    if x.is_cuda or v.dtype == torch.float32:
        bias = _bias(mask, q.dtype)[:, None, None]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    else:  # plain products are 1.6 times as fast on a CPU, in bfloat16, with gradients
        scores = torch.matmul(q * attention.dim_head**-0.5, k.mT) + _bias(mask, q.dtype)[:, None, None]
        mixed = torch.matmul(scores.softmax(dim=-1).to(v.dtype), v)
    return attention.to_out[0](mixed.transpose(1, 2).flatten(-2))


def _guided_attention(
    block: Block, x: Tensor, time: Tensor, rotation: Rotation, mask: Tensor, heads: int, right: Tensor
) -> Tensor:
    """Log attention (B, N) of the first heads, averaged, to the frames of which `right` (B, N, N) is true."""
    shift, scale, *_ = block.attn_norm.linear(F.silu(time))[:, None].chunk(6, dim=-1)
    x = normalise(x) * (1 + scale) + shift
    attention = block.attn
    q, k = (
        _rotate(_heads(attention, linear, x)[:, :heads], rotation).float()
        for linear in (attention.to_q, attention.to_k)
    )
    scores = torch.matmul(q * attention.dim_head**-0.5, k.mT) + _bias(mask, q.dtype)[:, None, None]
    # Softmax rather than a difference of two logsumexp: exp of masked scores is slow on a CPU.
    on_target = (scores.softmax(dim=-1) * right[:, None]).sum(dim=-1)
    return on_target.clamp_min(MIN_ATTENTION).log().mean(dim=1)


def _bias(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, MASKED_SCORE)


def _heads(attention: Attention, linear: nn.Linear, x: Tensor) -> Tensor:
    return linear(x).unflatten(-1, (-1, attention.dim_head)).transpose(1, 2)  # (B, H, N, C)


def _rotate(x: Tensor, rotation: Rotation) -> Tensor:
    cos, sin = (part.to(x.dtype) for part in rotation)
    if x.dtype == torch.float32 and not x.is_cuda:  # a quarter of the time
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
