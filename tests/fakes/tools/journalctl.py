"""journalctl: the lines that a test planted, chosen by unit, identifier, boot and time.

Known: -u -t -k -b --list-boots --since --until -n -g -o {short, short-monotonic, short-iso, cat, json} -q,
and FIELD=VALUE for _COMM, SYSLOG_IDENTIFIER and _SYSTEMD_UNIT. A time is @seconds, −5min, `5 min ago`,
`today` or a date. Anything else, priorities too, is passed over.
"""

from __future__ import annotations

import calendar
import json
import re
import sys
import time
from typing import Any

from tests.fakes.machine import Machine

UNITS_S = {
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "d": 86400,
}
VALUED = {
    "--unit": "-u",
    "--identifier": "-t",
    "--since": "-S",
    "--until": "-U",
    "--lines": "-n",
    "--grep": "-g",
    "--output": "-o",
    "--priority": "-p",
    "-b": "-b",
    **{short: short for short in ("-u", "-t", "-S", "-U", "-n", "-g", "-o", "-p")},
}
FIELDS = {"_COMM": "identifier", "SYSLOG_IDENTIFIER": "identifier", "_SYSTEMD_UNIT": "unit"}

Entry = dict[str, Any]


def main(arguments: list[str], machine: Machine) -> int:
    """Run it; the exit status."""
    machine.log("journalctl", arguments)
    options, matches = _read(arguments)
    entries = [json.loads(line) for line in machine.lines("journal.jsonl")]
    chosen = [entry for entry in entries if _wanted(entry, options, matches)]
    entries.sort(key=lambda entry: float(entry["wall"]))
    now = machine.read("/proc/sys/kernel/random/boot_id")
    boots = [boot for boot in dict.fromkeys(entry["boot"] for entry in entries) if boot != now] + [now]
    if "--list-boots" in arguments:
        for number, boot in enumerate(boots, 1 - len(boots)):
            if walls := [entry["wall"] for entry in entries if entry["boot"] == boot]:
                first, last = (
                    time.strftime("%a %F %T UTC", time.gmtime(wall)) for wall in (walls[0], walls[-1])
                )
                print(f"{number:2} {boot.replace('-', '')} {first}—{last}")
        return 0
    if "-b" in options or "-k" in options:
        back = -int(options.get("-b", [""])[-1] or 0)
        if back >= len(boots):
            print(f"No journal boot entry found for the specified boot (-{back}).", file=sys.stderr)
            return 1
        boot = boots[-1 - back]
        chosen = [entry for entry in chosen if entry["boot"] == boot]
    chosen.sort(key=lambda entry: float(entry["wall"]))
    if "-n" in options:
        chosen = chosen[-int(options["-n"][-1]) :]
    form = options.get("-o", ["short"])[-1]
    if not chosen and "-q" not in options and form.startswith("short"):
        print("-- No entries --")
    for entry in chosen:
        print(_shown(entry, form))
    return 0


def _read(arguments: list[str]) -> tuple[dict[str, list[str]], dict[str, set[str]]]:
    options: dict[str, list[str]] = {}
    matches: dict[str, set[str]] = {}
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word in ("-q", "--quiet", "-k", "--dmesg"):
            options["-q" if "q" in word else "-k"] = [""]
        elif name in ("--boot", "-b"):
            options["-b"] = [value]
            if not equals and rest and re.fullmatch(r"-?\d+|all", rest[0]):
                options["-b"] = [rest.pop(0)]
        elif name in VALUED:
            options.setdefault(VALUED[name], []).append(value if equals else rest.pop(0) if rest else "")
        elif not word.startswith("-") and equals and name in FIELDS:
            matches.setdefault(FIELDS[name], set()).add(value)
        elif re.fullmatch(r"-[utnogpSU].+", word):
            options.setdefault(word[:2], []).append(word[2:])
    return options, matches


def _wanted(entry: Entry, options: dict[str, list[str]], matches: dict[str, set[str]]) -> bool:
    units = {unit if "." in unit else f"{unit}.service" for unit in options.get("-u", [])}
    return (
        (not units or entry["unit"] in units)
        and ("-t" not in options or entry["identifier"] in options["-t"])
        and ("-k" not in options or entry["identifier"] == "kernel")
        and ("-g" not in options or re.search(options["-g"][-1], entry["message"]) is not None)
        and ("-S" not in options or float(entry["wall"]) >= moment(options["-S"][-1]))
        and ("-U" not in options or float(entry["wall"]) <= moment(options["-U"][-1]))
        and all(entry[field] in values for field, values in matches.items())
    )


def moment(text: str) -> float:
    """A time as journalctl takes it, in seconds since 1970."""
    if match := re.fullmatch(r"@(-?[\d.]+)", text):
        return float(match[1])
    if match := re.fullmatch(r"-?([\d.]+) ?([a-z]*?)s?(?: ago)?", text):
        return time.time() - float(match[1]) * UNITS_S.get(match[2] or "s", 1)
    if text == "today":
        return time.time() // 86400 * 86400
    for form in ("%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y-%m-%d"):
        try:
            return float(calendar.timegm(time.strptime(text, form)))
        except ValueError:
            continue
    raise SystemExit(f"Failed to parse timestamp: {text}")


def _shown(entry: Entry, form: str) -> str:
    source = (
        entry["identifier"] if entry["identifier"] == "kernel" else f"{entry['identifier']}[{entry['pid']}]"
    )
    if form == "cat":
        return str(entry["message"])
    if form == "json":
        return json.dumps(
            {
                "__REALTIME_TIMESTAMP": str(round(entry["wall"] * 1e6)),
                "__MONOTONIC_TIMESTAMP": str(round(entry["at"] * 1e6)),
                "_BOOT_ID": entry["boot"].replace("-", ""),
                "_PID": str(entry["pid"]),
                "_COMM": entry["identifier"],
                "_HOSTNAME": "ward-7-box",
                "_SYSTEMD_UNIT": entry["unit"],
                "SYSLOG_IDENTIFIER": entry["identifier"],
                "MESSAGE": entry["message"],
            }
        )
    if form == "short-monotonic":
        return f"[{entry['at']:12.6f}] ward-7-box {source}: {entry['message']}"
    spelled = "%Y-%m-%dT%H:%M:%S+0000" if form == "short-iso" else "%b %d %H:%M:%S"
    return f"{time.strftime(spelled, time.gmtime(entry['wall']))} ward-7-box {source}: {entry['message']}"
