"""Findings for a person: a table, the remedy under what needs one, colour on a terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from appliance.box.checks.finding import Finding, Level

COLOURS = {Level.PASS: "32", Level.WARN: "33", Level.FAIL: "31;1", Level.SKIP: "2"}
INDENT = " " * 6


def wants_colour(is_terminal: bool, environment: Mapping[str, str]) -> bool:
    """A pipe gets none, nor does anyone who asks for none (NO_COLOR, a terminal without)."""
    return is_terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def table(findings: Sequence[Finding], *, colour: bool = False) -> str:
    """A line for each finding, one for all that were skipped for the same reason, and the sum."""
    looked = [finding for finding in findings if finding.level is not Level.SKIP]
    width = max((len(finding.check) for finding in looked), default=0)
    lines = [line for finding in looked for line in _lines(finding, width, colour)]
    lines += [
        f"{_level(Level.SKIP, colour)}  {', '.join(checks)}: {why}"
        for why, checks in _by_reason(findings).items()
    ]
    return "\n".join([*lines, _sum(findings)])


def _lines(finding: Finding, width: int, colour: bool) -> list[str]:
    finding = dataclasses.replace(finding, value=plain(finding.value), remedy=plain(finding.remedy))
    limit = f"  [{finding.threshold}]" if finding.threshold and finding.level is not Level.PASS else ""
    first = f"{_level(finding.level, colour)}  {finding.check:<{width}}  {finding.value}{limit}"
    return [first.rstrip(), *([f"{INDENT}→ {finding.remedy}"] if finding.remedy else [])]


def plain(text: str) -> str:
    """One line without control characters: what other programs said must not steer root's terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def _level(level: Level, colour: bool) -> str:
    return f"\x1b[{COLOURS[level]}m{level.value}\x1b[0m" if colour else level.value


def _by_reason(findings: Sequence[Finding]) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for finding in findings:
        if finding.level is Level.SKIP:
            reasons.setdefault(plain(finding.value), []).append(finding.check)
    return reasons


def _sum(findings: Sequence[Finding]) -> str:
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    return " · ".join(f"{counts[level]} {level.value}" for level in Level)
