"""Polls the clocks' state, which root's check publishes: the daemon may not read the clocks itself."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from appliance.box.clocks import clocks_json
from appliance.box.clocks.clocks_json import Clocks
from appliance.box.platform import identify
from appliance.box.system import Box

logger = logging.getLogger(__name__)

PERIOD_S = 2.0
"""Seconds between two polls. Root's check writes every 30 s."""
STATES = clocks_json.STATES
NOTHING_TO_PIN = Clocks("unsupported", why="not a Jetson: no clocks to pin")


@dataclass(frozen=True)
class ClockStatus:
    """State of the clocks, and whether it degrades the daemon."""

    clocks: Clocks
    degraded: str = ""
    """Reason for programs, as "clocks-unpinned"; "" if the clocks are as they should be."""

    @property
    def message(self) -> str:
        """The reason for people; "" without one."""
        if not self.degraded:
            return ""
        state = self.clocks.state.replace("_", " ")
        return f"clocks are {state}" + (f": {self.clocks.why}" if self.clocks.why else "")


class ClockWatch:
    """Reads the state of the clocks at intervals."""

    def __init__(self, box: Box, path: str) -> None:
        """`path` is relative to the root of the box's file system."""
        self._box, self._path = box, path
        self._jetson = identify(box.root).is_jetson
        self.status = self._read()
        if self.status.degraded:
            logger.warning("serving degraded: %s", _describe(self.status))

    @property
    def degraded(self) -> str:
        """See `ClockStatus.degraded`."""
        return self.status.degraded

    def refresh(self) -> bool:
        """Read the file again and log a change. Returns True if the cost of engine calls may have changed.

        Each of root's checks writes its time into the file; another time alone is no change.
        """
        before, now = self.status, self._read()
        self.status = now
        if now.degraded and now.degraded != before.degraded:
            logger.warning("serving degraded: %s", _describe(now))
        elif now.clocks.repins > before.clocks.repins and before.clocks.state != "unknown":
            logger.warning("clocks were unpinned and have been pinned again: %s", _describe(now))
        elif before.degraded and not now.degraded:
            logger.info("clocks are pinned; no longer degraded")
        return _speed(now.clocks) != _speed(before.clocks)

    def _read(self) -> ClockStatus:
        """State of the clocks, and the reason why the daemon counts as degraded."""
        clocks = clocks_json.read(self._box, self._path)
        if clocks.state == "unknown" and not self._jetson:
            return ClockStatus(NOTHING_TO_PIN)
        if clocks.state == "pinned" or (clocks.state == "unsupported" and not self._jetson):
            return ClockStatus(clocks)
        # The state "unsupported" says nothing about the clocks of a Jetson.
        state = "unknown" if clocks.state == "unsupported" else clocks.state.replace("_", "-")
        return ClockStatus(clocks, f"clocks-{state}")


def _speed(clocks: Clocks) -> tuple[str, str, int]:
    """Fields of the state that the clock rates depend on."""
    return clocks.state, clocks.mode, clocks.repins


def _describe(status: ClockStatus) -> str:
    """Fault, last loss of the pinned clocks, and its suspected cause."""
    last = status.clocks.last_unpin
    parts = [status.message]
    if last is not None and status.clocks.state != "unknown":
        parts.append(f"last unpinned: {', '.join(last.what)}; by {'; '.join(last.who) or 'unknown'}")
    return "; ".join(part for part in parts if part)
