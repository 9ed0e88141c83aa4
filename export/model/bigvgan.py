"""BigVGAN v2: log-mel → waveform by transposed convolutions and anti-aliased periodic activations.

arXiv 2206.04658; names as in NVIDIA's repository, with the weight norm folded into the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from appliance.fields import Count, Ranged, from_mapping

RATIO = 2  # oversampling inside the activation
TAPS = 12  # of the low-pass filters before and after it
CUTOFF = 0.5 / RATIO
HALF_WIDTH = 0.6 / RATIO
NO_DIV_BY_ZERO = 1e-9


@dataclass(frozen=True)
class BigVGANConfig(Ranged):
    num_mels: Count
    upsample_rates: tuple[int, ...]
    upsample_kernel_sizes: tuple[int, ...]
    upsample_initial_channel: Count
    resblock: Literal["1", "2"]
    resblock_kernel_sizes: tuple[int, ...]
    resblock_dilation_sizes: tuple[tuple[int, ...], ...]
    activation: Literal["snake", "snakebeta"]
    snake_logscale: bool
    use_tanh_at_final: bool = True
    use_bias_at_final: bool = True
    sampling_rate: Count = 24_000
    n_fft: Count = 1024
    win_size: Count = 1024
    hop_size: int | None = None

    @property
    def hop(self) -> int:
        """Samples per frame."""
        return math.prod(self.upsample_rates)

    @classmethod
    def parse(cls, raw: object) -> BigVGANConfig:
        """Configuration of a parsed `config.json`, without training keys. Raises ValueError."""
        config: BigVGANConfig = from_mapping(
            cls, raw, where="not a BigVGAN's", error=ValueError, ignore_unknown=True
        )
        return config

    def __post_init__(self) -> None:
        super().__post_init__()
        lists = (self.upsample_rates, self.resblock_kernel_sizes, *self.resblock_dilation_sizes)
        if any(not numbers or min(numbers) < 1 for numbers in lists):
            raise ValueError("lists of rates, kernel sizes and dilations must hold numbers from 1")
        if self.hop_size not in (None, self.hop):
            raise ValueError(f"hop_size: is {self.hop_size}, upsample_rates multiply to {self.hop}")
        if len(self.upsample_rates) != len(self.upsample_kernel_sizes):
            raise ValueError("upsample_rates and upsample_kernel_sizes differ in length")
        if len(self.resblock_kernel_sizes) != len(self.resblock_dilation_sizes):
            raise ValueError("resblock_kernel_sizes and resblock_dilation_sizes differ in length")
        for rate, kernel in zip(self.upsample_rates, self.upsample_kernel_sizes, strict=True):
            if kernel < rate or (kernel - rate) % 2:
                raise ValueError(f"upsample_kernel_sizes: {kernel} does not centre on a rate of {rate}")


def low_pass(cutoff: float = CUTOFF, half_width: float = HALF_WIDTH, taps: int = TAPS) -> Tensor:
    """Kaiser-windowed sinc (1, 1, taps) with an even number of taps and a sum of one.

    Attenuation and β follow Kaiser's formulas.
    """
    attenuation = 2.285 * (taps // 2 - 1) * math.pi * 4 * half_width + 7.95  # dB
    if attenuation > 50.0:
        beta = 0.1102 * (attenuation - 8.7)
    elif attenuation >= 21.0:
        beta = 0.5842 * (attenuation - 21) ** 0.4 + 0.07886 * (attenuation - 21.0)
    else:
        beta = 0.0
    at = torch.arange(-(taps // 2), taps // 2) + 0.5
    window = torch.kaiser_window(taps, periodic=False, beta=beta)
    ideal = 2 * cutoff * window * torch.sinc(2 * cutoff * at)
    return (ideal / ideal.sum()).view(1, 1, taps)


class Snake(nn.Module):
    """x + sin²(αx)/β per channel; β = α in a plain Snake. arXiv 2006.08195."""

    def __init__(self, channels: int, *, logscale: bool, own_beta: bool) -> None:
        super().__init__()
        self.logscale = logscale
        at_rest = torch.zeros(channels) if logscale else torch.ones(channels)
        self.alpha = nn.Parameter(at_rest.clone())
        self.beta = nn.Parameter(at_rest.clone()) if own_beta else None

    def forward(self, x: Tensor) -> Tensor:
        alpha, beta = self.scales()
        return x + (x * alpha).sin().square() / beta

    def scales(self) -> tuple[Tensor, Tensor]:
        """α and β (C, 1). β has an offset from zero."""
        alpha, beta = (
            (p.exp() if self.logscale else p)[:, None]
            for p in (self.alpha, self.alpha if self.beta is None else self.beta)
        )
        return alpha, beta + NO_DIV_BY_ZERO


class LowPass(nn.Module):
    """Filter under upstream's name, which checkpoints contain."""

    filter: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("filter", low_pass())


class Upsample(LowPass):
    """Upsample by two: (1, C, L) → (1, C, 2L)."""

    def forward(self, x: Tensor) -> Tensor:
        channels = x.shape[1]
        edge = TAPS // RATIO - 1
        x = F.pad(x, (edge, edge), mode="replicate")
        x = RATIO * F.conv_transpose1d(x, self.filter.expand(channels, -1, -1), stride=RATIO, groups=channels)
        left = edge * RATIO + (TAPS - RATIO) // 2
        right = edge * RATIO + (TAPS - RATIO + 1) // 2
        return x[..., left:-right]


