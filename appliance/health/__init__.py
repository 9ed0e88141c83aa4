"""Is the box well, and if not, what is to be done?

Standard library only, so that it runs without the daemon's environment, which may be what is broken.

    finding      what a check says: level, value, threshold, remedy
    history      counters that rise, and how fast
    clocks heat power storage fitness daemon speed jtop
                 the checks: pure, from readings to findings
    examine      reads the box and lets each check judge its part
    application  the application's own checks, asked in a process of its own
    support      one file for the maker, without anybody's words or voices
    show         findings as a table
"""

from __future__ import annotations

from appliance.health.examine import CHECKS, broken, examine
from appliance.health.finding import (
    Finding,
    Level,
    document,
    exit_code,
    from_document,
    merged,
    passed,
    skipped,
)
from appliance.health.show import table, wants_colour

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
    "table",
    "wants_colour",
]
