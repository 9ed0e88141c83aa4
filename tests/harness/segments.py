"""Segments that a planner could have made, for the fake engine and for real ones."""

from collections.abc import Generator
from typing import Any, TypeVar, cast

import numpy as np

from appliance.contract.schedule import time_grid
from appliance.request import Segment

HOP = 256
RATE_HZ = 24_000
T = TypeVar("T")
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


def drawn(
    frames: int = 80,
    *,
    nfe: int = 5,
    seed: int = 0,
    reference: int = 0,
    mels: int = 100,
    vocab: int = 33,
    **given: Any,
) -> Segment:
    """A segment of random tokens, reference and noise; by default a third of it is reference."""
    rng = np.random.default_rng([seed, frames])
    reference = reference or max(frames // 3, 1)
    return segment(
        "",
        frames=frames,
        ids=rng.integers(0, vocab, max(frames // 7, 2), dtype=np.int32),
        reference_log_mel=rng.normal(-4.0, 2.0, (reference, mels)).astype(np.float32),
        reference_frames=reference - 1,
        noise=rng.standard_normal((frames, mels), dtype=np.float32),
        times=time_grid(nfe),
        **given,
    )


def done(work: Generator[int, None, T]) -> T:
    """Result of work that is done in slices."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            return cast(T, end.value)
