"""Cross-check with jetson-stats (jtop), for technicians who use it; never a source of readings.

It is run with the Python of its own command, since current releases install into an environment of their own.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from appliance.box import paths
from appliance.box.checks.finding import Finding, Level, skipped
from appliance.box.clocks.verdict import Verdict
from appliance.box.system import Box

ANSWER_S = 15.0
INTERPRETER = re.compile(r"#!\s*(/\S+/python[\d.]*)\s*\n|#!/bin/sh\n'''exec' \"?(/[^\"\n]+/python[\d.]*)\"? ")
"""First line of a Python script; the second form is pip's for paths that are too long for it."""
SCRIPT = """
import json
try:
    import jtop
    with jtop.jtop() as box:
        box.ok()
        report = {"version": str(jtop.__version__), "pinned": bool(box.jetson_clocks)}
        report["mode"] = str(box.nvpmodel)
except ImportError:
    report = {"problem": "jetson-stats is not installed"}
except Exception as error:
    report = {"problem": (str(error).splitlines() or ["jtop gave no answer"])[0]}
print(json.dumps(report))
"""


@dataclass(frozen=True)
class Report:
    version: str = ""
    pinned: bool = False
    mode: str = ""
    problem: str = ""
    """Why there is no report, if so."""


def query(box: Box) -> Report:
    """Does not raise."""
    if not box.root.exists(paths.JTOP_SOCKET):
        return Report(problem="jtop.service is not running")
    # -I: nothing is imported from the current folder or our environment.
    ran = box.tools.execute(*_python(box), "-I", "-c", SCRIPT, timeout_s=ANSWER_S)
    try:
        raw: dict[str, Any] = json.loads(ran.output.strip().splitlines()[-1])
        if "problem" in raw:
            return Report(problem=str(raw["problem"]))
        return Report(str(raw["version"]), bool(raw["pinned"]), str(raw["mode"]))
    except (ValueError, LookupError, TypeError, RecursionError):
        return Report(problem="jtop gave no answer")


def _python(box: Box) -> tuple[str, ...]:
    """Interpreter of jtop's first line, run as its owner; else the system's."""
    if not (found := INTERPRETER.match(box.root.text(paths.JTOP) or "")):
        return ("python3",)
    try:
        place = box.root.at(found[1] or found[2])
        owners = (place.lstat(), place.stat())
    except OSError:
        return ("python3",)
    # Root must not run a file that a user could have changed.
    user = next((owner for owner in owners if owner.st_uid), None)
    if user is None or not box.is_root:
        return (str(place),)
    identity = (f"--reuid={user.st_uid}", f"--regid={user.st_gid}", "--init-groups")
    return ("setpriv", *identity, str(place))


def check_jtop(report: Report, reading: Verdict) -> Finding:
    """WARN if jetson-stats disagrees with the kernel's files, which are right."""
    if report.problem:
        return skipped("jtop", report.problem)
    limit = "the same as the readings"
    figures = {"version": report.version, "pinned": report.pinned, "mode": report.mode}
    differs = []
    # Without root some clocks cannot be read: only what was read can contradict.
    if report.pinned and reading.faults:
        differs.append("claims that jetson_clocks is on, and the readings say: " + "; ".join(reading.faults))
    if not report.pinned and reading.state == "pinned":
        differs.append("claims that jetson_clocks is off, and the readings say that all is pinned")
    if report.mode and reading.mode and report.mode != reading.mode:
        differs.append(f"claims power mode {report.mode}, and it is {reading.mode}")
    value = "; ".join(differs) or f"jetson-stats {report.version} agrees"
    remedy = "believe the readings: go by the checks clocks and power_mode; sudo systemctl restart jtop"
    return Finding("jtop", Level.of(warn=bool(differs)), value, limit, remedy, figures)
