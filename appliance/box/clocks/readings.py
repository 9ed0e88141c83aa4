"""Reads everything that the clocks are judged by, once, into one record of plain values.

The record has the clocks of CPUs, GPU and memory controller (EMC), cores, idle states, TPCs, power modes, and
the mode that the configuration names. Frequencies are in Hz; None stands for anything unreadable. Nothing
here raises.
"""

from __future__ import annotations

import enum
import os
import re
from dataclasses import dataclass, field, replace

from appliance.box import paths, platform
from appliance.box.clocks.modes import PowerModes, limit_or_none, power_modes
from appliance.box.platform import Platform
from appliance.box.root import Root
from appliance.box.system import Box

GPU_NODES = ("ga10b", "gpu")
"""Names of the GPU's node in the device tree: of JetPack 5, and of JetPack 6 and 7."""
KHZ = 1_000
"""Unit of the kernel's files for CPUs, in Hz."""
QUERY_S = 10.0
FAR_ABOVE = 1.05
"""Smallest ratio at which two frequencies count as different, because the kernel and nvpmodel.conf round some
differently.
"""
CONFS = {"p3701-0005": "p3701_0000"}
"""Module → name of its nvpmodel.conf, if that is another module's name."""


@dataclass(frozen=True)
class Range:
    """Limits of a clock. `top`: the hardware's maximum."""

    min: int | None = None
    max: int | None = None
    current: int | None = None
    top: int | None = None
    steps: tuple[int, ...] = ()
    """Frequencies that the hardware has, in Hz; empty if unknown."""

    def within(self, limit: int) -> int:
        """Highest frequency of the hardware within a limit."""
        if self.top is None or limit >= self.top:
            return limit
        return max((step for step in self.steps if step <= limit), default=limit)

    @property
    def fixed(self) -> bool:
        """True if the clock cannot move."""
        return self.min is not None and self.min == self.max


@dataclass(frozen=True)
class Cpu:
    """A CPU core and its clock."""

    number: int
    online: bool
    range: Range
    idle: tuple[bool | None, ...] = ()
    """Idle states: True if forbidden, None if unreadable."""
    measured: int | None = None
    """Frequency by the core's own counters, which only root can read.

    `range.current` merely repeats the set value.
    """


@dataclass(frozen=True)
class Emc:
    """The clock of the memory controller."""

    range: Range
    locked: bool
    """True if drivers' requests are ignored.

    JetPack 7 has no such flag: it raises the lower limit instead.
    """
    cap: int | None = None
    """Cap of the power mode, which does not lower `range.max`."""


class ConfFile(enum.Enum):
    """Kind of the file at nvpmodel.conf."""

    ABSENT = enum.auto()
    DANGLING = enum.auto()
    """A link to a missing file."""
    FOREIGN = enum.auto()
    """NVIDIA's link to the file of another module. nvpower.sh makes the right link if there is none."""
    OWN = enum.auto()
    """The file of this module, or of its maker."""


@dataclass(frozen=True)
class ClockReadings:
    """Everything that was read. On a machine that is no Jetson, only `platform` is set."""

    platform: Platform
    is_root: bool
    modes: PowerModes = field(default_factory=PowerModes)
    conf_file: ConfFile = ConfFile.OWN
    cpus: tuple[Cpu, ...] = ()
    """Every core that the kernel knows, online or not."""
    gpu_folder: str = ""
    """Folder of the GPU's devfreq node; "" while there is none, as early at boot."""
    gpu: Range | None = None
    railgate: int | None = None
    """1 if the driver may cut an idle GPU's power, 0 if not, None without such a switch.

    At 0 nvgpu, NVIDIA's GPL driver, never suspends an idle GPU. `power/control` does not change that; every
    mode that nvpmodel sets makes it `auto`.
    """
    emc: Emc | None = None
    has_debugfs: bool = True
    tpc_mask: int | None = None
    """Mask with a bit for each cluster (TPC) that is off."""


def read(box: Box) -> ClockReadings:
    """Read platform, power modes and clocks. On other machines than a Jetson, the platform only."""
    root, machine = box.root, platform.identify(box.root)
    if not machine.is_jetson:
        return ClockReadings(machine, box.is_root)
    query = box.tools.execute("nvpmodel", "-q", timeout_s=QUERY_S)
    status = root.text(paths.NVPMODEL_STATUS) or ""
    modes = power_modes(_text(root, paths.NVPMODEL_CONF), _text(root, paths.CONFIG), query, status)
    folder = gpu_folder(root)
    railgate = root.number(railgate_switch(folder)) if folder else None
    return ClockReadings(
        machine,
        box.is_root,
        modes,
        _conf_file(root, machine.module),
        cpus(root),
        folder,
        _devfreq(root, folder) if folder else None,
        railgate if railgate in (0, 1) else None,
        emc(root),
        bool(root.names(paths.DEBUGFS)),
        _tpc_mask(root, modes),
    )


