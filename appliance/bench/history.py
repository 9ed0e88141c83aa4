"""Journal of a box, in the state folder: the newest measurements, and a baseline for each key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from appliance.box.paths import JOURNAL
from appliance.box.system import Box

BASELINES = "/var/lib/f5-appliance/journal/baseline.json"
EARLIER = "/var/lib/f5-appliance/baseline.json"
"""Baselines of releases up to 0.7, which are only read."""
MOST_ENTRIES = 800
"""Most measurements in the journal, which cover two years."""
SCHEMA = 1

Entry = Mapping[str, Any]


def key(bundle: str, l4t: str, mode: str) -> str:
    """Key that comparable measurements share. `bundle` is the SHA-256 of the manifest."""
    return "/".join((bundle[:16], l4t or "no-l4t", mode or "no-mode"))


def entries(box: Box) -> list[Entry]:
    """All measurements, oldest first, without damaged lines."""
    measurements: list[Entry] = []
    for line in (box.root.text(JOURNAL) or "").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("schema") == SCHEMA:
            measurements.append(entry)
    return measurements


def add(box: Box, entry: Entry) -> None:
    """Append a measurement, and drop the oldest beyond MOST_ENTRIES. Raises OSError."""
    newest: list[Entry] = [*entries(box)[-(MOST_ENTRIES - 1) :], {"schema": SCHEMA, **entry}]
    box.root.replace(JOURNAL, "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in newest))


def baselines(box: Box) -> dict[str, Any]:
    """Baselines by key, newest last; none if the file is damaged."""
    every: dict[str, Any] = {}
    for path in (EARLIER, BASELINES):
        try:
            raw = box.root.record(path)
        except (OSError, ValueError):
            continue
        rows = raw.get("baselines")
        if raw.get("schema") == SCHEMA and isinstance(rows, dict):
            # Entries of earlier releases do not contain their key.
            every |= {name: {**one, "key": name} for name, one in rows.items() if isinstance(one, dict)}
    return every


def set_baseline(box: Box, entry: Entry) -> None:
    """Make a measurement the baseline of its key. Raises OSError."""
    others = {name: one for name, one in baselines(box).items() if name != entry["key"]}
    text = json.dumps({"schema": SCHEMA, "baselines": {**others, entry["key"]: dict(entry)}}, indent=1) + "\n"
    box.root.replace(BASELINES, text)
