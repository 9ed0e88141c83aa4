"""One torch module per exported graph: upstream's arithmetic, split by dependence on time.

Weights have upstream's names and are rearranged to avoid transposes and strides. Axes are those of
`appliance.contract.graphs`; `compute` is the element type of matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from appliance.contract.bundle import Arch, Vocoder
from appliance.contract.graphs import MAX_OPSET, TAIL
from appliance.contract.mel import MelSpec
from export.graphs.to_onnx import ANY_ROWS
from export.model import bigvgan, hifigan, source

Weights = Mapping[str, Tensor]
Form = Literal["standard", "single", "cuda"]
"""Standard operators for rows; ONNX Runtime's own for one unpadded row on a CPU, for rows on a GPU."""

ROTARY_BASE = 10_000.0
TIME_FREQUENCIES = 128
TIME_SCALE = 1000.0
POSITION_CONV_GROUPS = 16
NORM_EPS = 1e-6
MASKED_SCORE = -3e4  # finite in float16, and far below any score that a softmax can still see


def kept(tensor: Tensor, dtype: torch.dtype = torch.float32) -> nn.Buffer:
    """Weight of a graph: contiguous, without gradient."""
    return nn.Buffer(tensor.detach().to(dtype).contiguous())


def kept_float(tensor: Tensor) -> nn.Buffer:
    """Weight that is float32 in every precision."""
    return kept(tensor)


class Matrix(nn.Module):
    """x @ w + b with w stored (in, out), the layout of MatMul."""

    def __init__(self, weight: Tensor, bias: Tensor | None, compute: torch.dtype) -> None:
        super().__init__()
        self.weight = kept(weight.T, compute)
        self.bias = None if bias is None else kept(bias, compute)

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.weight
        return y if self.bias is None else y + self.bias


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Layer norm over the last axis, in float32."""
    x = x.float()
    return F.layer_norm(x, (x.shape[-1],), weight, bias, NORM_EPS)


# ------------------------------------------------------------------------------------------ modulation


class Modulation(nn.Module):
    """t (K) → rows (K, 6·depth + 2, D): each block's six AdaLN rows, then the final shift and scale.

    Weights that embed a guidance strength take it beside each time.
    """

    def __init__(self, weights: Weights, arch: Arch, stored: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.dim = arch.dim
        fall = -math.log(10_000.0) / (TIME_FREQUENCIES - 1)
        self.frequencies = kept_float(torch.exp(torch.arange(TIME_FREQUENCIES).float() * fall))
        self.hidden, self.out = (self._linear(weights, f"time_embed.time_mlp.{i}", stored) for i in (0, 2))
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


def silu(x: Tensor) -> Tensor:
    """x / (1 + e^(−x)), since ONNX Runtime's Sigmoid on a CPU is 1e-5 of itself wrong at −5 (1.31.1)."""
    return x / (1.0 + (-x).exp())


class RowLinear(nn.Module):
    """Linear layer in float32; its weight (out, in), Gemm's layout, may be stored in float16."""

    def __init__(self, weight: Tensor, bias: Tensor, stored: torch.dtype) -> None:
        super().__init__()
        self.weight, self.bias = kept(weight, stored), kept_float(bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.float(), self.bias)


# ------------------------------------------------------------------------------------------- condition


class TextBlock(nn.Module):
    """ConvNeXt V2 block over tokens; GRN sums over the true length, a position as often as `counts` says."""

    def __init__(self, weights: Weights, name: str, compute: torch.dtype) -> None:
        super().__init__()
        self.compute = compute
        self.conv, self.conv_bias = (kept(weights[f"{name}.dwconv.{k}"], compute) for k in ("weight", "bias"))
        self.norm_weight, self.norm_bias = (
            kept_float(weights[f"{name}.norm.{k}"]) for k in ("weight", "bias")
        )
        self.up, self.down = (
            Matrix(weights[f"{name}.pwconv{i}.weight"], weights[f"{name}.pwconv{i}.bias"], compute)
            for i in (1, 2)
        )
        self.gamma, self.beta = (kept_float(weights[f"{name}.grn.{k}"]) for k in ("gamma", "beta"))

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:  # (G, N, text_dim), (N)
        y = F.conv1d(x.transpose(1, 2), self.conv, self.conv_bias, padding=3, groups=x.shape[2])
        y = layer_norm(y.transpose(1, 2), self.norm_weight, self.norm_bias).to(self.compute)
        y = F.gelu(self.up(y)).float()
        # A product sums in blocks; ONNX Runtime's ReduceSum adds one by one, and thousands of squares alike.
        energy = (counts @ (y * y)).sqrt()[:, None]
        response = energy / (energy.mean(dim=-1, keepdim=True) + NORM_EPS)
        y = self.gamma * (y * response) + self.beta + y
        return x + self.down(y.to(self.compute))


