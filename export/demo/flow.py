"""Conditional flow matching as upstream's `CFM.forward` and `CFM.sample` have it, a batch at a time.

Flow matching: arXiv 2210.02747; guidance without a classifier: arXiv 2207.12598.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from export.demo.batches import Batch
from export.demo.model import BatchedDiT, Guide, Seen

Times = Literal["uniform", "early", "earliest", "logit-normal"]
POWERS = {"uniform": 1, "early": 2, "earliest": 4}


@dataclass(frozen=True)
class Draws:
    """Everything random about one training step."""

    noise: Tensor
    """(B, N, M) standard normal."""
    t: Tensor
    """(B,) in 0…1."""
    drop_audio: Tensor
    """(B,) whose reference is hidden."""
    drop_text: Tensor
    """(B,) whose text is hidden; their reference is too."""


def draw(
    batch: Batch, generator: torch.Generator, times: Times, drop_audio: float, drop_both: float
) -> Draws:
    """What upstream draws for a batch; dropped out sentence by sentence rather than for the batch as a whole.

    `early` times are u², `earliest` u⁴: they favour the noisy beginning, where the text decides what is said.
    """
    count = len(batch.mels)
    noise = torch.randn(batch.mels.shape, generator=generator, device=generator.device)
    if times == "logit-normal":
        t = torch.randn(count, generator=generator, device=generator.device).sub(0.8).sigmoid()
    else:
        t = torch.rand(count, generator=generator, device=generator.device) ** POWERS[times]
    both = torch.rand(count, generator=generator, device=generator.device) < drop_both
    audio = (torch.rand(count, generator=generator, device=generator.device) < drop_audio) | both
    return Draws(*(value.to(batch.mels.device) for value in (noise, t, audio, both)))


def see(model: BatchedDiT, batch: Batch, draws: Draws, guide: Guide | None = None) -> Seen:
    """The model's velocity where the mel is mixed with noise as `draws` say."""
    t = draws.t[:, None, None]
    latents = (1 - t) * draws.noise + t * batch.mels
    given = ~batch.hidden & ~draws.drop_audio[:, None]
    inside = batch.sentences.mask[..., None]
    cond = batch.mels * given[..., None]
    return model(latents * inside, cond * inside, batch.sentences, draws.t, draws.drop_text, guide)


def loss(velocity: Tensor, batch: Batch, draws: Draws) -> Tensor:
    """Mean squared error of the velocity over the frames to be spoken."""
    wanted = batch.mels - draws.noise
    spoken = (batch.hidden & batch.sentences.mask)[..., None]
    squared = (velocity.float() - wanted).square() * spoken
    return squared.sum() / (spoken.sum() * wanted.shape[-1])


@torch.inference_mode()
def sample(model: BatchedDiT, batch: Batch, noise: Tensor, times: Sequence[float], guidance: float) -> Tensor:
    """Speak the hidden frames with Euler's method: noise (B, N, M) → log-mels (B, N, M)."""
    twice = _twice(batch)
    count = len(noise)
    drop = torch.arange(2 * count, device=noise.device) >= count
    cond = batch.mels * (~batch.hidden & batch.sentences.mask)[..., None]
    seen = torch.cat((cond, torch.zeros_like(cond)))
    inside = batch.sentences.mask[..., None]
    latents = noise * inside
    for now, then in pairwise(times):
        t = torch.full((2 * count,), float(now), device=noise.device)
        found = model(torch.cat((latents, latents)), seen, twice.sentences, t, drop).velocity.float()
        guided, plain = found.chunk(2)
        latents = (latents + float(then - now) * (guided + (guided - plain) * guidance)) * inside
    return torch.where(batch.hidden[..., None], latents, batch.mels)


def _twice(batch: Batch) -> Batch:
    said = batch.sentences
    doubled = type(said)(
        torch.cat((said.ids, said.ids)),
        torch.cat((said.tokens, said.tokens)),
        torch.cat((said.frames, said.frames)),
        said.longest,
    )
    return Batch(batch.mels, doubled, batch.hidden, batch.places, batch.texts)
