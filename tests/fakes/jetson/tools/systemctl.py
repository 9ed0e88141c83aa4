"""systemctl: a unit is a table of properties that a test sets."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.fakes.jetson.machine import Machine

FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
UNKNOWN_UNIT = {
    "LoadState": "not-found",
    "ActiveState": "inactive",
    "SubState": "dead",
    "Result": "success",
    "NRestarts": "0",
    "ActiveEnterTimestampMonotonic": "0",
    "ExecMainStartTimestampMonotonic": "0",
    "ExecMainStatus": "0",
}
NOT_RUNNING = 3
"""Exit status of is-active when no unit is active."""
NO_SUCH_UNIT = 5
"""Exit status of start."""


class Systemctl:
    def __init__(self, arguments: list[str], machine: Machine) -> None:
        self.machine = machine
        self.properties: list[str] = []
        """Names of the wanted properties; empty for all."""
        if "-p" in arguments:
            place = arguments.index("-p")
            self.properties = arguments[place + 1].split(",")
            arguments = [*arguments[:place], *arguments[place + 2 :]]
        self.options = [word for word in arguments if word.startswith("-")]
        self.words = [word for word in arguments if not word.startswith("-")]

    def run(self) -> int:
        """Run the verb and return the exit status."""
        verb = self.words[0]
        names = [name if "." in name else f"{name}.service" for name in self.words[1:]]
        method = getattr(self, f"do_{verb.replace('-', '_')}", None)
        if method is None:
            print(f"Unknown command verb {verb}.", file=sys.stderr)
            return 1
        return int(method(names))

    def unit(self, name: str) -> dict[str, str]:
        with self.machine.units() as units:
            told = units.get(name)
        loaded = told is not None or self.file(name) is not None
        return {"Id": name, **UNKNOWN_UNIT, **({"LoadState": "loaded"} if loaded else {}), **(told or {})}

    def file(self, name: str) -> Path | None:
        paths = (self.machine.path(f"{folder}/{name}") for folder in FOLDERS)
        return next((path for path in paths if path.is_file()), None)

    def set(self, name: str, **properties: str) -> None:
        with self.machine.units() as units:
            units.setdefault(name, {}).update(properties)

    def do_is_active(self, names: list[str]) -> int:
        states = [self.unit(name)["ActiveState"] for name in names]
        print("\n".join(states))
        return 0 if any(state in ("active", "reloading") for state in states) else NOT_RUNNING

    def do_show(self, names: list[str]) -> int:
        for properties in map(self.unit, names):
            shown = self.properties or list(properties)
            print("\n".join(f"{key}={properties[key]}" for key in shown if key in properties))
        return 0

    def do_status(self, names: list[str]) -> int:
        for name in names:
            unit = self.unit(name)
            print(f"● {name}\n     Loaded: {unit['LoadState']} ({self.file(name)})")
            print(f"     Active: {unit['ActiveState']} ({unit['SubState']})")
        return 0 if all(self.unit(name)["ActiveState"] == "active" for name in names) else NOT_RUNNING

    def do_list_timers(self, names: list[str]) -> int:
        with self.machine.units() as units:
            print("\n".join(sorted(units)))
        return 0

    def do_enable(self, names: list[str]) -> int:
        for name in names:
            if self.unit(name)["LoadState"] == "not-found":
                print(f"Failed to enable unit: Unit file {name} does not exist.", file=sys.stderr)
                return 1
        return self.do_start(names) if "--now" in self.options else 0

    def do_start(self, names: list[str]) -> int:
        return max((self._start(name) for name in names), default=0)

    def _start(self, name: str) -> int:
        unit = self.unit(name)
        if unit["LoadState"] == "not-found":
            print(f"Failed to start {name}: Unit {name} not found.", file=sys.stderr)
            return NO_SUCH_UNIT
        if name == "nvpmodel.service":
            self.machine.apply(self.machine.mode)
            self.machine.ran_nvpmodel(time.clock_gettime(time.CLOCK_BOOTTIME))
            return 0
        if failure := unit.get("StartFails"):
            self.set(name, ActiveState="failed", SubState="failed", Result="exit-code")
            print(f"Job for {name} failed because {failure}.", file=sys.stderr)
            return 1
        stamp = str(round(time.clock_gettime(time.CLOCK_BOOTTIME) * 1e6))
        self.set(name, ActiveState="active", SubState="running", ActiveEnterTimestampMonotonic=stamp)
        return 0

    do_restart = do_start

    def do_try_restart(self, names: list[str]) -> int:
        return self.do_start([name for name in names if self.unit(name)["ActiveState"] == "active"])

    def do_stop(self, names: list[str]) -> int:
        for name in names:
            self.set(name, ActiveState="inactive", SubState="dead")
        return 0

    def do_reset_failed(self, names: list[str]) -> int:
        with self.machine.units() as units:
            for name in names or list(units):
                if units.get(name, {}).get("ActiveState") == "failed":
                    units[name].update(ActiveState="inactive", SubState="dead")
                if name in units:
                    units[name].update(Result="success", NRestarts="0")
        return 0

    def do_daemon_reload(self, names: list[str]) -> int:
        return 0

    def do_reboot(self, names: list[str]) -> int:
        self.machine.append("reboots", "systemctl")
        return 0


def main(arguments: list[str], machine: Machine) -> int:
    machine.log("systemctl", arguments)
    return Systemctl(arguments, machine).run()