class Condition(nn.Module):
    """ids (N), log_mel (N, M) → condition (G, N, D): guided row, and unguided row where G is 2.

    Text that is upsampled has an upsample_index (N); where it is masked too, ids (T) and counts (T). The
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
            [TextBlock(weights, f"text_embed.text_blocks.{i}", compute) for i in range(arch.conv_layers)]
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


# ------------------------------------------------------------------------------------------------ step


class PositionConv(nn.Module):
    """Convolutional position embedding; padding is zero before each convolution."""

    def __init__(self, weights: Weights, compute: torch.dtype) -> None:
        super().__init__()
        self.compute = compute
        name = "input_embed.conv_pos_embed.conv1d"
        self.w0, self.b0, self.w2, self.b2 = (
            kept(weights[f"{name}.{i}.{k}"], compute) for i in (0, 2) for k in ("weight", "bias")
        )

    def forward(self, x: Tensor, valid: Tensor | None) -> Tensor:  # ([R,] N, D), (R, N)
        y = x.mT
        mask = None if valid is None else valid[:, None].to(self.compute)
        if mask is not None:
            y = y * mask
        for weight, bias in ((self.w0, self.b0), (self.w2, self.b2)):
            y = F.conv1d(y, weight, bias, padding=weight.shape[2] // 2, groups=POSITION_CONV_GROUPS)
            y = mish(y).to(self.compute)
            if mask is not None:
                y = y * mask
        return y.mT


def mish(x: Tensor) -> Tensor:
    """x·tanh(ln(1 + eˣ)) = x·n / (n + 2), n = eˣ(eˣ + 2); ten times as fast as the runtimes' softplus.

    float32, since eˣ overflows float16 at 11; from 20 on it is x.
    """
    x = x.float()
    e = x.clamp(max=20.0).exp()
    n = e * (e + 2.0)
    return x * (n / (n + 2.0))


@dataclass(frozen=True)
class Positions:
    """Rotary tables (positions, dim_head / 2) and the position of the first frame."""

    cos: Tensor
    sin: Tensor
    first: int = 0


class Attention(nn.Module):
    """Self-attention with rotary positions: one product for q, k and v, one rotation for q and k.

    Rows of q and k are reordered by head, even ones first: rotary pairs become halves. Weights hold the
    scale: in float32 q's (a power of two), in float16 64^-¼ of q and k against overflow. Softmax is float32.
    """

    def __init__(self, weights: Weights, name: str, arch: Arch, compute: torch.dtype) -> None:
        super().__init__()
        self.heads, self.head_dim, self.compute = arch.heads, arch.dim_head, compute
        self.rotated_heads = arch.heads if arch.pe_attn_head is None else arch.pe_attn_head
        self.norms = arch.qk_norm is not None
        whole = self.head_dim**-0.5
        scales = (whole, 1.0) if compute == torch.float32 else (whole**0.5, whole**0.5)
        order = torch.cat([torch.arange(0, self.head_dim, 2), torch.arange(1, self.head_dim, 2)])
        parts = []
        for key, scale in (("q", scales[0]), ("k", scales[1]), ("v", None)):
            weight, bias = weights[f"{name}.to_{key}.weight"], weights[f"{name}.to_{key}.bias"]
            if scale is not None:
                factor = 1.0 if self.norms else scale
                weight = weight.unflatten(0, (self.heads, -1))[:, order].flatten(0, 1) * factor
                bias = bias.unflatten(0, (self.heads, -1))[:, order].flatten() * factor
            parts.append((weight, bias))
        self.qkv = Matrix(torch.cat([w for w, _ in parts]), torch.cat([b for _, b in parts]), compute)
        self.out = Matrix(weights[f"{name}.to_out.0.weight"], weights[f"{name}.to_out.0.bias"], compute)
        if self.norms:
            gains = [weights[f"{name}.{a}_norm.weight"][order] * s for a, s in zip("qk", scales, strict=True)]
            self.gain = kept_float(torch.stack(gains).repeat_interleave(self.heads, dim=0))  # (2·heads, 64)

    def forward(
        self,
        x: Tensor,
        positions: Positions,
        bias: Tensor | None,
        kept: tuple[Tensor, Tensor] | None = None,
        begin: int = 0,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x (R, N, D) → output for frames from `begin` on (R, N − begin, D), keys and values (R, N, A).

        `bias` (R, 1, 1, L) is 0 or MASKED_SCORE. `kept` are preceding keys and values (R, P, A).
        """
        heads = self.heads
        # Split by heads: runtimes divide a product that is split along its last axis.
        qk, v = self.qkv(x).unflatten(-1, (3 * heads, -1)).split((2 * heads, heads), dim=2)
        if self.norms:
            qk = self._rms_norm(qk)
        q, k = self._rotate(qk, positions).chunk(2, dim=2)
        keys, values = k, v
        if kept is not None:
            keys, values = (
                torch.cat([old.unflatten(-1, (heads, -1)), new], dim=1)
                for old, new in zip(kept, (k, v), strict=True)
            )
        q = q[:, begin:] if begin else q
        scores = q.transpose(1, 2) @ keys.permute(0, 2, 3, 1)  # (R, heads, N, L)
        scores = scores if bias is None else scores + bias
        shares = scores.float().softmax(dim=-1).to(self.compute)
        y = (shares @ values.transpose(1, 2)).transpose(1, 2).flatten(2)
        return self.out(y), k.flatten(2), v.flatten(2)

    def _rms_norm(self, x: Tensor) -> Tensor:  # (R, N, 2·heads, 64)
        x = x.float()
        return (x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + NORM_EPS) * self.gain).to(self.compute)

    def _rotate(self, x: Tensor, positions: Positions) -> Tensor:  # (R, N, 2·heads, 64)
        if self.rotated_heads in (0, self.heads):
            return self._turned(x, positions) if self.rotated_heads else x
        q_and_k = x.unflatten(2, (2, self.heads))
        first, rest = q_and_k[..., : self.rotated_heads, :], q_and_k[..., self.rotated_heads :, :]
        turned = self._turned(first.flatten(2, 3), positions).unflatten(2, (2, self.rotated_heads))
        return torch.cat([turned, rest], dim=3).flatten(2, 3)

    def _turned(self, x: Tensor, positions: Positions) -> Tensor:
        frames = slice(positions.first, positions.first + x.shape[1])
        cos, sin = positions.cos[frames, None], positions.sin[frames, None]
        a, b = x.float().chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).to(self.compute)


