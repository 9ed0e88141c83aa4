"""Faults of a Jetson, a function for each; a fault acts on the tree, on the tools, or on the Box."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from appliance.box.root import Root
from tests.fakes.jetson.machine import CPU, Machine, covers
from tests.fakes.jetson.monitors import POWERED_DOWN, zone_type
from tests.fakes.jetson.tree import mounts

if TYPE_CHECKING:
    from tests.fakes.jetson.board import Jetson

THERMAL = "/sys/class/thermal"
PRIVATE = ("/sys/kernel/debug", "/run/f5-appliance/root", "/var/lib/f5-appliance/clocks")
"""Folders that only root may look into."""
OWNED = ("/sys", "/proc", "/etc", "/usr", "/var/lib", "/run", "/opt", "/dev")
"""Folders in which only root may write."""
JANUARY_1970_S = 37.0
SURFACE_MILLIDEGREES = 70_000


def inject(jetson: Jetson, name: str, **details: object) -> None:
    """Inject a fault. Raises ValueError with the list of faults for an unknown name."""
    if name not in FAULTS:
        raise ValueError(f"no fault {name!r}, only {', '.join(FAULTS)}")
    FAULTS[name](jetson, **details)


def heal(jetson: Jetson, name: str) -> None:
    """Remove a fault that acts on the tools or on the Box, and cool the device down."""
    jetson.machine.clear_fault(name)
    if name == "thermal_throttle":
        _heat(jetson.machine, 48_593, cooling=0)
        jetson.machine.unpin()


FLAGS = {
    "not_root": "The tools refuse as they do without root, and so does the Box.",
    "reboot_prompt": "Setting any mode, the present one too, asks for a reboot until one is confirmed.",
    "ebusy": "The TPC mask cannot be written: nvpmodel ends with 255.",
}


def _flagged(jetson: Jetson, name: str) -> None:
    """Set the fault's flag, which the tools read."""
    jetson.machine.set_fault(name, {})


def _mode_not_set(jetson: Jetson) -> None:
    """No mode was applied in this boot (JetPack 7): nothing is capped, and the status file names the last
    mode."""
    status = jetson.read("/var/lib/nvpmodel/status")
    jetson.set_mode("MAXN")
    jetson.write("/var/lib/nvpmodel/status", status)
    jetson.machine.set_fault("mode_not_set", {})


def _silent_gpu(jetson: Jetson, message: bool = True) -> None:
    """jetson_clocks leaves the GPU unpinned and exits with 0, with or without its error message."""
    jetson.machine.set_fault("silent_gpu", {"message": message})


def _no_devfreq(jetson: Jetson, calls: int = 2) -> None:
    """The GPU's clock is absent for jetson_clocks' next `calls` looks at it."""
    machine = jetson.machine
    aside = f"{machine.profile.gpu_parent}/asleep"
    machine.path(machine.profile.devfreq).rename(machine.path(aside))
    machine.set_fault("no_devfreq", {"calls": calls, "aside": aside})


def _eagain_zones(jetson: Jetson, zones: tuple[str, ...] = POWERED_DOWN) -> None:
    """Reading the zones answers EAGAIN: their part has no power.

    A pipe that somebody could write to, but does not, answers so to a descriptor opened with O_NONBLOCK;
    opened without it, as the kernel's own attribute never does, a read would wait for ever.
    """
    for zone in zones:
        path = jetson.path(f"{zone_folder(jetson.machine, zone)}/temp")
        path.unlink()
        os.mkfifo(path)
        jetson.hold(os.open(path, os.O_RDWR | os.O_NONBLOCK))


def zone_folder(machine: Machine, name: str) -> str:
    """The folder of a zone by its name on JetPack 6 (cpu, tj, cv0). Raises LookupError."""
    for folder in machine.path(THERMAL).glob("thermal_zone*"):
        if (folder / "type").read_text().strip() == zone_type(name, machine.profile.jetpack):
            return f"{THERMAL}/{folder.name}"
    raise LookupError(f"no thermal zone for {name!r}")


def _thermal_throttle(jetson: Jetson, degrees: float = 99.5, cap_khz: int = 1_190_400) -> None:
    """Too hot: the passive cooling devices act, and heat limits the cores to `cap_khz`, whatever a tool
    requests.

    A pinned core remains pinned at the lower limit. cap_khz=0: hot, but nothing is slowed yet.
    """
    machine = jetson.machine
    machine.set_fault("thermal_throttle", {"cap_khz": cap_khz})
    _heat(machine, round(degrees * 1000), cooling=3 if cap_khz else 0)
    for core in filter(machine.core_online, range(machine.profile.cpus)):
        cpufreq = f"{CPU}/cpu{core}/cpufreq"
        low, high = (machine.number(f"{cpufreq}/scaling_{kind}_freq") for kind in ("min", "max"))
        machine.set_core(core, low, high)


