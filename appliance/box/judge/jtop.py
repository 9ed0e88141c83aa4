"""What jetson-stats claims, for technicians who use it: never a source, only compared with our readings.

It is asked through the Python of its own command: today's installs live in an environment of theirs.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from appliance.box import paths
from appliance.box.clocks.verdict import ClockReading
from appliance.box.judge.finding import Finding, Level, passed, skipped
from appliance.box.system import Box

ANSWER_S = 15.0
INTERPRETER = re.compile(r"#!\s*(/\S+/python[\d.]*)\s*\n|#!/bin/sh\n'''exec' \"?(/[^\"\n]+/python[\d.]*)\"? ")
"""The second form stands where a path is too long for a first line."""
QUESTION = """
import json
try:
    import jtop
    with jtop.jtop() as box:
        box.ok()
        told = {"version": str(jtop.__version__), "pinned": bool(box.jetson_clocks)}
        told["mode"] = str(box.nvpmodel)
except ImportError:
    told = {"problem": "jetson-stats is not installed"}
except Exception as error:
    told = {"problem": (str(error).splitlines() or ["jtop gave no answer"])[0]}
print(json.dumps(told))
"""


@dataclass(frozen=True)
class Claim:
    """What it says."""

    version: str = ""
    pinned: bool = False
    mode: str = ""
    problem: str = ""
    """Why it says nothing; empty when it does."""


def ask(box: Box) -> Claim:
    """Does not raise. Without its service nothing is started."""
    if not box.root.exists(paths.JTOP_SOCKET):
        return Claim(problem="jtop.service is not running")
    # -I: neither this folder nor our environment is a place to import from.
    ran = box.tools.run(*_python(box), "-I", "-c", QUESTION, timeout_s=ANSWER_S)
    lines = ran.output.strip().splitlines()
    try:
        told: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        if "problem" in told:
            return Claim(problem=str(told["problem"]))
        return Claim(str(told["version"]), bool(told["pinned"]), str(told["mode"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return Claim(problem="jtop gave no answer")


def _python(box: Box) -> tuple[str, ...]:
    """The interpreter in the first line of jtop's command, run as whoever owns it; else the system's."""
    found = INTERPRETER.match(box.root.text(paths.JTOP) or "")
    try:
        place = box.root.at(found[1] or found[2]) if found else None
        owners = [place.lstat(), place.stat()] if place else []
    except OSError:
        place = None
    if place is None:
        return ("python3",)
    # Root does not run what a user could have changed.
    user = next((owner for owner in owners if owner.st_uid), None)
    if user is None or not box.is_root:
        return (str(place),)
    identity = (f"--reuid={user.st_uid}", f"--regid={user.st_gid}", "--init-groups")
    return ("setpriv", *identity, str(place))


def judge(claim: Claim, reading: ClockReading) -> Finding:
    """Where it differs from what the kernel says, the kernel is right."""
    if claim.problem:
        return skipped("jtop", claim.problem)
    limit = "the same as the readings"
    figures = {"version": claim.version, "pinned": claim.pinned, "mode": claim.mode}
    differs = []
    # Without root some domains cannot be seen; a claim is only contradicted by what is.
    if claim.pinned and reading.faults:
        differs.append("claims that jetson_clocks is on, and the readings say: " + "; ".join(reading.faults))
    if not claim.pinned and reading.state == "pinned":
        differs.append("claims that jetson_clocks is off, and the readings say that all is pinned")
    if claim.mode and reading.mode and claim.mode != reading.mode:
        differs.append(f"claims power mode {claim.mode}, and it is {reading.mode}")
    if differs:
        remedy = "believe the readings: go by the checks clocks and power_mode; sudo systemctl restart jtop"
        return Finding("jtop", Level.WARN, "; ".join(differs), limit, remedy, figures)
    return passed("jtop", f"jetson-stats {claim.version} agrees", limit, figures)
