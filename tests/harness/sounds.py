"""Generated sounds, and files of them."""

import io

import numpy as np
import soundfile

RATE_HZ = 24_000


def burst(
    seconds: float, rms: float = 0.1, rate_hz: int = RATE_HZ, channels: int = 1, seed: int = 0
) -> np.ndarray:
    """(frames, channels) noise of a level, float64."""
    shape = (round(seconds * rate_hz), channels)
    return np.random.default_rng(seed).standard_normal(shape) * rms


def silence(seconds: float, rate_hz: int = RATE_HZ, channels: int = 1) -> np.ndarray:
    """(frames, channels) digital silence."""
    return np.zeros((round(seconds * rate_hz), channels))


def to_file(wave: np.ndarray, rate_hz: int = RATE_HZ, format: str = "WAV", subtype: str = "PCM_16") -> bytes:
    """The bytes of an audio file."""
    stream = io.BytesIO()
    with soundfile.SoundFile(stream, "w", rate_hz, wave.shape[1], subtype, format=format) as file:
        # libvorbis overflows its stack on a whole minute.
        for start in range(0, len(wave), rate_hz):
            file.write(wave[start : start + rate_hz])
    return stream.getvalue()


def wav(
    seconds: float = 1.0,
    *,
    pitch_hz: float = 220.0,
    level: float = 0.02,
    rate_hz: int = 16_000,
    kind: str = "WAV",
) -> bytes:
    """A file of a hum, by default at a rate that differs from the model's."""
    t = np.arange(int(rate_hz * seconds))[:, None] / rate_hz
    return to_file(level * np.sin(2 * np.pi * pitch_hz * t), rate_hz, kind)
