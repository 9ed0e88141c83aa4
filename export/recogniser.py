"""Speech recogniser Moonshine tiny, offline and on a CPU, for English.

Sounds are (samples,), int16 or floats within ±1.
"""

from __future__ import annotations

import numpy as np
import soxr
from numpy.typing import NDArray

from appliance.request import FloatArray

Sound = NDArray[np.int16] | NDArray[np.float32] | NDArray[np.float64]

RATE_HZ = 16_000
"""Sample rate of all metrics."""
PADDING_S = 0.3
"""Seconds of silence added at either end. Without silence the recogniser loses words."""
RECOGNISER_OPTIONS = {"vad_threshold": 0, "vad_max_segment_duration": 30}
"""Options that switch off the recogniser's voice activity detection.

Its state outlives a call: in the silence before a sound it finds speech of the last one, transcribed as
"You". Sounds up to that many seconds are not cut.
"""


class Recogniser:
    """The recogniser. It runs at 10 to 20 times real time on a core."""

    def __init__(self) -> None:
        """Raises ImportError if moonshine-voice is missing."""
        import moonshine_voice

        self._transcriber = moonshine_voice.Transcriber(
            str(moonshine_voice.get_model_path("tiny-en")),
            moonshine_voice.ModelArch.TINY,
            options=RECOGNISER_OPTIONS,
        )

    def transcribe(self, sound: Sound, rate_hz: int) -> str:
        """Transcript of a sound, possibly empty. It does not depend on earlier calls."""
        silence = np.zeros(round(PADDING_S * RATE_HZ), np.float32)
        wave = np.concatenate([silence, resample(sound, rate_hz), silence])
        lines = self._transcriber.transcribe_without_streaming(wave.tolist(), RATE_HZ).lines
        return " ".join(line.text.strip() for line in lines)


def resample(sound: Sound, rate_hz: int) -> FloatArray:
    wave = np.asarray(sound)
    scaled = wave.astype(np.float32) / (32_768.0 if wave.dtype == np.int16 else 1.0)
    if rate_hz == RATE_HZ:
        return scaled
    resampled: FloatArray = soxr.resample(scaled, rate_hz, RATE_HZ).astype(np.float32)
    return resampled
