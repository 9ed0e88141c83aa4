"""What the daemon's supervisor is told: the stages of its life, and that it lives while its engine does.

The scheduler stamps a heartbeat before and after each call of the engine, and about once a second when idle.
With `WatchdogSec=30` in the unit, the daemon's event loop looks at it every 2 s and feeds the watchdog while
the last heartbeat is younger than 15 s. So

    a call of up to 40 s is never taken for a dead one,
    one of 45 s or more always is: systemd aborts the daemon and starts it again,
    an event loop that hangs feeds nothing either,

and /livez goes by the same rule.

Loading and warming up have no heartbeat: the watchdog counts only from READY on, and the time to start is
extended while there is progress, which may pause for START_LIMIT_S. Building engines for a GPU takes many
minutes and reports every second.

Where full-size calls take longer (a large model on a few CPU cores), raise WatchdogSec; everything here
follows it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Literal

from appliance.box.notify import Notifier

logger = logging.getLogger(__name__)

PERIOD_S = 2.0
"""How often the event loop looks, at most."""
SILENCE_S = 15.0
"""Without a watchdog's period to follow: how old a heartbeat may be."""
LEAST_SILENCE_S = 2.0
"""Twice what an idle scheduler takes for a turn."""
EXTENSION_S = 120.0
"""What a single step of start-up may take; loading a graph can hold up the event loop as long as it lasts."""
START_LIMIT_S = 900.0
"""Loading and warming up that do not get on for so long have failed."""


class Supervision:
    """The daemon as its supervisor sees it. `turn` is called every `period_s`; any thread may `tell`."""

    def __init__(
        self,
        notifier: Notifier,
        silence_s: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`silence_s` is the age of the last heartbeat in seconds, 0 when none is due."""
        watchdog_s = notifier.watchdog_s
        self.limit_s = max(watchdog_s / 2, LEAST_SILENCE_S) if watchdog_s else SILENCE_S
        self.period_s = min(watchdog_s / 10, PERIOD_S) if watchdog_s else PERIOD_S
        self._notifier, self._silence_s, self._clock = notifier, silence_s, clock
        self._progressed = self._turned = clock()
        self._stage: Literal["starting", "ready", "stopping"] = "starting"
        self._told = ""
        self._was_alive = True

    def alive(self) -> bool:
        """Whether the engine's thread, and the event loop, gave a sign of life not too long ago."""
        return max(self._silence_s(), self._clock() - self._turned) < self.limit_s

    def tell(self, text: str) -> None:
        """Make this the daemon's line in `systemctl status`."""
        if text != self._told:
            self._told = text
            self._progressed = self._clock()
            self._notifier.status(text)

    def ready(self, text: str) -> None:
        """Requests are taken; from here on the watchdog counts."""
        self._stage = "ready"
        self._notifier.ready()
        self.tell(text)

    def stopping(self, text: str, within_s: float) -> None:
        """Requests are no longer taken, and those begun are finished within that time."""
        self._stage = "stopping"
        self._notifier.stopping()
        self._notifier.extend(within_s)
        self.tell(text)

    def turn(self, text: str) -> None:
        """Feed the watchdog if the engine lives, and tell how things are; `text` when they are well."""
        self._turned = self._clock()
        if self._stage == "starting":
            if self._clock() - self._progressed < START_LIMIT_S:
                self._notifier.extend(EXTENSION_S)
            return
        alive = self.alive()
        if alive:
            self._notifier.watchdog()
        if alive != self._was_alive:
            self._was_alive = alive
            self._log(alive)
        self.tell(text if alive else f"wedged: no sign of life from the engine for over {self.limit_s:g} s")

    def _log(self, alive: bool) -> None:
        if alive:
            logger.warning("the engine answers again")
        else:
            told = "; the watchdog is not fed" if self._notifier.watchdog_s else ""
            logger.error("no sign of life from the engine for over %g s%s", self.limit_s, told)
