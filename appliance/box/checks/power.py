"""Checks of power draw and over-current throttling (OC1 to OC3).

Each event halves the clocks for about a millisecond, which no readable frequency shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from appliance.box import paths
from appliance.box.checks.counters import Rise
from appliance.box.checks.finding import Finding, Level, skipped
from appliance.box.checks.snapshot import Harm, Snapshot, check
from appliance.box.sensors import hwmon

SPANS_S = {"an hour": 3600.0, "a minute": 60.0}
UNDER_VOLTAGE_S, AVERAGE_S, INSTANT_S = 3600.0, 600.0, 60.0
"""Windows, in seconds, in which the events of each kind are counted."""
UNDER_VOLTAGES_PER_HOUR = 5
AVERAGES_PER_MINUTE = 1
INSTANTS_PER_SECOND = 20
NO_COUNTERS = "no over-current counters"

MODULE_W = {"p3701-0000": 60.0, "p3701-0005": 60.0, "p3701-0004": 40.0, "p3701-0008": 75.0}
"""Module → its highest rated power, in watts."""


@check("oc1", Harm.LATER, 7, lambda now: (now.rise("oc1", UNDER_VOLTAGE_S),))
def check_under_voltage(events: Rise | None) -> Finding:
    """OC1: the supply voltage dropped."""
    remedy = "check the power supply and its cable, and replace the weak one: the voltage sags under load"
    return _counted("oc1", "drops of the supply voltage", events, UNDER_VOLTAGES_PER_HOUR, "an hour", remedy)


@check("oc2", Harm.LATER, 8, lambda now: (now.rise("oc2", AVERAGE_S), now.lower_mode))
def check_average_current(events: Rise | None, lower_mode: str) -> Finding:
    """OC2: the average current was too high. `lower_mode`: the next lower power mode, "" if unknown."""
    remedy = f"use a stronger power supply. Or {less_power(lower_mode)}"
    return _counted(
        "oc2", "averages of current above the limit", events, AVERAGES_PER_MINUTE, "a minute", remedy
    )


def _counted(check: str, name: str, events: Rise | None, most: int, over: str, remedy: str) -> Finding:
    if events is None:
        return skipped(check, NO_COUNTERS)
    level = Level.of(warn=events.count > 0, fail=events.per(SPANS_S[over]) > most)
    limit = f"WARN above 0, FAIL above {most} {over}"
    figures = {"events": events.count, "span_s": round(events.span_s), "recorded": events.recorded}
    return Finding(check, level, f"{name}: {events.summary}", limit, remedy, figures)


def _of_bursts(now: Snapshot) -> tuple[Any, ...]:
    return now.rise("oc3", INSTANT_S), now.finding("speed").level.is_wrong, now.lower_mode


@check("oc3", Harm.LATER, 9, _of_bursts)
def check_bursts(events: Rise | None, slower: bool, lower_mode: str) -> Finding:
    """OC3: short peaks of the current. Some are normal at full clocks. `slower`: speech is slower, too."""
    if events is None:
        return skipped("oc3", NO_COUNTERS)
    limit = f"WARN above {INSTANTS_PER_SECOND} a second, FAIL if speech is slower too"
    rate = events.count / max(events.span_s, 1.0)
    many = rate > INSTANTS_PER_SECOND
    value = f"{rate:.1f} bursts a second ({events.summary})"
    figures = {"per_second": round(rate, 3), "events": events.count, "recorded": events.recorded}
    remedy = f"use a stronger power supply. If speech is slower than it was, {less_power(lower_mode)}"
    return Finding("oc3", Level.of(warn=many, fail=many and slower), value, limit, remedy, figures)


def _of_power(now: Snapshot) -> tuple[Any, ...]:
    return hwmon.rails(now.root), hwmon.total_power(now.root), now.platform.module


@check("power", Harm.LATER, 10, _of_power)
def check_power(rails_mw: Mapping[str, float], total_mw: float | None, module: str) -> Finding:
    """Power draw of the module. At the wall it is higher."""
    if total_mw is None:
        return skipped("power", "no power sensor can be read")
    most_w = MODULE_W.get(module)
    parts = ", ".join(f"{name} {value / 1000:.1f}" for name, value in rails_mw.items())
    value = f"{total_mw / 1000:.1f} W" + (f" ({parts})" if parts else "")
    level = Level.of(warn=most_w is not None and total_mw > most_w * 1000)
    limit = f"at most {most_w:g} W" if most_w else ""
    remedy = "see what loads the module: top. Stop what is not needed"
    return Finding("power", level, value, limit, remedy, {"total_mw": total_mw, "rails_mw": dict(rails_mw)})


def stronger(lower: str) -> str:
    """Remedy for power losses. `lower`: see `less_power`."""
    return f"use a stronger power supply or better cooling. Or {less_power(lower)}"


def less_power(mode: str) -> str:
    """Remedy for a high power draw. `mode`: the next lower power mode, "" if unknown."""
    line = f"the line `  power_mode: {mode}` below `device:` in {paths.CONFIG}, then sudo f5-clock-lock lock"
    return f"run the module at less power: {line if mode else 'sudo nvpmodel -p --verbose lists its modes'}"
