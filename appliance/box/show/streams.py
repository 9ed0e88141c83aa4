"""Standard streams of root's commands."""

from __future__ import annotations

import io
import sys


def open_streams() -> None:
    """Let stdout and stderr show a stand-in for what their encoding has not, e.g. on a serial console."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
