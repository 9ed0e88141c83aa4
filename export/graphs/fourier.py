"""Discrete Fourier transforms of a vocoder as two products, which every runtime has."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from appliance.contract.bundle import Vocoder
from appliance.contract.mel import MelSpec
from export.graphs.parts import kept_float


def factors(size: int) -> tuple[int, int]:
    """A ≤ √size and B, with size = A·B and B even."""
    first = max(a for a in range(1, math.isqrt(size) + 1) if size % (2 * a) == 0)
    return first, size // first


def two_products(x: Tensor, inner: Tensor, outer: Tensor) -> Tensor:
    """A DFT in two factors (Cooley and Tukey, 1965): x (N, I, J) → (N, O, L).

    `inner` (J, I, 2·L) sums over I, with the twiddle factors of each J, to real and imaginary parts. `outer`
    (O, 2·J) sums over J.
    """
    parts = (x.permute(2, 0, 1) @ inner).unflatten(2, (2, -1))
    return outer @ parts.permute(1, 0, 2, 3).flatten(1, 2)


def complex_rows(angle: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Products of a complex number, its parts stacked at `dim`, with e^(i·angle): real and imaginary part."""
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([cos, -sin], dim), torch.stack([sin, cos], dim)


class InverseSTFTGraph(nn.Module):
    """Real and imaginary parts (N, 2·bins) → samples: inverse DFT, window and shifted sums.

    Bin k = k₁ + A·k₂, sample n = B·n₁ + n₂ of A·B = n_fft. Bin 0 has no imaginary part, so the real part of
    the last bin, which has no imaginary part either, is in its place. Raises ValueError unless win = n_fft =
    4·hop.
    """

    OVERLAP = 4

    def __init__(self, spec: MelSpec, vocoder: Vocoder) -> None:
        super().__init__()
        if spec.n_fft != self.OVERLAP * spec.hop or spec.win != spec.n_fft:
            raise ValueError(
                f"the inverse STFT needs win = n_fft = {self.OVERLAP}·hop, not "
                f"{spec.win}, {spec.n_fft}, {spec.hop}"
            )
        self.hop = spec.hop
        self.bins = spec.n_fft // 2 + 1
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
        self.inner = kept_float(inner.flatten(3).flatten(1, 2))
        self.outer = kept_float(real.flatten(1))
        self.window = kept_float(window)
        self.square = kept_float((window**2).unflatten(0, (-1, self.hop)))
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
        """Parts (N, …), each some rows later than the one before: (N + OVERLAP - 1, …)."""
        return [F.pad(part, (0, 0, j, self.OVERLAP - 1 - j)) for j, part in enumerate(parts)]


class LowBins(nn.Module):
    """Frames (N, n_fft) → real and imaginary parts (N, bins) of the first bins of their windowed DFT.

    Sample n = B·n₁ + n₂, bin k = k₁ + A·k₂ of A·B = n_fft. A harmonic of unit amplitude peaks at 1.
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
        self.inner = kept_float(inner)
        self.outer = kept_float(outer.flatten(2).flatten(0, 1))

    def forward(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        found = two_products(frames.unflatten(1, self.factors), self.inner, self.outer)
        real, imaginary = found.unflatten(1, (2, -1)).flatten(2)[..., : self.bins].unbind(1)
        return real, imaginary
