"""Runs the checks of the box. An exception in one check becomes its FAIL; the others still run."""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Collection, Iterator
from dataclasses import replace
from importlib import import_module

from appliance.box import checks, dpkg
from appliance.box.checks import application, counters
from appliance.box.checks.finding import Finding, Level, skipped
from appliance.box.checks.readiness import READYZ
from appliance.box.checks.snapshot import REGISTERED, Snapshot
from appliance.box.clocks.reason import Reason
from appliance.box.root import error_location
from appliance.box.system import Box

for module in pkgutil.iter_modules(checks.__path__):
    import_module(f"{checks.__name__}.{module.name}")
CHECKS = tuple(sorted(REGISTERED, key=lambda name: REGISTERED[name].place))
"""Checks of the box, the most harmful first: the order of the output."""
BY_HARM = tuple(dict.fromkeys(("application", *application.CHECKS, *CHECKS)))
"""All checks, in the order of `f5-health --wrong` and of the table in systemd/README.md."""


def run_checks(box: Box, *, readyz: str = READYZ, only: Collection[str] = ()) -> list[Finding]:
    """Run the checks named in `only` (empty: all).

    As root, store the counters for the next run. Does not raise.
    """
    snapshot = Snapshot(box, readyz)
    findings = list(_findings(snapshot, only))
    if box.is_root and snapshot.platform.is_jetson and not only:
        # /run may be full, or a counter unreadable. The next rates are then means since boot, and labelled
        # so.
        with contextlib.suppress(Exception):
            counters.keep(box, snapshot.samples, snapshot.counters)
    return findings


def _findings(snapshot: Snapshot, only: Collection[str]) -> Iterator[Finding]:
    """Run the checks in order. An exception in one becomes its finding."""
    for name in (name for name in CHECKS if not only or name in only):
        try:
            if not REGISTERED[name].anywhere and not snapshot.platform.is_jetson:
                yield skipped(name, "not a Jetson")
            else:
                finding = snapshot.finding(name)
                yield replace(finding, remedy=dpkg.pin(finding.remedy, snapshot.packages))
        except Exception as error:
            yield crashed(name, error)


def crashed(name: str, error: Exception) -> Finding:
    """FAIL of a check that raised. The error is in the figures, for the maker."""
    figures = {"error": f"{type(error).__name__}: {error}", "at": error_location(error)}
    value = f"could not be checked: defect in this program at {figures['at']}"
    remedy = "send the maker a bundle: sudo f5-support-bundle"
    return Finding(name, Level.FAIL, value, "", remedy, figures, Reason.CRASHED)
