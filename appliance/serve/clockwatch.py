"""Clock state that root's check publishes, polled: the daemon may not read the clocks itself.

Unpinned clocks only delay speech: a burst starts on a slow processor.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from appliance.box.clocks import clocks_json
from appliance.box.clocks.clocks_json import Clocks
from appliance.box.platform import identify
from appliance.box.system import Box

logger = logging.getLogger(__name__)

PERIOD_S = 2.0
"""Root's check writes every 30 s."""
STATES = clocks_json.STATES
NOTHING_TO_PIN = Clocks("unsupported", why="this is no Jetson: there are no clocks to pin")


@dataclass(frozen=True)
class ClockStatus:
    clocks: Clocks
    degraded: str = ""
    """Machine-readable, e.g. clocks-unpinned, or ""."""

    @property
    def message(self) -> str:
        """The same for people."""
        if not self.degraded:
            return ""
        state = self.clocks.state.replace("_", " ")
        return f"clocks are {state}" + (f": {self.clocks.why}" if self.clocks.why else "")


class ClockWatch:
    def __init__(self, box: Box, path: str) -> None:
        """`path` is inside the box's root."""
        self._box, self._path = box, path
        self._jetson = identify(box.root).is_jetson
        self.status = self._read()
        if self.status.degraded:
            logger.warning("serving degraded: %s", _describe(self.status))

    @property
    def degraded(self) -> str:
        """As `status.degraded`."""
        return self.status.degraded

    def refresh(self) -> bool:
        """Read the file again and log a change. Returns True if calls of the engine may cost something else.

        Each of root's checks writes the file with the time of the check, which alone is no change.
        """
        before, now = self.status, self._read()
        self.status = now
        if now.degraded and now.degraded != before.degraded:
            logger.warning("serving degraded: %s", _describe(now))
        elif now.clocks.repins > before.clocks.repins and before.clocks.state != "unknown":
            logger.warning("clocks were unpinned and have been pinned again: %s", _describe(now))
        elif before.degraded and not now.degraded:
            logger.info("clocks are as they should be; no longer degraded")
        return _speed(now.clocks) != _speed(before.clocks)

    def _read(self) -> ClockStatus:
        clocks = clocks_json.read(self._box, self._path)
        if clocks.state == "unknown" and not self._jetson:
            return ClockStatus(NOTHING_TO_PIN)
        if clocks.state == "pinned" or (clocks.state == "unsupported" and not self._jetson):
            return ClockStatus(clocks)
        # Nothing is known of an unsupported Jetson's clocks.
        state = "unknown" if clocks.state == "unsupported" else clocks.state.replace("_", "-")
        return ClockStatus(clocks, f"clocks-{state}")


def _speed(clocks: Clocks) -> tuple[str, str, int]:
    """Part of a state that the speed of the clocks depends on."""
    return clocks.state, clocks.mode, clocks.repins


def _describe(status: ClockStatus) -> str:
    """Fault, last unpin and its suspects."""
    last = status.clocks.last_unpin
    parts = [status.message]
    if last is not None and status.clocks.state != "unknown":
        parts.append(f"last unpinned: {', '.join(last.what)}; by {'; '.join(last.who) or 'nobody known'}")
    return "; ".join(part for part in parts if part)
