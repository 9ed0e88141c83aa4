"""Programs without a fake that would change a machine: each call is logged and refused."""

from __future__ import annotations

import sys

from tests.fakes.jetson.machine import Machine


def main(arguments: list[str], machine: Machine) -> int:
    """Refuse and return the exit status. The first argument is the program's name."""
    machine.log(arguments[0], arguments[1:])
    print(f"{arguments[0]}: a fake Jetson has none", file=sys.stderr)
    return 1
