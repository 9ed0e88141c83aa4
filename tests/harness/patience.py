"""Bounds of waits, which grow with what else the machine does.

A test awaits an event; its bound ends a wait for what never comes, and claims nothing about speed.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable

QUIET_S = 0.25
"""Wall time of `_WORK` on a quiet machine, or more."""
_WORK = "import grpc, numpy, onnxruntime"
_KEPT = "F5_PATIENCE"
"""Holds the factor for the processes that a run of the tests starts; set by hand, it is not measured."""


def _slowness() -> float:
    """Measure how much longer than on a quiet machine a process takes to start and import, at least 1."""
    if _KEPT not in os.environ:
        begun = time.monotonic()
        # Once for the files, once for the time.
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
    """Seconds in which something happens on a quiet machine, for timeouts of the product and for silences."""
    return seconds * SLOWNESS


def until(true: Callable[[], object], failing: Callable[[], str] = lambda: "it did not happen") -> None:
    """Poll until `true` returns a true value; `failing` describes the state if that takes too long."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, failing()
        time.sleep(0.01)