class Downsample(nn.Module):
    """Downsample by two: (1, C, 2L) → (1, C, L)."""

    def __init__(self) -> None:
        super().__init__()
        self.lowpass = LowPass()

    def forward(self, x: Tensor) -> Tensor:
        channels = x.shape[1]
        x = F.pad(x, (TAPS // 2 - 1, TAPS // 2), mode="replicate")
        # The filter needs a cast: `in_float64` widens the tensors of a module that computes, and `lowpass`
        # never does.
        kernel = self.lowpass.filter.to(x.dtype).expand(channels, -1, -1)
        return F.conv1d(x, kernel, stride=RATIO, groups=channels)


class Activation(nn.Module):
    """Periodic activation at twice the rate, against aliasing of its harmonics."""

    def __init__(self, config: BigVGANConfig, channels: int) -> None:
        super().__init__()
        self.upsample = Upsample()
        self.act = Snake(channels, logscale=config.snake_logscale, own_beta=config.activation == "snakebeta")
        self.downsample = Downsample()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.downsample(self.act(self.upsample(x)))
        return out


def _conv(channels: int, kernel: int, dilation: int) -> nn.Conv1d:
    return nn.Conv1d(channels, channels, kernel, dilation=dilation, padding=(kernel - 1) * dilation // 2)


def _activations(config: BigVGANConfig, channels: int, count: int) -> nn.ModuleList:
    return nn.ModuleList(Activation(config, channels) for _ in range(count))


class PairedBlock(nn.Module):
    """Residual pairs of convolutions, the first of each pair dilated (`resblock` "1")."""

    def __init__(self, config: BigVGANConfig, channels: int, kernel: int, dilations: Iterable[int]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(_conv(channels, kernel, dilation) for dilation in dilations)
        self.convs2 = nn.ModuleList(_conv(channels, kernel, 1) for _ in self.convs1)
        self.activations = _activations(config, channels, 2 * len(self.convs1))

    def forward(self, x: Tensor) -> Tensor:
        for pair, (dilated, plain) in enumerate(zip(self.convs1, self.convs2, strict=True)):
            h = dilated(self.activations[2 * pair](x))
            x = x + plain(self.activations[2 * pair + 1](h))
        return x


class SingleBlock(nn.Module):
    """Residual dilated convolutions (`resblock` "2")."""

    def __init__(self, config: BigVGANConfig, channels: int, kernel: int, dilations: Iterable[int]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(_conv(channels, kernel, dilation) for dilation in dilations)
        self.activations = _activations(config, channels, len(self.convs))

    def forward(self, x: Tensor) -> Tensor:
        for conv, activation in zip(self.convs, self.activations, strict=True):
            x = x + conv(activation(x))
        return x


class BigVGAN(nn.Module):
    """Log-mel (N, M) → samples (N·hop,) within ±1."""

    def __init__(self, config: BigVGANConfig) -> None:
        super().__init__()
        self.config = config
        width = config.upsample_initial_channel
        block = PairedBlock if config.resblock == "1" else SingleBlock
        self.conv_pre = nn.Conv1d(config.num_mels, width, kernel_size=7, padding=3)
        self.ups, self.resblocks = nn.ModuleList(), nn.ModuleList()
        for rate, kernel in zip(config.upsample_rates, config.upsample_kernel_sizes, strict=True):
            rise = nn.ConvTranspose1d(width, width // 2, kernel, rate, padding=(kernel - rate) // 2)
            self.ups.append(nn.Sequential(rise))
            width //= 2
            self.resblocks.extend(
                block(config, width, size, dilations)
                for size, dilations in zip(
                    config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True
                )
            )
        self.activation_post = Activation(config, width)
        self.conv_post = nn.Conv1d(width, 1, kernel_size=7, padding=3, bias=config.use_bias_at_final)

    def forward(self, log_mel: Tensor) -> Tensor:
        """(N, M) → (N·hop,)."""
        return self.head(self.features(log_mel.mT[None]))

    def features(self, x: Tensor) -> Tensor:
        """All layers before the last convolution: (1, M, N) → (1, C, N·hop)."""
        x = self.conv_pre(x)
        parallel = len(self.config.resblock_kernel_sizes)
        for stage, rise in enumerate(self.ups):
            x = rise(x)
            blocks = self.resblocks[stage * parallel : (stage + 1) * parallel]
            x = torch.stack([block(x) for block in blocks]).mean(dim=0)
        out: Tensor = self.activation_post(x)
        return out

    def head(self, x: Tensor) -> Tensor:
        """Last convolution, bounded to ±1: (1, C, L) → (L,)."""
        x = self.conv_post(x)
        bounded = x.tanh() if self.config.use_tanh_at_final else x.clamp(-1.0, 1.0)
        return bounded.flatten()


_HALVES = (
    ("weight_g", "weight_v"),
    ("parametrizations.weight.original0", "parametrizations.weight.original1"),
)


def weight_norm_pairs(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Weight name → names of magnitude g and direction v, in torch's older and newer naming."""
    pairs = {}
    for name in names:
        for magnitude, direction in _HALVES:
            if name.endswith(magnitude):
                stem = name[: -len(magnitude)]
                pairs[f"{stem}weight"] = (name, stem + direction)
    return pairs


def fold(magnitude: Tensor, direction: Tensor) -> Tensor:
    """g·v/‖v‖, with the norm over all axes but the first."""
    length = direction.flatten(1).norm(dim=1).view(-1, *[1] * (direction.dim() - 1))
    return direction * (magnitude / length)
