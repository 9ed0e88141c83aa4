"""Judges of real and made speech that a vocoder is trained against; none of them is shipped.

Multi-period: HiFi-GAN, arXiv 2010.05646. Multi-resolution, by bands: DAC, arXiv 2306.06546. Losses: hinge, as
in Vocos, arXiv 2306.00814.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

PERIODS = (2, 3, 5, 7, 11)
RESOLUTIONS = (2048, 1024, 512)
BANDS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
SLOPE = 0.1
PEAK = 0.8

Features = list[Tensor]


class PeriodDiscriminator(nn.Module):
    """Looks at every `period`-th sample side by side: (B, samples) → score, features of its layers."""

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
    """Looks at the complex spectrum, each band through convolutions of its own."""

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
        """(B, samples) → (B, 2, frames, bins), without offset, at one loudness."""
        wave = wave - wave.mean(dim=-1, keepdim=True)
        wave = PEAK * wave / (wave.abs().amax(dim=-1, keepdim=True) + 1e-9)
        window = torch.hann_window(self.n_fft, device=wave.device)
        found = torch.stft(wave, self.n_fft, self.n_fft // 4, window=window, return_complex=True)
        return torch.view_as_real(found).permute(0, 3, 2, 1)


def _band(width: int) -> nn.ModuleList:
    inner = [nn.Conv2d(width, width, (3, 9), (1, 2), (1, 4)) for _ in range(3)]
    convs = [nn.Conv2d(2, width, (3, 9), padding=(1, 4)), *inner, nn.Conv2d(width, width, (3, 3), padding=1)]
    return nn.ModuleList(weight_norm(conv) for conv in convs)


class Discriminators(nn.Module):
    """All of them."""

    def __init__(self, period_width: int, resolution_width: int) -> None:
        super().__init__()
        self.periods = nn.ModuleList(PeriodDiscriminator(period, period_width) for period in PERIODS)
        self.resolutions = nn.ModuleList(ResolutionDiscriminator(n, resolution_width) for n in RESOLUTIONS)

    def loss(self, real: Tensor, made: Tensor) -> Tensor:
        """What they have yet to learn: real above 1, made below -1."""
        total = real.new_zeros(())
        for judge, share in self._judges():
            total = total + share * (F.relu(1 - judge(real)[0]).mean() + F.relu(1 + judge(made)[0]).mean())
        return total

    def verdict(self, real: Tensor, made: Tensor) -> tuple[Tensor, Tensor]:
        """For the vocoder: how far its speech is from passing, and from the real one's features."""
        passing = matching = real.new_zeros(())
        for judge, share in self._judges():
            with torch.no_grad():
                _, wanted = judge(real)
            score, found = judge(made)
            passing = passing + share * F.relu(1 - score).mean()
            distances = [(a - b).abs().mean() for a, b in zip(found, wanted, strict=True)]
            matching = matching + share * torch.stack(distances).sum()
        return passing, matching

    def _judges(self) -> list[tuple[nn.Module, float]]:
        """Each with its weight: a resolution weighs a tenth of a period, as Vocos has it."""
        periods = [(judge, 1.0 / len(self.periods)) for judge in self.periods]
        return periods + [(judge, 0.1 / len(self.resolutions)) for judge in self.resolutions]
