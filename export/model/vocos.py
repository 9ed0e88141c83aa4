"""Vocos: log-mel → waveform through an inverse STFT. arXiv 2306.00814; names as in vocos 0.1.0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from appliance.fields import Count, Ranged, from_mapping

EPS = 1e-6
MAX_MAGNITUDE = 100.0
Head = Literal["ISTFTHead", "SourceFilterHead"]
"""Head of Vocos, and head of `export.model.source`."""
ENVELOPE_FLOOR = 1e-11


@dataclass(frozen=True)
class _Features(Ranged):
    sample_rate: Count = 24_000
    n_fft: Count = 1024
    hop_length: Count = 256
    n_mels: Count = 100


@dataclass(frozen=True)
class _Backbone(Ranged):
    input_channels: Count
    dim: Count
    intermediate_dim: Count
    num_layers: Count
    adanorm_num_embeddings: int | None = None


@dataclass(frozen=True)
class _HeadArguments(Ranged):
    n_fft: Count
    hop_length: Count
    padding: Literal["center", "same"] = "same"


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
    head: Head = "ISTFTHead"

    @classmethod
    def parse(cls, raw: object) -> VocosConfig:
        """Configuration of a `config.yaml`, published or of a training, whose sections are in
        `model.init_args`.

        Raises ValueError, which names the section and the expected value.
        """
        if isinstance(raw, Mapping) and isinstance(model := raw.get("model"), Mapping):
            raw = model.get("init_args")
        _, features = _section(raw, "feature_extractor", _Features, "MelSpectrogramFeatures")
        _, backbone = _section(raw, "backbone", _Backbone, "VocosBackbone")
        kind, head = _section(raw, "head", _HeadArguments, *get_args(Head))
        if backbone.adanorm_num_embeddings is not None:
            raise ValueError("backbone.adanorm_num_embeddings: conditional norms (EnCodec) are not supported")
        for name, value, read, other in (
            ("backbone.input_channels", backbone.input_channels, "n_mels", features.n_mels),
            ("head.n_fft", head.n_fft, "n_fft", features.n_fft),
            ("head.hop_length", head.hop_length, "hop_length", features.hop_length),
        ):
            if value != other:
                raise ValueError(f"{name} is {value}, feature_extractor.{read} {other}")
        return cls(
            backbone.input_channels,
            backbone.dim,
            backbone.intermediate_dim,
            backbone.num_layers,
            head.n_fft,
            head.hop_length,
            head.padding,
            features.sample_rate,
            kind,
        )

    def sections(self) -> dict[str, object]:
        """Sections of a `config.yaml` that `parse` reads."""
        return {
            "feature_extractor": {
                "class_path": "vocos.feature_extractors.MelSpectrogramFeatures",
                "init_args": {
                    "sample_rate": self.sample_rate,
                    "n_fft": self.n_fft,
                    "hop_length": self.hop,
                    "n_mels": self.mels,
                    "padding": self.padding,
                },
            },
            "backbone": {
                "class_path": "vocos.models.VocosBackbone",
                "init_args": {
                    "input_channels": self.mels,
                    "dim": self.dim,
                    "intermediate_dim": self.intermediate_dim,
                    "num_layers": self.layers,
                },
            },
            "head": {
                "class_path": f"vocos.heads.{self.head}",
                "init_args": {
                    "dim": self.dim,
                    "n_fft": self.n_fft,
                    "hop_length": self.hop,
                    "padding": self.padding,
                },
            },
        }


def _section(raw: object, name: str, cls: type[Any], *classes: str) -> tuple[Any, Any]:
    """Read a section: its class, which must be among `classes`, and its `init_args`. Raises ValueError."""
    section = raw.get(name) if isinstance(raw, Mapping) else None
    if not isinstance(section, Mapping):
        raise ValueError(f"missing section {name}")
    found = str(section.get("class_path", "")).rsplit(".", 1)[-1]
    if found not in classes:
        raise ValueError(f"{name}.class_path: must be {' or '.join(classes)}, not {found!r}")
    arguments = section.get("init_args") or {}
    where = f"{name}.init_args"
    return found, from_mapping(cls, arguments, where=where, error=ValueError, ignore_unknown=True)


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


class ISTFTHead(nn.Module):
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
        self.head = ISTFTHead(config)

    def forward(self, log_mel: Tensor) -> Tensor:
        """(N, M) → ((N - 1)·hop,) with "center" padding, (N·hop,) with "same"."""
        samples: Tensor = self.head(self.backbone(log_mel.mT[None]))
        return samples
