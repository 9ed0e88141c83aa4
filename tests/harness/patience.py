"""Bounds of waits, which grow with the load of the machine.

A test awaits an event. The bound ends a wait for an event that never comes, and claims nothing about speed.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable

QUIET_S = 0.25
"""Wall time of `_WORK` on a quiet machine, at most."""
_WORK = "import grpc, numpy, onnxruntime"
_KEPT = "F5_PATIENCE"
"""Variable with the factor, for child processes of the tests; a factor set by hand is not measured."""


def _slowness() -> float:
    """Measure the time to start and import, relative to a quiet machine; at least 1."""
    if _KEPT not in os.environ:
        begun = time.monotonic()
        # The first run fills the file cache, the second is timed.
        for _ in range(2):
            begun = time.monotonic()
            subprocess.run([sys.executable, "-c", _WORK], capture_output=True)
        took_s = time.monotonic() - begun
        os.environ[_KEPT] = f"{max(1.0, took_s / QUIET_S):.2f}"
    return float(os.environ[_KEPT])


SLOWNESS = _slowness()
PATIENCE_S = 120.0 * SLOWNESS
"""Bound of a wait for what must happen."""


def scaled(seconds: float) -> float:
    """Time of an event on this machine that takes `seconds` on a quiet one, for the product's timeouts and
    for silences."""
    return seconds * SLOWNESS


def until(true: Callable[[], object], failing: Callable[[], str] = lambda: "it did not happen") -> None:
    """Poll until `true` returns a true value; `failing` describes the state if that takes too long."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, failing()
        time.sleep(0.01)
