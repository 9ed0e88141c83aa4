"""Speed against the box's own baseline: the last line of the journal that `appliance bench guard` writes."""

from __future__ import annotations

import json

from appliance.box import paths
from appliance.box.checks.finding import Finding, Level, skipped
from appliance.box.clocks.clocks_json import number
from appliance.box.system import Box

LAST_S = 36 * 3600.0
"""Age at which a measurement is ignored; the guard measures every night."""
WARN_AT, FAIL_AT = 1.15, 1.4
"""Multiples of the baseline."""
MEASURE = "sudo f5-health --guard"


def last(box: Box) -> Finding:
    """Return the last measurement of this boot, with its age."""
    never = skipped("speed", f"not measured in the last day; {MEASURE} does")
    lines = (box.root.text(paths.JOURNAL) or "").splitlines()
    try:
        entry = json.loads(lines[-1])
        age_s = box.uptime() - number(entry["uptime_s"])
        level, value = Level(entry["level"]), str(entry["value"])
        figures = {name: entry[name] for name in ("rtf", "first_audio_s")}
    except (IndexError, ValueError, KeyError, TypeError, RecursionError):
        return never
    if entry.get("boot_id") != box.boot_id or not 0.0 <= age_s <= LAST_S:
        return never
    remedy = f"see to the cause that it names, then measure again: {MEASURE}"
    is_bad = level in (Level.WARN, Level.FAIL)
    return Finding("speed", level, f"{value} ({age_s / 3600:.0f} h ago)", "", remedy * is_bad, figures)
