"""timedatectl: whether the clock is synchronised, which is so when timesyncd's file says so."""

from __future__ import annotations

from tests.fakes.jetson.machine import Machine


def main(arguments: list[str], machine: Machine) -> int:
    machine.log("timedatectl", arguments)
    synchronised = "yes" if machine.path("/run/systemd/timesync/synchronized").exists() else "no"
    if "show" not in arguments:
        print(f"System clock synchronized: {synchronised}\n              NTP service: active")
    elif "--value" in arguments:
        print(synchronised)
    else:
        print(f"NTP=yes\nNTPSynchronized={synchronised}")
    return 0
