"""The last two hours, minute by minute: clocks, temperature, engine, speech, first audio.

Kept in memory only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from appliance.box.clocks.clocks_json import Clocks
from appliance.box.clocks.reason import Reason
from appliance.box.root import Root
from appliance.box.sensors import hwmon as sensors
from appliance.serve.metrics import SECONDS, Metrics

MINUTE_S = 60.0
MOST = 120
"""Number of minutes in memory."""
CLOCKS = ("cpu", "gpu", "emc")


class Minutes:
    """Collects a row of figures for each minute."""

    def __init__(self, metrics: Metrics, root: Root, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics, self._root, self._clock = metrics, root, clock
        self._before = clock(), metrics.spoken_so_far()
        self.rows: tuple[dict[str, Any], ...] = ()
        """Rows, the latest last. Their keys: appliance/README.md, "Minutes"."""

    def add(self, clocks: Clocks, engine: str) -> None:
        """Add a row for the time since the previous row."""
        begun_s, before = self._before
        now_s, now = self._before = self._clock(), self._metrics.spoken_so_far()
        speech_s, *counts = np.subtract(now, before).tolist()
        ranks = 0.5 * counts[-1], 0.95 * counts[-1]
        p50_s, p95_s = np.interp(ranks, (0.0, *counts), (0.0, *SECONDS, SECONDS[-1])).tolist()
        row = {
            "ended": time.time(),
            "clocks": clocks.state,
            "mhz": {} if clocks.reason is Reason.STALE else _mhz(clocks.domains),
            "celsius": sensors.junction(self._root),
            "engine": engine,
            "speech_s": speech_s * MINUTE_S / (now_s - begun_s),
            "first_audio_p50_s": p50_s if counts[-1] else None,
            "first_audio_p95_s": p95_s if counts[-1] else None,
        }
        self.rows = (*self.rows, row)[-MOST:]


def _mhz(domains: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Rate of each of CLOCKS that can be read; for the CPU, of its slowest core."""
    named = [(name.rstrip("0123456789"), domain.get("current")) for name, domain in domains.items()]
    rates = {kind: [hz for name, hz in named if name == kind and hz is not None] for kind in CLOCKS}
    return {kind: min(hz) / 1e6 for kind, hz in rates.items() if hz}
