"""A run of `f5-health`: the checks of the box and of the application in one list."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable

from appliance.box import platform
from appliance.box.checks import application
from appliance.box.checks.application import Application
from appliance.box.checks.finding import Finding, skipped
from appliance.box.checks.readiness import READYZ, merge_application
from appliance.box.checks.runner import BY_HARM, CHECKS, run_checks
from appliance.box.clocks import boots
from appliance.box.system import Box

NAMES = tuple(dict.fromkeys((*CHECKS, *application.CHECKS)))
NOT_REQUESTED = "not requested (--speak)"


def run_health(
    box: Box, app: Application, only: Collection[str] = (), *, speak: bool = False, readyz: str = READYZ
) -> list[Finding]:
    """Run checks. As root, also record which backend spoke. Does not raise.

    `only`: names of checks, empty for all. `speak`: synthesise, too. `readyz`: host:port of the metrics
    server.
    """
    names = [name for name in application.CHECKS if not only or name in only]
    if "synthesis" in names and not speak:
        names.remove("synthesis")
    options = () if "synthesis" in names else ("--no-speak",)
    answer = app.run(box, "--quick", "--only", ",".join(names), *options) if names else []
    if box.is_root and platform.identify(box.root).is_jetson:
        _note_backend(box, answer)
    findings = run_checks(box, readyz=readyz, only=only) if not only or set(only) & set(CHECKS) else []
    findings = merge_application(findings, answer)
    if "synthesis" not in names and (not only or "synthesis" in only):
        findings.append(skipped("synthesis", NOT_REQUESTED))
    return findings


def wrong(findings: Iterable[Finding]) -> list[Finding]:
    """Return WARN and FAIL in the order of BY_HARM, then the checks of other releases."""
    wrong_findings = [finding for finding in findings if finding.level.is_wrong]
    return sorted(wrong_findings, key=lambda finding: (*BY_HARM, finding.check).index(finding.check))


def _note_backend(box: Box, findings: list[Finding]) -> None:
    """Record in this boot's record the backend that the synthesis check found."""
    figures = next((finding.figures for finding in findings if finding.check == "synthesis"), {})
    backend, passed_over = figures.get("backend"), figures.get("passed_over")
    if isinstance(backend, str) and backend:
        others = tuple(map(str, passed_over)) if isinstance(passed_over, dict) else ()
        # If this boot has no record, the check `boots` reports it.
        with contextlib.suppress(OSError):
            boots.note_backend(box, backend.partition(" ")[0], others)


def measure_speed(box: Box, app: Application, *, set_baseline: bool = False) -> list[Finding]:
    """Measure the speed, or store it as the baseline. Does not raise."""
    options = ("--set-baseline",) if set_baseline else ()
    return app.run(box, *options, command=("bench", "guard"), timeout_s=application.MEASURE_S)
