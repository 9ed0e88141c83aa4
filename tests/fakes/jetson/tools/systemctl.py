"""systemctl: units are rows of properties that a test sets; enabling makes the links that it should."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.fakes.jetson.machine import Machine

FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
WANTS = {"WantedBy": "wants", "RequiredBy": "requires"}
UNKNOWN_UNIT = {
    "LoadState": "not-found",
    "ActiveState": "inactive",
    "SubState": "dead",
    "UnitFileState": "",
    "Result": "success",
    "NRestarts": "0",
    "ActiveEnterTimestampMonotonic": "0",
    "ExecMainStartTimestampMonotonic": "0",
    "ExecMainStatus": "0",
}
NOT_RUNNING = 3
"""Exit status of is-active when no unit is active."""
NO_SUCH_UNIT = 5
"""Exit status of start and stop."""
VALUED = ("-p", "-P", "-n", "-t", "-o", "--property", "--root", "--type", "--state", "--lines", "--output")
"""Options that may take the next word as their value."""


class Systemctl:
    def __init__(self, arguments: list[str], machine: Machine) -> None:
        self.machine = machine
        self.words: list[str] = []
        self.options: dict[str, list[str]] = {}
        rest = iter(arguments)
        for word in rest:
            if not word.startswith("-"):
                self.words.append(word)
                continue
            name, equals, value = word.partition("=")
            self.options.setdefault(name, []).append(
                value if equals else next(rest, "") if name in VALUED else ""
            )
        root = self.options.get("--root", [""])[-1]
        self.root = Path(root) if root else machine.root

    def run(self) -> int:
        """Do what the verb says; the exit status."""
        verb = self.words[0] if self.words else "list-units"
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
        known = {"Id": name, **UNKNOWN_UNIT, **({"LoadState": "loaded"} if loaded else {})}
        if self.file(name) is not None:
            known["UnitFileState"] = "enabled" if any(self.links(name)) else self.unlinked(name)
        return {**known, **(told or {})}

    def file(self, name: str) -> Path | None:
        """The unit's file; that of a template for its instance."""
        for candidate in (name, re.sub(r"@[^.]+\.", "@.", name)):
            for folder in FOLDERS:
                path = self.root / folder[1:] / candidate
                if self.inside(path).is_file():
                    return path
        return None

    def inside(self, path: Path) -> Path:
        while path.is_symlink() and os.readlink(path).startswith("/"):
            path = self.root / os.readlink(path).lstrip("/")
        return path

    def wanted(self, name: str) -> Iterator[str]:
        """Yield the links of the unit's [Install], as paths in the root."""
        path = self.file(name)
        section = self.inside(path).read_text().partition("[Install]")[2] if path is not None else ""
        for key, value in re.findall(r"^(\w+)=(.*)$", section, re.MULTILINE):
            if key in WANTS:
                yield from (f"/etc/systemd/system/{target}.{WANTS[key]}/{name}" for target in value.split())
            elif key == "Alias":
                yield from (f"/etc/systemd/system/{alias}" for alias in value.split())

    def links(self, name: str) -> Iterator[Path]:
        for link in self.wanted(name):
            path = self.root / link[1:]
            if path.is_symlink():
                yield path

    def unlinked(self, name: str) -> str:
        return "disabled" if any(self.wanted(name)) else "static"

    def set(self, name: str, **properties: str) -> None:
        with self.machine.units() as units:
            units.setdefault(name, {}).update(properties)

    def do_is_active(self, names: list[str]) -> int:
        states = [self.unit(name)["ActiveState"] for name in names]
        if "--quiet" not in self.options and "-q" not in self.options:
            print("\n".join(states))
        return 0 if any(state in ("active", "reloading") for state in states) else NOT_RUNNING

    def do_is_enabled(self, names: list[str]) -> int:
        states = []
        for name in names:
            state = self.unit(name)["UnitFileState"]
            states.append(state)
            if not state:
                print(f"Failed to get unit file state for {name}: No such file or directory", file=sys.stderr)
            elif "--quiet" not in self.options:
                print(state)
        return 0 if any(state in ("enabled", "static", "alias", "enabled-runtime") for state in states) else 1

    def do_show(self, names: list[str]) -> int:
        asked = [word for option in ("-p", "-P", "--property") for word in self.options.get(option, [])]
        wanted = [name for word in asked for name in word.split(",")]
        plain = "--value" in self.options or "-P" in self.options
        blocks = []
        for name in names:
            properties = self.unit(name)
            shown = wanted or list(properties)
            blocks.append(
                "\n".join(
                    properties[key] if plain else f"{key}={properties[key]}"
                    for key in shown
                    if key in properties
                )
            )
        print("\n\n".join(blocks))
        return 0

    def do_status(self, names: list[str]) -> int:
        for name in names:
            unit = self.unit(name)
            print(f"● {name}\n     Loaded: {unit['LoadState']} ({self.file(name)}; {unit['UnitFileState']})")
            print(f"     Active: {unit['ActiveState']} ({unit['SubState']})")
        return 0 if all(self.unit(name)["ActiveState"] == "active" for name in names) else NOT_RUNNING

    def do_list_units(self, names: list[str]) -> int:
        with self.machine.units() as units:
            known = sorted(units)
        for name in known:
            unit = self.unit(name)
            print(f"  {name} {unit['LoadState']} {unit['ActiveState']} {unit['SubState']} {name}")
        return 0

    do_list_timers = do_list_units

    def do_enable(self, names: list[str]) -> int:
        for name in names:
            path = self.file(name)
            if path is None:
                print(f"Failed to enable unit: Unit file {name} does not exist.", file=sys.stderr)
                return 1
            for link in self.wanted(name):
                self._link(self.root / link[1:], f"/{path.relative_to(self.root)}")
        return self.do_start(names) if "--now" in self.options else 0

    def _link(self, link: Path, target: str) -> None:
        if link.is_symlink():
            return
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)
        print(f"Created symlink {link} → {target}.", file=sys.stderr)

    def do_disable(self, names: list[str]) -> int:
        for name in names:
            if self.file(name) is None:
                print(f"Failed to disable unit: Unit file {name} does not exist.", file=sys.stderr)
                return 1
            for link in list(self.links(name)):
                link.unlink()
                print(f'Removed "{link}".', file=sys.stderr)
        return self.do_stop(names) if "--now" in self.options else 0

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
        code = 0
        for name in names:
            if self.unit(name)["LoadState"] == "not-found":
                print(f"Failed to stop {name}: Unit {name} not loaded.", file=sys.stderr)
                code = NO_SUCH_UNIT
            else:
                self.set(name, ActiveState="inactive", SubState="dead")
        return code

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
    if "--version" in arguments:
        print("systemd 249 (249.11-0ubuntu3.12)")
        return 0
    return Systemctl(arguments, machine).run()
