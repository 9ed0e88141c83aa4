"""Run the checks of the box. An exception in one check becomes its FAIL; the others still run."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from importlib import import_module

from appliance.box import dpkg
from appliance.box.checks import counters
from appliance.box.checks.finding import Finding, Level, skipped
from appliance.box.checks.readiness import READYZ
from appliance.box.checks.snapshot import ANYWHERE, REGISTERED, Snapshot
from appliance.box.clocks.reason import Reason
from appliance.box.root import error_location
from appliance.box.system import Box

for module in (
    *("boots", "clocks", "fitness", "heat", "jtop", "l4t", "power", "quietness", "readiness", "reset"),
    *("speed", "storage", "wear"),
):
    import_module(f"appliance.box.checks.{module}")
SILENCE = (
    *("application", "daemon", "synthesis", "config", "bundle", "voices", "engines", "platform", "gpu_node"),
    "restarts",
)
SLOW_SPEECH = (
    *("reboot", "boots", "power_mode", "clocks", "cores", "caps", "temperature", "cooling", "fan"),
    *("backend", "speed"),
)
LATER = (
    *("l4t", "versions", "disk", "memory", "lfb", "swap", "oc1", "oc2", "oc3", "power", "reset", "wear"),
    "sleep",
)
BOOKKEEPING = ("packages", "journal", "desktop", "time", "jtop")
BY_HARM = (*SILENCE, *SLOW_SPEECH, *LATER, *BOOKKEEPING)
"""Checks by what their failure costs, most first: of the output, and of the table in systemd/README.md."""
CHECKS = tuple(name for name in BY_HARM if name in REGISTERED)
"""Those of the box."""


def run_checks(box: Box, *, readyz: str = READYZ, only: Collection[str] = ()) -> list[Finding]:
    """`only`: names; empty for all. As root, keep the counters for the next run. Does not raise."""
    snapshot = Snapshot(box, readyz)
    findings = list(_findings(snapshot, only))
    if box.is_root and snapshot.platform.is_jetson and not only:
        # /run may be full or a counter unreadable: the next rates are then means since boot, labelled so.
        with contextlib.suppress(Exception):
            counters.keep(box, snapshot.samples, snapshot.counters)
    return findings


def _findings(snapshot: Snapshot, only: Collection[str]) -> Iterator[Finding]:
    for name in (name for name in CHECKS if not only or name in only):
        try:
            if name not in ANYWHERE and not snapshot.platform.is_jetson:
                yield skipped(name, "not a Jetson")
            else:
                found = snapshot.finding(name)
                yield replace(found, remedy=dpkg.pin(found.remedy, snapshot.packages))
        except Exception as error:
            yield crashed(name, error)


def crashed(name: str, error: Exception) -> Finding:
    """The error is in the figures, for the maker."""
    figures = {"error": f"{type(error).__name__}: {error}", "at": error_location(error)}
    value = f"could not be checked: a fault in this program, at {figures['at']}"
    remedy = "send the maker a bundle: sudo f5-support-bundle"
    return Finding(name, Level.FAIL, value, "", remedy, figures, Reason.CRASHED)
