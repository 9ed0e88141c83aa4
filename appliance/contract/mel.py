"""The log-mel spectrogram of a model: ln(max(x, floor)) / scale.

`vocos`: centred frames, magnitudes, HTK triangles of height 1 (torchaudio's `MelSpectrogram` with power 1).
`bigvgan`: a padding of (n_fft - hop) / 2, Slaney's scale and area norm (librosa's `mel`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from appliance.fields import Between, Count, Ranged

Kind = Literal["vocos", "bigvgan", "hifigan"]
"""Kinds of log-mels, by the vocoder that reads them.

`hifigan`: SpeechBrain's filters, without padding at the ends.
"""

FLOOR = 1e-5
"""Floor of upstream's F5-TTS: silence is ln 1e-5 = -11.5."""
BIGVGAN_POWER_FLOOR = 1e-9
HIFIGAN_TOP_HZ = 8000.0
MEL_VERSION = 1
"""Version of the computation, increased if a spec would give other numbers."""


@dataclass(frozen=True)
class MelSpec(Ranged):
    """Parameters of the mel spectrogram."""

    kind: Kind
    sample_rate_hz: Count = 24_000
    mels: Count = 100
    hop: Count = 256
    n_fft: Count = 1024
    win: Count = 1024
    """Samples of the Hann window, centred in n_fft."""
    scale: Annotated[float, Between(1e-9, 1e9)] = 1.0
    """Divisor of log-mels for the model. The vocoder's graph multiplies by it again."""
    floor: Annotated[float, Between(1e-15, 0.99)] = FLOOR
    rounded: bool = False
    """True if a sound has round(samples / hop) frames and a reply begins after the last, as in ZipVoice."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.hop <= self.win <= self.n_fft:
            raise ValueError(f"need hop ≤ win ≤ n_fft, not {self.hop}, {self.win}, {self.n_fft}")

    @property
    def frames_per_second(self) -> float:
        return self.sample_rate_hz / self.hop

    @property
    def padding(self) -> int:
        """Samples reflected at either end before framing."""
        if self.kind == "hifigan":
            return 0
        return self.n_fft // 2 if self.kind == "vocos" else (self.n_fft - self.hop) // 2

    @property
    def top_hz(self) -> float:
        """Upper end of the filters."""
        half = self.sample_rate_hz / 2
        return min(half, HIFIGAN_TOP_HZ) if self.kind == "hifigan" else half

    @property
    def fingerprint(self) -> str:
        sizes = (self.sample_rate_hz, self.mels, self.hop, self.n_fft, self.win, MEL_VERSION)
        scale = "" if self.scale == 1.0 else f"-{self.scale!r}"
        floor = "" if self.floor == FLOOR else f"-{self.floor!r}"
        return f"{self.kind}-{'-'.join(map(str, sizes))}{scale}{floor}{'-rounded' * self.rounded}"

    def reply_begins(self, samples: int) -> int:
        """Frame at which the reply begins after a reference of this many samples."""
        return self.frames(samples) if self.rounded else samples // self.hop

    def frames(self, samples: int) -> int:
        if self.rounded:
            return (2 * samples + self.hop) // (2 * self.hop)
        return max((samples + 2 * self.padding - self.n_fft) // self.hop + 1, 0)


def log_mel(samples: NDArray[np.float32], spec: MelSpec) -> NDArray[np.float32]:
    """(samples,) at the spec's rate → (frames, mels), within 1e-4 of upstream's float32.

    Raises ValueError for more than one axis, or for too few samples to reflect at the ends.
    """
    if samples.ndim != 1:
        raise ValueError(f"samples must have one axis, not shape {samples.shape}")
    if len(samples) < (least := max(spec.padding + 1, spec.n_fft - 2 * spec.padding)):
        raise ValueError(f"a log-mel needs at least {least} samples, not {len(samples)}")
    padded = np.pad(samples.astype(np.float64), spec.padding, mode="reflect")
    framed = sliding_window_view(padded, spec.n_fft)[:: spec.hop]  # (frames, n_fft)
    spectrum = np.fft.rfft(framed * _window(spec.win, spec.n_fft))  # (frames, n_fft / 2 + 1)
    power = spectrum.real**2 + spectrum.imag**2
    magnitude = np.sqrt(power + BIGVGAN_POWER_FLOOR if spec.kind == "bigvgan" else power)
    levels: NDArray[np.float64] = np.log(np.maximum(magnitude @ filterbank(spec), spec.floor))
    return (levels[: spec.frames(len(samples))] / spec.scale).astype(np.float32)


@functools.lru_cache(maxsize=8)
def filterbank(spec: MelSpec) -> NDArray[np.float64]:
    """(n_fft / 2 + 1, mels): triangles from 0 Hz to `top_hz`. Read-only."""
    top = spec.top_hz
    bins = np.linspace(0.0, spec.sample_rate_hz / 2, spec.n_fft // 2 + 1)
    corners = _htk_corners(top, spec.mels) if spec.kind == "vocos" else _slaney_corners(top, spec.mels)
    rising = (bins[:, None] - corners[:-2]) / np.diff(corners)[:-1]
    falling = (corners[2:] - bins[:, None]) / np.diff(corners)[1:]
    triangles: NDArray[np.float64] = np.maximum(0.0, np.minimum(rising, falling))
    if spec.kind != "vocos":
        triangles *= 2.0 / (corners[2:] - corners[:-2])
    triangles.flags.writeable = False
    return triangles


def _htk_corners(top_hz: float, mels: int) -> NDArray[np.float64]:
    """(mels + 2,) hertz on the HTK book's scale: 2595 log10(1 + f / 700)."""
    top = 2595.0 * np.log10(1.0 + top_hz / 700.0)
    return 700.0 * (10.0 ** (np.linspace(0.0, top, mels + 2) / 2595.0) - 1.0)


def _slaney_corners(top_hz: float, mels: int) -> NDArray[np.float64]:
    """(mels + 2,) hertz on Slaney's scale: linear to 1 kHz, then 27 steps per factor 6.4."""
    linear_hz = 200.0 / 3.0
    knee_hz = 1000.0
    log_step = np.log(6.4) / 27.0
    knee = knee_hz / linear_hz
    top = top_hz / linear_hz if top_hz < knee_hz else knee + np.log(top_hz / knee_hz) / log_step
    scale = np.linspace(0.0, top, mels + 2)
    return np.where(scale < knee, linear_hz * scale, knee_hz * np.exp(log_step * (scale - knee)))


@functools.lru_cache(maxsize=8)
def _window(win: int, n_fft: int) -> NDArray[np.float32]:
    """(n_fft,) periodic Hann window between zeros."""
    # Rounded as in torch: near the ends 1 - cos loses digits, and a frame that barely overlaps the sound
    # depends on those values alone.
    angle = np.arange(win, dtype=np.float32) * np.float32(2.0 * np.pi / win)
    cosine = np.cos(angle, dtype=np.float64).astype(np.float32)
    hann = np.float32(0.5) - np.float32(0.5) * cosine
    left = (n_fft - win) // 2
    return np.pad(hann, (left, n_fft - win - left))
