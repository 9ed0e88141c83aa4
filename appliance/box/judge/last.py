"""The last visit, as health.json has it: read by the daemon for its metrics, and by the next visit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from appliance.box import paths
from appliance.box.judge.finding import Finding, Level, from_document
from appliance.box.system import Box


@dataclass(frozen=True)
class Visit:
    """Findings, and their time."""

    findings: tuple[Finding, ...]
    age_s: float

    @property
    def levels(self) -> dict[str, str]:
        """Check → PASS, WARN, FAIL or SKIP."""
        return {finding.check: finding.level.value for finding in self.findings}

    @property
    def numbers(self) -> dict[tuple[str, str], float]:
        """Check and figure → its value, for figures that are numbers; of a mapping, `figure.key` each."""
        return {
            (finding.check, name): float(value)
            for finding in self.findings
            for name, value in _flat(finding.figures.items())
            if isinstance(value, (int, float))
        }


def last(box: Box) -> Visit | None:
    """The last visit of this boot; None when there is none that can be read."""
    try:
        raw = json.loads(box.root.read(paths.HEALTH))
        findings = tuple(from_document(raw))
        if raw["boot_id"] != box.boot_id:
            return None
        return Visit(findings, max(box.uptime() - float(raw["checked_at"]), 0.0))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def changes(before: Visit | None, findings: Iterable[Finding]) -> Iterator[str]:
    """A line for each check that came out otherwise; at the first visit, for each that is not well."""
    levels = before.levels if before else {}
    for finding in findings:
        was = levels.get(finding.check, Level.PASS.value)
        if finding.level is not Level.SKIP and was != Level.SKIP.value and finding.level.value != was:
            yield f"{finding.level.value} {finding.check}, was {was}: {finding.value}"


def _flat(items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for name, value in items:
        if isinstance(value, dict):
            yield from ((f"{name}.{key}", inner) for key, inner in value.items())
        else:
            yield name, value
