"""Cross-check with jetson-stats (jtop), for technicians who use it; never a source of readings.

It is run with the Python of its own command, since current releases install into an environment of their own.
"""

from __future__ import annotations

import json
import re
from typing import Any

from appliance.box import paths
from appliance.box.checks.finding import Finding, Level, skipped
from appliance.box.checks.snapshot import Harm, check
from appliance.box.clocks.verdict import ClockVerdict
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


def query(box: Box) -> dict[str, Any]:
    """Version, pinned and mode as jtop reports them, or the problem. Does not raise."""
    if not box.root.exists(paths.JTOP_SOCKET):
        return {"problem": "jtop.service is not running"}
    # -I: nothing is imported from the current folder or our environment.
    ran = box.tools.execute(*_python(box), "-I", "-c", SCRIPT, timeout_s=ANSWER_S)
    try:
        report = json.loads(ran.output.strip().splitlines()[-1])
        keys = ("problem",) if "problem" in report else ("version", "pinned", "mode")
        return {key: report[key] for key in keys}
    except (ValueError, LookupError, TypeError, RecursionError):
        return {"problem": "jtop gave no answer"}


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


@check("jtop", Harm.UPKEEP, 5, lambda now: (query(now.box), now.reading))
def check_jtop(report: dict[str, Any], reading: ClockVerdict) -> Finding:
    """WARN if jetson-stats disagrees with the kernel's files, which are right."""
    if "problem" in report:
        return skipped("jtop", report["problem"])
    differs = []
    # Some clocks need root to be read: jtop can only contradict a clock that was read.
    if reading.faults if report["pinned"] else reading.state == "pinned":
        differs.append(f"claims that jetson_clocks is {'on' if report['pinned'] else 'off'}")
    if report["mode"] and reading.mode and report["mode"] != reading.mode:
        differs.append(f"claims power mode {report['mode']}, and it is {reading.mode}")
    value = "; ".join(differs) or f"jetson-stats {report['version']} agrees"
    remedy = "believe the readings: go by the checks clocks and power_mode; sudo systemctl restart jtop"
    return Finding("jtop", Level.of(warn=bool(differs)), value, "the same as the readings", remedy, report)
