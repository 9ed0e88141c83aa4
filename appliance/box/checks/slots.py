"""Check of the root file system's A/B slots. After boots that nobody confirmed, UEFI changes the slot."""

from __future__ import annotations

import re

from appliance.box.checks.finding import Finding, Level, passed, skipped
from appliance.box.checks.snapshot import Harm, check
from appliance.box.tools import Completed

ASK = ("nvbootctrl", "-t", "rootfs", "dump-slots-info")
CURRENT = re.compile(r"^Current rootfs slot: ([AB])\s*$", re.MULTILINE)
SLOT = re.compile(r"^slot: ([01]),.*\bstatus: (\w{1,20})\s*$", re.MULTILINE)
OTHER = (
    "a different system may be running: compare its configuration and voices with your backup. To have "
    "both slots again, flash the box or run its maker's update"
)


@check("slots", Harm.LATER, 14, lambda now: (now.box.tools.execute(*ASK, timeout_s=10.0),))
def check_slots(completed: Completed) -> Finding:
    """WARN if a slot cannot be started."""
    limit = "both can start"
    current, slots = CURRENT.search(completed.output), SLOT.findall(completed.output)
    if current is None:
        return skipped("slots", "nvbootctrl does not list slots")
    if bad := [f"slot {'AB'[int(number)]} is {status}" for number, status in slots if status != "normal"]:
        return Finding("slots", Level.WARN, f"{', '.join(bad)}, and slot {current[1]} runs", limit, OTHER)
    return passed("slots", f"slot {current[1]} runs", limit)
