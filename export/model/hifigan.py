"""HiFi-GAN: log-mel → waveform by transposed convolutions and residual blocks of several receptive fields.

arXiv 2010.05646; names as in its authors' repository, with the weight norm folded into the weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from appliance.contract.bundle import Count
from appliance.fields import Ranged, from_mapping

SLOPE = 0.1
LAST_SLOPE = 0.01
_SPEECHBRAIN_KEYS = {
    "in_channels": "num_mels",
    "upsample_factors": "upsample_rates",
    "resblock_type": "resblock",
    "sample_rate": "sampling_rate",
    "hop_length": "hop_size",
    "win_length": "win_size",
}


@dataclass(frozen=True)
class HiFiGANConfig(Ranged):
    num_mels: Count
    upsample_rates: tuple[int, ...]
    upsample_kernel_sizes: tuple[int, ...]
    upsample_initial_channel: Count
    resblock: Literal["1", "2"]
    resblock_kernel_sizes: tuple[int, ...]
    resblock_dilation_sizes: tuple[tuple[int, ...], ...]
    conv_post_bias: bool = True
    sampling_rate: Count = 16_000
    n_fft: Count = 1024
    win_size: Count = 1024
    hop_size: int | None = None

    @property
    def hop(self) -> int:
        """Samples per frame."""
        return math.prod(self.upsample_rates)

    @classmethod
    def parse(cls, raw: object) -> HiFiGANConfig:
        """Convert a parsed `config.json` of the authors, or SpeechBrain's hyperparameters, ignoring training
        keys. Raises ValueError.
        """
        if isinstance(raw, Mapping):
            raw = {_SPEECHBRAIN_KEYS.get(key, key): value for key, value in raw.items()}
        config: HiFiGANConfig = from_mapping(
            cls, raw, where="not a HiFi-GAN's", error=ValueError, ignore_unknown=True
        )
        return config

    @classmethod
    def of(cls, shapes: Mapping[str, tuple[int, ...]]) -> HiFiGANConfig:
        """Configuration of weights that come without one: rates of half a kernel, as in all published models,
        and dilations of 1, 3, 5. Raises KeyError for other weights.
        """
        width, mels, _ = shapes["conv_pre.weight"]
        ups = [shapes[f"ups.{i}.weight"][2] for i in range(_count(shapes, "ups"))]
        convs = "convs1" if "resblocks.0.convs1.0.weight" in shapes else "convs"
        blocks = range(_count(shapes, "resblocks") // len(ups))
        dilations = tuple(range(1, 2 * _count(shapes, f"resblocks.0.{convs}"), 2))
        return cls(
            num_mels=mels,
            upsample_rates=tuple(kernel // 2 for kernel in ups),
            upsample_kernel_sizes=tuple(ups),
            upsample_initial_channel=width,
            resblock="1" if convs == "convs1" else "2",
            resblock_kernel_sizes=tuple(shapes[f"resblocks.{i}.{convs}.0.weight"][2] for i in blocks),
            resblock_dilation_sizes=tuple(dilations for _ in blocks),
            conv_post_bias="conv_post.bias" in shapes,
        )

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


def _count(names: Iterable[str], list_: str) -> int:
    """Modules of the list `list_` among the names of weights."""
    rest = (name.removeprefix(f"{list_}.") for name in names if name.startswith(f"{list_}."))
    return len({name.split(".")[0] for name in rest})


def _conv(channels: int, kernel: int, dilation: int) -> nn.Conv1d:
    return nn.Conv1d(channels, channels, kernel, dilation=dilation, padding=(kernel - 1) * dilation // 2)


class PairedBlock(nn.Module):
    """Residual pairs of convolutions, the first of each pair dilated (`resblock` "1")."""

    def __init__(self, channels: int, kernel: int, dilations: Iterable[int]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(_conv(channels, kernel, dilation) for dilation in dilations)
        self.convs2 = nn.ModuleList(_conv(channels, kernel, 1) for _ in self.convs1)

    def forward(self, x: Tensor) -> Tensor:
        for dilated, plain in zip(self.convs1, self.convs2, strict=True):
            x = x + plain(F.leaky_relu(dilated(F.leaky_relu(x, SLOPE)), SLOPE))
        return x


class SingleBlock(nn.Module):
    """Residual dilated convolutions (`resblock` "2")."""

    def __init__(self, channels: int, kernel: int, dilations: Iterable[int]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(_conv(channels, kernel, dilation) for dilation in dilations)

    def forward(self, x: Tensor) -> Tensor:
        for conv in self.convs:
            x = x + conv(F.leaky_relu(x, SLOPE))
        return x


class HiFiGAN(nn.Module):
    """Log-mel (N, M) → samples (N·hop,) within ±1."""

    def __init__(self, config: HiFiGANConfig) -> None:
        super().__init__()
        self.config = config
        width = config.upsample_initial_channel
        block = PairedBlock if config.resblock == "1" else SingleBlock
        self.conv_pre = nn.Conv1d(config.num_mels, width, kernel_size=7, padding=3)
        self.ups, self.resblocks = nn.ModuleList(), nn.ModuleList()
        for rate, kernel in zip(config.upsample_rates, config.upsample_kernel_sizes, strict=True):
            self.ups.append(nn.ConvTranspose1d(width, width // 2, kernel, rate, padding=(kernel - rate) // 2))
            width //= 2
            kinds = zip(config.resblock_kernel_sizes, config.resblock_dilation_sizes, strict=True)
            self.resblocks.extend(block(width, size, dilations) for size, dilations in kinds)
        self.conv_post = nn.Conv1d(width, 1, kernel_size=7, padding=3, bias=config.conv_post_bias)

    def forward(self, log_mel: Tensor) -> Tensor:
        """(N, M) → (N·hop,)."""
        return self.head(self.features(log_mel.mT[None]))

    def features(self, x: Tensor) -> Tensor:
        """All layers before the last convolution: (1, M, N) → (1, C, N·hop)."""
        x = self.conv_pre(x)
        parallel = len(self.config.resblock_kernel_sizes)
        for stage, rise in enumerate(self.ups):
            x = rise(F.leaky_relu(x, SLOPE))
            blocks = self.resblocks[stage * parallel : (stage + 1) * parallel]
            x = torch.stack([block(x) for block in blocks]).mean(dim=0)
        return F.leaky_relu(x, LAST_SLOPE)

    def head(self, x: Tensor) -> Tensor:
        """Last convolution, bounded to ±1: (1, C, L) → (L,)."""
        samples: Tensor = self.conv_post(x).tanh().flatten()
        return samples