def _conf_file(root: Root, module: str) -> ConfFile:
    try:
        link = root.unresolved(paths.NVPMODEL_CONF)
        target = os.readlink(link) if link.is_symlink() else ""
    except OSError:
        return ConfFile.OWN
    if not root.exists(paths.NVPMODEL_CONF):
        return ConfFile.DANGLING if target else ConfFile.ABSENT
    named = re.fullmatch(rf"{paths.NVPMODEL_FOLDER}/nvpmodel_(p\d{{4}}_\d{{4}})\w*\.conf", target)
    ours = CONFS.get(module, module.replace("-", "_"))
    return ConfFile.FOREIGN if named and ours and named[1] != ours else ConfFile.OWN


def cpus(root: Root) -> tuple[Cpu, ...]:
    numbers = [int(name[3:]) for name in root.names(paths.CPUS) if re.fullmatch(r"cpu[0-9]{1,4}", name)]
    return tuple(_cpu(root, number) for number in numbers)


def gpu_folder(root: Root) -> str:
    """Folder of the GPU's devfreq node; "" while there is none."""
    folders = (f"{paths.DEVFREQ}/{name}" for name in root.names(paths.DEVFREQ))
    return next((path for path in folders if root.text(f"{path}/device/of_node/name") in GPU_NODES), "")


def emc(root: Root) -> Emc | None:
    """Clock of the memory controller from `bwmgr`, else from debugfs, which only root can read."""
    if root.names(paths.BWMGR):
        clock = _devfreq(root, paths.BWMGR)
        # No public capture shows this driver's table of frequencies. Without a table, the current limit
        # counts as the hardware's maximum.
        return Emc(replace(clock, top=clock.top or clock.max), clock.fixed, clock.max)
    rate, most = root.number(f"{paths.EMC}/rate"), root.number(f"{paths.EMC}/max_rate")
    if rate is None or most is None:
        return None
    cap = next((cap for path in paths.EMC_CAPS if (cap := limit_or_none(root.number(path)))), None)
    locked = root.number(paths.EMC_LOCK) == 1
    steps = frequencies(root, paths.EMC_STEPS, KHZ)
    # Firmware may hold `most` down. The memory's maximum is its last step, or the cap of the best mode.
    top = max(steps, default=most) if not cap or cap < FAR_ABOVE * most else max((cap, *steps))
    return Emc(Range(root.number(f"{paths.EMC}/min_rate"), most, rate, top, steps), locked, cap)


def idle_switches(root: Root, core: int) -> tuple[str, ...]:
    folder = f"{paths.CPUS}/cpu{core}/cpuidle"
    return tuple(f"{folder}/{name}/disable" for name in root.names(folder) if name.startswith("state"))


def frequencies(root: Root, path: str, unit: int = 1) -> tuple[int, ...]:
    """Frequencies that a file lists, in Hz."""
    words = (root.text(path) or "").split()
    return tuple(int(word) * unit for word in words if re.fullmatch(r"[0-9]{1,19}", word) and int(word))


def railgate_switch(gpu_folder: str) -> str:
    return f"{gpu_folder}/device/railgate_enable"


def core_switch(number: int) -> str:
    return f"{paths.CPUS}/cpu{number}/online"


def core_limit(number: int, kind: str = "min") -> str:
    """File of a core's lower limit, which jetson_clocks stores, or the upper ("max") of the power mode."""
    return f"{paths.CPUS}/cpu{number}/cpufreq/scaling_{kind}_freq"


def _text(root: Root, path: str) -> str | OSError:
    try:
        return root.read(path)
    except OSError as error:
        return error


def _cpu(root: Root, number: int) -> Cpu:
    folder = f"{paths.CPUS}/cpu{number}/cpufreq"
    files = ("scaling_min", "scaling_max", "scaling_cur", "cpuinfo_max", "cpuinfo_cur")
    khz = (root.number(f"{folder}/{name}_freq") for name in files)
    low, high, now, top, measured = (None if value is None else value * KHZ for value in khz)
    clock = Range(low, high, now, top, frequencies(root, f"{folder}/scaling_available_frequencies", KHZ))
    flags = [root.number(path) for path in idle_switches(root, number)]
    # A core that cannot be turned off has no switch.
    online = root.number(core_switch(number)) in (1, None)
    return Cpu(number, online, clock, tuple(None if flag is None else flag != 0 for flag in flags), measured)


def _devfreq(root: Root, folder: str) -> Range:
    low, high, now = (root.number(f"{folder}/{name}_freq") for name in ("min", "max", "cur"))
    steps = frequencies(root, f"{folder}/available_frequencies")
    return Range(low, high, now, max(steps, default=None), steps)


def _tpc_mask(root: Root, modes: PowerModes) -> int | None:
    own = modes.conf.paths.get(("TPC_POWER_GATING", "TPC_PG_MASK")) if modes.conf else None
    files = (own, *paths.TPC_MASKS) if own else paths.TPC_MASKS
    masks = (root.number(path) for path in files)
    return next((mask for mask in masks if mask is not None and mask >= 0), None)
