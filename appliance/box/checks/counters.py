"""Counters that only rise, and their rates: over-current events, swapped pages, restarts.

Root keeps samples in /run, for one boot. A count below the previous one means that the counter was reset;
older samples are then ignored. Times are in seconds since boot.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated

from appliance.box import paths
from appliance.box.clocks.clocks_json import Count, Number
from appliance.box.system import Box
from appliance.fields import Between, Ranged

SCHEMA = 1
KEPT_S = 2 * 3600.0
APART_S = 10.0
"""A sample that follows another by less than this is dropped: a person may repeat `f5-health`."""
LEAST_S = 30.0
"""Shortest span for a rate; over a shorter one it is noise."""


@dataclass(frozen=True)
class Sample(Ranged):
    at: Number
    counts: Mapping[str, Count]


@dataclass(frozen=True)
class _CounterRecord(Ranged):
    """Samples of a boot. The fields are the keys of the file."""

    schema: Annotated[int, Between(SCHEMA, SCHEMA)]
    boot_id: str
    samples: tuple[Sample, ...]


@dataclass(frozen=True)
class Rise:
    """Increase of a counter within a span of time."""

    count: int
    span_s: float
    recorded: bool
    """False if there is no earlier sample. Count and span then begin at boot."""

    def per(self, seconds: float) -> float:
        """Mean count in that time. A shorter span is not extrapolated."""
        return self.count / max(self.span_s / seconds, 1.0)

    @property
    def summary(self) -> str:
        if not self.recorded:
            return f"{self.count} since boot {_duration(self.span_s)} ago (no earlier record)"
        return f"{self.count} in {_duration(self.span_s)}"


def rise(samples: Sequence[Sample], now: Sample, name: str, over_s: float) -> Rise | None:
    """Increase of a counter over the last `over_s` seconds, or the nearest span; None without samples."""
    if name not in now.counts:
        return None
    then = None
    for sample in _unbroken(samples, now, name):
        if now.at - sample.at >= LEAST_S:
            then = sample
        if now.at - sample.at >= over_s:
            break
    if then is None:
        return Rise(now.counts[name], now.at, recorded=False)
    return Rise(now.counts[name] - then.counts[name], now.at - then.at, recorded=True)


def _unbroken(samples: Sequence[Sample], now: Sample, name: str) -> Iterator[Sample]:
    """Samples back to the last reset of the counter, newest first."""
    count = now.counts[name]
    for sample in reversed(samples):
        if name not in sample.counts or sample.counts[name] > count or sample.at > now.at:
            return
        count = sample.counts[name]
        yield sample


def read(box: Box) -> tuple[Sample, ...]:
    """Samples of this boot, oldest first."""
    with contextlib.suppress(OSError, ValueError):
        if box.root.is_private(paths.COUNTERS):
            record = box.root.load(paths.COUNTERS, _CounterRecord)
            return record.samples if record.boot_id == box.boot_id else ()
    # Without samples, the value is the mean since boot, and says so.
    return ()


def keep(box: Box, samples: Sequence[Sample], now: Sample) -> None:
    """Store the samples and `now`. Raises OSError."""
    if samples and 0.0 <= now.at - samples[-1].at < APART_S:
        return
    recent = (sample for sample in samples if 0.0 <= now.at - sample.at <= KEPT_S)
    record = _CounterRecord(SCHEMA, box.boot_id, (*recent, replace(now, at=round(now.at, 3))))
    box.root.private_folder(paths.ROOTS_RUN)
    box.root.replace(paths.COUNTERS, json.dumps(asdict(record)) + "\n", mode=0o600)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
