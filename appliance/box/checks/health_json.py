"""health.json: the findings of the last run of f5-health."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from appliance.box import paths
from appliance.box.checks.finding import Finding, Level, document, from_document
from appliance.box.clocks.clocks_json import Number
from appliance.box.system import Box
from appliance.fields import Ranged


@dataclass(frozen=True)
class _Stamp(Ranged):
    boot_id: str
    checked_at: Number


@dataclass(frozen=True)
class HealthRun:
    """Findings of the last run of `f5-health`."""

    findings: tuple[Finding, ...]
    age_s: float

    @property
    def levels(self) -> dict[str, str]:
        """Check → level."""
        return {finding.check: finding.level.value for finding in self.findings}

    @property
    def numbers(self) -> dict[tuple[str, str], float]:
        """(check, figure) → numeric value.

        A figure that is a mapping gives one `figure.key` for each of its keys.
        """
        return {
            (finding.check, f"{name}.{key}" if key else name): float(number)
            for finding in self.findings
            for name, value in finding.figures.items()
            for key, number in (value if isinstance(value, dict) else {"": value}).items()
            if isinstance(number, (int, float))
        }


def publish(box: Box, findings: Collection[Finding]) -> None:
    """Write the findings of a run. Raises OSError."""
    stamped = {**document(findings), "boot_id": box.boot_id, "checked_at": round(box.uptime(), 3)}
    box.root.replace(paths.HEALTH, json.dumps(stamped, indent=1) + "\n")


def last_run(box: Box) -> HealthRun | None:
    """Last run of this boot; None if there is no readable record."""
    try:
        stamp, findings = box.root.load(paths.HEALTH, _Stamp), from_document(box.root.record(paths.HEALTH))
    except (OSError, ValueError):
        return None
    age_s = max(box.uptime() - stamp.checked_at, 0.0)
    return HealthRun(tuple(findings), age_s) if stamp.boot_id == box.boot_id else None


def changes(before: HealthRun | None, findings: Iterable[Finding]) -> Iterator[str]:
    """A line for each check whose level has changed; in the first run of a boot, for each WARN and FAIL."""
    levels = before.levels if before else {}
    for finding in findings:
        was = levels.get(finding.check, Level.PASS.value)
        if finding.level is not Level.SKIP and was != Level.SKIP.value and finding.level.value != was:
            yield f"{finding.level.value} {finding.check}, was {was}: {finding.value}"