class FusedAttention(Attention):
    """Attention of padded rows with ONNX Runtime's fused operators."""

    def forward(
        self,
        x: Tensor,
        positions: Positions,
        mask: Tensor | None,
        kept: tuple[Tensor, Tensor] | None = None,
        begin: int = 0,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """As `Attention`, with the `mask` of `Step.attended` as bias."""
        q, k, v = self.qkv(x).chunk(3, dim=-1)  # equal parts: others need copies from the host
        if self.norms:
            q, k = self._rms_norm(torch.cat([q, k], dim=-1).unflatten(-1, (2 * self.heads, -1))).chunk(2, 2)
            q, k = q.flatten(2), k.flatten(2)
        q, k = self._rotate(q, positions), self._rotate(k, positions)
        y = self._attend(q, k, v, mask, kept, begin)
        return self.out(y), k, v

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None,
        kept: tuple[Tensor, Tensor] | None,
        begin: int,
    ) -> Tensor:
        if kept is not None:
            k, v = (torch.cat(pair, dim=1) for pair in zip(kept, (k, v), strict=True))
        q = q[:, begin:] if begin else q
        given = (q, k, v) if mask is None else (q, k, v, None, mask)
        return contrib("MultiHeadAttention", given, num_heads=self.heads, scale=1.0)

    def _rotate(self, x: Tensor, positions: Positions) -> Tensor:  # (R, N, A) or (R, N, 2·A)
        turning, width = self.rotated_heads * self.head_dim, self.heads * self.head_dim
        if turning in (0, width):
            return self._turned(x, positions) if turning else x
        parts = [(a[..., :turning], a[..., turning:]) for a in x.split(width, dim=-1)]
        return torch.cat(
            [part for first, rest in parts for part in (self._turned(first, positions), rest)], dim=-1
        )

    def _turned(self, x: Tensor, positions: Positions) -> Tensor:
        first = torch.full((1,), positions.first, dtype=torch.int64)
        return contrib("RotaryEmbedding", (x, first, positions.cos, positions.sin))