def _heat(machine: Machine, milli: int, cooling: int) -> None:
    for zone in ("cpu", "tj"):
        machine.write(f"{zone_folder(machine, zone)}/temp", milli)
    for folder in machine.path(THERMAL).glob("cooling_device*"):
        kind = (folder / "type").read_text().strip()
        if kind.startswith(("cpufreq", "devfreq")):
            (folder / "cur_state").write_text(f"{cooling}\n")
        elif kind == "cpu-throttle-alert":
            (folder / "cur_state").write_text(f"{int(cooling > 0)}\n")
        elif kind == "hot-surface-alert":
            (folder / "cur_state").write_text(f"{int(milli >= SURFACE_MILLIDEGREES)}\n")


def _over_current_storm(jetson: Jetson, oc1: int = 0, oc2: int = 0, oc3: int = 3000) -> None:
    folder = jetson.machine.hwmon("soctherm_oc")
    for number, more in ((1, oc1), (2, oc2), (3, oc3)):
        path = f"{folder}/oc{number}_event_cnt"
        jetson.write(path, str(jetson.machine.number(path) + more))


def _read_only_root(jetson: Jetson, folders: tuple[str, ...] = ("/",)) -> None:
    """The disk is mounted read-only: the mounts say so, writes fail, jetson_clocks' store too."""
    jetson.machine.set_fault("read_only_root", {"folders": list(folders)})
    jetson.write("/proc/mounts", mounts("ro"))


def _disk_full(
    jetson: Jetson, folders: tuple[str, ...] = ("/",), free: float = 0.0, free_inodes: float = 0.5
) -> None:
    """The fraction `free` of the disk remains; if it is 0, the Box's writes below `folders` fail.

    "/" is the disk without the file systems in memory: a test names a full /run explicitly.
    """
    details = {"folders": list(folders) if free == 0.0 else [], "free": free, "free_inodes": free_inodes}
    jetson.machine.set_fault("disk_full", details)


def _clock_1970(jetson: Jetson) -> None:
    """The wall clock starts in 1970 and nothing has set it: no battery, no network."""
    jetson.machine.set_fault("clock_1970", {})
    jetson.path("/run/systemd/timesync/synchronized").unlink(missing_ok=True)


def _unit_down(jetson: Jetson, unit: str = "f5-appliance.service", result: str = "exit-code") -> None:
    jetson.unit(unit, ActiveState="failed", SubState="failed", Result=result)


def _nvpmodel_rerun(jetson: Jetson, at: float | None = None) -> None:
    """nvpmodel.service ran again, as `systemctl isolate` starts it, and so unpinned the clocks.

    `at` is in seconds since boot; the default is now. The fault leaves the traces of the real service:
    systemd's timestamps and its lines in the journal.
    """
    machine = jetson.machine
    at_s = time.clock_gettime(time.CLOCK_BOOTTIME) if at is None else at
    machine.apply(machine.mode)
    machine.ran_nvpmodel(at_s)
    for later_s, message in ((0.0, "Starting nvpmodel service..."), (0.1, "Finished nvpmodel service.")):
        jetson.journal(message, identifier="systemd", unit="nvpmodel.service", at=at_s + later_s)


FAULTS: dict[str, Callable[..., None]] = {
    **{name: partial(_flagged, name=name) for name in FLAGS},
    "mode_not_set": _mode_not_set,
    "silent_gpu": _silent_gpu,
    "no_devfreq": _no_devfreq,
    "eagain_zones": _eagain_zones,
    "thermal_throttle": _thermal_throttle,
    "over_current_storm": _over_current_storm,
    "read_only_root": _read_only_root,
    "disk_full": _disk_full,
    "clock_1970": _clock_1970,
    "unit_down": _unit_down,
    "nvpmodel_rerun": _nvpmodel_rerun,
}


@dataclass(frozen=True)
class FaultyRoot(Root):
    """The tree as a user without root, a full disk or a read-only disk shows it."""

    private: bool = False
    """True if debugfs and root's own folders are closed and the system's files cannot be written."""
    read_only: tuple[str, ...] = ()
    full: tuple[str, ...] = ()
    """Folders; "/" means the disk without the file systems in memory."""

    def at(self, path: str) -> Path:
        """Like Root's; a path below a closed folder raises PermissionError."""
        if self.private and any(path.startswith(f"{folder}/") for folder in PRIVATE):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return super().at(path)

    def names(self, folder: str) -> tuple[str, ...]:
        return () if self.private and folder in PRIVATE else super().names(folder)

    def write(self, path: str, text: str) -> None:
        self._refuse(path)
        super().write(path, text)

    def replace(self, path: str, text: str, mode: int = 0o644) -> None:
        self._refuse(path)
        super().replace(path, text, mode)

    def _refuse(self, path: str) -> None:
        refusals = (
            (errno.EACCES, self.private and covers(OWNED, path)),
            (errno.EROFS, covers(self.read_only, path)),
            (errno.ENOSPC, covers(self.full, path)),
        )
        for number, refused in refusals:
            if refused:
                raise OSError(number, os.strerror(number), path)
