"""Vocos' backbone with a source-filter head: the phases of voiced speech come from the pitch.

    S = e^h · E + e^n · Z

h, n: predicted for each bin and frame. E: short-time spectrum of band-limited pulses of the predicted pitch.
Z: fixed complex noise. Phases need not be learned, so losses on spectra suffice (NSF, arXiv 1810.11946;
hibari-tts 0.2.1 has both terms, too, and a phase correction whose absence is inaudible).
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from export.model.exact import wide
from export.model.vocos import Backbone, VocosConfig

LOWEST_HZ, HIGHEST_HZ, PITCHES = 50.0, 600.0, 128
"""Range of the pitch, and number of frequencies in its distribution."""
SHARPNESS = 4.0
"""Exponent on the distribution over pitches before its mean is computed."""
MEL_SCALE = 4.0
BAND_HZ = 5_000.0
"""Upper end of the harmonics. Above it there is only noise."""
PULSE_BINS = 224
"""Bins of the pulses' spectrum, up to BAND_HZ and the width of a window's peak above it."""
MAX_LOG_MAGNITUDE = 6.0
NEAR_A_PULSE = 2e-3
"""Half-sine below which the pulse has its limit value."""
NOISE_FRAMES = 256
"""Frames after which the noise repeats."""


class Pitch(nn.Module):
    """Pitch of each frame, from a distribution over PITCHES frequencies."""

    def __init__(self, mels: int, width: int = 64, layers: int = 4) -> None:
        super().__init__()
        sizes = [mels, *[width] * layers]
        self.convs = nn.ModuleList(nn.Conv1d(a, b, 5, padding=2) for a, b in pairwise(sizes))
        self.out = nn.Linear(width, PITCHES + 1)

    def forward(self, log_mel: Tensor) -> tuple[Tensor, Tensor]:
        """Log-mel (B, N, M) → logits (B, N, PITCHES) and voicing (B, N), positive if voiced."""
        x = log_mel.mT / MEL_SCALE
        for conv in self.convs:
            x = F.gelu(conv(x))
        out = self.out(x.mT)
        return out[..., :-1], out[..., -1]

    def hz(self, log_mel: Tensor) -> Tensor:
        """Hz (B, N), 0 if unvoiced."""
        logits, voicing = self(log_mel)
        log_hz = ((SHARPNESS * logits).softmax(dim=-1) * centres(log_mel.device)).sum(dim=-1)
        return log_hz.exp() * (voicing > 0)


def centres(device: torch.device) -> Tensor:
    """Logarithms of the PITCHES frequencies."""
    return torch.linspace(math.log(LOWEST_HZ), math.log(HIGHEST_HZ), PITCHES, device=device)


class SourceFilterHead(nn.Module):
    """Magnitudes of harmonics (B, N, PULSE_BINS) and of noise (B, N, bins) from features (B, N, C)."""

    noise: Tensor

    def __init__(self, config: VocosConfig) -> None:
        super().__init__()
        self.bins = config.n_fft // 2 + 1
        self.out = nn.Linear(config.dim, PULSE_BINS + self.bins)
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(NOISE_FRAMES, 2 * self.bins, generator=generator) * math.sqrt(0.5)
        self.register_buffer("noise", noise.half().float())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = self.out(x).clamp(max=MAX_LOG_MAGNITUDE).exp()
        harmonics, noise = found.split((PULSE_BINS, self.bins), dim=-1)
        return harmonics, noise


class Source(nn.Module):
    """Log-mel (N, M) → samples ((N - 1)·hop,)."""

    def __init__(self, config: VocosConfig) -> None:
        super().__init__()
        self.config = config
        self.pitch = Pitch(config.mels)
        self.backbone = Backbone(config)
        self.head = SourceFilterHead(config)

    def forward(self, log_mel: Tensor) -> Tensor:
        samples: Tensor = self.synthesise(log_mel[None])[0]
        return samples

    def synthesise(self, log_mel: Tensor, phase: Tensor | None = None, roll: int = 0) -> Tensor:
        """(B, N, M) → (B, (N - 1)·hop).

        In training, pulses begin at `phase` (B,), and the noise is rolled.
        """
        with torch.no_grad():
            spectrum = self._pulses(self.pitch.hz(log_mel), phase)
        harmonics, loudness = self.head(wide(self.backbone(log_mel.mT)))
        frames = torch.arange(roll, roll + log_mel.shape[1], device=log_mel.device) % NOISE_FRAMES
        real, imaginary = self.head.noise[frames].chunk(2, dim=-1)
        config = self.config
        excited = F.pad(spectrum * harmonics, (0, config.n_fft // 2 + 1 - PULSE_BINS))
        made = excited + torch.complex(real * loudness, imaginary * loudness)
        return torch.istft(
            made.mT,
            config.n_fft,
            config.hop,
            window=torch.hann_window(config.n_fft, dtype=made.real.dtype, device=made.device),
        )

    def _pulses(self, hz: Tensor, phase: Tensor | None) -> Tensor:
        """Spectra (B, N, PULSE_BINS) of the pulses, in which a harmonic of unit amplitude peaks at 1."""
        config = self.config
        wave = pulses(hz, config.hop, config.sample_rate, config.n_fft // 2, phase)
        window = torch.hann_window(config.n_fft, device=hz.device) * (4 / config.n_fft)
        return torch.fft.rfft(wave.unfold(1, config.n_fft, config.hop) * window)[..., :PULSE_BINS]


def pulses(hz: Tensor, hop: int, rate: int, margin: int, phase: Tensor | None = None) -> Tensor:
    """Band-limited pulses of a pitch (B, N). Its frames are centred at multiples of `hop`.

    (B, (N - 1)·hop + 2·margin): Σ cos kφ for k = 1…H = sin((H + ½)φ) / 2 sin(φ/2) - ½, with H harmonics below
    BAND_HZ. The pitch is linear between frames, and constant beyond the ends; `margin` is some hops.
    """
    ends = margin // hop
    hz = torch.cat([hz[:, :1].expand(-1, ends), hz, hz[:, -1:].expand(-1, ends)], dim=1)
    now, then = hz[:, :-1, None], hz[:, 1:, None]
    # Next to an unvoiced frame, the pitch between the two frames is the voiced one's.
    now, then = torch.where(now > 0, now, then), torch.where(then > 0, then, now)
    step = torch.arange(hop, device=hz.device) / hop
    voiced = ((step < 0.5) & (hz[:, :-1, None] > 0)) | ((step >= 0.5) & (hz[:, 1:, None] > 0))
    cycles = (now + (then - now) * step / 2) * step * (hop / rate)
    whole = (now + then)[..., 0] / 2 * (hop / rate) % 1.0
    begun = torch.cumsum(whole, dim=1) - whole
    if phase is not None:
        begun = begun + phase[:, None]
    turn = (cycles + begun[..., None]) % 1.0 * (2 * math.pi)
    harmonics = (BAND_HZ / torch.maximum(now, then).clamp_min(LOWEST_HZ)).floor() + 0.5
    half = 2 * (turn / 2).sin()
    near = half.abs() <= NEAR_A_PULSE
    wave = torch.where(near, harmonics, (harmonics * turn).sin() / half.masked_fill(near, 1.0)) - 0.5
    return (wave * voiced).flatten(1)
