"""journalctl: lines that a test planted, filtered by unit, identifier and boot.

Known options: -u -t -k -b --list-boots -n -o {short, short-monotonic, cat} -q, each a separate word. Others
are ignored.
"""

from __future__ import annotations

import json
import re
import sys
import time
from typing import Any

from tests.fakes.jetson.machine import Machine

VALUED = ("-u", "-t", "-n", "-o", "-p")

Entry = dict[str, Any]


def main(arguments: list[str], machine: Machine) -> int:
    machine.log("journalctl", arguments)
    options = _read(arguments)
    entries = [json.loads(line) for line in machine.lines("journal.jsonl")]
    chosen = [entry for entry in entries if _wanted(entry, options)]
    entries.sort(key=lambda entry: float(entry["wall"]))
    now = machine.read("/proc/sys/kernel/random/boot_id")
    boots = [boot for boot in dict.fromkeys(entry["boot"] for entry in entries) if boot != now] + [now]
    if "--list-boots" in arguments:
        for number, boot in enumerate(boots, 1 - len(boots)):
            if walls := [entry["wall"] for entry in entries if entry["boot"] == boot]:
                first, last = (time.strftime("%a %F %T UTC", time.gmtime(w)) for w in (walls[0], walls[-1]))
                print(f"{number:2} {boot.replace('-', '')} {first}—{last}")
        return 0
    if "-b" in options or "-k" in options:
        back = -int(*options.get("-b", []))
        if back >= len(boots):
            print(f"No journal boot entry found for the specified boot (-{back}).", file=sys.stderr)
            return 1
        boot = boots[-1 - back]
        chosen = [entry for entry in chosen if entry["boot"] == boot]
    chosen.sort(key=lambda entry: float(entry["wall"]))
    if "-n" in options:
        chosen = chosen[-int(options["-n"][-1]) :]
    form = options.get("-o", ["short"])[-1]
    for entry in chosen:
        print(_shown(entry, form))
    return 0


def _read(arguments: list[str]) -> dict[str, list[str]]:
    options: dict[str, list[str]] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        values = options.setdefault(word, [])
        if word in VALUED or (word == "-b" and rest and re.fullmatch(r"-?\d+", rest[0])):
            values.append(rest.pop(0))
    return options


def _wanted(entry: Entry, options: dict[str, list[str]]) -> bool:
    units = {unit if "." in unit else f"{unit}.service" for unit in options.get("-u", [])}
    return (
        (not units or entry["unit"] in units)
        and ("-t" not in options or entry["identifier"] in options["-t"])
        and ("-k" not in options or entry["identifier"] == "kernel")
    )


def _shown(entry: Entry, form: str) -> str:
    source = (
        entry["identifier"] if entry["identifier"] == "kernel" else f"{entry['identifier']}[{entry['pid']}]"
    )
    if form == "cat":
        return str(entry["message"])
    if form == "short-monotonic":
        return f"[{entry['at']:12.6f}] ward-7-box {source}: {entry['message']}"
    spelled = time.strftime("%b %d %H:%M:%S", time.gmtime(entry["wall"]))
    return f"{spelled} ward-7-box {source}: {entry['message']}"
