"""What travels the route: Request → Segment → Packet. Plain values, no behaviour beyond validation."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.contract.bundle import Sampling

FloatArray = NDArray[np.float32]


class Encoding(enum.Enum):
    """How audio leaves the daemon."""

    WAV = "wav"
    """RIFF header, then 16-bit little-endian mono samples."""
    PCM16 = "pcm16"
    """16-bit little-endian mono samples without a header."""


class Segmentation(enum.Enum):
    """How a text is cut into segments."""

    UPSTREAM = "upstream"
    """As upstream's `chunk_text` does: as long as the reference leaves room for."""
    LOW_LATENCY = "low_latency"
    """A short first segment, then growing ones: first sound early."""


@dataclass(frozen=True)
class Request:
    """One synthesis, validated and with every default filled in."""

    text: str
    voice: str
    nfe: int
    seed: int
    guidance: float
    segmentation: Segmentation
    speaking_rate: float = 1.0
    encoding: Encoding = Encoding.WAV
    sample_rate_hz: int = 24_000


@dataclass(frozen=True, eq=False)
class Reference:
    """A reference voice, ready to condition on. A cached one equals a fresh one bit for bit."""

    name: str
    transcript: str
    """As upstream completes it: ends in ". " or "。"."""
    samples: FloatArray
    """(samples,) mono at the model's rate, levelled to at least the target RMS."""
    log_mel: FloatArray
    """(frames, mels)"""
    rms: float
    """Measured on the mono audio at its own rate, before levelling; the reply is scaled back to it."""


@dataclass(frozen=True, eq=False)
class Segment:
    """A piece of a request that is synthesised in one go: everything that the engine needs."""

    index: int
    text: str
    ids: NDArray[np.int32]
    """(tokens,) vocabulary indices of reference transcript + text, before the +1 shift."""
    frames: int
    """N: reference and generated frames together."""
    reference_log_mel: FloatArray
    """(condition frames, mels)"""
    reference_frames: int
    """R: the output starts at this frame (condition frames is R + 1 for Vocos mels, R for BigVGAN's)."""
    noise: FloatArray
    """(N, mels)"""
    times: NDArray[np.float64]
    """(NFE + 1,) strictly increasing time grid from 0 to 1."""
    guidance: float
    gain: float = 1.0
    """Multiplies the samples: restores the level of a quiet reference."""
    sampling: Sampling = "exact"


@dataclass(frozen=True, eq=False)
class Packet:
    """A stretch of finished audio of one request, cross-faded into what came before."""

    samples: FloatArray
    """(samples,) mono at the requested rate."""
    segment: int
    last: bool = False


@dataclass(frozen=True)
class Timings:
    """Where the time of one request went; seconds."""

    queue_s: float = 0.0
    first_audio_s: float = 0.0
    """From arrival to the first packet."""
    condition_s: float = 0.0
    steps_s: float = 0.0
    vocoder_s: float = 0.0
    total_s: float = 0.0
    audio_s: float = 0.0
    segments: int = 0
    nfe: int = 0

    @property
    def rtf(self) -> float:
        """Real-time factor: wall time per second of audio; infinite when there is no audio."""
        return self.total_s / self.audio_s if self.audio_s else float("inf")
