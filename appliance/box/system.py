"""Box: the file tree, programs, time sources and systemd units of a machine."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from appliance.box import paths
from appliance.box.root import Root
from appliance.box.tools import Tools

PROPERTIES = (
    *("LoadState", "ActiveState", "SubState", "Result", "ExecMainStatus", "NRestarts"),
    *("StatusText", "Job"),
)
ASK_S = 10.0


def seconds_since_boot() -> float:
    """It includes suspend and does not jump when the wall clock is set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Box:
    root: Root = field(default_factory=Root)
    tools: Tools = field(default_factory=Tools)
    wall: Callable[[], float] = time.time
    """Seconds since 1970."""
    uptime: Callable[[], float] = seconds_since_boot
    """Seconds since boot."""
    sleep: Callable[[float], None] = time.sleep
    statvfs: Callable[[Path], os.statvfs_result] = os.statvfs
    user: Callable[[], int] = os.geteuid

    @property
    def boot_id(self) -> str:
        """Changes with each boot; empty when it cannot be read."""
        return self.root.text(paths.BOOT_ID) or ""

    @property
    def is_root(self) -> bool:
        return self.user() == 0


def add_box_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `open_box`, by default from the environment."""
    for option, variable, help in (
        ("--sysroot", "F5_SYSROOT", "stands in for / (F5_SYSROOT)"),
        ("--tools", "F5_TOOLS", "where programs are looked for first (F5_TOOLS)"),
    ):
        parser.add_argument(option, default=os.environ.get(variable, ""), metavar="DIR", help=help)


def open_box(sysroot: str = "", tools: str = "") -> Box:
    """Open the box in `sysroot` (empty: this machine); programs are looked for in `tools` first."""
    environment = {name: value for name, value in (("F5_SYSROOT", sysroot), ("F5_TOOLS", tools)) if value}
    folders = (Path(tools),) if tools else ()
    return Box(Root(Path(sysroot or "/")), Tools(folders, environment))


@dataclass(frozen=True)
class Unit:
    """Properties as `systemctl show` prints them; unknown ones are empty."""

    name: str
    properties: Mapping[str, str]

    @property
    def installed(self) -> bool:
        return self.properties.get("LoadState", "loaded") == "loaded"

    @property
    def active(self) -> str:
        """active, activating, inactive, failed, …"""
        return self.properties.get("ActiveState", "")

    @property
    def result(self) -> str:
        """Result of the last run: success, exit-code, watchdog, start-limit-hit, …"""
        return self.properties.get("Result", "")

    @property
    def exit_status(self) -> int:
        """Exit status of the main process."""
        return _number(self.properties.get("ExecMainStatus", ""))

    @property
    def restarts(self) -> int:
        """Automatic restarts since the last manual start."""
        return _number(self.properties.get("NRestarts", ""))

    @property
    def status(self) -> str:
        """The line that the daemon gives of itself."""
        return self.properties.get("StatusText", "")

    @property
    def queued(self) -> bool:
        """A start or stop of it is under way or waits for other units."""
        return _number(self.properties.get("Job", "")) > 0

    @property
    def summary(self) -> str:
        words = self.active or "unknown"
        sub = self.properties.get("SubState", "")
        words += f" ({sub})" if sub and sub != self.active else ""
        words += f", {self.result}" if self.result not in ("", "success") else ""
        return words + (f", exit status {self.exit_status}" if self.exit_status else "")


def unit(box: Box, name: str) -> Unit | None:
    """None without systemd, or if it does not know the state."""
    ran = box.tools.execute("systemctl", "show", "-p", ",".join(PROPERTIES), name, timeout_s=ASK_S)
    pairs = (line.partition("=") for line in ran.output.splitlines())
    properties = {key: value.strip() for key, equals, value in pairs if equals and key in PROPERTIES}
    return Unit(name, properties) if ran.code == 0 and properties.get("ActiveState") else None


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 19 else 0
