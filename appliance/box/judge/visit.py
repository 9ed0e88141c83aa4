"""One visit of `scripts/health`: the box and the application in one list, published for others to read."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from appliance.box import paths
from appliance.box.judge import application
from appliance.box.judge.application import Application
from appliance.box.judge.daemon import READYZ, with_applications
from appliance.box.judge.examine import CHECKS, examine
from appliance.box.judge.finding import Finding, document, skipped
from appliance.box.system import Box

OF_THE_APPLICATION = ("config", "bundle", "voices", "engines", "daemon", "synthesis")
NAMES = tuple(dict.fromkeys((*CHECKS, *OF_THE_APPLICATION)))
NOT_ASKED = "not asked for (--speak)"


@dataclass(frozen=True)
class Wanted:
    """What a visit looks at."""

    only: frozenset[str] = frozenset()
    """Names of checks; empty for all."""
    speak: bool = False
    """Whether to do a real synthesis."""
    readyz: str = READYZ


def examine_all(box: Box, app: Application, wanted: Wanted) -> list[Finding]:
    """The box's findings, and the application's. Does not raise."""
    only = wanted.only
    findings = examine(box, readyz=wanted.readyz, only=only) if not only or only & set(CHECKS) else []
    asked = _to_ask(only, wanted.speak)
    if asked:
        speaking = application.speaking("synthesis" in asked)
        told = app.ask(box, "--quick", "--only", ",".join(asked), *speaking)
        findings = with_applications(findings, told)
    if "synthesis" not in asked and (not only or "synthesis" in only):
        findings.append(skipped("synthesis", NOT_ASKED))
    return findings


def measure(box: Box, app: Application, *, set_baseline: bool = False) -> list[Finding]:
    """Judge the speed of the box against the baseline in the application's journal. Does not raise."""
    options = ("--set-baseline",) if set_baseline else ()
    return app.ask(box, *options, command=("bench", "guard"), timeout_s=application.MEASURE_S)


def publish(box: Box, findings: Collection[Finding]) -> None:
    """Write health.json for all to read. Raises OSError."""
    stamped = {**document(findings), "boot_id": box.boot_id, "checked_at": round(box.uptime(), 3)}
    box.root.replace(paths.HEALTH, json.dumps(stamped, indent=1) + "\n")


def _to_ask(only: Collection[str], speak: bool) -> list[str]:
    names = [name for name in OF_THE_APPLICATION if not only or name in only]
    return [name for name in names if name != "synthesis" or speak]
