"""Check of the speed against the box's baseline: the last line of the journal of `appliance bench guard`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from appliance.box import paths
from appliance.box.checks.finding import Finding, Level, skipped
from appliance.box.checks.snapshot import Harm, check
from appliance.box.clocks.clocks_json import Number
from appliance.box.system import Box
from appliance.fields import Ranged, from_mapping

LAST_S = 36 * 3600.0
"""Age from which on a measurement is ignored. The guard measures every night."""
WARN_AT, FAIL_AT = 1.15, 1.4
"""Multiples of the baseline's time for WARN and FAIL."""
MEASURE = "sudo f5-health --guard"


@dataclass(frozen=True)
class _Line(Ranged):
    boot_id: str
    uptime_s: Number
    level: Level
    value: str
    rtf: Any
    first_audio_s: Any


@check("speed", Harm.SLOW, 11, lambda now: (now.box,), anywhere=True)
def last(box: Box) -> Finding:
    """The last measurement of this boot, if it is recent enough. SKIP without one."""
    never = skipped("speed", f"not measured in the last day; to measure: {MEASURE}")
    lines = (box.root.text(paths.JOURNAL) or "").splitlines()
    try:
        raw = json.loads(lines[-1])
        line = from_mapping(_Line, raw, where=paths.JOURNAL, error=ValueError, ignore_unknown=True)
    except (IndexError, ValueError, RecursionError):
        return never
    age_s = box.uptime() - line.uptime_s
    if line.boot_id != box.boot_id or not 0.0 <= age_s <= LAST_S:
        return never
    figures = {"rtf": line.rtf, "first_audio_s": line.first_audio_s}
    remedy = f"remove the cause that it names, then measure again: {MEASURE}"
    return Finding("speed", line.level, f"{line.value} ({age_s / 3600:.0f} h ago)", "", remedy, figures)
