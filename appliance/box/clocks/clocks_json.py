"""/run/f5-appliance/clocks.json: the result of root's check, for unprivileged readers.

Times are in seconds since boot, with the boot's id: a wall clock that starts in 1970 and is set later would
make a fresh file look old, or an old one fresh.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from appliance.box import paths
from appliance.box.root import error_text
from appliance.box.system import Box

SCHEMA = 1
CHECK_PERIOD_S = 30.0
"""Period of f5-clocks-check.timer; a test compares them."""
FRESH_S = 2 * CHECK_PERIOD_S

State = Literal["pinned", "unpinned", "reboot_pending", "unsupported", "unknown"]
STATES: tuple[State, ...] = ("pinned", "unpinned", "reboot_pending", "unsupported", "unknown")
"""`unknown`: root's check could not read everything, or a reader cannot use the file."""
MAX_NUMBER = 1e15
"""Above any frequency and any time in a record."""


@dataclass(frozen=True)
class Unpin:
    """The last time that clocks were found unpinned, and not by unlock."""

    at: float
    """Seconds since boot."""
    what: tuple[str, ...]
    """Faults by domain."""
    who: tuple[str, ...]
    """Suspects; empty when there is no evidence."""


@dataclass(frozen=True)
class Clocks:
    state: State
    boot_id: str = ""
    checked_at: float = 0.0
    """Seconds since boot."""
    mode: str = ""
    """Power mode, e.g. MAXN."""
    domains: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Clock name (cpu0, gpu, emc) → {min, max, current, ceiling, pinned, why}, frequencies in Hz."""
    repins: int = 0
    """Number of times in this boot that clocks were pinned again after an unpin."""
    last_unpin: Unpin | None = None
    why: str = ""
    """Reason why the state is not `pinned`; empty when it is."""


def publish(box: Box, clocks: Clocks) -> Clocks:
    """Write the file; returns its content, with boot id and time. Raises OSError."""
    stamped = dataclasses.replace(clocks, boot_id=box.boot_id, checked_at=round(box.uptime(), 3))
    document = {"schema": SCHEMA, **dataclasses.asdict(stamped)}
    box.root.replace(paths.CLOCKS, json.dumps(document, indent=1) + "\n")
    return stamped


def read(box: Box, path: str = paths.CLOCKS) -> Clocks:
    """Read the file; the state is `unknown` when it is absent, damaged, old or of another boot."""
    try:
        clocks = _parse(box.root.record(path))
    except FileNotFoundError:
        return _unknown(f"{path} is absent; is f5-clocks.service installed and running?")
    except OSError as error:
        return _unknown(f"{path} cannot be read: {error_text(error)}")
    except (ValueError, KeyError, TypeError, AttributeError):
        return _unknown(f"{path} cannot be used: it is damaged, or of another release")
    if clocks.boot_id != box.boot_id:
        return _unknown(f"{path} is from before the last boot")
    age_s = box.uptime() - clocks.checked_at
    # `checked_at` is rounded to milliseconds and can be ahead by half of one.
    if not -0.001 <= age_s <= FRESH_S:
        return dataclasses.replace(
            clocks, state="unknown", why=f"{path} was written {age_s:.0f} s ago; is f5-clocks-check.timer on?"
        )
    return clocks


def _unknown(why: str) -> Clocks:
    return Clocks("unknown", why=why)


def _parse(document: dict[str, Any]) -> Clocks:
    if document.pop("schema") != SCHEMA or document["state"] not in STATES:
        raise ValueError("it is of another schema")
    texts = [document[name] for name in ("boot_id", "mode", "why")]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("boot_id, mode and why are not all texts")
    for domain in document["domains"].values():
        if domain["pinned"] not in (True, False, None) or not isinstance(domain["why"], str):
            raise TypeError("a domain is damaged")
        for name, value in domain.items():
            if name not in ("pinned", "why") and value is not None:
                number(value)
    known = {field.name for field in dataclasses.fields(Clocks)}
    last = document.pop("last_unpin")
    values = {name: value for name, value in document.items() if name in known}
    values["checked_at"] = number(values["checked_at"])
    values["repins"] = int(number(values["repins"]))
    return Clocks(**values, last_unpin=None if last is None else parse_unpin(last))


def number(value: object) -> float:
    """Check a number of a record. Raises ValueError when it is none, not finite, or above MAX_NUMBER."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= MAX_NUMBER:
        raise ValueError("it holds no number where one belongs")
    return float(value)


def parse_unpin(document: Mapping[str, Any]) -> Unpin:
    """Raises ValueError, KeyError, TypeError."""
    what, who = (tuple(map(str, document[name])) for name in ("what", "who"))
    return Unpin(number(document["at"]), what, who)
