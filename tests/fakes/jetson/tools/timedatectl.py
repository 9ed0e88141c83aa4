"""timedatectl show -p NTPSynchronized --value: yes if timesyncd's file exists."""

from __future__ import annotations

from tests.fakes.jetson.machine import Machine


def main(arguments: list[str], machine: Machine) -> int:
    machine.log("timedatectl", arguments)
    synchronised = "yes" if machine.path("/run/systemd/timesync/synchronized").exists() else "no"
    print(synchronised)
    return 0
