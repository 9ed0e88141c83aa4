"""Discriminators for vocoder training; not shipped.

Multi-period: HiFi-GAN, arXiv 2010.05646. Multi-resolution with bands: DAC, arXiv 2306.06546. Hinge losses:
Vocos, arXiv 2306.00814.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from export.demo.training.autocast import autocast

PERIODS = (2, 3, 5, 7, 11)
RESOLUTIONS = (2048, 1024, 512)
BANDS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
SLOPE = 0.1
PEAK = 0.8

Features = list[Tensor]


class PeriodDiscriminator(nn.Module):
    """2-D convolutions over a wave folded by `period`: (B, samples) → score, features of its layers."""

    def __init__(self, period: int, width: int) -> None:
        super().__init__()
        self.period = period
        channels = (1, width // 16, width // 4, width // 2, width, width)
        strides = (3, 3, 3, 3, 1)
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv2d(a, b, (5, 1), (stride, 1), (2, 0)))
            for (a, b), stride in zip(pairwise(channels), strides, strict=True)
        )
        self.leave = weight_norm(nn.Conv2d(width, 1, (3, 1), padding=(1, 0)))

    def forward(self, wave: Tensor) -> tuple[Tensor, Features]:
        x = F.pad(wave[:, None], (0, -wave.shape[1] % self.period), "reflect").unflatten(
            -1, (-1, self.period)
        )
        features = []
        for conv in self.convs:
            x = F.leaky_relu(conv(x), SLOPE)
            features.append(x)
        return self.leave(x), features[1:]


class ResolutionDiscriminator(nn.Module):
    """Convolutions over each band of the complex spectrum: (B, samples) → score, features of its layers."""

    def __init__(self, n_fft: int, width: int) -> None:
        super().__init__()
        self.n_fft = n_fft
        bins = n_fft // 2 + 1
        self.edges = [int(edge * bins) for edge in BANDS]
        self.bands = nn.ModuleList(_band(width) for _ in pairwise(BANDS))
        self.leave = weight_norm(nn.Conv2d(width, 1, (3, 3), padding=1))

    def forward(self, wave: Tensor) -> tuple[Tensor, Features]:
        x = self._spectrum(wave)
        bands, features = [], []
        for (low, high), convs in zip(pairwise(self.edges), self.bands, strict=True):
            band = x[..., low:high]
            for number, conv in enumerate(convs.children()):
                band = F.leaky_relu(conv(band), SLOPE)
                if number:
                    features.append(band)
            bands.append(band)
        return self.leave(torch.cat(bands, dim=-1)), features

    def _spectrum(self, wave: Tensor) -> Tensor:
        """Spectrum (B, 2, frames, bins) of a wave (B, samples) without offset and with a peak of `PEAK`."""
        wave = wave - wave.mean(dim=-1, keepdim=True)
        wave = PEAK * wave / (wave.abs().amax(dim=-1, keepdim=True) + 1e-9)
        window = torch.hann_window(self.n_fft, device=wave.device)
        found = torch.stft(wave, self.n_fft, self.n_fft // 4, window=window, return_complex=True)
        return torch.view_as_real(found).permute(0, 3, 2, 1)


def _band(width: int) -> nn.ModuleList:
    inner = [nn.Conv2d(width, width, (3, 9), (1, 2), (1, 4)) for _ in range(3)]
    convs = [nn.Conv2d(2, width, (3, 9), padding=(1, 4)), *inner, nn.Conv2d(width, width, (3, 3), padding=1)]
    return nn.ModuleList(weight_norm(conv) for conv in convs)


class GeneratorLoss(NamedTuple):
    """Generator losses of a batch, summed over the discriminators."""

    adversarial: float
    """Hinge loss."""
    feature_matching: float
    """L1 distances of features to those of the real wave, summed over layers."""
    gradient: Tensor
    """Gradient (B, samples) of the sum of both losses with respect to the generated wave."""


class Discriminators(nn.Module):
    """All discriminators, run in `workers` threads; each has its own autograd graph."""

    def __init__(self, period_width: int, resolution_width: int, workers: int = 1) -> None:
        super().__init__()
        self.periods = nn.ModuleList(PeriodDiscriminator(period, period_width) for period in PERIODS)
        self.resolutions = nn.ModuleList(ResolutionDiscriminator(n, resolution_width) for n in RESOLUTIONS)
        self._pool = ThreadPoolExecutor(workers)

    def accumulate(self, real: Tensor, made: Tensor) -> float:
        """Accumulate gradients of the discriminators' hinge loss and return the loss."""

        def one(discriminator: nn.Module, share: float) -> float:
            with autocast(real.device.type):
                wrong = F.relu(1 - discriminator(real)[0]).mean() + F.relu(1 + discriminator(made)[0]).mean()
            loss = share * wrong.float()
            loss.backward()
            return float(loss.detach())

        return sum(self._pool.map(one, *self._weighted()))

    def generator_loss(self, real: Tensor, made: Tensor) -> GeneratorLoss:
        """Losses of the generator; leaves the discriminators' own gradients unchanged."""

        def one(discriminator: nn.Module, share: float) -> GeneratorLoss:
            tried = made.detach().requires_grad_()
            with autocast(real.device.type):
                with torch.no_grad():
                    _, wanted = discriminator(real)
                score, found = discriminator(tried)
                adversarial = share * F.relu(1 - score).mean().float()
                distances = [(a - b).abs().mean() for a, b in zip(found, wanted, strict=True)]
                feature_matching = share * torch.stack(distances).sum().float()
            (gradient,) = torch.autograd.grad(adversarial + feature_matching, tried)
            return GeneratorLoss(float(adversarial.detach()), float(feature_matching.detach()), gradient)

        adversarial, feature_matching, gradients = zip(*self._pool.map(one, *self._weighted()), strict=True)
        return GeneratorLoss(sum(adversarial), sum(feature_matching), torch.stack(gradients).sum(dim=0))

    def _weighted(self) -> tuple[list[nn.Module], list[float]]:
        """Discriminators, slowest first, and their weights: resolutions count a tenth, as in Vocos."""
        resolutions, periods = list(self.resolutions), list(self.periods)
        weights = [0.1 / len(resolutions)] * len(resolutions) + [1.0 / len(periods)] * len(periods)
        return resolutions + periods, weights
