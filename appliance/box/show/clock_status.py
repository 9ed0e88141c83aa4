"""Status of the clocks for technicians: a current reading; without root, the last result of root's check."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from appliance.box import paths
from appliance.box.clocks import clocks_json
from appliance.box.clocks.boots import recorded
from appliance.box.clocks.clocks_json import Clocks, stamped
from appliance.box.clocks.decision import Assessment
from appliance.box.clocks.verdict import megahertz, span, take_reading
from appliance.box.platform import Platform
from appliance.box.show.streams import plain
from appliance.box.system import Box

COLUMNS = ("min", "current", "max", "ceiling")


@dataclass(frozen=True)
class Status:
    """Content of `f5-clock-lock status`."""

    platform: Platform
    clocks: Clocks
    notes: tuple[str, ...] = ()


def status(box: Box) -> Status:
    """Read the status. Does not raise."""
    reading, last = take_reading(box), clocks_json.read(box)
    if reading.refusal:
        return Status(reading.raw.platform, reading.clocks)
    notes = [f"published state: {last.why}"] if last.state == "unknown" else []
    if box.is_root:
        clocks = Assessment(reading, recorded(box, notes.append)).clocks
    else:
        clocks = reading.clocks
        # Root's check sees more. Its last result counts, unless clocks were unpinned since.
        if last.state != "unknown" and (last.state, clocks.state) != ("pinned", "unpinned"):
            age_s = box.uptime() - last.checked_at
            notes.append(f"needs root; shown as root's check read it {age_s:.0f} s ago ({paths.CLOCKS})")
            clocks = last
    return Status(reading.raw.platform, stamped(box, clocks), tuple(notes))


def document(status: Status) -> str:
    """JSON of the published schema, with the notes."""
    return json.dumps({**clocks_json.document(status.clocks), "notes": status.notes}, indent=1)


def table(status: Status) -> str:
    return "\n".join(map(plain, [*_head(status), *_rows(status.clocks.domains)]))


# The table.


def _head(status: Status) -> Iterator[str]:
    clocks, machine = status.clocks, status.platform
    words = (machine.model, machine.module, machine.jetpack and f"JetPack {machine.jetpack}", machine.release)
    yield f"state      {clocks.state}"
    yield from (f"           {line}" for line in clocks.parts or (clocks.why,) if line)
    yield f"machine    {', '.join(filter(None, words)) or 'not a Jetson'}"
    if clocks.mode:
        yield f"mode       {clocks.mode}"
    if clocks.repins or clocks.last_unpin:
        yield f"re-pinned  {clocks.repins} {'time' if clocks.repins == 1 else 'times'} since boot"
    if clocks.last_unpin:
        yield f"unpinned   {clocks.last_unpin.at:.0f} s after boot: {'; '.join(clocks.last_unpin.what)}"
        yield from (f"by         {line}" for line in clocks.last_unpin.who or ("no cause is known",))
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
