"""Reports to systemd: stage, status, and the watchdog, fed while the engine is alive.

The scheduler stamps a heartbeat around each engine call, and about once a second when idle. With
`WatchdogSec=30` the watchdog is fed while it is younger than 15 s: an engine call of up to 40 s never
triggers it, one of 45 s, or an event loop that hangs, always does. Where calls take longer (a large model on
a few cores), raise WatchdogSec: the limits follow it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Literal

from appliance.serve.notify import Notifier

logger = logging.getLogger(__name__)

PERIOD_S = 2.0
"""Longest period of `tick`."""
SILENCE_S = 15.0
"""Age limit of a heartbeat without a watchdog."""
LEAST_SILENCE_S = 2.0
"""Twice the heartbeat's period when idle."""
EXTENSION_S = 120.0
"""Limit of a single step of start-up: loading a graph holds up the event loop."""
START_LIMIT_S = 900.0
"""Longest pause of progress before READY; building engines reports every second."""


class Supervision:
    """Call `tick` every `period_s`, `set_status` in any thread."""

    def __init__(
        self, notifier: Notifier, silence_s: Callable[[], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`silence_s`: age of the last heartbeat in seconds, 0 when none is due."""
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
        """Set the line in `systemctl status`; a new text counts as progress."""
        if text != self.status:
            self.status = text
            self._progressed = self._clock()
            self._notifier.status(text)

    def ready(self, text: str) -> None:
        """Report the end of the start, from which on systemd's watchdog counts."""
        self._stage = "ready"
        self._notifier.ready()
        self.set_status(text)

    def stopping(self, text: str, within_s: float) -> None:
        """Report the drain, which ends within `within_s`."""
        self._stage = "stopping"
        self._notifier.stopping()
        self._notifier.extend(within_s)
        self.set_status(text)

    def tick(self, text: str) -> None:
        """Feed the watchdog if the daemon is alive; set the status, unless it is wedged."""
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
                logger.error("no sign of life from the engine for over %g s%s", self.limit_s, unfed)
        self.set_status(
            text if alive else f"wedged: no sign of life from the engine for over {self.limit_s:g} s"
        )
