"""Is the box well, and if not, what is to be done?

Standard library only, so that it runs without the daemon's environment, which may be what is broken.

    finding      what a check says: level, value, threshold, remedy
    history      counters that rise, and how fast
    clocks heat power storage wear reset quiet fitness daemon speed jtop
                 the checks: pure, from readings to findings
    examine      reads the box and lets each check judge its part
    application  the application's own checks, asked in a process of its own
"""

from __future__ import annotations

from appliance.box.judge.examine import CHECKS, broken, examine
from appliance.box.judge.finding import (
    Finding,
    Level,
    document,
    exit_code,
    from_document,
    merged,
    passed,
    skipped,
)

__all__ = [
    "CHECKS",
    "Finding",
    "Level",
    "broken",
    "document",
    "examine",
    "exit_code",
    "from_document",
    "merged",
    "passed",
    "skipped",
]
