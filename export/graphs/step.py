"""Step graphs of a DiT: an evaluation of the velocity, in a form of `forms`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from appliance.contract.bundle import Arch
from export.graphs.attention import Positions
from export.graphs.condition import angles, rates
from export.graphs.forms import FORMS, Modulated, Rows, Tables
from export.graphs.parts import Form, Matrix, Weights, kept, kept_float, mish

POSITION_CONV_GROUPS = 16


class PositionConv(nn.Module):
    """Convolutional position embedding. Padding is zero before each convolution."""

    def __init__(self, weights: Weights, compute: torch.dtype) -> None:
        super().__init__()
        self.compute = compute
        name = "input_embed.conv_pos_embed.conv1d"
        self.w0 = kept(weights[f"{name}.0.weight"], compute)
        self.b0 = kept(weights[f"{name}.0.bias"], compute)
        self.w2 = kept(weights[f"{name}.2.weight"], compute)
        self.b2 = kept(weights[f"{name}.2.bias"], compute)

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


class BlockGraph(nn.Module):
    """DiT block: modulated attention and feed-forward."""

    def __init__(self, weights: Weights, name: str, arch: Arch, form: Rows) -> None:
        super().__init__()
        self.form = form
        self.attention = form.attention(weights, f"{name}.attn", arch, form.compute)
        self.up = Matrix(weights[f"{name}.ff.ff.0.0.weight"], weights[f"{name}.ff.ff.0.0.bias"], form.compute)
        self.down = Matrix(weights[f"{name}.ff.ff.2.weight"], weights[f"{name}.ff.ff.2.bias"], form.compute)

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
        y = self.form.modulate(x, shift_a, scale_a)
        y, keys, values = self.attention(y, positions, bias, kept, begin)
        x = self.form.add(x[..., begin:, :] if begin else x, gate_a.to(self.form.compute) * y)
        y = self.form.modulate(x, shift_f, scale_f)
        y = self.down(F.gelu(self.up(y), approximate="tanh"))
        return self.form.add(x, gate_f.to(self.form.compute) * y), keys, values


class Step(nn.Module):
    """Velocity of rows; see `appliance.contract.graphs.step`."""

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
        self.depth = arch.depth
        self.form = FORMS[form](compute)
        self.rows = self.form.traced
        self.from_latents = Matrix(weights["input_embed.proj.weight"][:, :mels], None, compute)
        self.position_conv = PositionConv(weights, compute)
        self.blocks = nn.ModuleList(
            [BlockGraph(weights, f"transformer_blocks.{i}", arch, self.form) for i in range(arch.depth)]
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
        self.cos = kept_float(angle.cos())
        self.sin = kept_float(angle.sin())
        self.frame = nn.Buffer(torch.arange(positions, dtype=torch.int32))
        self.ones = kept_float(torch.tensor([*[0, 1, 0, 0, 1, 0] * arch.depth, 0, 1])[:, None])

    def forward(
        self, latents: Tensor, condition: Tensor, mod_table: Tensor, step_index: Tensor, lengths: Tensor
    ) -> Tensor:
        frames = latents.shape[1]
        valid = self.form.valid(self.tables, 0, frames, None, lengths)
        rows = self.modulation(mod_table, step_index)
        x = start = self.embed([latents], [condition], valid)
        seen = self.form.attended(self.tables, valid, x, lengths, frames, frames)
        positions = self.form.positions(self.tables, 0, frames)
        for i, block in enumerate(self.blocks):
            x, _, _ = block(x, self.form.of_block(i, rows), positions, seen)
        return self.velocity(x, start, rows)

    @property
    def tables(self) -> Tables:
        return Tables(self.frame, self.cos, self.sin, self.ones)

    def modulation(self, table: Tensor, index: Tensor) -> Modulated:
        """Modulation of each sequence."""
        return self.form.modulation(table.index_select(0, index), self.tables)

    def embed(self, latents: list[Tensor], condition: list[Tensor], valid: Tensor | None) -> Tensor:
        """Embed the parts of a sequence, (R, N, M) and (R, N, D) each → (…, N, D)."""
        y = self.form.enter(whole(latents))
        seen = self.form.enter(whole(condition))
        x = self.from_latents(y.to(self.form.compute)) + seen
        return self.form.add(x, self.position_conv(x, valid))

    def velocity(self, x: Tensor, start: Tensor, rows: Modulated) -> Tensor:
        """Final projection: (…, N, D) → (R, N, M)."""
        if self.skip is not None:
            x = self.skip(torch.cat([x, start], dim=-1))
        shift, scale = self.form.of_block(self.depth, rows)
        return self.form.leave(self.out(self.form.modulate(x, shift, scale)).float())


def whole(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


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
        begin = reference.shape[1]
        frames = latents.shape[1]
        valid = self.form.valid(self.tables, begin, frames, reference_lengths, lengths)
        rows = self.modulation(mod_table, step_index)
        x = start = self.embed([reference, latents], [reference_condition, condition], valid)
        positions = self.form.positions(self.tables, 0, begin + frames)
        keys = begin + frames
        many = reference_lengths + lengths
        kept = []
        for i, block in enumerate(self.blocks):
            first = begin if i == self.depth - 1 else 0
            seen = self.form.attended(self.tables, valid, x, many, keys - first, keys)
            x, k, v = block(x, self.form.of_block(i, rows), positions, seen, begin=first)
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
        seen = context.shape[1]
        begin = kept[0].shape[1]
        frames = latents.shape[1]
        rows = self.modulation(mod_table, step_index)
        x = start = self.embed(
            [context, latents],
            [context_condition, condition],
            self.form.valid(self.tables, seen, frames, reference_lengths, lengths),
        )[..., seen:, :]
        valid = self.form.valid(self.tables, begin, frames, reference_lengths, lengths)
        many = reference_lengths + lengths
        attended = self.form.attended(self.tables, valid, x, many, frames, begin + frames)
        positions = self.form.positions(self.tables, begin, frames)
        for i, block in enumerate(self.blocks):
            of_block = self.form.of_block(i, rows)
            x, _, _ = block(x, of_block, positions, attended, kept=(kept[2 * i], kept[2 * i + 1]))
        return self.velocity(x, start, rows)


class Update(nn.Module):
    """See `appliance.contract.graphs.update`."""

    def forward(self, latents: Tensor, guided: Tensor, unguided: Tensor, weights: Tensor) -> Tensor:
        first, second = weights.split(1)
        return latents + (first * guided + second * unguided)
