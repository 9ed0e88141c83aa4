"""Segments of real speech on which backends are compared."""

from __future__ import annotations

import itertools
import wave
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from appliance.contract.bundle import Manifest, Sampling
from appliance.contract.mel import MelSpec, log_mel
from appliance.contract.schedule import noise
from appliance.contract.tokens import Vocabulary
from appliance.request import FloatArray, Segment

VOICES = resources.files("appliance") / "demo" / "voices"
FEMALE, MALE = "heart", "michael"
"""Voices of the demo."""
TARGET_RMS = 0.1
TEXT = (
    "The ferry leaves the harbour at a quarter past nine, and by noon it has reached the outer islands. "
    "Bring a warm coat, for the wind on deck is colder than it looks from the shore. "
    "When the bell rings twice, walk down to the lower door and wait until the bridge has been let down. "
    "Nobody checks the tickets on the way back, but keep yours, since the bus driver may ask to see it. "
)


def transcript(voice: str) -> str:
    return VOICES.joinpath(f"{voice}.txt").read_text("utf-8").strip() + " "


def samples(voice: str, rate_hz: int) -> FloatArray:
    """(samples,) of a demo voice, at upstream's level of a reference."""
    with VOICES.joinpath(f"{voice}.wav").open("rb") as stream, wave.open(stream) as file:
        if (file.getnchannels(), file.getsampwidth()) != (1, 2):
            raise ValueError(f"{voice}.wav: must be 16-bit mono")
        stored, own_rate_hz = file.readframes(file.getnframes()), file.getframerate()
    recorded = np.frombuffer(stored, "<i2") / 32768.0
    if own_rate_hz != rate_hz:
        length = len(recorded) * rate_hz // own_rate_hz
        recorded = np.interp(np.arange(length) * own_rate_hz / rate_hz, np.arange(len(recorded)), recorded)
    rms = float(np.sqrt(np.mean(np.square(recorded))))
    return (recorded * max(TARGET_RMS / rms, 1.0)).astype(np.float32)


class DemoSpeech:
    """Speech of a demo voice at any length, with a text to match."""

    def __init__(self, manifest: Manifest, vocabulary: Vocabulary) -> None:
        spec: MelSpec = manifest.mel
        self._manifest, self._vocabulary = manifest, vocabulary
        self._log_mel = log_mel(samples(FEMALE, spec.sample_rate_hz), spec)

    def log_mel(self, frames: int) -> FloatArray:
        """(frames, M)"""
        return np.resize(self._log_mel, (frames, self._log_mel.shape[1]))

    def segment(
        self,
        reply: int,
        reference: int,
        times: NDArray[np.float64],
        sampling: Sampling,
        *,
        guidance: float,
        seed: int = 0,
    ) -> Segment:
        """Segment whose latents begin at times[0] on the path from noise to the voice."""
        text = transcript(FEMALE)
        frames = reply + reference
        tokens = max(round(len(text) * frames / len(self._log_mel)), 1)
        drawn = noise(seed, 0, frames, self._manifest.mel.mels)
        t = np.float32(times[0])
        drawn[reference:] = (1 - t) * drawn[reference:] + t * self.log_mel(reply)
        return Segment(
            index=0,
            text="",
            ids=self._vocabulary.ids("".join(itertools.islice(itertools.cycle(text + TEXT), tokens))),
            frames=frames,
            reference_log_mel=self.log_mel(reference),
            reference_frames=reference,
            noise=drawn,
            times=times,
            guidance=guidance,
            sampling=sampling,
        )
