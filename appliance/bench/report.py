"""Figures of a storm, and their table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from appliance.bench.outcome import OK, Outcome, check_first_audio
from appliance.bench.output import aligned

TOLERATED_S = 0.1
"""Seconds of silence in a playback that goodput tolerates."""
TOLERATED_MS = (0, 50, 100, 200)
"""Milliseconds of silence that each of C0, C50, C100 and C200 tolerates."""
SHARES = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class Baseline:
    """Figures of the same daemon without the storm."""

    idle: Sequence[Outcome]
    """Outcomes of requests that were sent one after the other."""
    capacity: float
    """Seconds of audio per second that the daemon can synthesise."""

    @property
    def audio_s_per_character(self) -> float:
        """Seconds of audio per character, which estimate the length of refused texts."""
        return sum(one.audio_s for one in self.idle) / sum(len(one.message.text) for one in self.idle)


def percentile(values: Iterable[float], share: float) -> float | None:
    """Smallest value that this share of values does not exceed; None if infinite, or without values."""
    ordered = sorted(values)
    value = ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.inf
    return value if math.isfinite(value) else None


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """P50, P95 and P99."""
    return {f"p{share * 100:.0f}": percentile(values, share) for share in SHARES}


def figures(
    outcomes: Sequence[Outcome], baseline: Baseline, duration_s: float, target_s: float | None
) -> dict[str, Any]:
    """Figures of a storm whose messages arrive within `duration_s`. All times are in seconds.

    A reply counts as goodput if its playback is silent for at most TOLERATED_S, and if its first audio came
    within the daemon's promise, or within `target_s` without a promise. Raises BenchError if both
    measurements of first audio differ.
    """
    # A refused request never sounds. A request that was cancelled before its first audio does not count.
    counted = [one for one in outcomes if not one.withdrawn or one.pieces]
    admitted = [one for one in counted if one.admitted]
    first = percentiles([_first_audio_s(one) for one in admitted])
    idle = percentiles([_first_audio_s(one) for one in baseline.idle])
    played = [one for one in outcomes if one.played_whole]
    check_first_audio((one.pieces[0][1], one.read_s) for one in played)
    stalling = [one.underrun_s or 0.0 for one in played if one.can_stall]
    wall_s = max([duration_s, *(one.message.at_s + one.end_s for one in outcomes)])
    offered = baseline.audio_s_per_character * sum(len(one.message.text) for one in outcomes) / duration_s
    goodput = sum(one.audio_s for one in played if _is_good(one, target_s)) / wall_s
    failures = [one for one in outcomes if one.status != OK and not one.withdrawn]
    cancelled = [one for one in outcomes if one.withdrawn]
    return {
        "requests": len(outcomes),
        "wall_s": wall_s,
        "capacity": baseline.capacity,
        "offered": offered,
        "load": offered / baseline.capacity,
        "admitted": sum(one.admitted for one in outcomes),
        "idle_first_audio_s": idle,
        "first_audio_s": first,
        "first_audio_to_idle": {
            name: value / idle["p50"] if value is not None and idle["p50"] else None
            for name, value in first.items()
        },
        "first_audio_of_all_s": percentiles([_first_audio_s(one) for one in counted]),
        "heard": len(played),
        "can_stall": len(stalling),
        **{f"c{ms}": _share(silence <= ms / 1e3 for silence in stalling) for ms in TOLERATED_MS},
        "longest_silence_s": max((one.underrun_s or 0.0 for one in played), default=0.0),
        "delivered": sum(one.audio_s for one in outcomes) / wall_s,
        "goodput": goodput,
        "goodput_to_capacity": goodput / baseline.capacity,
        "refused": dict(Counter(one.reason or one.status for one in failures if not one.admitted)),
        "failed": dict(Counter(one.reason or one.status for one in failures if one.admitted)),
        "cancelled": len(cancelled),
        "cancel_to_end_s": percentiles(
            [one.end_s - one.cancel_s for one in cancelled if one.cancel_s is not None]
        ),
        "sent_late_s": percentiles([one.sent_s for one in outcomes]),
    }


def table(figures: Mapping[str, Any]) -> str:
    first, ratio = figures["first_audio_s"], figures["first_audio_to_idle"]
    serial = figures.get("serial")
    rows = [
        ("requests", f"{figures['requests']} in {figures['wall_s']:.1f} s, {figures['admitted']} admitted"),
        ("channels", f"{serial} serial" if serial else "one for each, overlapping"),
        ("capacity", f"{figures['capacity']:.2f} s of audio per second"),
        ("offered", f"{figures['offered']:.2f} s of audio per second, {figures['load']:.2f} × capacity"),
        ("first audio, idle", _three(figures["idle_first_audio_s"])),
        ("first audio, admitted", _three(first)),
        ("  ratio to idle P50", _three(ratio, unit="")),
        ("first audio, all", _three(figures["first_audio_of_all_s"])),
        (
            " · ".join(f"C{ms}" for ms in TOLERATED_MS),
            " · ".join(_percent(figures[f"c{ms}"]) for ms in TOLERATED_MS)
            + f" of {figures['can_stall']}; {figures['heard'] - figures['can_stall']} in one piece: N/A",
        ),
        ("longest silence", f"{figures['longest_silence_s'] * 1e3:.0f} ms"),
        ("delivered", f"{figures['delivered']:.2f} s of audio per second"),
        ("goodput", f"{figures['goodput']:.2f} s/s, {figures['goodput_to_capacity']:.0%} of capacity"),
        ("refused", _counts(figures["refused"])),
        ("failed after admission", _counts(figures["failed"])),
        ("cancelled", str(figures["cancelled"])),
        ("  from cancel to end", _three(figures["cancel_to_end_s"])),
        ("sent late by", _three(figures["sent_late_s"])),
        ("client's share of a core", f"{figures['client_cpu']:.0%}"),
    ]
    if (verified := figures.get("verified")) is not None:
        rows.append(("repeated alone", f"{verified['same']} of {verified['replies']} bit-equal"))
    return aligned(rows)


def _first_audio_s(outcome: Outcome) -> float:
    return math.inf if outcome.first_audio_s is None else outcome.first_audio_s


def _is_good(outcome: Outcome, target_s: float | None) -> bool:
    promised_s = outcome.promised_s
    if promised_s is None:
        promised_s = math.inf if target_s is None else target_s
    # The promise counts from the arrival at the daemon, which a late client delays.
    in_time = _first_audio_s(outcome) - outcome.sent_s <= promised_s
    return in_time and (outcome.underrun_s or 0.0) <= TOLERATED_S


def _share(hits: Iterable[bool]) -> float | None:
    every = list(hits)
    return sum(every) / len(every) if every else None


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _three(values: Mapping[str, float | None], unit: str = "s") -> str:
    numbers = (
        "–" if value is None else f"{value:.3f}" if unit else f"{value:.2f}" for value in values.values()
    )
    return " · ".join(numbers) + (f" {unit}" if unit else "") + "  (P50 · P95 · P99)"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "0"
