"""Starts of the daemon that take minutes, with a line about the current step at least every PERIOD_S."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from appliance.box.checks.readiness import STATUS_REMEDIES
from appliance.box.checks.snapshot import UNIT
from appliance.box.system import Box, Unit, unit

PERIOD_S = 20.0
POLL_S = 0.5
CRASHES = 3
"""Restarts by systemd after which a start counts as failed."""
Say = Callable[[str], None]


class NewLines:
    """Passes on a line if its beginning, up to a colon, is new.

    Repeats the last line after PERIOD_S without a new one.
    """

    def __init__(self, say: Say, clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock = say, clock
        self._last, self._begun = "", clock()
        self._said_at = self._begun

    def __call__(self, line: str) -> None:
        """Pass on `line` if it is new; "" means that nothing is new."""
        now = self._clock()
        if line and line.partition(":")[0] != self._last.partition(":")[0]:
            self._say(line)
        elif now - self._said_at >= PERIOD_S:
            self._say(line or f"{self._last or 'working'} ({now - self._begun:.0f} s)")
        else:
            return
        self._last, self._said_at = line or self._last, now


def start_daemon(box: Box, say: Say, patience_s: float = math.inf) -> str:
    """Start the daemon and follow it until it is ready. Returns the failure, or ""."""
    box.tools.execute("systemctl", "reset-failed", UNIT)
    begun = box.uptime()
    first, lines = unit(box, UNIT), NewLines(say, box.uptime)
    ran = box.tools.execute("systemctl", "start", "--no-block", UNIT)
    if ran.code:
        return f"the daemon cannot be started: {ran.summary}"
    while (now := unit(box, UNIT)) is not None:
        if now.active == "active" and not now.queued:  # otherwise the restart is still to come
            return ""
        if problem := _failed(now, first):
            return problem
        if box.uptime() - begun > patience_s:
            return f"the daemon was not ready after {patience_s:.0f} s: {now.status or now.summary}"
        lines(now.status if now.active == "activating" else "waiting for systemd to start the daemon")
        box.sleep(POLL_S)
    return "systemd does not answer"


def _failed(now: Unit, first: Unit | None) -> str:
    """Reason why the daemon cannot become ready by itself; "" if it may."""
    again = now.restarts - (first.restarts if first else 0)
    if not (now.active == "failed" or (now.active == "inactive" and not now.queued) or again >= CRASHES):
        return ""
    remedy = STATUS_REMEDIES.get(now.exit_status, f"journalctl -u {UNIT} says why")
    return f"the daemon did not start: {now.summary}{f': {now.status}' if now.status else ''}; {remedy}"
