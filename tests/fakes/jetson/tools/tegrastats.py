"""tegrastats: repeats the captured line of a real device until the process ends.

Option: --interval MILLISECONDS. No whole line of JetPack 6 is public: the fake prints JetPack 7's line.
"""

from __future__ import annotations

import time

from tests.fakes.jetson.machine import Machine, captured

ABANDONED_S = 60.0
"""Longest run. A real one never ends; the limit is for tests that forget to end it."""


def main(arguments: list[str], machine: Machine) -> int:
    machine.log("tegrastats", arguments)
    options = dict(zip(arguments, [*arguments[1:], ""], strict=True))
    end = time.monotonic() + ABANDONED_S
    while time.monotonic() < end:
        print(*captured(f"tegrastats-jp{5 if machine.profile.jetpack == 5 else 7}"), flush=True)
        time.sleep(int(options.get("--interval", 1000)) / 1000)
    return 0
