"""/run/f5-appliance/clocks.json: the result of root's check, for unprivileged readers.

Times are in seconds since boot, with the boot's id. A wall clock starts in 1970 and is set later, which would
make a fresh file look old, or an old one fresh.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from appliance.box import paths
from appliance.box.clocks.reason import Reason
from appliance.box.root import error_text
from appliance.box.system import Box
from appliance.fields import Between, Ranged, from_mapping

SCHEMA = 1
CHECK_PERIOD_S = 30.0
"""Period of f5-clocks-check.timer; a test compares the two."""
FRESH_S = 2 * CHECK_PERIOD_S

State = Literal["pinned", "unpinned", "reboot_pending", "unsupported", "unknown"]
STATES: tuple[State, ...] = ("pinned", "unpinned", "reboot_pending", "unsupported", "unknown")
"""States that the file may have. `unknown`: not everything could be read, or the reader cannot use the file.
"""
NUMBERS = Between(-1e15, 1e15)
"""Range of numbers in a record, far above any frequency and any time."""
Number = Annotated[float, NUMBERS]
Count = Annotated[int, NUMBERS]


@dataclass(frozen=True)
class Unpin(Ranged):
    """The last time that root's check found clocks unpinned, and nobody had unlocked them."""

    at: Number
    """Seconds since boot."""
    what: tuple[str, ...]
    """Faults, by domain."""
    who: tuple[str, ...]


@dataclass(frozen=True)
class Clocks(Ranged):
    """State of the clocks. The fields are keys of the file, except `parts`."""

    state: State
    boot_id: str = ""
    checked_at: Number = 0.0
    """Seconds since boot."""
    mode: str = ""
    """Power mode, as "MAXN"."""
    domains: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Domain (cpu0, gpu, emc …) → {min, max, current, ceiling, pinned, why}, in Hz."""
    repins: Count = 0
    """How often clocks were pinned again in this boot."""
    last_unpin: Unpin | None = None
    why: str = ""
    """Reason for people; "" if the clocks are pinned."""
    reason: Reason = Reason.UNKNOWN
    """Reason for programs."""
    parts: tuple[str, ...] = field(default=(), compare=False)
    """Sentences of `why`, if this process wrote them."""

    @classmethod
    def because(cls, state: State, reason: Reason, parts: Iterable[str] = (), **fields: Any) -> Clocks:
        parts = tuple(parts)
        return cls(state, why="; ".join(parts), reason=reason, parts=parts, **fields)


def document(clocks: Clocks) -> dict[str, Any]:
    """JSON object of the file."""
    fields = {"schema": SCHEMA, **dataclasses.asdict(clocks)}
    del fields["parts"]
    return fields


def stamped(box: Box, clocks: Clocks) -> Clocks:
    return dataclasses.replace(clocks, boot_id=box.boot_id, checked_at=round(box.uptime(), 3))


def publish(box: Box, clocks: Clocks) -> Clocks:
    """Write the file; return its content, with boot id and time. Raises OSError."""
    now = stamped(box, clocks)
    box.root.replace(paths.CLOCKS, json.dumps(document(now), indent=1) + "\n")
    return now


def read(box: Box, path: str = paths.CLOCKS) -> Clocks:
    """Read the file. The state is `unknown` if the file is absent, damaged, old or of another boot."""
    try:
        raw = box.root.record(path)
        clocks = from_mapping(Clocks, raw, where=path, error=ValueError, ignore_unknown=True)
        _check(raw.get("schema"), clocks)
    except FileNotFoundError:
        return _unknown(Reason.ABSENT, f"{path} is absent; is f5-clocks.service installed and running?")
    except OSError as error:
        return _unknown(Reason.DAMAGED, f"{path} cannot be read: {error_text(error)}")
    except ValueError:
        return _unknown(Reason.DAMAGED, f"{path} cannot be used: it is damaged, or another release wrote it")
    if clocks.boot_id != box.boot_id:
        return _unknown(Reason.OTHER_BOOT, f"{path} is from before the last boot")
    age_s = box.uptime() - clocks.checked_at
    # `checked_at` is rounded to milliseconds, so it can be half a millisecond ahead.
    if age_s < -0.001:
        return _unknown(Reason.DAMAGED, f"{path} cannot be used: its time is in the future")
    if age_s > FRESH_S:
        why = f"{path} was written {age_s:.0f} s ago; is f5-clocks-check.timer on?"
        return dataclasses.replace(clocks, state="unknown", reason=Reason.STALE, why=why)
    return clocks


def _unknown(reason: Reason, why: str) -> Clocks:
    return Clocks("unknown", why=why, reason=reason)


def _check(schema: object, clocks: Clocks) -> None:
    """Check a file's content. Raises ValueError."""
    if schema != SCHEMA:
        raise ValueError("it has another schema")
    for domain in clocks.domains.values():
        numbers = [value for name, value in domain.items() if name not in ("pinned", "why")]
        if domain.get("pinned", "") not in (True, False, None) or not isinstance(domain.get("why"), str):
            raise ValueError("a domain is damaged")
        if not all(n is None or (type(n) is int and abs(n) <= NUMBERS.most) for n in numbers):
            raise ValueError("a domain lacks a number")
