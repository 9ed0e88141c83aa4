"""The last two hours by minute: clocks, temperature, engine, speech, first audio. A restart forgets them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from appliance.box.clocks.clocks_json import Clocks
from appliance.box.clocks.reason import Reason
from appliance.box.root import Root
from appliance.box.sensors import hwmon as sensors
from appliance.serve.metrics import SECONDS, Metrics

MINUTE_S = 60.0
MOST = 120
"""Rows that are kept."""
CLOCKS = ("cpu", "gpu", "emc")
BOUNDS = (0.0, *SECONDS, SECONDS[-1])


@dataclass(frozen=True)
class Minute:
    ended: float
    """Unix time."""
    clocks: str
    """State of the clocks at the end."""
    mhz: Mapping[str, float]
    """gpu, emc, and the slowest core as cpu."""
    celsius: float | None
    """Of the hottest place on the chip."""
    engine: str
    """Backend, or resting."""
    speech_s: float
    """Seconds of speech per minute, of requests that ended."""
    first_audio_p50_s: float | None
    """Estimated from the buckets of f5_first_audio_seconds; None for a minute in which no request ended."""
    first_audio_p95_s: float | None


class Minutes:
    def __init__(self, metrics: Metrics, root: Root, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics, self._root, self._clock = metrics, root, clock
        self._before = clock(), metrics.spoken_so_far()
        self.rows: tuple[Minute, ...] = ()
        """The latest is the last."""

    def add(self, clocks: Clocks, engine: str) -> None:
        """Add a row of what has been since the row before."""
        begun_s, before = self._before
        now_s, now = self._before = self._clock(), self._metrics.spoken_so_far()
        speech_s, *counts = (b - a for a, b in zip(before, now, strict=True))
        p50_s, p95_s = np.interp((0.5 * counts[-1], 0.95 * counts[-1]), (0.0, *counts), BOUNDS).tolist()
        row = Minute(
            ended=time.time(),
            clocks=clocks.state,
            mhz={} if clocks.reason is Reason.STALE else _mhz(clocks.domains),
            celsius=sensors.junction(self._root),
            engine=engine,
            speech_s=speech_s * MINUTE_S / (now_s - begun_s),
            first_audio_p50_s=p50_s if counts[-1] else None,
            first_audio_p95_s=p95_s if counts[-1] else None,
        )
        self.rows = (*self.rows, row)[-MOST:]


def _mhz(domains: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, domain in domains.items():
        kind, hz = name.rstrip("0123456789"), domain.get("current")
        if kind in CLOCKS and hz is not None:
            found[kind] = min(hz / 1e6, found.get(kind, hz / 1e6))
    return found
