"""Clock status for technicians: a reading made now, completed by what root's check has published.

Without root EMC cannot be read: the published state is used instead while it is fresh, with a note.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from appliance.box import paths
from appliance.box.clocks import clocks_json
from appliance.box.clocks.boots import recorded
from appliance.box.clocks.clocks_json import Clocks, State, stamped
from appliance.box.clocks.decision import Assessment
from appliance.box.clocks.reason import Reason
from appliance.box.clocks.verdict import Cause, ClockVerdict, megahertz, span, take_reading
from appliance.box.platform import Platform
from appliance.box.show.streams import plain
from appliance.box.system import Box

COLUMNS = ("min", "current", "max", "ceiling")


@dataclass(frozen=True)
class Status:
    platform: Platform
    clocks: Clocks
    notes: tuple[str, ...] = ()


def status(box: Box) -> Status:
    """Read the status. Does not raise."""
    reading, last = take_reading(box), clocks_json.read(box)
    if reading.refusal:
        return Status(reading.seen.platform, reading.clocks)
    notes = [f"published state: {last.why}"] if last.state == "unknown" else []
    if box.is_root:
        clocks = Assessment(reading, recorded(box, notes.append)).clocks
    else:
        clocks = _with_published(box, reading, last, notes)
    return Status(reading.seen.platform, stamped(box, clocks), tuple(notes))


def document(status: Status) -> str:
    """JSON of the published schema, with the notes."""
    return json.dumps({**clocks_json.document(status.clocks), "notes": status.notes}, indent=1)


def table(status: Status) -> str:
    return "\n".join(map(plain, [*_head(status), *_rows(status.clocks.domains)]))


def _with_published(box: Box, reading: ClockVerdict, last: Clocks, notes: list[str]) -> Clocks:
    """Complete a reading made without root."""
    seen = reading.clocks
    if last.state == "unknown":
        return seen
    clocks = dataclasses.replace(seen, repins=last.repins, last_unpin=last.last_unpin)
    hidden = [name for name, domain in reading.domains.items() if domain.cause is Cause.ROOT]
    found = {name: last.domains[name] for name in hidden if name in last.domains}
    if "mode" in hidden and (last.state, last.mode) == ("pinned", seen.mode):
        found["mode"] = {"pinned": True, "why": ""}
    if found:
        names, age_s = ", ".join(found), box.uptime() - last.checked_at
        notes.append(f"needs root: {names}: what root's check found {age_s:.0f} s ago ({paths.CLOCKS})")
        clocks = dataclasses.replace(clocks, domains={**seen.domains, **found})
        if seen.state == "unknown":
            clocks = _judged(clocks)
    if clocks.state == "unpinned" and (last.state == "reboot_pending" or last.reason is Reason.UNLOCKED):
        clocks = dataclasses.replace(clocks, state=last.state, why=last.why, reason=last.reason, parts=())
    return clocks


def _judged(clocks: Clocks) -> Clocks:
    """State that follows from all domains."""
    whys = {name: domain["why"] for name, domain in clocks.domains.items() if domain["pinned"] is not True}
    bad = any(clocks.domains[name]["pinned"] is False for name in whys)
    state: State = "unpinned" if bad else "unknown" if whys else "pinned"
    reason = Reason.LOOSE if bad else Reason.UNREADABLE if whys else Reason.NONE
    parts = tuple(f"{name}: {why}" for name, why in whys.items())
    return dataclasses.replace(clocks, state=state, reason=reason, why="; ".join(parts), parts=parts)


# The table.


def _head(status: Status) -> Iterator[str]:
    clocks, machine = status.clocks, status.platform
    words = (machine.model, machine.module, machine.jetpack and f"JetPack {machine.jetpack}", machine.release)
    yield f"state      {clocks.state}"
    yield from (f"           {line}" for line in clocks.parts or (clocks.why,) if line)
    yield f"machine    {', '.join(filter(None, words)) or 'no Jetson'}"
    if clocks.mode:
        yield f"mode       {clocks.mode}"
    if clocks.repins or clocks.last_unpin:
        yield f"re-pinned  {clocks.repins} {'time' if clocks.repins == 1 else 'times'} since boot"
    if clocks.last_unpin:
        yield f"unpinned   {clocks.last_unpin.at:.0f} s after boot: {'; '.join(clocks.last_unpin.what)}"
        yield from (f"by         {line}" for line in clocks.last_unpin.who or ("nothing points to anybody",))
    yield from (f"note       {note}" for note in status.notes)


def _rows(domains: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    if domains:
        yield ""
        yield f"{'domain':12}" + "".join(f"{column:>14}" for column in COLUMNS)
    for names, domain in _alike(domains):
        if "expected" in domain:
            value = "unknown" if domain["value"] is None else domain["value"]
            counted = {"tpc": f"mask {value}", "railgate": "on" if value else "off"}
            cells = counted.get(names, f"{value} of {domain['expected']}")
        else:
            cells = "".join(f"{megahertz(domain.get(column)):>14}" for column in COLUMNS)
        word = {True: "pinned", False: "NOT PINNED", None: domain["why"]}[domain["pinned"]]
        yield f"{names:12}{cells:>{14 * len(COLUMNS)}}  {word}"


def _alike(domains: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Group consecutive cores with equal values into one row."""
    for _, rows in itertools.groupby(domains.items(), lambda row: row[1] if row[0][:3] == "cpu" else row[0]):
        same = list(rows)
        yield span([name for name, _ in same]), same[0][1]
