"""Self-attention of a DiT, with standard operators and with ONNX Runtime's fused ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from appliance.contract.bundle import Arch
from export.graphs.parts import NORM_EPS, Matrix, Weights, contrib, kept_float


@dataclass(frozen=True)
class Positions:
    """Rotary tables (positions, dim_head / 2), and the position of the first frame."""

    cos: Tensor
    sin: Tensor
    first: int = 0


class AttentionGraph(nn.Module):
    """Self-attention with rotary positions: one product for q, k and v, one rotation for q and k.

    Rows of q and k are reordered by head, even ones first, so rotary pairs become halves. The weights contain
    the scale: in float32 q's (a power of two), in float16 64^-¼ of q and k against overflow. Softmax is
    float32.
    """

    def __init__(self, weights: Weights, name: str, arch: Arch, compute: torch.dtype) -> None:
        super().__init__()
        self.heads = arch.heads
        self.head_dim = arch.dim_head
        self.compute = compute
        self.rotated_heads = arch.heads if arch.pe_attn_head is None else arch.pe_attn_head
        self.norms = arch.qk_norm is not None
        whole = self.head_dim**-0.5
        of_q, of_k = (whole, 1.0) if compute == torch.float32 else (whole**0.5, whole**0.5)
        # Even rows of a head come before odd ones.
        order = torch.cat([torch.arange(0, self.head_dim, 2), torch.arange(1, self.head_dim, 2)])
        by_head = [weights[f"{name}.to_q.weight"], weights[f"{name}.to_k.weight"]]
        biases = [weights[f"{name}.to_q.bias"], weights[f"{name}.to_k.bias"]]
        for i, scale in enumerate((of_q, of_k)):
            factor = 1.0 if self.norms else scale  # a norm's gain contains it
            by_head[i] = by_head[i].unflatten(0, (self.heads, -1))[:, order].flatten(0, 1) * factor
            biases[i] = biases[i].unflatten(0, (self.heads, -1))[:, order].flatten() * factor
        self.qkv = Matrix(
            torch.cat([*by_head, weights[f"{name}.to_v.weight"]]),
            torch.cat([*biases, weights[f"{name}.to_v.bias"]]),
            compute,
        )
        self.out = Matrix(weights[f"{name}.to_out.0.weight"], weights[f"{name}.to_out.0.bias"], compute)
        if self.norms:
            gain_q = weights[f"{name}.q_norm.weight"][order] * of_q
            gain_k = weights[f"{name}.k_norm.weight"][order] * of_k
            gains = torch.stack([gain_q, gain_k])
            self.gain = kept_float(gains.repeat_interleave(self.heads, dim=0))  # (2·heads, 64)

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
        # The split is by heads: runtimes divide a product that is split along its last axis.
        qk, v = self.qkv(x).unflatten(-1, (3 * heads, -1)).split((2 * heads, heads), dim=2)
        if self.norms:
            qk = self._rms_norm(qk)
        q, k = self._rotate(qk, positions).chunk(2, dim=2)
        keys, values = k, v
        if kept is not None:
            keys = torch.cat([kept[0].unflatten(-1, (heads, -1)), k], dim=1)
            values = torch.cat([kept[1].unflatten(-1, (heads, -1)), v], dim=1)
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


class FusedAttention(AttentionGraph):
    """Attention of padded rows with ONNX Runtime's fused operators."""

    def forward(
        self,
        x: Tensor,
        positions: Positions,
        mask: Tensor | None,
        kept: tuple[Tensor, Tensor] | None = None,
        begin: int = 0,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """See `AttentionGraph.forward`. The bias is the `mask` of `forms.Fused.attended`."""
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
        """Attention of the queries from `begin` on, to kept keys and values, and to the input's."""
        if kept is not None:
            k = torch.cat([kept[0], k], dim=1)
            v = torch.cat([kept[1], v], dim=1)
        q = q[:, begin:] if begin else q
        given = (q, k, v) if mask is None else (q, k, v, None, mask)
        return contrib("MultiHeadAttention", given, num_heads=self.heads, scale=1.0)

    def _rotate(self, x: Tensor, positions: Positions) -> Tensor:  # (R, N, A) or (R, N, 2·A)
        turning = self.rotated_heads * self.head_dim
        width = self.heads * self.head_dim
        if turning in (0, width):
            return self._turned(x, positions) if turning else x
        halves = [(one[..., :turning], one[..., turning:]) for one in x.split(width, dim=-1)]
        turned = [(self._turned(first, positions), rest) for first, rest in halves]
        return torch.cat([part for pair in turned for part in pair], dim=-1)

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
        """x (N, D) → (N − begin, D), keys and values (1, N, A). Otherwise see `AttentionGraph.forward`."""
        inner = self.heads * self.head_dim
        qk, v = self.qkv(x)[None].split((2 * inner, inner), dim=-1)
        if self.norms:
            qk = self._rms_norm(qk.unflatten(-1, (2 * self.heads, -1))).flatten(2)
        q, k = self._rotate(qk, positions).chunk(2, dim=-1)
        return self.out(self._attend(q, k, v, mask, kept, begin).flatten(0, 1)), k, v
