"""Health checks of the box. Standard library only: they run when the daemon's environment is what is broken.

finding      the result of a check: level, value, threshold, remedy
clocks boots l4t heat power storage wear reset quietness fitness readiness speed jtop
             the checks: pure functions from readings to findings, each with its readings and remedies
snapshot     readings of the box, each made once; @check, with which a check registers itself
counters     counts that only rise, and their rates
runner       which checks there are, in the order of the output; runs them
application  runs the application's own checks in another process
health       one run of f5-health: both together
health_json  health.json: written by that run, read by the next one and by the daemon

Another check is a function with @check, its name in runner.CHECKS and in health.BY_HARM, and a row of
systemd/README.md.
"""

from __future__ import annotations

from appliance.box.checks.finding import (
    Finding,
    Level,
    document,
    exit_code,
    from_document,
    merged,
    passed,
    skipped,
)
from appliance.box.checks.runner import CHECKS, crashed, run_checks

__all__ = [
    "CHECKS",
    "Finding",
    "Level",
    "crashed",
    "document",
    "exit_code",
    "from_document",
    "merged",
    "passed",
    "run_checks",
    "skipped",
]
