"""Circumstantial evidence of what unpinned the clocks.

The desktop's power mode menu runs as `python3 /usr/share/nvpmodel_indicator/nvpmodel_indicator.py` (public
process lists), and sets modes through pkexec (its log line: polkit's pkexec.c). On JetPack 7 a udev rule also
runs nvpmodel, through nvpower.sh (public patches of it). systemd does not report that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from appliance.box import paths
from appliance.box.clocks.decision import Assessment
from appliance.box.system import Box

TOOLS = ("nvpmodel", "jetson_clocks", "jtop")
JOURNALLED = ("sudo", "pkexec", "nvpmodel", "jtop")
SERVICE = "nvpmodel.service"
START_TIMES = ("ActiveEnterTimestampMonotonic", "ExecMainStartTimestampMonotonic")
QUERY_S = 10.0
MOVES_CLOCKS = re.compile(
    rf"(?:^|[\s/])(?:{'|'.join(TOOLS)})(?:\.service)?(?=\s|$)|\bsystemctl\b.*\s(?:isolate|default|multi-user\.target)\b"
)
"""Commands that move clocks. The last three run nvpmodel.service again."""
JOURNAL_LINE = re.compile(r"\[\s*(\d+\.\d+)\]\s+\S+\s+([^\s:\[]+)(?:\[\d+\])?:\s+(.*)")
COMMAND = re.compile(r"COMMAND=(.*?)\]?$")
"""Command in a line of sudo's log; in brackets in a line of pkexec's."""
INDICATOR = "nvpmodel_indicator"
MENU = f"{INDICATOR}, the desktop's power mode menu,"
MAX_SUSPECTS = 8
MAX_CHARACTERS = 200


def suspects(box: Box, now: Assessment) -> tuple[str, ...]:
    """Events since the clocks were last read as pinned. Does not raise."""
    since, mode_before, mode_now = now.record.held_at or 0.0, now.record.pinned, now.reading.mode
    lines = []
    if mode_before and mode_now and mode_before != mode_now:
        lines.append(f"power mode changed from {mode_before} to {mode_now}")
    # The unit is a oneshot. It leaves no active state, only the start time of its process.
    arguments = ("show", "-p", ",".join(START_TIMES), SERVICE)
    completed = box.tools.execute("systemctl", *arguments, timeout_s=QUERY_S)
    times = re.findall(rf"^(?:{'|'.join(START_TIMES)})=([0-9]{{1,18}})$", completed.output, re.MULTILINE)
    latest = max((int(time) / 1e6 for time in times), default=0.0)
    if latest > since:
        lines.append(f"{SERVICE} ran again, {latest:.0f} s after boot")
    lines += _journal(box, since)
    jtop = box.tools.execute("systemctl", "is-active", "jtop.service", timeout_s=QUERY_S)
    if jtop.output.strip() == "active":
        lines.append("jtop.service is active: members of the group jtop can change modes and clocks")
    lines += (line for _, line in _processes(box))
    return tuple(line[:MAX_CHARACTERS] for line in dict.fromkeys(lines))[:MAX_SUSPECTS]


def indicator(box: Box) -> str:
    """The desktop's power mode menu, if it runs: it changes modes and holds nvpmodel's lock."""
    return next((line for name, line in _processes(box) if name == INDICATOR), "")


def _journal(box: Box, since: float) -> Iterator[str]:
    """Lines of the journal, in seconds since boot: the wall clock may have been set in between."""
    arguments = ["--no-pager", "-q", "-b", "-n", "500", "-o", "short-monotonic"]
    arguments += [word for name in JOURNALLED for word in ("-t", name)]
    completed = box.tools.execute("journalctl", *arguments, timeout_s=QUERY_S)
    for line in completed.output.splitlines():
        match = JOURNAL_LINE.match(line)
        if not match or float(match[1]) <= since:
            continue
        name, message = match[2], match[3]
        if name not in ("sudo", "pkexec"):
            yield f"{name}: {message}"
        elif (command := COMMAND.search(message)) and MOVES_CLOCKS.search(command[1]):
            yield f"{message.partition(':')[0].strip()} ran: {name} {command[1].strip()}"


def _processes(box: Box) -> Iterator[tuple[str, str]]:
    """Name and description of each process that can move clocks."""
    for number in filter(str.isdecimal, box.root.names(paths.PROCESSES)):
        name = box.root.text(f"{paths.PROCESSES}/{number}/comm") or ""
        if f"/{INDICATOR}" in (box.root.text(f"{paths.PROCESSES}/{number}/cmdline") or ""):
            yield INDICATOR, f"{MENU} is running, process {number}"
        elif name in TOOLS:
            yield name, f"{name} is running, process {number}"
