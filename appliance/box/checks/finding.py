"""The result of a check, and its JSON document."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from appliance.box.clocks.reason import Reason
from appliance.fields import from_mapping

SCHEMA = 1
"""Version of the document; a removed key or a changed meaning raises it."""


class Level(str, enum.Enum):
    PASS = "PASS"
    WARN = "WARN"
    FAIL = "FAIL"
    SKIP = "SKIP"
    """The check was not made; the value names the reason."""

    @property
    def rank(self) -> int:
        """Order: SKIP < PASS < WARN < FAIL."""
        return (Level.SKIP, Level.PASS, Level.WARN, Level.FAIL).index(self)

    @property
    def is_wrong(self) -> bool:
        return self in (Level.WARN, Level.FAIL)

    @classmethod
    def of(cls, *, warn: bool, fail: bool = False) -> Level:
        return cls.FAIL if fail else cls.WARN if warn else cls.PASS


@dataclass(frozen=True)
class Finding:
    """Result of a check."""

    check: str
    level: Level
    value: str
    """The first sentence names the fault; `f5-health --verbose` also shows the others."""
    threshold: str = ""
    """Allowed values; empty if the check compares nothing."""
    remedy: str = ""
    """The first sentence has one command.

    Commands can be typed as printed; `--verbose` shows all sentences.
    """
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Numbers behind the value. Their names end with the unit."""
    reason: Reason = Reason.NONE
    """Cause of the level, for programs. Most checks have NONE."""

    def __post_init__(self) -> None:
        """Drop the remedy of a PASS or SKIP, which a check may have passed for a worse level."""
        if not self.level.is_wrong:
            object.__setattr__(self, "remedy", "")


@dataclass(frozen=True)
class _Document:
    findings: tuple[Finding, ...]
    schema: int


def passed(check: str, value: str, threshold: str = "", figures: Mapping[str, Any] | None = None) -> Finding:
    return Finding(check, Level.PASS, value, threshold, "", figures or {})


def skipped(check: str, why: str) -> Finding:
    return Finding(check, Level.SKIP, why)


def exit_code(findings: Iterable[Finding]) -> int:
    """Exit status: 0 if all are PASS or SKIP, 1 if some WARN, 2 if some FAIL."""
    worst = max((finding.level.rank for finding in findings), default=0)
    return max(worst - Level.PASS.rank, 0)


def merged(first: Iterable[Finding], second: Iterable[Finding]) -> list[Finding]:
    """Union of two lists. If both have a finding of one check, the worse wins; of equal ones the first."""
    by_check = {finding.check: finding for finding in first}
    for finding in second:
        other = by_check.get(finding.check)
        if other is None or finding.level.rank > other.level.rank:
            by_check[finding.check] = finding
    return list(by_check.values())


def document(findings: Iterable[Finding]) -> dict[str, Any]:
    listed = list(findings)
    worst = max((finding.level for finding in listed), key=lambda level: level.rank, default=Level.PASS)
    rows = [{**asdict(one), "level": one.level.value, "reason": one.reason.value} for one in listed]
    return {"schema": SCHEMA, "level": worst.value, "exit": exit_code(listed), "findings": rows}


def from_document(raw: object) -> list[Finding]:
    """Findings of a document; the inverse of `document`. Raises ValueError."""
    content = from_mapping(_Document, raw, where="findings", error=ValueError, ignore_unknown=True)
    if content.schema != SCHEMA:
        raise ValueError(f"not findings of schema {SCHEMA}")
    return list(content.findings)
