"""Segments that a planner could have made."""

from __future__ import annotations

from typing import Any

import numpy as np

from appliance.request import Segment

HOP = 256
RATE_HZ = 24_000
IDS = np.arange(3, dtype=np.int32)


def segment(
    text: str = "a", *, nfe: int = 4, frames: int = 60, reference_frames: int = 10, **given: Any
) -> Segment:
    """A segment of Vocos' mels, with zeros as its reference; `given` are other fields."""
    known: dict[str, Any] = {
        "index": 0,
        "ids": IDS,
        "reference_log_mel": np.zeros((reference_frames + 1, 8), np.float32),
        "times": np.linspace(0.0, 1.0, nfe + 1),
        "guidance": 2.0,
        "audio_s": (frames - reference_frames - 1) * HOP / RATE_HZ,
    }
    return Segment(text=text, frames=frames, reference_frames=reference_frames, **{**known, **given})


def pieces(name: str, segments: int, nfe: int = 4, frames: int = 60) -> list[Segment]:
    return [segment(f"{name}{i}", index=i, nfe=nfe, frames=frames) for i in range(segments)]
