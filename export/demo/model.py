"""The DiT with a batch axis, for training: the weights of `export.model.dit`, many sentences at a time.

Axes: B sentences, N frames of the longest, T tokens of the longest, M mels, D model width. Each sentence's
result is what the reference gives for it alone: padding is masked wherever it could be seen.
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

OUT_OF_SIGHT = -1e4
"""Added to attention scores; bfloat16 holds it."""
UNSEEN = 1e-9
"""Attention so small that nothing is learned from it."""
TAIL = 4
"""Positions kept after the longest text. A convolution reaches 3; all fillers after that are alike."""


@dataclass(frozen=True)
class Sentences:
    """What a batch says, and how long each sentence is."""

    ids: Tensor
    """(B, T) vocabulary indices; -1 where a text has ended."""
    tokens: Tensor
    """(B,) int64, at most `frames` - TAIL each."""
    frames: Tensor
    """(B,) int64."""
    longest: int
    """Frames of the longest: N."""

    @property
    def mask(self) -> Tensor:
        """(B, N) where a frame belongs to its sentence."""
        return torch.arange(self.longest, device=self.frames.device) < self.frames[:, None]

    @property
    def upsample_index(self) -> Tensor:
        """(B, N) the token that each frame carries; that of the last token beyond a sentence's end.

        Each token gets frames // tokens frames, the last frames % tokens of them one more.
        """
        each = self.frames // self.tokens
        plain = (self.tokens - self.frames % self.tokens)[:, None]  # tokens without an extra frame
        each = each[:, None]
        frame = torch.arange(self.longest, device=self.frames.device)[None]
        before = plain * each
        index = torch.where(frame < before, frame // each, plain + (frame - before) // (each + 1))
        return torch.minimum(index, self.tokens[:, None] - 1)


@dataclass(frozen=True)
class Seen:
    """What the model makes of a batch."""

    velocity: Tensor
    """(B, N, M); undefined beyond a sentence's end."""
    before: Tensor | None
    """(B, N, D) activations that the guided block is given."""
    middle: Tensor | None
    """(B, N, D) activations after it."""
    aim: Tensor | None
    """(B, N) log of the attention that the guided heads give to the place that a frame truly belongs to."""
    text: Tensor
    """(B, T, text_dim) encoded tokens."""


@dataclass(frozen=True)
class Guide:
    """Which attention is told where to look in training; nothing of it is left in the weights' layout."""

    block: int
    """From 1."""
    heads: int
    places: Tensor
    """(B, N) int64: the token that each frame truly belongs to; negative where it is not known."""


class BatchedDiT(nn.Module):
    """Velocity of a batch. Only families that mask fillers and upsample text are trained here."""

    def __init__(self, dit: DiT) -> None:
        super().__init__()
        if not (dit.arch.text_mask_padding and dit.arch.text_embedding_average_upsampling):
            raise ValueError("training needs text_mask_padding and text_embedding_average_upsampling")
        if not dit.arch.conv_layers or dit.arch.qk_norm or dit.arch.long_skip_connection:
            raise ValueError("training needs text convolutions, no qk_norm and no long skip connection")
        self.dit = dit

    def forward(
        self,
        latents: Tensor,
        cond: Tensor,
        sentences: Sentences,
        t: Tensor,
        drop_text: Tensor,
        guide: Guide | None = None,
    ) -> Seen:
        """The flow at times `t` (B,); latents and cond are (B, N, M), zeros beyond a sentence's end.

        `drop_text` (B,) says which sentences' texts are hidden.
        """
        dit, mask = self.dit, sentences.mask
        text = self.text(sentences, drop_text)
        shown = upsampled(text, sentences).to(latents.dtype)
        x = self.embed(torch.cat((latents, cond, shown), dim=-1), mask)
        time = dit.time_embed.time_mlp(time_features_of(t))
        angles = dit.rotary_embed(sentences.longest)
        turn = angles.cos(), angles.sin()
        before = middle = aim = None
        for number, layer in enumerate(dit.transformer_blocks, start=1):
            block = cast(Block, layer)
            if guide is not None and number == guide.block:
                before, aim = x, _aim(block, x, time, turn, mask, guide, sentences.upsample_index)
            x = _block(block, x, time, turn, mask)
            if guide is not None and number == guide.block:
                middle = x
        scale, shift = dit.norm_out.linear(F.silu(time))[:, None].chunk(2, dim=-1)
        return Seen(dit.proj_out(normalise(x) * (1 + scale) + shift), before, middle, aim, text)

    def text(self, sentences: Sentences, drop_text: Tensor) -> Tensor:
        """(B, T, text_dim) encoded tokens; zeros after each text.

        The convolutions see text and its first fillers only: later fillers are all alike, so the last one
        stands for them in the response norm, with their number as its weight.
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
        """(B, N, 2·M + text_dim) → (B, N, D)."""
        layer = self.dit.input_embed
        x = layer.proj(x)
        seen = mask[:, None]
        first, act, second, _ = layer.conv_pos_embed.conv1d
        h = act(first(x.mT * seen)) * seen
        return act(second(h)).mT * mask[..., None] + x


def upsampled(text: Tensor, sentences: Sentences) -> Tensor:
    """(B, T, C) → (B, N, C): every frame with its token's vector."""
    index = sentences.upsample_index[..., None].expand(-1, -1, text.shape[-1])
    return text.gather(1, index)


