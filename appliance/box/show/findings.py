"""Table of findings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from appliance.box.checks.finding import Finding, Level
from appliance.box.show.streams import plain

COLOURS = {Level.PASS: "32", Level.WARN: "33", Level.FAIL: "31;1", Level.SKIP: "2"}


def wants_colour(is_terminal: bool, environment: Mapping[str, str]) -> bool:
    """True for a terminal, unless NO_COLOR is set or TERM is dumb."""
    return is_terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def table(findings: Sequence[Finding], *, colour: bool = False) -> str:
    """A line a finding, one for each reason of skipped ones, and the totals that are not 0."""
    checked = [finding for finding in findings if finding.level is not Level.SKIP]
    width = max((len(finding.check) for finding in checked), default=0)
    lines = [line for finding in checked for line in _lines(finding, width, colour)]
    skipped: dict[str, list[str]] = {}
    for finding in findings:
        if finding.level is Level.SKIP:
            skipped.setdefault(plain(finding.value), []).append(finding.check)
    lines += [f"{_level(Level.SKIP, colour)}  {', '.join(checks)}: {why}" for why, checks in skipped.items()]
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    totals = " · ".join(f"{count} {level.value}" for level, count in counts.items() if count)
    return "\n".join([*lines, totals])


def _lines(finding: Finding, width: int, colour: bool) -> list[str]:
    finding = dataclasses.replace(finding, value=plain(finding.value), remedy=plain(finding.remedy))
    limit = f"  [{finding.threshold}]" if finding.threshold and finding.level is not Level.PASS else ""
    first = f"{_level(finding.level, colour)}  {finding.check:<{width}}  {finding.value}{limit}"
    return [first.rstrip(), *([f"      → {finding.remedy}"] if finding.remedy else [])]


def _level(level: Level, colour: bool) -> str:
    return f"\x1b[{COLOURS[level]}m{level.value}\x1b[0m" if colour else level.value
