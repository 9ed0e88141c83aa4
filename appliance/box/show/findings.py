"""Table of findings."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.box.checks.finding import Finding, Level
from appliance.box.show.streams import plain

WIDTH = 120
MORE = " · full list: f5-health --verbose"


def table(findings: Sequence[Finding], *, verbose: bool = False) -> str:
    """Table of findings, with skipped checks by their reasons, and the totals that are not 0.

    Unless `verbose`, it shows the first sentences of value and remedy, cut at WIDTH: the fault, and a
    command.
    """
    checked = [finding for finding in findings if finding.level is not Level.SKIP]
    width = max((len(finding.check) for finding in checked), default=0)
    whole = [line for finding in checked for line in _lines(finding, width, verbose)]
    skipped: dict[str, list[str]] = {}
    for finding in findings:
        if finding.level is Level.SKIP:
            skipped.setdefault(plain(finding.value), []).append(finding.check)
    whole += [f"{Level.SKIP.value}  {', '.join(checks)}: {why}" for why, checks in skipped.items()]
    lines = whole if verbose else [*map(_cut, whole)]
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    totals = " · ".join(f"{count} {level.value}" for level, count in counts.items() if count)
    more = MORE if not verbose and any(finding.level.is_wrong for finding in findings) else ""
    return "\n".join([*lines, totals + more])


def _lines(finding: Finding, width: int, verbose: bool) -> list[str]:
    value, remedy = plain(finding.value), plain(finding.remedy)
    if not verbose:
        value, remedy = (text.partition(". ")[0] for text in (value, remedy))
    limit = f"  [{finding.threshold}]" if verbose and finding.threshold and finding.level.is_wrong else ""
    first = f"{finding.level.value}  {finding.check:<{width}}  {value}{limit}"
    return [first.rstrip(), *([f"      → {remedy}"] if remedy else [])]


def _cut(line: str) -> str:
    """Line of at most WIDTH characters, cut between two words."""
    return line if len(line) <= WIDTH else line[: line.rindex(" ", 0, WIDTH - 1)].rstrip(",;:") + " …"
