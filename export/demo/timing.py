"""How long each letter lasts and how far that has shifted a frame: told to the model, in training only.

Upsampled text gives every letter the same number of frames. What the model has to find out, with nothing but
noise to go by, is how long each letter really lasts, and from their sum where in the text a frame is. Both
are asked for where they are needed: the first of the encoded text, the second of what the guided block sees.
The layers that answer are not shipped.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from export.demo.model import Sentences

SPREAD = 4.0
"""Places by which a frame is shifted, about: its unit here."""


def lengths(places: Tensor, known: Tensor, tokens: int) -> Tensor:
    """(B, T) frames of each token: how often it stands in `places` (B, N) where `known` (B, N) is true."""
    found = torch.zeros(len(places), tokens, device=places.device)
    return found.scatter_add_(1, places.clamp_min(0), known.float())


class Timer(nn.Module):
    """Reads log(1 + frames) off an encoded token, and off an activation by how many places it is shifted."""

    def __init__(self, text_dim: int, dim: int) -> None:
        super().__init__()
        self.length = nn.Linear(text_dim, 1)
        self.shift = nn.Linear(dim, 1)

    def loss(self, encoded: Tensor, before: Tensor, sentences: Sentences, places: Tensor) -> Tensor:
        """Mean error of the lengths, each relative, plus that of the shifts, each in units of `SPREAD`.

        `encoded` is (B, T, text_dim), `before` (B, N, D); `places` (B, N) are negative where the token of a
        frame is not known or its text is hidden. Errors are linear where large, so that one wrong label does
        not outweigh many right ones.
        """
        known = (places >= 0) & sentences.mask
        lasting = lengths(places, known, sentences.ids.shape[1])
        told = (sentences.ids >= 0) & known.any(dim=1, keepdim=True)
        read = self.length(F.layer_norm(encoded, encoded.shape[-1:]))[..., 0].float()
        length = _mean(F.smooth_l1_loss(read, lasting.log1p(), reduction="none"), told)
        shifted = (places - sentences.upsample_index) / SPREAD
        read = self.shift(F.layer_norm(before, before.shape[-1:]))[..., 0].float()
        return length + _mean(F.smooth_l1_loss(read, shifted, reduction="none"), known)


def _mean(values: Tensor, counted: Tensor) -> Tensor:
    return (values * counted).sum() / counted.sum().clamp_min(1)
