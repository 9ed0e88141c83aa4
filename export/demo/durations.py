"""Auxiliary loss on letter durations and on frame offsets from evenly upsampled text; not shipped."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from export.demo.model import Sentences

SPREAD = 4.0
"""Typical offset of a frame in tokens, the unit of predicted offsets."""


def lengths(alignment: Tensor, known: Tensor, tokens: int) -> Tensor:
    """Frames per token (B, T), counted in `alignment` (B, N) where `known` (B, N)."""
    found = torch.zeros(len(alignment), tokens, device=alignment.device)
    return found.scatter_add_(1, alignment.clamp_min(0), known.float())


class DurationHead(nn.Module):
    """Linear layers: encoded token → log(1 + frames); guided block's input → offset of its frame."""

    def __init__(self, text_dim: int, dim: int) -> None:
        super().__init__()
        self.length = nn.Linear(text_dim, 1)
        self.shift = nn.Linear(dim, 1)

    def loss(self, encoded: Tensor, guided_input: Tensor, sentences: Sentences, alignment: Tensor) -> Tensor:
        """Smooth L1 loss of log durations plus that of offsets in units of `SPREAD`.

        `encoded` (B, T, text_dim), `guided_input` (B, N, D), `alignment` (B, N): the token of each frame,
        negative if unknown or if its text is dropped.
        """
        known = (alignment >= 0) & sentences.mask
        lasting = lengths(alignment, known, sentences.ids.shape[1])
        aligned = (sentences.ids >= 0) & known.any(dim=1, keepdim=True)
        read = self.length(F.layer_norm(encoded, encoded.shape[-1:]))[..., 0].float()
        length = _mean(F.smooth_l1_loss(read, lasting.log1p(), reduction="none"), aligned)
        shifted = (alignment - sentences.upsample_index) / SPREAD
        read = self.shift(F.layer_norm(guided_input, guided_input.shape[-1:]))[..., 0].float()
        return length + _mean(F.smooth_l1_loss(read, shifted, reduction="none"), known)


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    return (values * counted).sum() / counted.sum().clamp_min(1)
