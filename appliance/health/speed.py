"""How fast the box speaks, against how fast this box once spoke with the same bundle, L4T and power mode.

The measurement is the application's; the comparison is here. What is slow with loose clocks or on a hot
chip says nothing of the box, and is not judged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from appliance.device.box import Box
from appliance.device.installed import record
from appliance.device.platform import Platform
from appliance.device.published import Clocks
from appliance.health.finding import Finding, Level, document, from_document, skipped
from appliance.health.heat import WARM_C

BASELINE = "/var/lib/f5-appliance/baseline.json"
LAST = "/run/f5-appliance/speed.json"
"""What was measured last in this boot."""
LAST_S = 36 * 3600.0
"""How long that is worth telling: the guard measures every night."""
SCHEMA = 1
SLOWER, MUCH_SLOWER = 1.15, 1.4
MEASURE = "sudo f5-health --guard"


@dataclass(frozen=True)
class Speed:
    """Medians of some short syntheses."""

    rtf: float
    """Wall time per second of audio."""
    first_audio_s: float
    voice: str = ""
    """What identifies the voice: its recording's length sets how much is to be computed."""


def key(bundle: str, platform: Platform, mode: str) -> str:
    """What must be the same for speeds to be compared; `bundle`: hash of its manifest."""
    return "/".join((bundle[:16], platform.release or "no-l4t", mode or "no-mode"))


def unfit(platform: Platform, clocks: Clocks, faults: Sequence[str], junction_c: float | None) -> str:
    """Why speed would say nothing of this box now; empty when it would. `faults`: what is seen loose now."""
    if not platform.is_jetson:
        return ""
    if faults:
        return f"not judged while clocks are loose: {'; '.join(faults)}"
    if clocks.state != "pinned":
        return f"not judged while clocks are not proven to be pinned: {clocks.why or clocks.state}"
    if junction_c is None:
        return "not judged without a temperature"
    return f"not judged at {junction_c:.0f} °C; below {WARM_C:g} °C it is" if junction_c >= WARM_C else ""


def judge(speed: Speed, baseline: Speed | None, figures: Mapping[str, Any]) -> Finding:
    """Against the baseline; without one, or with a reason in figures["unfit"], there is nothing to judge."""
    figures = {**figures, **asdict(speed)}
    value = f"real-time factor {speed.rtf:.3f}, first audio {speed.first_audio_s:.3f} s"
    if figures.get("unfit"):
        return Finding("speed", Level.SKIP, f"{value}, {figures['unfit']}", figures=figures)
    if baseline is None:
        why = f"{value}: nothing to compare with; set a baseline with {MEASURE} --set-baseline"
        return Finding("speed", Level.SKIP, why, figures=figures)
    ratio = max(speed.rtf / baseline.rtf, speed.first_audio_s / baseline.first_audio_s)
    limit = f"of the baseline: WARN above {SLOWER:g}, FAIL above {MUCH_SLOWER:g}"
    figures["ratio"] = round(ratio, 3)
    value += f": {ratio:.2f} of the baseline"
    if ratio <= SLOWER:
        return Finding("speed", Level.PASS, value, limit, figures=figures)
    level = Level.FAIL if ratio > MUCH_SLOWER else Level.WARN
    remedy = (
        f"see to the checks clocks, temperature, oc1 to oc3 and memory first, then measure again: {MEASURE}; "
        f"if all of them are PASS and this stays: sudo f5-support-bundle"
    )
    return Finding("speed", level, value, limit, remedy, figures)


def baseline(box: Box, name: str) -> Speed | None:
    """The baseline of that key; None when there is none or the file cannot be used."""
    found = _baselines(box).get(name)
    try:
        speed = (
            Speed(float(found["rtf"]), float(found["first_audio_s"]), str(found["voice"])) if found else None
        )
    except (KeyError, TypeError, ValueError):
        return None
    return speed if speed and speed.rtf > 0 and speed.first_audio_s > 0 else None


def set_baseline(box: Box, finding: Finding) -> str:
    """Make a measurement the baseline; returns its key. Raises OSError; ValueError when it cannot serve."""
    figures = finding.figures
    if "rtf" not in figures:
        raise ValueError(f"nothing was measured: {finding.value}")
    if figures.get("unfit"):
        raise ValueError(str(figures["unfit"]))
    name = str(figures["key"])
    speed = {field: figures[field] for field in ("rtf", "first_audio_s", "voice")}
    new = {**_baselines(box), name: speed}
    box.root.replace(BASELINE, json.dumps({"schema": SCHEMA, "baselines": new}, indent=1) + "\n")
    return name


def keep(box: Box, finding: Finding) -> None:
    """For the checks that follow: what was measured. Raises OSError."""
    stamped = {**document([finding]), "boot_id": box.boot_id, "measured_at": round(box.uptime(), 3)}
    box.root.replace(LAST, json.dumps(stamped) + "\n")


def last(box: Box) -> Finding:
    """What was measured last in this boot, and when."""
    never = skipped("speed", f"not measured in the last day; {MEASURE} does")
    try:
        raw = record(box.root, LAST)
        age_s = box.uptime() - float(raw["measured_at"])
        [finding] = from_document(dict(raw))
    except (OSError, ValueError, KeyError, TypeError):
        return never
    if raw.get("boot_id") != box.boot_id or not 0.0 <= age_s <= LAST_S or finding.check != "speed":
        return never
    value = f"{finding.value} ({age_s / 3600:.0f} h ago)"
    return Finding("speed", finding.level, value, finding.threshold, finding.remedy, finding.figures)


def _baselines(box: Box) -> dict[str, Any]:
    try:
        raw = record(box.root, BASELINE)
    except (OSError, ValueError):
        return {}
    found = raw.get("baselines")
    return dict(found) if raw.get("schema") == SCHEMA and isinstance(found, dict) else {}
