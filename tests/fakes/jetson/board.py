"""A Jetson in a folder: a tree of files and the vendor's tools, which write the same tree that readers read.

    jetson = Jetson(tmp_path, "jp6-0005")     as after a factory boot: 30 W, nothing pinned
    box = jetson.box()                        for appliance.box
    jetson.unpin()                            behind the tools' back
    jetson.fault("silent_gpu", message=False)

The README of `tests/fakes` describes its behaviour and its limits.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import stat
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.box.system import Box, seconds_since_boot
from appliance.box.tools import Tools
from tests.fakes.jetson import faults
from tests.fakes.jetson.faults import FaultyRoot
from tests.fakes.jetson.machine import Machine
from tests.fakes.jetson.profiles import PROFILES, SUPPORTED, Profile

__all__ = ["PROFILES", "SUPPORTED", "Clock", "Entry", "Jetson"]

REPOSITORY = Path(__file__).resolve().parents[3]
TOOLS = (
    *("jetson_clocks", "nvpmodel", "nvbootctrl", "tegrastats"),
    *("systemctl", "journalctl", "timedatectl", "apt-mark", "apt"),
)
REFUSED = (
    *("apt-get", "aptitude", "dpkg", "sysctl", "udevadm", "modprobe"),
    *("reboot", "shutdown", "poweroff", "halt"),
)
"""Programs that the fake refuses: without them PATH would find the programs of this machine."""
LAUNCHER = """\
#!{python} -IS
import sys
sys.path.insert(0, {repository!r})
from pathlib import Path
from tests.fakes.jetson.machine import Machine
from tests.fakes.jetson.tools.{tool} import main
try:
    sys.exit(main([{first}*sys.argv[1:]], Machine(Path({folder!r}))))
except (BrokenPipeError, KeyboardInterrupt):
    sys.exit(1)
