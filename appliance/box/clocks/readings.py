"""Readings of the clocks: CPUs, GPU, memory controller (EMC), cores and TPCs. No judgement here.

Frequencies are in Hz; None is what cannot be read. The kernel's CPU files are in kHz.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from appliance.box import paths
from appliance.box.clocks.modes import Conf, limit, whole
from appliance.box.root import Root

GPU_NODES = ("ga10b", "gpu")
"""The GPU's name in the device tree: JetPack 5's, and that of 6 and 7."""
KHZ = 1_000


@dataclass(frozen=True)
class Range:
    """Within what a clock may move, where it is, and the most that the hardware can."""

    min: int | None = None
    max: int | None = None
    current: int | None = None
    top: int | None = None

    @property
    def held(self) -> bool:
        """True if it cannot move, at whatever frequency that is."""
        return self.min is not None and self.min == self.max


@dataclass(frozen=True)
class Cpu:
    """One core."""

    number: int
    online: bool
    range: Range


@dataclass(frozen=True)
class Emc:
    """The memory controller; a power mode's cap lies beside its range."""

    range: Range
    locked: bool
    """True if requests of drivers are ignored. JetPack 7 has no such flag: it raises the lower limit."""
    cap: int | None = None


def cpus(root: Root) -> tuple[Cpu, ...]:
    """Every core that the kernel knows, online or not."""
    numbers = [int(name[3:]) for name in root.names(paths.CPUS) if re.fullmatch(r"cpu[0-9]{1,4}", name)]
    return tuple(Cpu(number, _online(root, number), _cpu_range(root, number)) for number in numbers)


def gpu(root: Root) -> Range | None:
    """None while there is no devfreq node for it, as early at boot."""
    folder = gpu_folder(root)
    return _devfreq(root, folder) if folder else None


def gpu_folder(root: Root) -> str:
    """Folder of the GPU's clock; empty while there is no devfreq node for it."""
    folders = (f"{paths.DEVFREQ}/{name}" for name in root.names(paths.DEVFREQ))
    return next((path for path in folders if root.text(f"{path}/device/of_node/name") in GPU_NODES), "")


def railgate(root: Root) -> int | None:
    """1 if the driver may cut an idle GPU's power, 0 if not; None where it does not say.

    `railgate_enable` is of nvgpu, NVIDIA's GPL driver: at 0 an idle GPU is never suspended, whatever
    `power/control` says, which is `auto` in every mode that nvpmodel sets.
    """
    switch = railgate_switch(root)
    enabled = root.number(switch) if switch else None
    return enabled if enabled in (0, 1) else None


def railgate_switch(root: Root) -> str:
    """The file of it; empty while the GPU has no devfreq node."""
    folder = gpu_folder(root)
    return f"{folder}/device/railgate_enable" if folder else ""


def emc(root: Root) -> Emc | None:
    """Read EMC from `bwmgr` where it is, else from debugfs, which is root's; None without both."""
    if root.names(paths.BWMGR):
        clock = _devfreq(root, paths.BWMGR)
        return Emc(clock, clock.held, clock.max)
    rate, top = root.number(f"{paths.EMC}/rate"), root.number(f"{paths.EMC}/max_rate")
    if rate is None or top is None:
        return None
    cap = next((cap for path in paths.EMC_CAPS if (cap := limit(root.number(path)))), None)
    locked = root.number(paths.EMC_LOCK) == 1
    return Emc(Range(root.number(f"{paths.EMC}/min_rate"), top, rate, top), locked, cap)


def emc_absent(root: Root) -> str:
    """Return why there is nothing to read of EMC, for root."""
    if not root.names(paths.EMC):
        return f"{paths.EMC} cannot be read: is debugfs mounted?"
    files = [
        f"{paths.EMC}/{name}" for name in ("rate", "max_rate") if root.number(f"{paths.EMC}/{name}") is None
    ]
    return f"{' and '.join(files)} cannot be read"


def idle_states(root: Root, core: int) -> tuple[int, int] | None:
    """Count a core's idle states: forbidden, and all; None where it has none."""
    flags = [root.number(path) for path in idle_switches(root, core)]
    known = [flag != 0 for flag in flags if flag is not None]
    return (sum(known), len(known)) if known else None


def idle_switches(root: Root, core: int) -> tuple[str, ...]:
    """The files that forbid a core's idle states."""
    folder = f"{paths.CPUS}/cpu{core}/cpuidle"
    return tuple(f"{folder}/{name}/disable" for name in root.names(folder) if name.startswith("state"))


def tpc_mask(root: Root, conf: Conf | None) -> int | None:
    """A bit for each TPC that is off."""
    told = conf.paths.get(("TPC_POWER_GATING", "TPC_PG_MASK")) if conf else None
    masks = (told, *paths.TPC_MASKS) if told else paths.TPC_MASKS
    return next((mask for path in masks if (mask := whole(root.text(path))) is not None and mask >= 0), None)


def core_switch(number: int) -> str:
    """The file that turns a core on."""
    return f"{paths.CPUS}/cpu{number}/online"


def core_floor(number: int) -> str:
    """The file that holds a core's lower limit, which jetson_clocks stores."""
    return f"{paths.CPUS}/cpu{number}/cpufreq/scaling_min_freq"


def _devfreq(root: Root, folder: str) -> Range:
    low, high, now = (root.number(f"{folder}/{name}_freq") for name in ("min", "max", "cur"))
    return Range(low, high, now, max(_table(root, folder), default=None))


def least(root: Root, folder: str) -> int | None:
    """The lowest frequency of a devfreq device."""
    return min(_table(root, folder), default=None)


def _table(root: Root, folder: str) -> list[int]:
    words = (root.text(f"{folder}/available_frequencies") or "").split()
    return [hz for word in words if (hz := whole(word)) is not None and hz > 0]


def _online(root: Root, number: int) -> bool:
    # A core that cannot be turned off has no such file.
    return root.number(core_switch(number)) in (1, None)


def _cpu_range(root: Root, number: int) -> Range:
    def hz(name: str) -> int | None:
        khz = root.number(f"{paths.CPUS}/cpu{number}/cpufreq/{name}")
        return None if khz is None else khz * KHZ

    return Range(
        hz("scaling_min_freq"), hz("scaling_max_freq"), hz("scaling_cur_freq"), hz("cpuinfo_max_freq")
    )
