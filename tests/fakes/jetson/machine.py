"""The machine behind the tree: power modes, clocks and boots, with coupled attributes kept consistent.

The fake tools and the tests' Jetson act through one Machine, so that each sees the other's changes.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.fakes.jetson import conf
from tests.fakes.jetson.profiles import EMC, PROFILES
from tests.fakes.jetson.tree import Tree

CPU = "/sys/devices/system/cpu"
STATUS = "/var/lib/nvpmodel/status"
CONF = "/etc/nvpmodel.conf"
IDLE_EMC_HZ = {5: 2_133_000_000, 6: 3_199_000_000, 7: 2_133_000_000}
"""Unlocked memory clock, by JetPack; JetPack 6's is the maximum, which looks like a lock."""


class Machine:
    """A Jetson in a folder: `root` is its tree, `state` holds the data that a real Jetson has in no file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self.state = folder / "state"
        self.profile = PROFILES[(self.state / "profile").read_text()]

    @classmethod
    def build(cls, folder: Path, profile: str) -> Machine:
        """A new machine in its factory state, not yet booted. Raises ValueError for an unknown profile."""
        if profile not in PROFILES:
            raise ValueError(f"no profile {profile!r}, only {', '.join(PROFILES)}")
        (folder / "state" / "faults").mkdir(parents=True)
        (folder / "state" / "profile").write_text(profile)
        machine = cls(folder)
        Tree(machine.root, machine.profile).plant()
        machine.write(STATUS, f"pmode:{machine.profile.default_mode:04d}\n")
        return machine

    def path(self, path: str) -> Path:
        """Path on this machine for a path of the device; absolute links stay inside the tree."""
        here = self.root / self.inside(path).lstrip("/")
        while here.is_symlink() and os.readlink(here).startswith("/"):
            here = self.root / os.readlink(here).lstrip("/")
        return here

    def inside(self, path: str) -> str:
        """Path of the device, without the tree's folder in front, which a Root's path has."""
        return path[len(str(self.root)) :] if path.startswith(f"{self.root}/") else path

    def read(self, path: str) -> str:
        """The text of a file without its newline. Raises OSError."""
        return self.path(path).read_text(encoding="utf-8").strip("\0\n\t ")

    def number(self, path: str) -> int:
        """The number in a file. Raises OSError."""
        return int(self.read(path))

    def write(self, path: str, value: object) -> None:
        """Write to a file, as the kernel shows it afterwards: with a newline."""
        where, text = self.path(path), f"{str(value).rstrip()}\n"
        # A read is faster than a write, and most writes change nothing.
        if not where.exists() or where.read_text(encoding="utf-8") != text:
            where.write_text(text, encoding="utf-8")

    def fault(self, name: str) -> dict[str, Any] | None:
        try:
            details: dict[str, Any] = json.loads((self.state / "faults" / name).read_text())
        except FileNotFoundError:
            return None
        return details

    def set_fault(self, name: str, details: Mapping[str, Any]) -> None:
        """Inject a fault, or change its details."""
        (self.state / "faults" / name).write_text(json.dumps(details))

    def clear_fault(self, name: str) -> None:
        (self.state / "faults" / name).unlink(missing_ok=True)

    def log(self, program: str, arguments: Iterable[str]) -> None:
        self.append("calls.log", shlex.join([program, *arguments]))

    def append(self, name: str, line: str) -> None:
        with (self.state / name).open("a", encoding="utf-8") as stream:
            stream.write(f"{line}\n")

    def lines(self, name: str) -> list[str]:
        try:
            return (self.state / name).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []

    @contextmanager
    def units(self) -> Iterator[dict[str, dict[str, str]]]:
        """Properties of units by name, under a lock; changes are stored at the end of the block."""
        path = self.state / "units.json"
        with (self.state / "units.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            units: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.exists() else {}
            yield units
            path.write_text(json.dumps(units, indent=1))

    def unit(self, name: str, **properties: object) -> None:
        """Set properties of a unit; a new one is loaded and runs."""
        with self.units() as units:
            row = units.setdefault(
                name, {"LoadState": "loaded", "ActiveState": "active", "SubState": "running"}
            )
            row.update({key: str(value) for key, value in properties.items()})

    def refuses(self, path: str) -> str:
        """Return the error for a write to `path` if a fault causes one."""
        for name, why in (
            ("read_only_root", "Read-only file system"),
            ("disk_full", "No space left on device"),
        ):
            fault = self.fault(name)
            if fault is not None and covers(fault["folders"], self.inside(path)):
                return why
        return ""

    @property
    def user(self) -> int:
        """User id of the tools: root, unless a Box or a fault sets another."""
        told = os.environ.get("F5_FAKE_USER")
        return int(told) if told else 0 if self.fault("not_root") is None else 1000

    @property
    def power_modes(self) -> conf.Conf:
        """The power modes that the file names. Raises OSError."""
        return conf.read(self.path(CONF).read_text(encoding="utf-8"))

    @property
    def mode(self) -> conf.Block:
        """Mode of the status file; without a valid status, the default mode. Raises OSError, KeyError."""
        modes = self.power_modes
        try:
            return modes.blocks[int(self.read(STATUS).removeprefix("pmode:"))]
        except (OSError, ValueError):
            return modes.blocks[modes.default]

    def apply(self, block: conf.Block) -> None:
        """Apply a mode as nvpmodel does, which unpins all clocks. Raises OSError."""
        modes = self.power_modes
        limits: dict[str, dict[str, int | None]] = {}
        for parameter, argument, value in block.settings:
            path = modes.paths[parameter, argument]
            if parameter in ("CPU_ONLINE", "TPC_POWER_GATING"):
                if not self.path(path).exists():
                    raise FileNotFoundError(2, "Error opening", path)
                self.write(path, value)
            elif argument in ("MIN_FREQ", "MAX_FREQ"):
                limits.setdefault(parameter, {})[argument] = conf.capped(value)
        self.write(STATUS, f"pmode:{block.id:04d}")
        self._list_cores()
        for cluster in range(self.profile.cpus // conf.CLUSTER):
            self._cap_cluster(cluster, limits.get(f"CPU_A78_{cluster}"))
        self._cap_gpu(limits["GPU"]["MAX_FREQ"])
        self.write(self.profile.emc_cap, limits["EMC"]["MAX_FREQ"] or self.profile.emc_max_hz)
        self._release()

    def _list_cores(self) -> None:
        for name, wanted in (("online", 1), ("offline", 0)):
            cores = [core for core in range(self.profile.cpus) if self.core_online(core) == bool(wanted)]
            self.write(f"{CPU}/{name}", ranges(cores))

    def _cap_cluster(self, cluster: int, limits: Mapping[str, int | None] | None) -> None:
        if limits is None:
            return  # offline cores keep their limits
        cap = limits["MAX_FREQ"] or self.profile.cpu_max_khz
        top = max(khz for khz in self.profile.cpu_khz if khz <= cap)
        for core in range(cluster * conf.CLUSTER, (cluster + 1) * conf.CLUSTER):
            if self.core_online(core):
                self.set_core(core, limits["MIN_FREQ"] or self.profile.cpu_min_khz, top)

    def _cap_gpu(self, cap_hz: int | None) -> None:
        folder = self.gpu
        if folder is None:
            return
        table = [int(word) for word in self.read(f"{folder}/available_frequencies").split()]
        self.set_gpu(table[0], max(hz for hz in table if cap_hz is None or hz <= cap_hz))

    def core_online(self, core: int) -> bool:
        return self.read(f"{CPU}/cpu{core}/online") == "1"

    def set_core(self, core: int, low_khz: int, high_khz: int) -> None:
        """Set a core's limits; the clock follows. Heat lowers both, whatever the caller requests."""
        hot = self.fault("thermal_throttle")
        cap = (hot or {}).get("cap_khz") or high_khz
        high_khz = min(high_khz, cap)
        low_khz = min(low_khz, high_khz)
        folder = f"{CPU}/cpu{core}/cpufreq"
        self.write(f"{folder}/scaling_max_freq", high_khz)
        self.write(f"{folder}/scaling_min_freq", low_khz)
        self.write(f"{folder}/scaling_cur_freq", low_khz)
        self.write(f"{folder}/cpuinfo_cur_freq", low_khz)

    @property
    def gpu(self) -> str | None:
        """Folder of the GPU's clock; None before the GPU is up."""
        return self.profile.devfreq if self.path(self.profile.devfreq).is_dir() else None

    def set_gpu(self, low_hz: int, high_hz: int) -> None:
        self.write(f"{self.profile.devfreq}/max_freq", high_hz)
        self.write(f"{self.profile.devfreq}/min_freq", low_hz)
        self.write(f"{self.profile.devfreq}/cur_freq", low_hz)

    def set_emc(self, *, locked: bool) -> None:
        """Lock the memory's clock at its cap, or unlock it."""
        cap = max(hz for hz in self.profile.emc_hz if hz <= self.number(self.profile.emc_cap))
        rate = cap if locked else min(cap, IDLE_EMC_HZ[self.profile.jetpack])
        self.write(self.profile.emc_files["cur"], rate)
        if self.profile.emc_flag:
            self.write(f"{EMC}/mrq_rate_locked", int(locked))
        else:
            self.write(self.profile.emc_files["min"], cap if locked else self.profile.emc_min_hz)
            self.write(f"{EMC}/rate", rate)

    def idle_states(self, *, disabled: bool) -> None:
        """Forbid or allow sleep states on all cores, including offline ones."""
        for core in range(self.profile.cpus):
            for state in self.path(f"{CPU}/cpu{core}/cpuidle").iterdir():
                (state / "disable").write_text(f"{int(disabled)}\n")

    def pin(self, *, gpu: bool = True) -> None:
        """Pin all clocks to the caps of the present mode, as jetson_clocks does."""
        for core in filter(self.core_online, range(self.profile.cpus)):
            top = self.number(f"{CPU}/cpu{core}/cpufreq/scaling_max_freq")
            self.set_core(core, top, top)
        self.idle_states(disabled=True)
        if gpu and self.gpu is not None:
            self.write(f"{self.profile.gpu_parent}/railgate_enable", 0)
            top = self.number(f"{self.gpu}/max_freq")
            self.set_gpu(top, top)
        self.set_emc(locked=True)

    def unpin(self) -> None:
        """Set all clocks to the present mode's ranges."""
        self.apply(self.mode)

    def _release(self) -> None:
        self.idle_states(disabled=False)
        if self.gpu is not None:
            self.write(f"{self.profile.gpu_parent}/railgate_enable", 1)
        self.set_emc(locked=False)

    @property
    def boots(self) -> int:
        return len(self.lines("boots"))

    def boot(self) -> None:
        """Switch off and on: the mode of the status file, nothing pinned, an empty /run, renumbered
        sensors."""
        tree = Tree(self.root, self.profile)
        tree.boot_id()
        tree.hwmon(self.boots)
        self.append("boots", "boot")
        for entry in self.path("/run").iterdir():
            if entry.name != "systemd":
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        for number in (1, 2, 3):
            self.write(f"{self.hwmon('soctherm_oc')}/oc{number}_event_cnt", 0)
        self.apply(self.mode)
        self.ran_nvpmodel(time.clock_gettime(time.CLOCK_BOOTTIME))

    def hwmon(self, name: str) -> str:
        """The first sensor of that name. Raises LookupError."""
        for folder in sorted(self.path("/sys/class/hwmon").iterdir()):
            if (folder / "name").read_text().strip() == name:
                return f"/sys/class/hwmon/{folder.name}"
        raise LookupError(f"no hwmon named {name!r}")

    def ran_nvpmodel(self, at_s: float) -> None:
        """Set the properties that systemd shows after a good run of nvpmodel.service, `at_s` s after boot."""
        stamp = str(round(at_s * 1e6))
        with self.units() as units:
            units.setdefault("nvpmodel.service", {}).update(
                ActiveEnterTimestampMonotonic=stamp,
                ExecMainStartTimestampMonotonic=stamp,
                ExecMainExitTimestampMonotonic=stamp,
                InactiveEnterTimestampMonotonic=stamp,
            )


def captured(name: str) -> list[str]:
    return (Path(__file__).parent / "captured" / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def covers(folders: Iterable[str], path: str) -> bool:
    """True if a path is below a folder of the list; `/` is the disk without the file systems in memory."""
    top = f"/{path.lstrip('/').split('/')[0]}"
    return any(
        top not in ("/sys", "/proc", "/run", "/dev") if folder == "/" else f"{path}/".startswith(f"{folder}/")
        for folder in folders
    )


def ranges(numbers: list[int]) -> str:
    """0, 1, 2, 5 → 0-2,5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
