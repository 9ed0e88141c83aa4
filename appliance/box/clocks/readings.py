"""The kernel's files: clocks of CPUs, GPU and memory controller (EMC); cores, idle states, TPCs.

Frequencies are in Hz; what cannot be read is None. Nothing here raises.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from appliance.box import paths
from appliance.box.clocks.modes import Conf, limit_or_none, parse_int
from appliance.box.root import Root

GPU_NODES = ("ga10b", "gpu")
"""The GPU's name in the device tree: of JetPack 5, and of 6 and 7."""
KHZ = 1_000
"""The kernel's CPU files are in kHz."""


@dataclass(frozen=True)
class Range:
    """Limits of a clock, its present frequency, and the hardware's maximum."""

    min: int | None = None
    max: int | None = None
    current: int | None = None
    top: int | None = None

    @property
    def fixed(self) -> bool:
        """True if it cannot move."""
        return self.min is not None and self.min == self.max


@dataclass(frozen=True)
class Cpu:
    number: int
    online: bool
    range: Range


@dataclass(frozen=True)
class Emc:
    range: Range
    locked: bool
    """True if requests of drivers are ignored. JetPack 7 has no such flag: it raises the lower limit."""
    cap: int | None = None
    """The power mode's cap, which does not lower `range.max`."""


def cpus(root: Root) -> tuple[Cpu, ...]:
    """Read every core that the kernel knows, online or not."""
    numbers = [int(name[3:]) for name in root.names(paths.CPUS) if re.fullmatch(r"cpu[0-9]{1,4}", name)]
    return tuple(_cpu(root, number) for number in numbers)


def gpu(root: Root) -> Range | None:
    """Read the GPU's clock; None while it has no devfreq node, as early at boot."""
    folder = gpu_folder(root)
    return _devfreq(root, folder) if folder else None


def gpu_folder(root: Root) -> str:
    """Folder of the GPU's clock; empty while it has no devfreq node."""
    folders = (f"{paths.DEVFREQ}/{name}" for name in root.names(paths.DEVFREQ))
    return next((path for path in folders if root.text(f"{path}/device/of_node/name") in GPU_NODES), "")


def railgate(root: Root) -> int | None:
    """Return 1 if the driver may cut an idle GPU's power, 0 if not, None where there is no such switch.

    At 0 nvgpu, NVIDIA's GPL driver, never suspends an idle GPU, whatever `power/control` is set to, which is
    `auto` in every mode that nvpmodel sets.
    """
    switch = railgate_switch(root)
    enabled = root.number(switch) if switch else None
    return enabled if enabled in (0, 1) else None


def railgate_switch(root: Root) -> str:
    """Path of that switch; empty as gpu_folder."""
    folder = gpu_folder(root)
    return f"{folder}/device/railgate_enable" if folder else ""


def emc(root: Root) -> Emc | None:
    """Read EMC from `bwmgr`, else from debugfs, which only root can read; None without both."""
    if root.names(paths.BWMGR):
        clock = _devfreq(root, paths.BWMGR)
        return Emc(clock, clock.fixed, clock.max)
    rate, top = root.number(f"{paths.EMC}/rate"), root.number(f"{paths.EMC}/max_rate")
    if rate is None or top is None:
        return None
    cap = next((cap for path in paths.EMC_CAPS if (cap := limit_or_none(root.number(path)))), None)
    locked = root.number(paths.EMC_LOCK) == 1
    return Emc(Range(root.number(f"{paths.EMC}/min_rate"), top, rate, top), locked, cap)


def emc_absent(root: Root) -> str:
    if not root.names(paths.EMC):
        return f"{paths.EMC} cannot be read: is debugfs mounted?"
    files = [
        f"{paths.EMC}/{name}" for name in ("rate", "max_rate") if root.number(f"{paths.EMC}/{name}") is None
    ]
    return f"{' and '.join(files)} cannot be read"


def idle_states(root: Root, core: int) -> tuple[int, int] | None:
    """Count the forbidden idle states of a core, and all; None where it has none."""
    flags = [root.number(path) for path in idle_switches(root, core)]
    known = [flag != 0 for flag in flags if flag is not None]
    return (sum(known), len(known)) if known else None


def idle_switches(root: Root, core: int) -> tuple[str, ...]:
    folder = f"{paths.CPUS}/cpu{core}/cpuidle"
    return tuple(f"{folder}/{name}/disable" for name in root.names(folder) if name.startswith("state"))


def tpc_mask(root: Root, conf: Conf | None) -> int | None:
    """Read the mask with a bit for each texture processing cluster (TPC) of the GPU that is off."""
    own = conf.paths.get(("TPC_POWER_GATING", "TPC_PG_MASK")) if conf else None
    files = (own, *paths.TPC_MASKS) if own else paths.TPC_MASKS
    masks = (parse_int(root.text(path)) for path in files)
    return next((mask for mask in masks if mask is not None and mask >= 0), None)


def core_switch(number: int) -> str:
    return f"{paths.CPUS}/cpu{number}/online"


def core_floor(number: int) -> str:
    """Path of the lower limit, which jetson_clocks stores."""
    return f"{paths.CPUS}/cpu{number}/cpufreq/scaling_min_freq"


def frequency_table(root: Root, folder: str) -> list[int]:
    words = (root.text(f"{folder}/available_frequencies") or "").split()
    return [hz for word in words if (hz := parse_int(word)) is not None and hz > 0]


def _devfreq(root: Root, folder: str) -> Range:
    low, high, now = (root.number(f"{folder}/{name}_freq") for name in ("min", "max", "cur"))
    return Range(low, high, now, max(frequency_table(root, folder), default=None))


def _cpu(root: Root, number: int) -> Cpu:
    files = ("scaling_min_freq", "scaling_max_freq", "scaling_cur_freq", "cpuinfo_max_freq")
    khz = (root.number(f"{paths.CPUS}/cpu{number}/cpufreq/{name}") for name in files)
    # A core that cannot be turned off has no switch.
    online = root.number(core_switch(number)) in (1, None)
    return Cpu(number, online, Range(*(None if value is None else value * KHZ for value in khz)))
