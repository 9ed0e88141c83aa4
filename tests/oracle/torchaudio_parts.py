"""The parts of torchaudio that upstream's inference uses; torchaudio's builds on PyPI load CUDA's libraries.

They follow torchaudio's documented formulas, with its names of buffers and modules.
"""

import math

import librosa.filters
import numpy as np
import soundfile
import torch
from torch import Tensor, nn


class Spectrogram(nn.Module):
    """|STFT| with a periodic Hann window: (..., samples) → (..., n_fft / 2 + 1, frames)."""

    window: Tensor

    def __init__(self, n_fft: int, win_length: int, hop_length: int, center: bool) -> None:
        super().__init__()
        self.n_fft, self.win_length, self.hop_length, self.center = n_fft, win_length, hop_length, center
        self.register_buffer("window", torch.hann_window(win_length))

    def forward(self, wave: Tensor) -> Tensor:
        spectrum = torch.stft(
            wave.reshape(-1, wave.shape[-1]),
            self.n_fft,
            self.hop_length,
            self.win_length,
            window=self.window,
            center=self.center,
            pad_mode="reflect",
            return_complex=True,
        )
        return spectrum.abs().reshape(*wave.shape[:-1], *spectrum.shape[-2:])


class MelScale(nn.Module):
    """HTK triangles from 0 to the Nyquist frequency, not normalised; buffer `fb` (bins, mels)."""

    fb: Tensor

    def __init__(self, sample_rate: int, n_fft: int, n_mels: int) -> None:
        super().__init__()
        triangles = librosa.filters.mel(
            sr=sample_rate, n_fft=n_fft, n_mels=n_mels, fmin=0.0, htk=True, norm=None, dtype=np.float64
        )
        self.register_buffer("fb", torch.from_numpy(triangles.T.astype(np.float32)))

    def forward(self, magnitude: Tensor) -> Tensor:
        return (magnitude.transpose(-1, -2) @ self.fb).transpose(-1, -2)


class MelSpectrogram(nn.Module):
    """Magnitude mel-spectrogram: (..., samples) → (..., mels, frames). Keys as torchaudio names them."""

    def __init__(
        self,
        sample_rate: int = 16000,
        n_fft: int = 400,
        win_length: int | None = None,
        hop_length: int | None = None,
        n_mels: int = 128,
        power: float = 2.0,
        center: bool = True,
        normalized: bool = False,
        norm: str | None = None,
    ) -> None:
        super().__init__()
        if power != 1 or normalized or norm is not None:
            raise ValueError("upstream uses power 1 without normalisation; nothing else is written here")
        self.win_length = win_length or n_fft
        self.hop_length = hop_length or self.win_length // 2
        self.spectrogram = Spectrogram(n_fft, self.win_length, self.hop_length, center)
        self.mel_scale = MelScale(sample_rate, n_fft, n_mels)

    def forward(self, wave: Tensor) -> Tensor:
        return self.mel_scale(self.spectrogram(wave))  # type: ignore[no-any-return]


class Resample(nn.Module):
    """Hann-windowed sinc interpolation, 6 zero crossings a side, roll-off 0.99, polyphase.

    Output m is the sum over inputs n of x[n]·k(m/new − n/old), with k(t) = c·sinc(2·f·t)·cos²(π·f·t/6)
    inside |2·f·t| < 6, f = 0.99·min(old, new)/2 and c = 0.99·min(old, new)/old.
    """

    ZERO_CROSSINGS = 6
    ROLLOFF = 0.99
    kernels: Tensor

    def __init__(self, orig_freq: int = 16000, new_freq: int = 16000) -> None:
        super().__init__()
        divisor = math.gcd(int(orig_freq), int(new_freq))
        self.old, self.new = int(orig_freq) // divisor, int(new_freq) // divisor
        band = min(self.old, self.new) * self.ROLLOFF
        self.reach = math.ceil(self.ZERO_CROSSINGS * self.old / band)
        taps = np.arange(-self.reach, self.reach + self.old) / self.old
        phases = np.arange(self.new) / self.new
        t = np.clip((taps - phases[:, None]) * band, -self.ZERO_CROSSINGS, self.ZERO_CROSSINGS)
        kernels = np.sinc(t) * np.cos(t * np.pi / self.ZERO_CROSSINGS / 2) ** 2 * band / self.old
        self.register_buffer("kernels", torch.from_numpy(kernels[:, None, :].astype(np.float32)))

    def forward(self, wave: Tensor) -> Tensor:
        if self.old == self.new:
            return wave
        rows = wave.reshape(-1, 1, wave.shape[-1])
        padded = nn.functional.pad(rows, (self.reach, self.reach + self.old))
        phases = nn.functional.conv1d(padded, self.kernels, stride=self.old)
        length = math.ceil(self.new * wave.shape[-1] / self.old)
        mixed = phases.transpose(1, 2).reshape(len(rows), -1)[:, :length]
        return mixed.reshape(*wave.shape[:-1], length)


def load(path: str) -> tuple[Tensor, int]:
    samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    return torch.from_numpy(np.ascontiguousarray(samples.T)), rate


def hz_to_mel(hz: float, mel_scale: str = "htk") -> float:
    return 2595.0 * math.log10(1.0 + hz / 700.0)


def mel_to_hz(mels: Tensor, mel_scale: str = "htk") -> Tensor:
    return 700.0 * (10.0 ** (mels / 2595.0) - 1.0)