"""
GIB = 1 << 30
BLOCK_BYTES = 4096
DISK_BYTES = 57 * GIB
FACTORY_UNITS = {
    "nvpmodel.service": {"ActiveState": "inactive", "SubState": "dead"},
    "nvpower.service": {"ActiveState": "inactive", "SubState": "dead"},
    "nvfancontrol.service": {"ActiveState": "active", "SubState": "running"},
    "systemd-timesyncd.service": {"ActiveState": "active", "SubState": "running"},
}


Entry = tuple[str, int, str | bytes]
"""Relative path, mode, and a file's content or a link's target."""


@dataclass
class Clock:
    """A clock that only `advance` moves: a box with `clock.arguments` sleeps in no time."""

    uptime_s: float = 600.0
    wall_s: float = 1_795_000_000.0

    def advance(self, seconds: float) -> None:
        self.uptime_s += seconds
        self.wall_s += seconds

    @property
    def arguments(self) -> dict[str, Callable[..., Any]]:
        return {"uptime": lambda: self.uptime_s, "wall": lambda: self.wall_s, "sleep": self.advance}


class Jetson:
    """A box of a profile, in `folder`: the tree is `folder/root`, the programs are in `folder/bin`."""

    def __init__(self, folder: Path, profile: str, saved: Iterable[Entry] = ()) -> None:
        """Build the profile after its first boot, or the Jetson `saved`. Raises ValueError for an unknown
        profile."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        restore(folder, saved or _factory(profile))
        self.machine = Machine(folder)
        self.root = self.machine.root
        self.bin = folder / "bin"
        self._launchers()

    @property
    def profile(self) -> Profile:
        return self.machine.profile

    def _launchers(self) -> None:
        self.bin.mkdir()
        paths = {"python": sys.executable, "repository": str(REPOSITORY), "folder": str(self.folder)}
        for tool in (*TOOLS, *REFUSED):
            module, first = ("refused", f"{tool!r}, ") if tool in REFUSED else (tool.replace("-", "_"), "")
            path = self.bin / tool
            path.write_text(LAUNCHER.format(tool=module, first=first, **paths))
            path.chmod(0o755)

    def box(self, **overrides: Any) -> Box:
        """The box for appliance.box, faults included; it is root's unless `user` returns another id.

        Overrides are fields of Box. If `user` is not 0, the tools refuse what needs root, and debugfs and
        root's folders cannot be read.
        """
        user = overrides.setdefault("user", lambda: self.machine.user)
        if self.machine.fault("clock_1970") is not None:
            overrides.setdefault("wall", self._wall_1970)
        read_only, full = self._folders("read_only_root"), self._folders("disk_full")
        root = FaultyRoot(self.root, private=user() != 0, read_only=read_only, full=full)
        overrides.setdefault("statvfs", self._statvfs)
        tools = Tools((self.bin,), {**self.environment, "F5_FAKE_USER": str(user())})
        return Box(**{"root": root, "tools": tools, **overrides})

    @property
    def environment(self) -> dict[str, str]:
        """Environment for a script that runs as a separate process."""
        return {"F5_SYSROOT": str(self.root), "F5_TOOLS": str(self.bin)}

    def _folders(self, fault: str) -> tuple[str, ...]:
        return tuple((self.machine.fault(fault) or {}).get("folders", ()))

    @staticmethod
    def _wall_1970() -> float:
        return faults.JANUARY_1970_S + seconds_since_boot()

    def _statvfs(self, path: Path) -> os.statvfs_result:
        """A disk of 57 GiB, half of it free unless a fault says otherwise."""
        full = self.machine.fault("disk_full") or {"free": 0.5, "free_inodes": 0.5}
        blocks, inodes = DISK_BYTES // BLOCK_BYTES, 3_700_000
        free, free_inodes = round(blocks * full["free"]), round(inodes * full["free_inodes"])
        flags = os.ST_RDONLY if self.machine.fault("read_only_root") is not None else 0
        return os.statvfs_result(
            (BLOCK_BYTES, BLOCK_BYTES, blocks, free, free, inodes, free_inodes, free_inodes, flags, 255)
        )

    def boot(self) -> None:
        """Switch off and on: a new boot id, the stored power mode, nothing pinned, an empty /run."""
        self.machine.boot()

    def set_mode(self, name: str) -> None:
        """Set a power mode and its TPCs without nvpmodel; all clocks are unpinned. Raises ValueError."""
        self.machine.apply(self.machine.power_modes.blocks[self.profile.mode(name).id])

    def pin(self) -> None:
        """Pin clocks to the caps of the present mode, without a tool."""
        self.machine.pin()

    def unpin(self) -> None:
        """Unpin all clocks, without a tool."""
        self.machine.unpin()

    def fault(self, name: str, **details: Any) -> None:
        """Inject a fault of faults.py. Raises ValueError with the list of faults for an unknown name."""
        faults.inject(self, name, **details)

    def heal(self, name: str) -> None:
        faults.heal(self, name)

    def unit(self, name: str, **properties: object) -> None:
        """Set properties that systemctl reports for a unit. StartFails="…" makes its starts fail."""
        self.machine.unit(name, **properties)

    def journal(
        self,
        line: str,
        *,
        identifier: str = "kernel",
        unit: str = "",
        pid: int = 812,
        at: float | None = None,
    ) -> None:
        """Add a line to the journal, now or `at` seconds since boot."""
        now_s = seconds_since_boot()
        at_s = now_s if at is None else at
        entry = {"at": at_s, "wall": time.time() - now_s + at_s, "identifier": identifier, "unit": unit}
        entry |= {"pid": pid, "message": line, "boot": self.read("/proc/sys/kernel/random/boot_id")}
        self.machine.append("journal.jsonl", json.dumps(entry))

    def process(self, pid: int, name: str, *arguments: str) -> None:
        self.write(f"/proc/{pid}/comm", f"{name}\n")
        self.write(f"/proc/{pid}/cmdline", "".join(f"{word}\0" for word in (name, *arguments)))

    def hold(self, descriptor: int) -> None:
        """Keep a descriptor open as long as this object lives."""
        weakref.finalize(self, os.close, descriptor)

    def path(self, path: str) -> Path:
        """Path on this machine for a path of the device."""
        return self.machine.path(path)

    def read(self, path: str) -> str:
        """The text of a file, stripped. Raises OSError."""
        return self.machine.read(path)

    def write(self, path: str, text: str) -> None:
        """Write a file as root would, regardless of faults."""
        where = self.path(path)
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(text, encoding="utf-8")

    def snapshot(self) -> dict[str, tuple[int, str | bytes]]:
        """Every file, link and folder of the tree with its mode and contents. Two snapshots are equal if
        nothing changed."""
        return {path: (mode, content) for path, mode, content in entries(self.root)}

    def saved(self) -> tuple[Entry, ...]:
        """Tree and state, from which a test can build another Jetson."""
        mine = entries(self.folder)
        return tuple(entry for entry in mine if entry[0].split("/")[0] in ("root", "state"))

    @property
    def mode(self) -> str:
        return self.machine.mode.name

    @property
    def reboots(self) -> int:
        """Number of reboots that nvpmodel, after a confirmation, or systemctl requested."""
        return len(self.machine.lines("reboots"))

    def calls(self, program: str = "") -> list[str]:
        """The tools' calls so far, as command lines; the calls of one program, or all."""
        lines = self.machine.lines("calls.log")
        return [line for line in lines if not program or shlex.split(line)[0] == program]


@functools.cache
def _factory(profile: str) -> tuple[Entry, ...]:
    """Build a profile once per process: planting and booting take several times as long as copying."""
    with tempfile.TemporaryDirectory() as name:
        machine = Machine.build(Path(name), profile)
        for unit, properties in FACTORY_UNITS.items():
            machine.unit(unit, LoadState="loaded", **properties)
        machine.boot()
        return tuple(entries(Path(name)))


def entries(folder: Path) -> Iterator[Entry]:
    """Each file, link and folder below a folder, in the order in which `restore` can make them."""
    for top, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(top, name)
            mode = os.lstat(path).st_mode
            content: str | bytes = os.readlink(path) if stat.S_ISLNK(mode) else b""
            if stat.S_ISREG(mode):
                content = Path(path).read_bytes()
            yield os.path.relpath(path, folder), mode, content


def restore(folder: Path, saved: Iterable[Entry]) -> None:
    """Create the files of `entries` in an empty folder."""
    for name, mode, content in saved:
        path = os.path.join(folder, name)
        if isinstance(content, str):
            os.symlink(content, path)
        elif stat.S_ISDIR(mode):
            os.mkdir(path, stat.S_IMODE(mode))
        else:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IMODE(mode))
            os.write(handle, content)
            os.close(handle)
