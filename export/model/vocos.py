"""Vocos: log-mel → waveform through an inverse STFT. arXiv 2306.00814; names as in vocos 0.1.0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EPS = 1e-6
MAX_MAGNITUDE = 100.0
ENVELOPE_FLOOR = 1e-11


@dataclass(frozen=True)
class VocosConfig:
    """Layer sizes and STFT parameters of Vocos."""

    mels: int
    dim: int
    intermediate_dim: int
    layers: int
    n_fft: int
    hop: int
    padding: Literal["center", "same"]
    sample_rate: int = 24_000

    @classmethod
    def parse(cls, raw: object) -> VocosConfig:
        """Convert a parsed `config.yaml`. Raises ValueError naming section and expected value."""
        features = _section(raw, "feature_extractor", "MelSpectrogramFeatures")
        backbone = _section(raw, "backbone", "VocosBackbone")
        head = _section(raw, "head", "ISTFTHead")
        if backbone.get("adanorm_num_embeddings") is not None:
            raise ValueError("backbone.adanorm_num_embeddings: conditional norms (EnCodec) are not supported")
        padding = head.get("padding", "same")
        if padding not in ("center", "same"):
            raise ValueError(f"head.padding: must be center or same, not {padding!r}")
        config = cls(
            mels=_number(backbone, "backbone.input_channels"),
            dim=_number(backbone, "backbone.dim"),
            intermediate_dim=_number(backbone, "backbone.intermediate_dim"),
            layers=_number(backbone, "backbone.num_layers"),
            n_fft=_number(head, "head.n_fft"),
            hop=_number(head, "head.hop_length"),
            padding=padding,
            sample_rate=_number(features, "feature_extractor.sample_rate", 24_000),
        )
        for name, made, read, default in (
            ("backbone.input_channels", config.mels, "n_mels", 100),
            ("head.n_fft", config.n_fft, "n_fft", 1024),
            ("head.hop_length", config.hop, "hop_length", 256),
        ):
            if made != (other := _number(features, f"feature_extractor.{read}", default)):
                raise ValueError(f"{name} is {made}, feature_extractor.{read} {other}")
        return config


def _number(section: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Positive integer at the last part of `name`; required without a default. Raises ValueError."""
    key = name.rpartition(".")[2]
    value = section.get(key, default)
    if key not in section and default is None:
        raise ValueError(f"missing key {key} in init_args of {name.partition('.')[0]}")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}: must be a positive integer, not {value!r}")
    return value


def _section(raw: object, name: str, wanted: str) -> Mapping[str, Any]:
    section = raw.get(name) if isinstance(raw, Mapping) else None
    if not isinstance(section, Mapping):
        raise ValueError(f"missing section {name}")
    found = str(section.get("class_path", "")).rsplit(".", 1)[-1]
    if found != wanted:
        raise ValueError(f"{name}.class_path: must be {wanted}, not {found!r}")
    arguments = section.get("init_args") or {}
    if not isinstance(arguments, Mapping):
        raise ValueError(f"{name}.init_args: must be a mapping, not {type(arguments).__name__}")
    return arguments


class ConvNeXtBlock(nn.Module):
    """(1, C, N) → (1, C, N)."""

    def __init__(self, dim: int, intermediate_dim: int, layer_scale: float) -> None:
        super().__init__()
        self.dwconv = nn.Conv1d(dim, dim, kernel_size=7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=EPS)
        self.pwconv1 = nn.Linear(dim, intermediate_dim)
        self.pwconv2 = nn.Linear(intermediate_dim, dim)
        self.gamma = nn.Parameter(torch.full((dim,), layer_scale))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.dwconv(x).mT)
        return x + (self.gamma * self.pwconv2(F.gelu(self.pwconv1(h)))).mT


class Backbone(nn.Module):
    """(1, M, N) → (1, N, C)."""

    def __init__(self, config: VocosConfig) -> None:
        super().__init__()
        self.embed = nn.Conv1d(config.mels, config.dim, kernel_size=7, padding=3)
        self.norm = nn.LayerNorm(config.dim, eps=EPS)
        self.convnext = nn.ModuleList(
            ConvNeXtBlock(config.dim, config.intermediate_dim, 1 / config.layers)
            for _ in range(config.layers)
        )
        self.final_layer_norm = nn.LayerNorm(config.dim, eps=EPS)

    def forward(self, log_mel: Tensor) -> Tensor:
        x = self.norm(self.embed(log_mel).mT).mT
        for block in self.convnext:
            x = block(x)
        out: Tensor = self.final_layer_norm(x.mT)
        return out


class InverseSTFT(nn.Module):
    """Overlap-add of inverse FFTs, divided by the sum of squared windows."""

    window: Tensor

    def __init__(self, n_fft: int, hop: int, padding: Literal["center", "same"]) -> None:
        super().__init__()
        self.n_fft, self.hop = n_fft, hop
        self.trim = n_fft // 2 if padding == "center" else (n_fft - hop) // 2
        self.register_buffer("window", torch.hann_window(n_fft))

    def forward(self, spectrum: Tensor) -> Tensor:
        """Complex (n_fft / 2 + 1, N) → ((N - 1)·hop,) with "center" padding, (N·hop,) with "same"."""
        waves = torch.fft.irfft(spectrum, self.n_fft, dim=0) * self.window[:, None]
        weights = self.window.square()[:, None].expand_as(waves)
        samples, envelope = self._overlap(waves), self._overlap(weights)
        return samples / envelope.clamp_min(ENVELOPE_FLOOR)

    def _overlap(self, columns: Tensor) -> Tensor:
        length = (columns.shape[1] - 1) * self.hop + self.n_fft
        summed = F.fold(columns[None], (1, length), (1, self.n_fft), stride=(1, self.hop))
        return summed.flatten()[self.trim : length - self.trim]


class Head(nn.Module):
    """Log-magnitude and phase of each bin, then inverse STFT: (1, N, C) → samples."""

    def __init__(self, config: VocosConfig) -> None:
        super().__init__()
        self.out = nn.Linear(config.dim, config.n_fft + 2)
        self.istft = InverseSTFT(config.n_fft, config.hop, config.padding)

    def forward(self, x: Tensor) -> Tensor:
        log_magnitude, phase = self.out(x)[0].mT.chunk(2)  # (n_fft / 2 + 1, N) each
        magnitude = log_magnitude.exp().clamp(max=MAX_MAGNITUDE)
        samples: Tensor = self.istft(torch.polar(magnitude, phase))
        return samples


class Vocos(nn.Module):
    """Log-mel (N, M) → samples."""

    def __init__(self, config: VocosConfig) -> None:
        super().__init__()
        self.config = config
        self.backbone = Backbone(config)
        self.head = Head(config)

    def forward(self, log_mel: Tensor) -> Tensor:
        """(N, M) → ((N - 1)·hop,) with "center" padding, (N·hop,) with "same"."""
        samples: Tensor = self.head(self.backbone(log_mel.mT[None]))
        return samples