class SingleAttention(FusedAttention):
    """Fused attention of one unpadded row (N, D): one rotation for q and k."""

    def forward(
        self,
        x: Tensor,
        positions: Positions,
        mask: Tensor | None,
        kept: tuple[Tensor, Tensor] | None = None,
        begin: int = 0,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x (N, D) → (N − begin, D), keys and values (1, N, A); else as `Attention`."""
        inner = self.heads * self.head_dim
        qk, v = self.qkv(x)[None].split((2 * inner, inner), dim=-1)
        if self.norms:
            qk = self._rms_norm(qk.unflatten(-1, (2 * self.heads, -1))).flatten(2)
        q, k = self._rotate(qk, positions).chunk(2, dim=-1)
        return self.out(self._attend(q, k, v, mask, kept, begin).flatten(0, 1)), k, v


def contrib(operator: str, inputs: tuple[Tensor | None, ...], **attributes: float) -> Tensor:
    """As `symbol`, for an operator of ONNX Runtime's own."""
    return symbol(f"com.microsoft::{operator}", inputs, version=1, **attributes)


def symbol(
    operator: str, inputs: tuple[Tensor | None, ...], version: int = MAX_OPSET, **attributes: float
) -> Tensor:
    """Call an ONNX operator whose output is like its first input."""
    like = inputs[0]
    assert like is not None
    result: Tensor = torch.onnx.ops.symbolic(
        operator, inputs, {**attributes}, dtype=like.dtype, shape=like.shape, version=version
    )
    return result


def modulate(x: Tensor, shift: Tensor, scale: Tensor, compute: torch.dtype) -> Tensor:
    """AdaLN: LN(x)·(1 + scale) + shift in float32; of one sequence (N, D) as the norm's weight and bias."""
    if x.ndim == 2:
        return layer_norm(x, 1.0 + scale.flatten(), shift.flatten()).to(compute)
    return (layer_norm(x) * (1.0 + scale) + shift).to(compute)


def fused_modulate(x: Tensor, shift: Tensor, scale: Tensor, compute: torch.dtype) -> Tensor:
    """AdaLN as one operator in float32, to which ONNX Runtime gives a weight and bias for each row from 1.21
    on; `scale` has the 1 already.
    """
    return symbol("LayerNormalization", (x, scale, shift), epsilon=NORM_EPS)


def fused_add(x: Tensor, y: Tensor) -> Tensor:
    """x + y; with Add, ONNX Runtime 1.23 would fuse the norm after it, and refuse its weights."""
    return symbol("Sum", (x, y))


@dataclass(frozen=True)
class Operators:
    """Parts of a step graph that differ by its form."""

    attention: type[Attention]
    modulate: Callable[[Tensor, Tensor, Tensor, torch.dtype], Tensor] = modulate
    add: Callable[[Tensor, Tensor], Tensor] = torch.add


OPERATORS: Mapping[Form, Operators] = {
    "standard": Operators(Attention),
    "single": Operators(SingleAttention),
    "cuda": Operators(FusedAttention, fused_modulate, fused_add),
}


class Block(nn.Module):
    """DiT block: modulated attention and feed-forward."""

    def __init__(self, weights: Weights, name: str, arch: Arch, compute: torch.dtype, form: Form) -> None:
        super().__init__()
        self.compute, self.use = compute, OPERATORS[form]
        self.attention = self.use.attention(weights, f"{name}.attn", arch, compute)
        self.up, self.down = (
            Matrix(weights[f"{name}.ff.ff.{k}.weight"], weights[f"{name}.ff.ff.{k}.bias"], compute)
            for k in ("0.0", "2")
        )

    def forward(
        self,
        x: Tensor,
        rows: Sequence[Tensor],
        positions: Positions,
        bias: Tensor | None,
        kept: tuple[Tensor, Tensor] | None = None,
        begin: int = 0,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x (…, N, D) → frames from `begin` on (…, N − begin, D), keys and values (…, N, A) of all frames.

        `rows` (…, 1, D) each: shift, scale, gate of attention, then of feed-forward.
        """
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = rows
        y = self.use.modulate(x, shift_a, scale_a, self.compute)
        y, keys, values = self.attention(y, positions, bias, kept, begin)
        x = self.use.add(x[..., begin:, :] if begin else x, gate_a.to(self.compute) * y)
        y = self.use.modulate(x, shift_f, scale_f, self.compute)
        y = self.down(F.gelu(self.up(y), approximate="tanh"))
        return self.use.add(x, gate_f.to(self.compute) * y), keys, values


class Step(nn.Module):
    """Velocity of rows; see `appliance.contract.graphs.step`.

    The `single` form takes one unpadded row as (N, D), for which runtimes fuse more. In the `cuda` form
    nothing may precede a reference.
    """

    def __init__(
        self,
        weights: Weights,
        arch: Arch,
        mels: int,
        max_frames: int,
        compute: torch.dtype,
        form: Form = "standard",
    ) -> None:
        super().__init__()
        self.depth, self.compute = arch.depth, compute
        self.form, self.single, self.use = form, form == "single", OPERATORS[form]
        # The `cuda` form counts them in its masks.
        self.rows = {"single": 1, "standard": ANY_ROWS, "cuda": None}[form]
        self.from_latents = Matrix(weights["input_embed.proj.weight"][:, :mels], None, compute)
        self.position_conv = PositionConv(weights, compute)
        self.blocks = nn.ModuleList(
            [Block(weights, f"transformer_blocks.{i}", arch, compute, form) for i in range(arch.depth)]
        )
        self.skip = (
            Matrix(weights["long_skip_connection.weight"], None, compute)
            if arch.long_skip_connection
            else None
        )
        self.out = Matrix(weights["proj_out.weight"], weights["proj_out.bias"], compute)
        rate = weights.get("rotary_embed.inv_freq")  # present in official checkpoints
        # Padded reference and padded reply together may exceed `max_frames`.
        positions = 2 * max_frames
        angle = angles(positions, rates(arch.dim_head) if rate is None else rate)
        self.cos, self.sin = kept_float(angle.cos()), kept_float(angle.sin())
        self.frame = nn.Buffer(torch.arange(positions, dtype=torch.int32))
        self.ones = kept_float(torch.tensor([*[0, 1, 0, 0, 1, 0] * arch.depth, 0, 1])[:, None])

    def forward(
        self, latents: Tensor, condition: Tensor, mod_table: Tensor, step_index: Tensor, lengths: Tensor
    ) -> Tensor:
        frames = latents.shape[1]
        valid = self.valid(0, frames, None, lengths)
        rows = self.modulation(mod_table, step_index)
        x = start = self.embed([latents], [condition], valid)
        seen, positions = self.attended(valid, x, lengths, frames, frames), self.positions(0, frames)
        for i, block in enumerate(self.blocks):
            x, _, _ = block(x, rows_of(i, rows), positions, seen)
        return self.velocity(x, start, rows)

    def modulation(self, table: Tensor, index: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Modulation (…, 6·depth + 2, D) of each sequence; in the `cuda` form as separate rows (R, 1, D)."""
        rows = table.index_select(0, index)
        if self.form == "cuda":
            return (rows + self.ones).to(self.compute).split(1, dim=1)
        return rows[0] if self.single else rows

    def unbatched(self, x: Tensor) -> Tensor:
        """(R, N, …) → (N, …) in the `single` form; x[0] would be a gather."""
        return x.flatten(0, 1) if self.single else x

    def batched(self, x: Tensor) -> Tensor:
        return x[None] if self.single else x

    def valid(
        self, before: int, frames: int, before_lengths: Tensor | None, lengths: Tensor
    ) -> Tensor | None:
        """Mask (R, before + frames) of frames between leading and trailing padding."""
        if self.single:
            return None
        index = self.frame.narrow(0, 0, before + frames)
        if before_lengths is None:
            return index < lengths[:, None]
        # A slice, because CUDA graphs allow no copy of a size from the host.
        first = self.frame.narrow(0, before, 1)
        return (index < first + lengths[:, None]) & (index >= first - before_lengths[:, None])

    def attended(
        self, valid: Tensor | None, like: Tensor, lengths: Tensor, queries: int, keys: int
    ) -> Tensor | None:
        """Bias of scores (R, 1, 1, keys); in the `cuda` form a mask (3·R + 2) int32.

        The mask is `MASK_1D_KEY_SEQ_LEN_START`: numbers of keys, starts and end of queries in the flattened
        batch, those of keys. Only the memory-efficient kernel, which `engine/ort_cuda.py` asks for, reads it
        so. Sizes are slices, as in `valid`.
        """
        if valid is None:
            return None
        if self.form != "cuda":
            return ((~valid).to(like.dtype) * MASKED_SCORE)[:, None, None]
        row = self.frame[: lengths.shape[0] + 1]
        starts = [row * self.frame.narrow(0, many, 1) for many in (queries, keys)]
        return torch.cat([lengths, *starts])

    def positions(self, first: int, frames: int) -> Positions:
        """Positions from the frame `first` on."""
        if self.form != "cuda":
            return Positions(self.cos, self.sin, first)
        cos, sin = (table[first : first + frames].to(self.compute) for table in (self.cos, self.sin))
        return Positions(cos, sin)

    def embed(self, latents: list[Tensor], condition: list[Tensor], valid: Tensor | None) -> Tensor:
        """Embed the parts of a sequence, (R, N, M) and (R, N, D) each → (…, N, D)."""
        y, seen = (self.unbatched(torch.cat(a, dim=1) if len(a) > 1 else a[0]) for a in (latents, condition))
        x = self.from_latents(y.to(self.compute)) + seen
        return self.use.add(x, self.position_conv(x, valid))

    def velocity(self, x: Tensor, start: Tensor, rows: Tensor | tuple[Tensor, ...]) -> Tensor:
        """Final projection: (…, N, D) → (R, N, M)."""
        if self.skip is not None:
            x = self.skip(torch.cat([x, start], dim=-1))
        shift, scale = rows_of(self.depth, rows)
        return self.batched(self.out(self.use.modulate(x, shift, scale, self.compute)).float())


def rows_of(block: int, rows: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Modulation rows (…, 1, D) of one block; two of the final norm."""
    part = slice(6 * block, 6 * block + 6)
    return rows[..., part, :].split(1, dim=-2) if isinstance(rows, Tensor) else rows[part]


class StepKeys(Step):
    """See `appliance.contract.graphs.step_keys`."""

    def forward(  # type: ignore[override]
        self,
        latents: Tensor,
        condition: Tensor,
        mod_table: Tensor,
        step_index: Tensor,
        lengths: Tensor,
        reference: Tensor,
        reference_condition: Tensor,
        reference_lengths: Tensor,
    ) -> tuple[Tensor, ...]:
        begin, frames = reference.shape[1], latents.shape[1]
        valid = self.valid(begin, frames, reference_lengths, lengths)
        rows = self.modulation(mod_table, step_index)
        x = start = self.embed([reference, latents], [reference_condition, condition], valid)
        positions, keys, many = self.positions(0, begin + frames), begin + frames, reference_lengths + lengths
        kept = []
        for i, block in enumerate(self.blocks):
            first = begin if i == self.depth - 1 else 0
            seen = self.attended(valid, x, many, keys - first, keys)
            x, k, v = block(x, rows_of(i, rows), positions, seen, begin=first)
            kept += [k[:, :begin], v[:, :begin]]
        return self.velocity(x, start[..., begin:, :], rows), *kept


class StepReply(Step):
    """See `appliance.contract.graphs.step_reply`."""

    def forward(  # type: ignore[override]
        self,
        latents: Tensor,
        condition: Tensor,
        mod_table: Tensor,
        step_index: Tensor,
        lengths: Tensor,
        context: Tensor,
        context_condition: Tensor,
        reference_lengths: Tensor,
        kept: tuple[Tensor, ...],
    ) -> Tensor:
        seen, begin, frames = context.shape[1], kept[0].shape[1], latents.shape[1]
        rows = self.modulation(mod_table, step_index)
        x = start = self.embed(
            [context, latents],
            [context_condition, condition],
            self.valid(seen, frames, reference_lengths, lengths),
        )[..., seen:, :]
        valid = self.valid(begin, frames, reference_lengths, lengths)
        attended = self.attended(valid, x, reference_lengths + lengths, frames, begin + frames)
        positions = self.positions(begin, frames)
        for i, block in enumerate(self.blocks):
            x, _, _ = block(x, rows_of(i, rows), positions, attended, kept=(kept[2 * i], kept[2 * i + 1]))
        return self.velocity(x, start, rows)


class Update(nn.Module):
    """See `appliance.contract.graphs.update`."""

    def forward(self, latents: Tensor, guided: Tensor, unguided: Tensor, weights: Tensor) -> Tensor:
        first, second = weights.split(1)
        return latents + (first * guided + second * unguided)


# --------------------------------------------------------------------------------------------- vocoder


def factors(size: int) -> tuple[int, int]:
    """A ≤ √size and B of size = A·B, with B even."""
    first = max(a for a in range(1, math.isqrt(size) + 1) if size % (2 * a) == 0)
    return first, size // first


def two_products(x: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
    """A DFT in two factors (Cooley and Tukey, 1965): x (N, I, J) → (N, O, L).

    `inner` (J, I, 2·L) sums over I, with the twiddle factors of each J, to real and imaginary parts; `outer`
    (O, 2·J) sums over J.
    """
    parts = (x.permute(2, 0, 1) @ inner).unflatten(2, (2, -1))
    return outer @ parts.permute(1, 0, 2, 3).flatten(1, 2)


def complex_rows(angle: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Products of a complex number, its parts stacked at `dim`, with e^(i·angle): real and imaginary part."""
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([cos, -sin], dim), torch.stack([sin, cos], dim)


class InverseSTFT(nn.Module):
    """Real and imaginary parts (N, 2·bins) → samples: inverse DFT, window and shifted sums.

    Bin k = k₁ + A·k₂, sample n = B·n₁ + n₂ of A·B = n_fft. Bin 0 has no imaginary part: the last bin's real
    part, which is its only one too, stands in its place. Raises ValueError unless win = n_fft = 4·hop."""

    OVERLAP = 4

    def __init__(self, spec: MelSpec, vocoder: Vocoder) -> None:
        super().__init__()
        if spec.n_fft != self.OVERLAP * spec.hop or spec.win != spec.n_fft:
            raise ValueError(
                f"the inverse STFT needs win = n_fft = {self.OVERLAP}·hop, not "
                f"{spec.win}, {spec.n_fft}, {spec.hop}"
            )
        self.hop, self.bins = spec.hop, spec.n_fft // 2 + 1
        self.trim = spec.n_fft // 2 if vocoder.padding == "center" else (spec.n_fft - spec.hop) // 2
        self.factors = first, second = factors(spec.n_fft)
        turn = 2 * math.pi / spec.n_fft
        columns, rows = (torch.arange(size).double() for size in (first, second))
        k = columns[:, None] + first * rows[: second // 2]
        inner = torch.stack(complex_rows(turn * k[..., None] * rows, 1), 3) * (2.0 / spec.n_fft)
        inner[0, :, 0] /= 2
        inner[0, 1, 0] = torch.stack([(math.pi * rows).cos() / spec.n_fft, torch.zeros_like(rows)])
        real, _ = complex_rows(turn * second * torch.outer(columns, columns), 2)
        window = torch.hann_window(spec.n_fft, dtype=torch.float64)
        self.inner, self.outer = kept_float(inner.flatten(3).flatten(1, 2)), kept_float(real.flatten(1))
        self.window, self.square = kept_float(window), kept_float((window**2).unflatten(0, (-1, self.hop)))
        self.one = kept_float(torch.ones(1, 1))

    def forward(self, spectrum: Tensor) -> Tensor:
        first, second = self.factors
        packed = torch.cat([spectrum[:, : self.bins], spectrum[:, self.bins + 1 : -1]], dim=1)
        frames = two_products(packed.unflatten(1, (second, first)), self.inner, self.outer).flatten(1)
        parts = (frames * self.window).unflatten(1, (self.OVERLAP, self.hop)).unbind(1)
        ones = [self.one.expand(frames.shape[0], 1)] * self.OVERLAP
        envelope = torch.cat(self._shifted(ones), dim=1) @ self.square
        blocks = sum(self._shifted(parts))
        assert isinstance(blocks, Tensor)
        return (blocks / envelope).flatten()[self.trim : -self.trim]

    def _shifted(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Each (N, …) some rows later than the one before: (N + OVERLAP - 1, …)."""
        return [F.pad(part, (0, 0, j, self.OVERLAP - 1 - j)) for j, part in enumerate(parts)]


class LowBins(nn.Module):
    """Frames (N, n_fft) → real and imaginary parts (N, bins) of the first bins of their windowed DFT.

    Sample n = B·n₁ + n₂, bin k = k₁ + A·k₂ of A·B = n_fft; a harmonic of unit amplitude peaks at 1.
    """

    def __init__(self, n_fft: int, bins: int) -> None:
        super().__init__()
        self.bins = bins
        self.factors = first, second = factors(n_fft)
        turn = 2 * math.pi / n_fft
        columns, rows = (torch.arange(size).double() for size in (first, second))
        n = rows[:, None] + second * columns  # (B, A)
        window = torch.hann_window(n_fft, dtype=torch.float64).view(first, second).T * (4 / n_fft)
        angle = turn * n[..., None] * columns
        inner = torch.cat([angle.cos(), -angle.sin()], dim=2) * window[..., None]
        more = torch.arange(-(-bins // first)).double()
        outer = torch.stack(complex_rows(-turn * first * torch.outer(more, rows), 2))
        self.inner, self.outer = kept_float(inner), kept_float(outer.flatten(2).flatten(0, 1))

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        found = two_products(frames.unflatten(1, self.factors), self.inner, self.outer)
        real, imaginary = found.unflatten(1, (2, -1)).flatten(2)[..., : self.bins].unbind(1)
        return real, imaginary


class VocosBlock(nn.Module):
    """ConvNeXt block of Vocos' backbone."""

    def __init__(self, weights: Weights, name: str, compute: torch.dtype) -> None:
        super().__init__()
        self.compute = compute
        self.conv, self.conv_bias = (kept(weights[f"{name}.dwconv.{k}"], compute) for k in ("weight", "bias"))
        self.norm_weight, self.norm_bias = (
            kept_float(weights[f"{name}.norm.{k}"]) for k in ("weight", "bias")
        )
        self.up = Matrix(weights[f"{name}.pwconv1.weight"], weights[f"{name}.pwconv1.bias"], compute)
        gamma = weights.get(f"{name}.gamma")
        gamma = torch.ones(weights[f"{name}.pwconv2.bias"].shape[0]) if gamma is None else gamma
        self.down = Matrix(
            weights[f"{name}.pwconv2.weight"] * gamma[:, None],
            weights[f"{name}.pwconv2.bias"] * gamma,
            compute,
        )

    def forward(self, x: Tensor) -> Tensor:  # (1, dim, N)
        y = F.conv1d(x, self.conv, self.conv_bias, padding=self.conv.shape[2] // 2, groups=x.shape[1])
        y = layer_norm(y.transpose(1, 2), self.norm_weight, self.norm_bias).to(self.compute)
        return x + self.down(F.gelu(self.up(y))).transpose(1, 2)


class VocosBackbone(nn.Module):
    """log_mel (N, M) → features (N, dim) in float32."""

    def __init__(self, weights: Weights, compute: torch.dtype) -> None:
        super().__init__()
        self.compute = compute
        self.embed, self.embed_bias = (
            kept(weights[f"backbone.embed.{k}"], compute) for k in ("weight", "bias")
        )
        self.norms = nn.ParameterDict(
            {
                f"{name}_{k}": nn.Parameter(weights[f"backbone.{name}.{k}"].float(), requires_grad=False)
                for name in ("norm", "final_layer_norm")
                for k in ("weight", "bias")
            }
        )
        depth = sum(name.endswith("pwconv1.weight") for name in weights)
        self.blocks = nn.ModuleList(
            [VocosBlock(weights, f"backbone.convnext.{i}", compute) for i in range(depth)]
        )

    def features(self, log_mel: Tensor) -> Tensor:
        x = log_mel.T[None].to(self.compute)
        x = F.conv1d(x, self.embed, self.embed_bias, padding=self.embed.shape[2] // 2)
        x = layer_norm(x.transpose(1, 2), self.norms["norm_weight"], self.norms["norm_bias"])
        x = x.to(self.compute).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return layer_norm(
            x.transpose(1, 2), self.norms["final_layer_norm_weight"], self.norms["final_layer_norm_bias"]
        )[0]


class Vocos(VocosBackbone):
    """log_mel (N, M) → samples (L), the head in float32. arXiv 2306.00814."""

    MAX_MAGNITUDE = 100.0

    def __init__(self, weights: Weights, spec: MelSpec, vocoder: Vocoder, compute: torch.dtype) -> None:
        super().__init__(weights, compute)
        self.head = Matrix(weights["head.out.weight"], weights["head.out.bias"], torch.float32)
        self.inverse_stft = InverseSTFT(spec, vocoder)

    def forward(self, log_mel: Tensor) -> Tensor:
        log_magnitude, phase = self.head(self.features(log_mel)).chunk(2, dim=-1)
        magnitude = log_magnitude.exp().clamp(max=self.MAX_MAGNITUDE)
        return self.inverse_stft(torch.cat([magnitude * phase.cos(), magnitude * phase.sin()], dim=-1))


class SourceFilter(VocosBackbone):
    """log_mel (N, M) → samples (L) of `export.model.source`; all but the backbone in float32."""

    def __init__(self, weights: Weights, spec: MelSpec, vocoder: Vocoder, compute: torch.dtype) -> None:
        super().__init__(weights, compute)
        self.hop, self.margin, self.rate = spec.hop, spec.n_fft // 2, spec.sample_rate_hz
        self.head = Matrix(weights["head.out.weight"], weights["head.out.bias"], torch.float32)
        self.noise = kept(weights["head.noise"], torch.float16)
        self.inverse_stft = InverseSTFT(spec, vocoder)
        self.pitch = source.Pitch(spec.mels)
        own = {name.removeprefix("pitch."): w for name, w in weights.items() if name.startswith("pitch.")}
        self.pitch.load_state_dict({name: w.float() for name, w in own.items()})
        self.pitch.requires_grad_(False)
        # Traced as a linear layer, its weight would lose its name, by which `rebuild` finds it.
        self.pitch.add_module("out", Matrix(own["out.weight"], own["out.bias"], torch.float32))
        self.silent = spec.n_fft // 2 + 1 - source.PULSE_BINS
        self.low_bins = LowBins(spec.n_fft, source.PULSE_BINS)

    def forward(self, log_mel: Tensor) -> Tensor:
        filters = self.head(self.features(log_mel)).clamp(max=source.MAX_LOG_MAGNITUDE).exp()
        harmonics, loudness = filters.split((source.PULSE_BINS, filters.shape[1] - source.PULSE_BINS), dim=1)
        pulses = source.pulses(self.pitch.hz(log_mel[None]), self.hop, self.rate, self.margin)[0]
        blocks, count = pulses.unflatten(0, (-1, self.hop)), log_mel.shape[0]
        parts = [blocks[n : count + n] for n in range(InverseSTFT.OVERLAP)]
        spectrum = self.low_bins(torch.cat(parts, dim=1))
        excited = [F.pad(part * harmonics, (0, self.silent)) for part in spectrum]
        noise = self.noise.index_select(0, torch.arange(count) % source.NOISE_FRAMES).float()
        return self.inverse_stft(torch.cat(excited, dim=1) + noise * loudness.repeat(1, 2))


class Scaled(nn.Module):
    """A vocoder of log-mels that were divided by a scale."""

    def __init__(self, vocoder: nn.Module, scale: float) -> None:
        super().__init__()
        self.vocoder, self.scale = vocoder, scale

    def forward(self, log_mel: Tensor) -> Tensor:
        samples: Tensor = self.vocoder(log_mel * self.scale)
        return samples


def scaled(vocoder: nn.Module, scale: float) -> nn.Module:
    return vocoder if scale == 1.0 else Scaled(vocoder, scale)


class PolyphaseActivation(nn.Module):
    """BigVGAN's anti-aliased activation as two phases of ordinary convolutions; channels are the batch.

    A filter's odd taps give the even samples of the doubled rate, its even taps the odd ones.
    """

    def __init__(self, reference: bigvgan.Activation, compute: torch.dtype) -> None:
        super().__init__()
        self.compute = compute
        alpha, beta = reference.act.scales()
        self.alpha, self.gain = kept_float(alpha[..., None]), kept_float(1.0 / beta[..., None])  # (C, 1, 1)
        rise = bigvgan.RATIO * reference.upsample.filter.flatten().flip(0)
        fall = reference.downsample.lowpass.filter.flatten()
        self.rise = kept(torch.stack([rise[0::2], rise[1::2]])[:, None], compute)  # (2, 1, taps / 2)
        self.fall = kept(torch.stack([fall[1::2], fall[0::2]])[None], compute)  # (1, 2, taps / 2)

    def forward(self, x: Tensor) -> Tensor:  # (1, C, L)
        half = self.rise.shape[2] // 2
        padded = F.pad(x, (half, half), mode="replicate").transpose(0, 1)
        both = F.conv1d(padded, self.rise)  # (C, 2, L + 1)
        even, odd = (self._snake(part) for part in (both[:, :1, :-1], both[:, 1:, 1:]))
        first, last = even[..., :1], odd[..., -1:]  # the ends of the doubled signal, repeated beyond it
        even = torch.cat([first] * (half - 1) + [even] + [last] * half, dim=2)
        odd = torch.cat([first] * half + [odd] + [last] * (half - 1), dim=2)
        return F.conv1d(torch.cat([even, odd], dim=1), self.fall).transpose(0, 1)

    def _snake(self, x: Tensor) -> Tensor:  # (C, 1, L)
        x = x.float()
        wave = (x * self.alpha).sin()
        return (x + wave * wave * self.gain).to(self.compute)


class BigVGAN(nn.Module):
    """log_mel (N, M) → samples (N·hop), the last convolution in float32."""

    def __init__(self, reference: bigvgan.BigVGAN, compute: torch.dtype) -> None:
        """Use `reference`, whose modules are replaced in place."""
        super().__init__()
        self.compute = compute
        self.model = reference.to(compute)
        self.model.conv_post.float()
        for parent in list(self.model.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, bigvgan.Activation):
                    setattr(parent, name, PolyphaseActivation(child, compute))

    def forward(self, log_mel: Tensor) -> Tensor:
        features = self.model.features(log_mel.mT[None].to(self.compute))
        samples: Tensor = self.model.head(features.float())
        return samples


class HiFiGAN(nn.Module):
    """log_mel (N, M) → samples (N·hop), the last convolution in float32."""

    def __init__(self, reference: hifigan.HiFiGAN, compute: torch.dtype) -> None:
        """Use `reference`, which changes its element type."""
        super().__init__()
        self.compute = compute
        self.model = reference.to(compute)
        self.model.conv_post.float()

    def forward(self, log_mel: Tensor) -> Tensor:
        return self.model.head(self.model.features(log_mel.mT[None].to(self.compute)).float())