def _text_block(block: TextBlock, x: Tensor, weights: Tensor) -> Tensor:
    h = block.norm(block.dwconv(x.mT).mT)
    h = F.gelu(block.pwconv1(h))
    energy = (h.float().square() * weights).sum(dim=1, keepdim=True).sqrt()
    share = energy / (energy.mean(dim=-1, keepdim=True) + EPS)
    return x + block.pwconv2(block.grn.gamma * (h * share) + block.grn.beta + h)


def time_features_of(t: Tensor) -> Tensor:
    """(B,) → (B, 256): `export.model.dit.time_features` of each."""
    return torch.vmap(time_features)(t)


Turn = tuple[Tensor, Tensor]
"""Cosines and sines of the rotary angles, (N, C / 2) each."""


def _block(block: Block, x: Tensor, time: Tensor, turn: Turn, mask: Tensor) -> Tensor:
    rows = block.attn_norm.linear(F.silu(time))[:, None]
    shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = rows.chunk(6, dim=-1)
    x = x + gate_a * _attend(block.attn, normalise(x) * (1 + scale_a) + shift_a, turn, mask)
    return x + gate_m * block.ff(normalise(x) * (1 + scale_m) + shift_m)


def _attend(attention: Attention, x: Tensor, turn: Turn, mask: Tensor) -> Tensor:
    q, k = (
        _rotate(_heads(attention, attention.to_q, x), turn),
        _rotate(_heads(attention, attention.to_k, x), turn),
    )
    v = _heads(attention, attention.to_v, x)
    if x.is_cuda or v.dtype == torch.float32:
        bias = _bias(mask, q.dtype)[:, None, None]
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    else:  # plain products are 1.6 times as fast on a CPU, in bfloat16, with gradients
        scores = torch.matmul(q * attention.dim_head**-0.5, k.mT) + _bias(mask, q.dtype)[:, None, None]
        mixed = torch.matmul(scores.softmax(dim=-1).to(v.dtype), v)
    return attention.to_out[0](mixed.transpose(1, 2).flatten(-2))


def _aim(
    block: Block, x: Tensor, time: Tensor, turn: Turn, mask: Tensor, guide: Guide, index: Tensor
) -> Tensor:
    """(B, N) log of the attention that falls on the right token's frames, over the guided heads together."""
    shift, scale, *_ = block.attn_norm.linear(F.silu(time))[:, None].chunk(6, dim=-1)
    x = normalise(x) * (1 + scale) + shift
    attention = block.attn
    q, k = (
        _rotate(_heads(attention, linear, x)[:, : guide.heads], turn).float()
        for linear in (attention.to_q, attention.to_k)
    )
    scores = torch.matmul(q * attention.dim_head**-0.5, k.mT) + _bias(mask, q.dtype)[:, None, None]
    right = index[:, None, :] == guide.places[:, :, None]  # (B, N, N): which frames carry the token
    # Not as a difference of two logsumexp: exp of what is out of sight is slow on a CPU.
    on_target = (scores.softmax(dim=-1) * right[:, None]).sum(dim=-1)
    return on_target.clamp_min(UNSEEN).log().mean(dim=1)


def _bias(seen: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, OUT_OF_SIGHT)


def _heads(attention: Attention, linear: nn.Linear, x: Tensor) -> Tensor:
    return linear(x).unflatten(-1, (-1, attention.dim_head)).transpose(1, 2)  # (B, H, N, C)


def _rotate(x: Tensor, turn: Turn) -> Tensor:
    cos, sin = (part.to(x.dtype) for part in turn)
    if x.dtype == torch.float32 and not x.is_cuda:  # a quarter of the time
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * torch.complex(cos, sin)).flatten(-2)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), dim=-1).flatten(-2)
