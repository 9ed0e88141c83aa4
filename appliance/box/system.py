"""Box: the file tree, programs and time sources of a machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from appliance.box import paths
from appliance.box.root import Root
from appliance.box.tools import Tools


def seconds_since_boot() -> float:
    """Read CLOCK_BOOTTIME: it includes suspend and does not jump when the wall clock is set."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True)
class Box:
    """Access to a machine; a test replaces parts of it."""

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


def open_box(sysroot: str = "", tools: str = "") -> Box:
    """Open the box in `sysroot` (empty: this machine); programs are looked for in `tools` first."""
    environment = {name: value for name, value in (("F5_SYSROOT", sysroot), ("F5_TOOLS", tools)) if value}
    folders = (Path(tools),) if tools else ()
    return Box(Root(Path(sysroot or "/")), Tools(folders, environment))
