"""Reports to systemd: stage, status, and the watchdog, which is fed while the engine is alive.

The scheduler records a heartbeat before and after each engine call, and about once a second when idle. With
`WatchdogSec=30` the watchdog is fed while the heartbeat is younger than 15 s. So an engine call of up to 40 s
never triggers it; a call of 45 s, or an event loop that hangs, always does. If calls take longer (a large
model on a few cores), raise WatchdogSec: the limits follow it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Literal

from appliance.serve.notify import Notifier

logger = logging.getLogger(__name__)

PERIOD_S = 2.0
"""Longest time between two calls of `tick`."""
SILENCE_S = 15.0
"""Age in seconds at which a heartbeat is too old, if systemd has no watchdog."""
LEAST_SILENCE_S = 2.0
"""Smallest age at which a heartbeat is too old: twice its period when idle."""
EXTENSION_S = 120.0
"""Seconds by which systemd's timeout is extended: the longest single step of the start. Loading a graph
blocks the event loop.
"""
START_LIMIT_S = 900.0
"""Longest start, in seconds, without progress. Building an engine reports progress every second."""


class Supervision:
    """Call `tick` every `period_s`; any thread may call `set_status`."""

    def __init__(
        self, notifier: Notifier, silence_s: Callable[[], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`silence_s` returns the age of the last heartbeat in seconds, 0 if none is expected."""
        watchdog_s = notifier.watchdog_s
        self.limit_s = max(watchdog_s / 2, LEAST_SILENCE_S) if watchdog_s else SILENCE_S
        self.period_s = min(watchdog_s / 10, PERIOD_S) if watchdog_s else PERIOD_S
        self._notifier, self._silence_s, self._clock = notifier, silence_s, clock
        self._progressed = self._ticked = clock()
        self._stage: Literal["starting", "ready", "stopping"] = "starting"
        self.status = ""
        """The line in `systemctl status`."""
        self._was_alive = True

    def alive(self) -> bool:
        return max(self._silence_s(), self._clock() - self._ticked) < self.limit_s

    def set_status(self, text: str) -> None:
        """Set the line in `systemctl status`. A new text counts as progress."""
        if text != self.status:
            self.status = text
            self._progressed = self._clock()
            self._notifier.status(text)

    def ready(self, text: str) -> None:
        """Report the end of the start. systemd's watchdog counts from now on."""
        self._stage = "ready"
        self._notifier.ready()
        self.set_status(text)

    def stopping(self, text: str, within_s: float) -> None:
        """Report that the drain has begun and ends within `within_s`."""
        self._stage = "stopping"
        self._notifier.stopping()
        self._notifier.extend(within_s)
        self.set_status(text)

    def tick(self, text: str) -> None:
        """Feed the watchdog if the daemon is alive. Set the status, unless the daemon hangs."""
        self._ticked = self._clock()
        if self._stage == "starting":
            if self._clock() - self._progressed < START_LIMIT_S:
                self._notifier.extend(EXTENSION_S)
            return
        alive = self.alive()
        if alive:
            self._notifier.watchdog()
        if alive != self._was_alive:
            self._was_alive = alive
            if alive:
                logger.warning("the engine answers again")
            else:
                unfed = "; the watchdog is not fed" if self._notifier.watchdog_s else ""
                logger.error("no heartbeat from the engine for over %g s%s", self.limit_s, unfed)
        self.set_status(
            text if alive else f"wedged: no heartbeat from the engine for over {self.limit_s:g} s"
        )
