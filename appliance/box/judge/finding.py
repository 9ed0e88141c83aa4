"""What an examination says: findings with a level, the value, the limit and the remedy."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1
"""Of the JSON document; another number when a key changes its meaning or goes."""


class Level(str, enum.Enum):
    """How a check came out."""

    PASS = "PASS"
    WARN = "WARN"
    FAIL = "FAIL"
    SKIP = "SKIP"
    """Not looked at; the value says why."""

    @property
    def rank(self) -> int:
        """Of two findings on one thing the one of higher rank counts."""
        return (Level.SKIP, Level.PASS, Level.WARN, Level.FAIL).index(self)


@dataclass(frozen=True)
class Finding:
    """How one check came out, for a person and for a machine."""

    check: str
    level: Level
    value: str
    """What was found; of a SKIP, why nothing was."""
    threshold: str = ""
    """What is allowed; empty when there is nothing to compare with."""
    remedy: str = ""
    """What to do, whole: commands can be typed as they stand."""
    figures: Mapping[str, Any] = field(default_factory=dict)
    """The value in numbers, with units in their names."""


def passed(check: str, value: str, threshold: str = "", figures: Mapping[str, Any] | None = None) -> Finding:
    """All is well."""
    return Finding(check, Level.PASS, value, threshold, "", figures or {})


def skipped(check: str, why: str) -> Finding:
    """Nothing was looked at."""
    return Finding(check, Level.SKIP, why)


def exit_code(findings: Iterable[Finding]) -> int:
    """0: nothing is wrong. 1: something should be seen to. 2: something is broken."""
    worst = max((finding.level.rank for finding in findings), default=0)
    return max(worst - Level.PASS.rank, 0)


def merged(first: Iterable[Finding], second: Iterable[Finding]) -> list[Finding]:
    """Both, each check once: where both looked at one thing, the worse counts, and of equals the second."""
    found = {finding.check: finding for finding in first}
    for finding in second:
        there = found.get(finding.check)
        if there is None or finding.level.rank >= there.level.rank:
            found[finding.check] = finding
    return list(found.values())


def document(findings: Iterable[Finding]) -> dict[str, Any]:
    """As JSON holds it."""
    listed = list(findings)
    worst = max((finding.level for finding in listed), key=lambda level: level.rank, default=Level.PASS)
    return {
        "schema": SCHEMA,
        "level": worst.value,
        "exit": exit_code(listed),
        "findings": [
            {
                "check": finding.check,
                "level": finding.level.value,
                "value": finding.value,
                "threshold": finding.threshold,
                "remedy": finding.remedy,
                "figures": dict(finding.figures),
            }
            for finding in listed
        ],
    }


def from_document(raw: Any) -> list[Finding]:
    """What `document` made. Raises ValueError when it is something else."""
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA or not isinstance(raw.get("findings"), list):
        raise ValueError(f"not findings of schema {SCHEMA}")
    try:
        return [
            Finding(
                str(item["check"]),
                Level(item["level"]),
                str(item["value"]),
                str(item["threshold"]),
                str(item["remedy"]),
                dict(item["figures"]),
            )
            for item in raw["findings"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("a finding is damaged") from error
