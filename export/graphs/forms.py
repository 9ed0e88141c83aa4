"""Forms of the DiT's step graphs: the same arithmetic, in the operators that a runtime fuses.

`Rows` has standard operators for padded rows, `Single` has one unpadded row for a CPU, `Fused` has ONNX
Runtime's own operators for padded rows on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from export.graphs.attention import AttentionGraph, FusedAttention, Positions, SingleAttention
from export.graphs.parts import MASKED_SCORE, NORM_EPS, Form, layer_norm, symbol
from export.graphs.to_onnx import ANY_ROWS

Modulated = Tensor | tuple[Tensor, ...]
"""Modulation of every block: rows (…, 6·depth + 2, D), or each row (R, 1, D) separately."""


class Tables(NamedTuple):
    """Buffers of a step graph that depend on nothing."""

    frame: Tensor
    """Indices (positions) of frames, int32."""
    cos: Tensor
    """(positions, dim_head / 2), as `sin`."""
    sin: Tensor
    ones: Tensor
    """(6·depth + 2, 1): 1 for a scale of AdaLN, else 0."""


class Rows:
    """Padded rows (R, N, …) with standard operators."""

    traced: int | None = ANY_ROWS
    """Number of rows in the trace; None: a symbol."""
    attention: type[AttentionGraph] = AttentionGraph

    def __init__(self, compute: torch.dtype) -> None:
        self.compute = compute

    def enter(self, x: Tensor) -> Tensor:
        """A graph's input (R, N, …) in the shape for the blocks (…, N, …)."""
        return x

    def leave(self, x: Tensor) -> Tensor:
        """(…, N, …) in the shape of a graph's output (R, N, …)."""
        return x

    def modulation(self, rows: Tensor, tables: Tables) -> Modulated:
        """Modulation (R, 6·depth + 2, D) in the form that `of_block` reads."""
        return rows

    def of_block(self, block: int, rows: Modulated) -> tuple[Tensor, ...]:
        """Modulation rows (…, 1, D) of one block; two of the final norm."""
        assert isinstance(rows, Tensor)
        return rows[..., 6 * block : 6 * block + 6, :].split(1, dim=-2)

    def modulate(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        """AdaLN: LN(x)·(1 + scale) + shift in float32."""
        return (layer_norm(x) * (1.0 + scale) + shift).to(self.compute)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def valid(
        self, tables: Tables, before: int, frames: int, before_lengths: Tensor | None, lengths: Tensor
    ) -> Tensor | None:
        """Mask (R, before + frames) of frames between leading and trailing padding; None if there is none."""
        index = tables.frame.narrow(0, 0, before + frames)
        if before_lengths is None:
            return index < lengths[:, None]
        # A slice, because CUDA graphs allow no copy of a size from the host.
        first = tables.frame.narrow(0, before, 1)
        return (index < first + lengths[:, None]) & (index >= first - before_lengths[:, None])

    def attended(
        self, tables: Tables, valid: Tensor | None, like: Tensor, lengths: Tensor, queries: int, keys: int
    ) -> Tensor | None:
        """Input of `attention` that excludes padding: here a bias of scores (R, 1, 1, keys).

        `lengths` (R) are numbers of keys that are `valid`.
        """
        assert valid is not None
        return ((~valid).to(like.dtype) * MASKED_SCORE)[:, None, None]

    def positions(self, tables: Tables, first: int, frames: int) -> Positions:
        """Positions from the frame `first` on."""
        return Positions(tables.cos, tables.sin, first)


class Single(Rows):
    """A single unpadded row as (N, …), for which runtimes fuse more operators."""

    traced = 1
    attention = SingleAttention

    def enter(self, x: Tensor) -> Tensor:
        return x.flatten(0, 1)  # x[0] would be a gather

    def leave(self, x: Tensor) -> Tensor:
        return x[None]

    def modulation(self, rows: Tensor, tables: Tables) -> Modulated:
        return rows[0]

    def modulate(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        """AdaLN whose scale and shift are the norm's weight and bias."""
        return layer_norm(x, 1.0 + scale.flatten(), shift.flatten()).to(self.compute)

    def valid(
        self, tables: Tables, before: int, frames: int, before_lengths: Tensor | None, lengths: Tensor
    ) -> None:
        return None

    def attended(
        self, tables: Tables, valid: Tensor | None, like: Tensor, lengths: Tensor, queries: int, keys: int
    ) -> None:
        return None


class Fused(Rows):
    """Padded rows with ONNX Runtime's own operators. Nothing may precede a reference."""

    traced = None  # the masks count the rows
    attention = FusedAttention

    def modulation(self, rows: Tensor, tables: Tables) -> Modulated:
        return (rows + tables.ones).to(self.compute).split(1, dim=1)

    def of_block(self, block: int, rows: Modulated) -> tuple[Tensor, ...]:
        assert isinstance(rows, tuple)
        return rows[6 * block : 6 * block + 6]

    def modulate(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        """AdaLN as one operator in float32. `scale` includes the 1 already.

        From 1.21 on, ONNX Runtime allows the operator a weight and a bias for each row.
        """
        return symbol("LayerNormalization", (x, scale, shift), epsilon=NORM_EPS)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Sum without Add, because ONNX Runtime 1.23 fuses Add with the next norm and refuses its weights."""
        return symbol("Sum", (x, y))

    def attended(
        self, tables: Tables, valid: Tensor | None, like: Tensor, lengths: Tensor, queries: int, keys: int
    ) -> Tensor | None:
        """`MASK_1D_KEY_SEQ_LEN_START` (3·R + 2) int32.

        It has the numbers of keys, the starts and the end of the queries in the flattened batch, then those
        of the keys. Only the memory-efficient kernel, which `engine/ort_cuda.py` selects, reads it as
        intended. Sizes are slices, as in `valid`.
        """
        row = tables.frame[: lengths.shape[0] + 1]
        starts = [row * tables.frame.narrow(0, many, 1) for many in (queries, keys)]
        return torch.cat([lengths, *starts])

    def positions(self, tables: Tables, first: int, frames: int) -> Positions:
        cos, sin = (table[first : first + frames].to(self.compute) for table in (tables.cos, tables.sin))
        return Positions(cos, sin)


FORMS: Mapping[Form, type[Rows]] = {"standard": Rows, "single": Single, "cuda": Fused}
