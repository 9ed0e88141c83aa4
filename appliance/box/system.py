"""Box: the file tree, programs, time sources and systemd units of a machine."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from appliance.box import paths
from appliance.box.root import Root, parse_int
from appliance.box.tools import Tools

PROPERTIES = (
    *("LoadState", "ActiveState", "SubState", "Result", "ExecMainStatus", "NRestarts"),
    *("StatusText", "Job"),
)
ASK_S = 10.0


def seconds_since_boot() -> float:
    """Seconds since boot. They include suspend, and do not jump when the wall clock is set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Box:
    """Access to the machine: its files, programs and clocks. Tests replace each."""

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
        """Id that changes with each boot; "" if it cannot be read."""
        return self.root.text(paths.BOOT_ID) or ""

    @property
    def reset_source(self) -> str:
        """Source of the reset before this boot, by the Tegra's power management controller; "" if unknown."""
        return next(filter(None, map(self.root.text, paths.RESET_REASONS)), "")

    @property
    def is_root(self) -> bool:
        return self.user() == 0


def program_parser(name: str, doc: str | None) -> argparse.ArgumentParser:
    """Parser of a program of the box, with the box's options. Its help is the program's docstring."""
    parser = argparse.ArgumentParser(
        prog=name, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_box_options(parser)
    return parser


def add_box_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `open_box`. Their defaults come from the environment."""
    for option, variable, help in (
        ("--sysroot", "F5_SYSROOT", "folder used in place of / (F5_SYSROOT)"),
        ("--tools", "F5_TOOLS", "folder to search first for programs (F5_TOOLS)"),
    ):
        parser.add_argument(option, default=os.environ.get(variable, ""), metavar="DIR", help=help)


def open_box(sysroot: str = "", tools: str = "") -> Box:
    """Open the box in `sysroot` ("": this machine). Programs are first searched in `tools`."""
    environment = {name: value for name, value in (("F5_SYSROOT", sysroot), ("F5_TOOLS", tools)) if value}
    folders = (Path(tools),) if tools else ()
    return Box(Root(Path(sysroot or "/")), Tools(folders, environment))


@dataclass(frozen=True)
class Unit:
    """State of a unit, as `systemctl show` prints it. Unknown properties are empty."""

    properties: Mapping[str, str]
    installed: bool
    active: str
    """ActiveState: active, activating, inactive, failed, …"""
    result: str
    """Result of the last run: success, exit-code, watchdog, start-limit-hit, …"""
    exit_status: int
    """Exit status of the main process."""
    restarts: int
    """Automatic restarts since the last manual start."""
    status: str
    """Status line that the daemon reports to systemd."""
    queued: bool
    """True if a start or stop of the unit is under way, or waits for other units."""

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> Unit:
        return cls(
            properties,
            installed=properties.get("LoadState", "loaded") == "loaded",
            active=properties.get("ActiveState", ""),
            result=properties.get("Result", ""),
            exit_status=parse_int(properties.get("ExecMainStatus")) or 0,
            restarts=parse_int(properties.get("NRestarts")) or 0,
            status=properties.get("StatusText", ""),
            queued=bool(parse_int(properties.get("Job"))),
        )

    @property
    def summary(self) -> str:
        words = self.active or "unknown"
        sub = self.properties.get("SubState", "")
        words += f" ({sub})" if sub and sub != self.active else ""
        words += f", {self.result}" if self.result not in ("", "success") else ""
        return words + (f", exit status {self.exit_status}" if self.exit_status else "")


def unit(box: Box, name: str) -> Unit | None:
    """State of a unit; None if there is no systemd, or it does not know the unit."""
    ran = box.tools.execute("systemctl", "show", "-p", ",".join(PROPERTIES), name, timeout_s=ASK_S)
    pairs = (line.partition("=") for line in ran.output.splitlines())
    properties = {key: value.strip() for key, equals, value in pairs if equals and key in PROPERTIES}
    return Unit.of(properties) if ran.code == 0 and properties.get("ActiveState") else None
