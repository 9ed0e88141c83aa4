"""Vocoders: log-mels to samples."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from appliance.contract.bundle import Vocoder
from appliance.contract.mel import MelSpec
from export.graphs.fourier import InverseSTFTGraph, LowBins
from export.graphs.parts import ConvNeXt, Matrix, Weights, kept, kept_float, layer_norm
from export.model import bigvgan, source


class VocosBlock(ConvNeXt):
    """ConvNeXt block of Vocos' backbone."""

    def __init__(self, weights: Weights, name: str, compute: torch.dtype) -> None:
        super().__init__(weights, name, compute)
        gamma = weights.get(f"{name}.gamma")
        gamma = torch.ones(weights[f"{name}.pwconv2.bias"].shape[0]) if gamma is None else gamma
        self.down = Matrix(
            weights[f"{name}.pwconv2.weight"] * gamma[:, None],
            weights[f"{name}.pwconv2.bias"] * gamma,
            compute,
        )

    def forward(self, x: Tensor) -> Tensor:  # (1, dim, N)
        return x + self.down(self.wide(x)).transpose(1, 2)


class VocosBackbone(nn.Module):
    """log_mel (N, M) → features (N, dim) in float32."""

    def __init__(self, weights: Weights, compute: torch.dtype) -> None:
        super().__init__()
        self.compute = compute
        self.embed = kept(weights["backbone.embed.weight"], compute)
        self.embed_bias = kept(weights["backbone.embed.bias"], compute)
        self.norms = nn.ParameterDict(
            {
                f"{name}_{k}": nn.Parameter(weights[f"backbone.{name}.{k}"].float(), requires_grad=False)
                for name in ("norm", "final_layer_norm")
                for k in ("weight", "bias")
            }
        )
        depth = sum(name.endswith("pwconv1.weight") for name in weights)
        self.blocks = nn.ModuleList(
            [VocosBlock(weights, f"backbone.convnext.{i}", compute) for i in range(depth)]
        )

    def features(self, log_mel: Tensor) -> Tensor:
        x = log_mel.T[None].to(self.compute)
        x = F.conv1d(x, self.embed, self.embed_bias, padding=self.embed.shape[2] // 2)
        x = layer_norm(x.transpose(1, 2), self.norms["norm_weight"], self.norms["norm_bias"])
        x = x.to(self.compute).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return layer_norm(
            x.transpose(1, 2), self.norms["final_layer_norm_weight"], self.norms["final_layer_norm_bias"]
        )[0]


class VocosGraph(VocosBackbone):
    """log_mel (N, M) → samples (L), with the head in float32. arXiv 2306.00814."""

    MAX_MAGNITUDE = 100.0

    def __init__(self, weights: Weights, spec: MelSpec, vocoder: Vocoder, compute: torch.dtype) -> None:
        super().__init__(weights, compute)
        self.head = Matrix(weights["head.out.weight"], weights["head.out.bias"], torch.float32)
        self.inverse_stft = InverseSTFTGraph(spec, vocoder)

    def forward(self, log_mel: Tensor) -> Tensor:
        log_magnitude, phase = self.head(self.features(log_mel)).chunk(2, dim=-1)
        magnitude = log_magnitude.exp().clamp(max=self.MAX_MAGNITUDE)
        return self.inverse_stft(torch.cat([magnitude * phase.cos(), magnitude * phase.sin()], dim=-1))


class SourceFilter(VocosBackbone):
    """log_mel (N, M) → samples (L) of `export.model.source`. Everything but the backbone is in float32."""

    def __init__(self, weights: Weights, spec: MelSpec, vocoder: Vocoder, compute: torch.dtype) -> None:
        super().__init__(weights, compute)
        self.hop = spec.hop
        self.margin = spec.n_fft // 2
        self.rate = spec.sample_rate_hz
        self.head = Matrix(weights["head.out.weight"], weights["head.out.bias"], torch.float32)
        self.noise = kept(weights["head.noise"], torch.float16)
        self.inverse_stft = InverseSTFTGraph(spec, vocoder)
        self.pitch = source.Pitch(spec.mels)
        own = {name.removeprefix("pitch."): w for name, w in weights.items() if name.startswith("pitch.")}
        self.pitch.load_state_dict({name: w.float() for name, w in own.items()})
        self.pitch.requires_grad_(False)
        # In a trace as a linear layer, its weight would lose its name, by which `rebuild` finds it.
        self.pitch.add_module("out", Matrix(own["out.weight"], own["out.bias"], torch.float32))
        self.silent = spec.n_fft // 2 + 1 - source.PULSE_BINS
        self.low_bins = LowBins(spec.n_fft, source.PULSE_BINS)

    def forward(self, log_mel: Tensor) -> Tensor:
        filters = self.head(self.features(log_mel)).clamp(max=source.MAX_LOG_MAGNITUDE).exp()
        harmonics, loudness = filters.split((source.PULSE_BINS, filters.shape[1] - source.PULSE_BINS), dim=1)
        pulses = source.pulses(self.pitch.hz(log_mel[None]), self.hop, self.rate, self.margin)[0]
        blocks = pulses.unflatten(0, (-1, self.hop))
        count = log_mel.shape[0]
        parts = [blocks[n : count + n] for n in range(InverseSTFTGraph.OVERLAP)]
        spectrum = self.low_bins(torch.cat(parts, dim=1))
        excited = [F.pad(part * harmonics, (0, self.silent)) for part in spectrum]
        noise = self.noise.index_select(0, torch.arange(count) % source.NOISE_FRAMES).float()
        return self.inverse_stft(torch.cat(excited, dim=1) + noise * loudness.repeat(1, 2))


class Scaled(nn.Module):
    """A vocoder of log-mels that were divided by a scale."""

    def __init__(self, vocoder: nn.Module, scale: float) -> None:
        super().__init__()
        self.vocoder, self.scale = vocoder, scale

    def forward(self, log_mel: Tensor) -> Tensor:
        samples: Tensor = self.vocoder(log_mel * self.scale)
        return samples


def scaled(vocoder: nn.Module, scale: float) -> nn.Module:
    return vocoder if scale == 1.0 else Scaled(vocoder, scale)


class PolyphaseActivation(nn.Module):
    """BigVGAN's anti-aliased activation as two phases of ordinary convolutions. Channels are the batch.

    A filter's odd taps give the even samples of the doubled rate, its even taps the odd ones.
    """

    def __init__(self, reference: bigvgan.Activation, compute: torch.dtype) -> None:
        super().__init__()
        self.compute = compute
        alpha, beta = reference.act.scales()
        self.alpha = kept_float(alpha[..., None])  # (C, 1, 1), as the gain
        self.gain = kept_float(1.0 / beta[..., None])
        rise = bigvgan.RATIO * reference.upsample.filter.flatten().flip(0)
        fall = reference.downsample.lowpass.filter.flatten()
        self.rise = kept(torch.stack([rise[0::2], rise[1::2]])[:, None], compute)  # (2, 1, taps / 2)
        self.fall = kept(torch.stack([fall[1::2], fall[0::2]])[None], compute)  # (1, 2, taps / 2)

    def forward(self, x: Tensor) -> Tensor:  # (1, C, L)
        half = self.rise.shape[2] // 2
        padded = F.pad(x, (half, half), mode="replicate").transpose(0, 1)
        both = F.conv1d(padded, self.rise)  # (C, 2, L + 1)
        even, odd = both[:, :1, :-1], both[:, 1:, 1:]
        even = self._snake(even)
        odd = self._snake(odd)
        first, last = even[..., :1], odd[..., -1:]  # the ends of the doubled signal, repeated beyond it
        even = torch.cat([first] * (half - 1) + [even] + [last] * half, dim=2)
        odd = torch.cat([first] * half + [odd] + [last] * (half - 1), dim=2)
        return F.conv1d(torch.cat([even, odd], dim=1), self.fall).transpose(0, 1)

    def _snake(self, x: Tensor) -> Tensor:  # (C, 1, L)
        x = x.float()
        wave = (x * self.alpha).sin()
        return (x + wave * wave * self.gain).to(self.compute)


class BigVGANGraph(nn.Module):
    """log_mel (N, M) → samples (N·hop), with the last convolution in float32."""

    def __init__(self, reference: bigvgan.BigVGAN, compute: torch.dtype) -> None:
        """Use `reference`. Its modules are replaced in place."""
        super().__init__()
        self.compute = compute
        self.model = reference.to(compute)
        self.model.conv_post.float()
        for parent in list(self.model.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, bigvgan.Activation):
                    setattr(parent, name, PolyphaseActivation(child, compute))

    def forward(self, log_mel: Tensor) -> Tensor:
        features = self.model.features(log_mel.mT[None].to(self.compute))
        samples: Tensor = self.model.head(features.float())
        return samples
