"""The demo voice as what backends are compared on: real speech, at any length."""

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
from appliance.job import FloatArray, Segment

VOICES = resources.files("appliance") / "demo" / "voices"
VOICE = "slt"
TARGET_RMS = 0.1
TEXT = (
    "The ferry leaves the harbour at a quarter past nine, and by noon it has reached the outer islands. "
    "Bring a warm coat, for the wind on deck is colder than it looks from the shore. "
    "When the bell rings twice, walk down to the lower door and wait until the bridge has been let down. "
    "Nobody checks the tickets on the way back, but keep yours, since the bus driver may ask to see it. "
)


def transcript(voice: str) -> str:
    """Transcript of a demo voice's recording."""
    return VOICES.joinpath(f"{voice}.txt").read_text("utf-8").strip() + " "


def samples(voice: str, rate_hz: int) -> FloatArray:
    """(samples,) of a demo voice at the given rate, as loud as upstream makes a reference."""
    with VOICES.joinpath(f"{voice}.wav").open("rb") as stream, wave.open(stream) as file:
        if (file.getnchannels(), file.getsampwidth()) != (1, 2):
            raise ValueError(f"{voice}.wav: must be 16-bit mono")
        stored, own_rate_hz = file.readframes(file.getnframes()), file.getframerate()
    given = np.frombuffer(stored, "<i2") / 32768.0
    if own_rate_hz != rate_hz:
        length = len(given) * rate_hz // own_rate_hz
        given = np.interp(np.arange(length) * own_rate_hz / rate_hz, np.arange(len(given)), given)
    level = float(np.sqrt(np.mean(np.square(given))))
    return (given * max(TARGET_RMS / level, 1.0)).astype(np.float32)


class Speech:
    """The demo voice, repeated to any number of frames, and the tokens that it takes to say as much."""

    def __init__(self, manifest: Manifest, vocabulary: Vocabulary) -> None:
        spec: MelSpec = manifest.mel
        self._manifest, self._vocabulary = manifest, vocabulary
        self._log_mel = log_mel(samples(VOICE, spec.sample_rate_hz), spec)

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
        """`reply` frames after `reference` frames, begun at times[0] on the straight path to the voice."""
        frames = reply + reference
        drawn = noise(seed, 0, frames, self._manifest.mel.mels)
        t = np.float32(times[0])
        drawn[reference:] = (1 - t) * drawn[reference:] + t * self.log_mel(reply)
        return Segment(
            index=0,
            text="",
            ids=self._ids(frames),
            frames=frames,
            reference_log_mel=self.log_mel(reference),
            reference_frames=reference,
            noise=drawn,
            times=times,
            guidance=guidance,
            sampling=sampling,
        )

    def _ids(self, frames: int) -> NDArray[np.int32]:
        """Return as many tokens as the voice needs for so many frames."""
        said = transcript(VOICE)
        count = max(round(len(said) * frames / len(self._log_mel)), 1)
        return self._vocabulary.ids("".join(itertools.islice(itertools.cycle(said + TEXT), count)))
