"""Who unpinned the clocks? Circumstantial evidence, gathered after the fact.

Nothing here is proof, and nothing that is missing is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from appliance.box.clocks.modes import INDICATOR
from appliance.box.system import Box

TOOLS = ("nvpmodel", "jetson_clocks", "jtop")
"""What can move clocks, by the name of its process."""
JOURNALLED = ("sudo", "nvpmodel", "jtop")
SERVICE = "nvpmodel.service"
STARTED = ("ActiveEnterTimestampMonotonic", "ExecMainStartTimestampMonotonic")
ASK_S = 10.0
GUILTY = re.compile(
    rf"(?:^|[\s/])(?:{'|'.join(TOOLS)})(?:\.service)?(?=\s|$)|\bsystemctl\b.*\s(?:isolate|default|multi-user\.target)\b"
)
"""Commands that move clocks; the last three run nvpmodel.service again."""
MOST = 8
LENGTH = 200


def culprits(box: Box, since: float, mode_before: str, mode_now: str) -> tuple[str, ...]:
    """What points to whoever moved clocks after `since`, in seconds since boot. Does not raise."""
    found = (
        *_mode_change(mode_before, mode_now),
        *_service_ran(box, since),
        *_journal(box, since),
        *_jtop(box),
        *_processes(box),
    )
    return tuple(line[:LENGTH] for line in dict.fromkeys(found))[:MOST]


def _mode_change(before: str, now: str) -> Iterator[str]:
    if before and now and before != now:
        yield f"power mode changed from {before} to {now}"


def _service_ran(box: Box, since: float) -> Iterator[str]:
    """Its unit is a oneshot that leaves no active state behind: the start of its process is what tells."""
    ran = box.tools.run("systemctl", "show", "-p", ",".join(STARTED), SERVICE, timeout_s=ASK_S)
    times = re.findall(rf"^(?:{'|'.join(STARTED)})=([0-9]{{1,18}})$", ran.output, re.MULTILINE)
    latest = max((int(time) / 1e6 for time in times), default=0.0)
    if latest > since:
        yield f"{SERVICE} ran again, {latest:.0f} s after boot"


def _journal(box: Box, since: float) -> Iterator[str]:
    """Lines since then, whose times are counted from boot: the wall clock may have been set in between."""
    names = [word for name in JOURNALLED for word in ("-t", name)]
    ran = box.tools.run(
        "journalctl", "--no-pager", "-q", "-b", "-n", "500", "-o", "short-monotonic", *names, timeout_s=ASK_S
    )
    for line in ran.output.splitlines():
        found = re.match(r"\[\s*(\d+\.\d+)\]\s+\S+\s+([^\s:\[]+)(?:\[\d+\])?:\s+(.*)", line)
        if found and float(found[1]) > since:
            yield from _told(found[2], found[3])


def _told(name: str, message: str) -> Iterator[str]:
    if name != "sudo":
        yield f"{name}: {message}"
        return
    command = re.search(r"COMMAND=(.*)", message)
    if command and GUILTY.search(command[1]):
        yield f"{message.partition(':')[0].strip()} ran: sudo {command[1].strip()}"


def _jtop(box: Box) -> Iterator[str]:
    if box.tools.run("systemctl", "is-active", "jtop.service", timeout_s=ASK_S).output.strip() == "active":
        yield "jtop.service is active: whoever is in the group jtop can change modes and clocks"


def indicator(box: Box) -> str:
    """The desktop's power mode menu, should it run: it changes modes, and holds nvpmodel's lock meanwhile."""
    return next((line for line in _processes(box) if line.startswith(INDICATOR)), "")


def _processes(box: Box) -> Iterator[str]:
    for number in box.root.names("/proc"):
        name = (box.root.text(f"/proc/{number}/comm") or "") if number.isdecimal() else ""
        if name.startswith(INDICATOR):
            yield f"nvpmodel_indicator, the desktop's power mode menu, is running, process {number}"
        elif name in TOOLS:
            yield f"{name} is running, process {number}"
