"""dpkg's frontend lock, acquired as apt acquires it, and packages that apt holds back."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from appliance.box import paths
from appliance.box.system import Box
from appliance.box.tools import Tools

WAIT_S = 120
BY_DPKG = "DPKG_MAINTSCRIPT_PACKAGE"
"""Variable that dpkg sets in a package's script. dpkg itself holds the lock then, and runs us."""
OURS = {"DPKG_FRONTEND_LOCKED": "true"}
"""Variables that tell dpkg that its caller already holds the lock."""


class AptError(Exception):
    """Failure of apt or dpkg. The message is one line, which ends with the remedy."""


@contextlib.contextmanager
def locked(box: Box, say: Callable[[str], None]) -> Iterator[Tools]:
    """Hold the lock, and yield tools for dpkg and apt-mark.

    Waits for the lock up to WAIT_S. Raises AptError, OSError.
    """
    place = box.root.at(paths.DPKG_LOCK)
    if BY_DPKG in os.environ or not place.exists():
        yield box.tools
        return
    with place.open("r+b") as lock:
        for second in range(WAIT_S):
            with contextlib.suppress(BlockingIOError, PermissionError):
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if not second:
                say(f"another apt is running: waiting for it to end, up to {WAIT_S} s")
            box.sleep(1.0)
        else:
            raise AptError("another apt is running; nothing was changed: run this again in a few minutes")
        yield replace(box.tools, environment={**box.tools.environment, **OURS})


def mark(tools: Tools, verb: str, packages: Sequence[str]) -> None:
    """Hold packages back, or release them ("unhold"). Raises AptError."""
    if packages and (ran := tools.execute("apt-mark", verb, *packages, timeout_s=60.0)).code:
        # dpkg keeps its lock while it removes this package.
        again = f"run `sudo apt-mark {verb} {' '.join(packages)}` when no apt or dpkg is running"
        raise AptError(f"{ran.summary}: {again}")
