"""Batched conditional flow matching, equal to upstream's `CFM.forward` and `CFM.sample`.

Flow matching: arXiv 2210.02747. Classifier-free guidance: arXiv 2207.12598.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from export.demo.training.batches import Batch
from export.demo.training.model import AttentionGuide, BatchedDiT, Prediction

DROP_AUDIO = DROP_BOTH = 0.1
"""Shares of sentences without their reference, and without both reference and text; upstream's are larger."""


@dataclass(frozen=True)
class Draws:
    noise: Tensor
    """Standard normal (B, N, M)."""
    t: Tensor
    """Flow times (B,) in 0…1."""
    drop_audio: Tensor
    """Sentences (B,) without their reference."""
    drop_text: Tensor
    """Sentences (B,) without text; they have no reference either."""


def draw(batch: Batch, generator: torch.Generator) -> Draws:
    """Draw as upstream does, but conditions dropped per sentence, and times u²: near noise text decides."""

    def uniform() -> Tensor:
        return torch.rand(len(batch.mels), generator=generator, device=generator.device)

    noise = torch.randn(batch.mels.shape, generator=generator, device=generator.device)
    t, both = uniform().square(), uniform() < DROP_BOTH
    audio = (uniform() < DROP_AUDIO) | both
    return Draws(*(value.to(batch.mels.device) for value in (noise, t, audio, both)))


def predict(model: BatchedDiT, batch: Batch, draws: Draws, guide: AttentionGuide | None = None) -> Prediction:
    """Predict the velocity at noised mels (1 - t)·noise + t·mel."""
    t = draws.t[:, None, None]
    latents = (1 - t) * draws.noise + t * batch.mels
    given = ~batch.hidden & ~draws.drop_audio[:, None]
    inside = batch.sentences.mask[..., None]
    cond = batch.mels * given[..., None]
    return model(latents * inside, cond * inside, batch.sentences, draws.t, draws.drop_text, guide)


def distance(velocity: Tensor, wanted: Tensor, batch: Batch) -> Tensor:
    """Mean squared distance of two velocities over the masked frames."""
    spoken = (batch.hidden & batch.sentences.mask)[..., None]
    squared = (velocity.float() - wanted).square() * spoken
    return squared.sum() / (spoken.sum() * wanted.shape[-1])


def told(
    model: BatchedDiT, batch: Batch, latents: Tensor, t: Tensor, guide: AttentionGuide | None = None
) -> Prediction:
    """Velocity at times `t` (B,) with all conditions."""
    said, drop = batch.sentences, torch.zeros_like(t, dtype=torch.bool)
    cond = batch.mels * (~batch.hidden & said.mask)[..., None]
    return model(latents, cond, said, t, drop, guide)


def guided(model: BatchedDiT, batch: Batch, latents: Tensor, t: Tensor, strength: float) -> Tensor:
    """Velocity (B, N, M) at times `t` (B,): v_c + strength·(v_c - v_u)."""
    known = told(model, batch, latents, t).velocity.float()
    drop, nothing = torch.ones_like(t, dtype=torch.bool), torch.zeros_like(batch.mels)
    plain = model(latents, nothing, batch.sentences, t, drop).velocity.float()
    return known + (known - plain) * strength


@torch.no_grad()
def solve(
    model: BatchedDiT, batch: Batch, latents: Tensor, begin: Tensor, end: Tensor, steps: int, strength: float
) -> Tensor:
    """Integrate from times `begin` (B,) to `end` (B,) with Euler's method, on a grid swayed as upstream's."""
    inside = batch.sentences.mask[..., None]
    first, last = (torch.acos(1 - t) for t in (begin, end))
    times = [1 - torch.cos(first + (last - first) * n / steps) for n in range(steps + 1)]
    for now, then in pairwise(times):
        latents = latents + (then - now)[:, None, None] * guided(model, batch, latents, now, strength)
        latents = latents * inside
    return latents
