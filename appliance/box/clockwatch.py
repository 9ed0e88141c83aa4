"""How the box's clocks are, as root's check published it: read again and again, and told when it changes.

The daemon has no rights to look for itself. It serves either way: with clocks that are not pinned, short
bursts of work start on a slow processor, so speech comes later, and whoever asked should know why.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from appliance.box.clocks import published
from appliance.box.clocks.published import Clocks
from appliance.box.platform import identify
from appliance.box.system import Box

logger = logging.getLogger(__name__)

PERIOD_S = 2.0
"""How often the daemon reads the file; root's check writes it every 30 s."""
STATES = published.STATES
NOTHING_TO_PIN = Clocks("unsupported", why="this is no Jetson: there are no clocks to pin")


@dataclass(frozen=True)
class ClockStatus:
    """What a look at the clocks means for those who are served."""

    clocks: Clocks
    degraded: str = ""
    """For machines, why service may be worse than usual, e.g. clocks-unpinned; empty when it is not."""

    @property
    def message(self) -> str:
        """For people; empty when all is well."""
        if not self.degraded:
            return ""
        state = self.clocks.state.replace("_", " ")
        return f"clocks are {state}" + (f": {self.clocks.why}" if self.clocks.why else "")


class ClockWatch:
    """The published file of one box, and the last look at it."""

    def __init__(self, box: Box, path: str) -> None:
        """`path` is inside the box's root."""
        self._box, self._path = box, path
        self._jetson = identify(box.root).is_jetson
        self.status = self._read()
        if self.status.degraded:
            logger.warning("serving degraded: %s", _blamed(self.status))

    def look(self) -> ClockStatus:
        """Read the file anew, and log what has changed."""
        before, self.status = self.status, self._read()
        _log(before, self.status)
        return self.status

    def _read(self) -> ClockStatus:
        clocks = published.read(self._box, self._path)
        if clocks.state == "unknown" and not self._jetson:
            return ClockStatus(NOTHING_TO_PIN)
        return ClockStatus(clocks, self._degraded(clocks))

    def _degraded(self, clocks: Clocks) -> str:
        if clocks.state == "pinned":
            return ""
        if clocks.state == "unsupported":
            # On a Jetson that the design does not support nobody has proven anything.
            return "clocks-unknown" if self._jetson else ""
        return f"clocks-{clocks.state.replace('_', '-')}"


def _log(before: ClockStatus, now: ClockStatus) -> None:
    if now.degraded and now.degraded != before.degraded:
        logger.warning("serving degraded: %s", _blamed(now))
    elif now.clocks.repins > before.clocks.repins and before.clocks.state != "unknown":
        logger.warning("clocks were unpinned and have been pinned again: %s", _blamed(now))
    elif before.degraded and not now.degraded:
        logger.info("clocks are as they should be; no longer degraded")


def _blamed(status: ClockStatus) -> str:
    """What was wrong, and whoever root's check suspects."""
    last = status.clocks.last_unpin
    parts = [status.message]
    if last is not None and status.clocks.state != "unknown":
        parts.append(f"last unpinned: {', '.join(last.what)}; by {'; '.join(last.who) or 'nobody known'}")
    return "; ".join(part for part in parts if part)
