"""Conditions of a measurement: processor, clocks, temperature, versions, other processes."""

from __future__ import annotations

import contextlib
import os
import platform as python_platform
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from appliance.box import platform
from appliance.box.clocks.clocks_json import read
from appliance.box.clocks.verdict import take_reading
from appliance.box.sensors import hwmon as sensors
from appliance.box.system import Box

PACKAGES = ("f5-appliance", "onnxruntime", "onnxruntime-gpu", "numpy", "grpcio")
TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
BUSY = 0.1
"""Smallest share of a core for which a process is listed."""
LISTENS = "0A"
"""State of a listening socket in /proc/net/tcp."""


def describe(box: Box) -> dict[str, Any]:
    """Current processor, power mode, clocks, temperature and versions."""
    machine = platform.identify(box.root)
    reading = take_reading(box)
    clocks = read(box)
    return {
        "processor": processor(box.root.text("/proc/cpuinfo") or ""),
        "cores": os.cpu_count(),
        "model": machine.model,
        "l4t": machine.release,
        "mode": reading.mode,
        "clocks": clocks.state if machine.is_jetson else "",
        "loose": list(reading.faults) if machine.is_jetson else [],
        "junction_c": sensors.junction(box.root),
        "versions": versions(PACKAGES),
    }


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of Python and of the installed packages among `packages`."""
    installed = {"python": python_platform.python_version()}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            installed[package] = metadata.version(package)
    return installed


def processor(cpuinfo: str) -> str:
    """Model name in /proc/cpuinfo's text, or the architecture."""
    match = re.search(r"^model name\s*:(.*)$", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else python_platform.machine()


@dataclass
class Neighbours:
    """CPU time of other processes, from construction to `busiest`."""

    own: tuple[int, ...] = ()
    """Ids of the daemon's processes, which do not count."""
    begun: float = field(default_factory=time.monotonic)
    before: Mapping[int, tuple[str, float]] = field(default_factory=lambda: cpu_seconds())

    def busiest(self) -> list[tuple[str, float]]:
        """Names of running processes and their shares of a core, from BUSY on, largest first."""
        wall_s = max(time.monotonic() - self.begun, TICK_S)
        shares = []
        for pid, (name, seconds) in cpu_seconds().items():
            if pid not in (*self.own, os.getpid()):
                share = (seconds - self.before.get(pid, (name, 0.0))[1]) / wall_s
                if share >= BUSY:
                    shares.append((f"{name} ({pid})", round(share, 2)))
        return sorted(shares, key=lambda pair: -pair[1])


def cpu_seconds() -> dict[int, tuple[str, float]]:
    """Name and CPU seconds of every readable process, by id."""
    processes = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text("utf-8", "replace")
        except OSError:
            continue
        # The name is in parentheses and may contain any character.
        name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
        processes[int(path.parent.name)] = name, (int(rest[11]) + int(rest[12])) * TICK_S
    return processes


def listener(address: str) -> int | None:
    """Id of the process that listens at host:port or unix:PATH; None if it cannot be found.

    Only root and the process's own user may read its sockets.
    """
    scheme, _, place = address.rpartition(":")
    if scheme != "unix" and not place.isdigit():
        return None
    sockets = set()
    for name in ("unix",) if scheme == "unix" else ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{name}").read_text("utf-8", "replace").splitlines()[1:]
        except OSError:
            continue
        for words in map(str.split, lines):
            if scheme == "unix" and words[7:] == [place]:
                sockets.add(f"socket:[{words[6]}]")
            elif scheme != "unix" and words[3] == LISTENS and words[1].endswith(f":{int(place):04X}"):
                sockets.add(f"socket:[{words[9]}]")
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(os.readlink(handle) in sockets for handle in folder.iterdir()):
                return int(folder.parent.name)
        except OSError:
            continue
    return None


def memory_mb(pid: int | None) -> dict[str, float]:
    """Resident memory of a process in MB, `now` and `peak`; empty if it cannot be read."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines()
    except OSError:
        return {}
    sizes = {line.partition(":")[0]: line.split()[1] for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return {name: int(sizes[key]) * 1024 / 1e6 for name, key in (("now", "VmRSS"), ("peak", "VmHWM"))}
