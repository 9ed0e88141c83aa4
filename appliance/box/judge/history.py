"""Counters that only ever rise, and how fast they do: over-current events, swapped pages, restarts.

Root keeps samples in /run; a count lower than before is one that began again, and what was before it is not
compared. Times are seconds since boot, and the boot is named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from appliance.box import paths
from appliance.box.clocks.published import number
from appliance.box.private import is_private_file, private_folder
from appliance.box.system import Box

SCHEMA = 1
KEPT_S = 2 * 3600.0
APART_S = 10.0
"""Closer samples are not kept: `--watch` looks often."""
LEAST_S = 30.0
"""Rates over less than this are noise."""


@dataclass(frozen=True)
class Sample:
    """All counters at one time."""

    at: float
    """Seconds since boot."""
    counts: Mapping[str, int]
    """Those that could be read."""


@dataclass(frozen=True)
class Rise:
    """By how much a counter rose."""

    count: int
    span_s: float
    recorded: bool
    """Whether samples say so; otherwise it is the count since boot, and the span is the uptime."""

    def per(self, seconds: float) -> float:
        """How many in that time; a shorter span is not stretched to it."""
        return self.count / max(self.span_s / seconds, 1.0)

    @property
    def summary(self) -> str:
        """In words."""
        if not self.recorded:
            return f"{self.count} since boot {_duration(self.span_s)} ago; when is not on record"
        return f"{self.count} in {_duration(self.span_s)}"


def rise(samples: Sequence[Sample], now: Sample, name: str, over_s: float) -> Rise | None:
    """How much `name` rose over the last `over_s` seconds, or nearest to it; None when it is not counted."""
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
    """Back from now to where the counter began again."""
    count = now.counts[name]
    for sample in reversed(samples):
        if name not in sample.counts or sample.counts[name] > count or sample.at > now.at:
            return
        count = sample.counts[name]
        yield sample


def read(box: Box) -> tuple[Sample, ...]:
    """This boot's samples, oldest first; () when there are none that can be read or used."""
    try:
        if not is_private_file(box.root, paths.COUNTERS):
            return ()
        raw = box.root.record(paths.COUNTERS)
        if raw["schema"] != SCHEMA or raw["boot_id"] != box.boot_id:
            return ()
        return tuple(
            Sample(number(sample["at"]), {name: int(number(n)) for name, n in sample["counts"].items()})
            for sample in raw["samples"]
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        # Without it the mean since boot stands in, and says so.
        return ()


def keep(box: Box, samples: Sequence[Sample], now: Sample) -> None:
    """Write the samples with this one, unless the last is only just past. Raises OSError."""
    if samples and 0.0 <= now.at - samples[-1].at < APART_S:
        return
    kept = [sample for sample in samples if 0.0 <= now.at - sample.at <= KEPT_S]
    document = {
        "schema": SCHEMA,
        "boot_id": box.boot_id,
        "samples": [{"at": round(sample.at, 3), "counts": dict(sample.counts)} for sample in (*kept, now)],
    }
    private_folder(box.root, paths.ROOTS_RUN)
    box.root.replace(paths.COUNTERS, json.dumps(document) + "\n", mode=0o600)


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"
