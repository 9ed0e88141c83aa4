"""Modules, from public reports of real devices: numbers only, no file of NVIDIA's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tests.harness.rows import rows

UNCAPPED = -1
EMC = "/sys/kernel/debug/bpmp/debug/clk/emc"
"""The memory's clock in debugfs."""
EMC_STEPS = "/sys/kernel/debug/bpmp/debug/emc/possible_rates"
BWMGR = "/sys/devices/platform/bwmgr/devfreq/bwmgr"
"""The memory's clock on JetPack 7: a devfreq device that every user can read."""

OOT = """\
# KERNEL_VARIANT: oot
TARGET_USERSPACE_LIB_DIR=nvidia
TARGET_USERSPACE_LIB_DIR_PATH=usr/lib/aarch64-linux-gnu/nvidia
"""
GENERIC = "BOARD: generic, EABI: aarch64, DATE:"
RELEASES = {
    5: "# R35 (release), REVISION: 3.1, GCID: 32827747, BOARD: t186ref, EABI: aarch64, "
    "DATE: Sun Mar 19 15:19:21 UTC 2023\n",
    6: f"# R36 (release), REVISION: 4.3, GCID: 38968081, {GENERIC} Wed Jan  8 01:49:37 UTC 2025\n{OOT}",
    7: f"# R39 (release), REVISION: 2.0, GCID: 45755727, {GENERIC} Fri Jun 12 03:20:51 UTC 2026\n{OOT}",
}
DRIVERS = ("nvidia-l4t-kernel", "nvidia-l4t-kernel-oot-modules", "nvidia-l4t-display-kernel")
"""Packages whose versions begin with the kernel's; JetPack 7 has nvgpu in a separate package (public lists of
both)."""
KERNELS = {5: "5.10.104-tegra", 6: "5.15.148-tegra", 7: "6.8.12-1021-tegra"}
PACKAGES: dict[int, dict[str, str]] = dict(rows(__file__, "packages.jsonl"))
"""JetPack → packages with their versions."""
UBUNTU = {5: ("20.04", "focal", "3.8"), 6: ("22.04", "jammy", "3.10"), 7: ("24.04", "noble", "3.12")}
"""Version, name, and Python of the Ubuntu."""


@dataclass(frozen=True)
class Mode:
    """A power mode; −1 means no cap."""

    id: int
    name: str
    cpus: int
    cpu_khz: int
    tpc_mask: int
    """Mask of TPCs; a set bit switches a TPC off."""
    gpu_hz: int
    emc_hz: int = UNCAPPED


@dataclass(frozen=True)
class Profile:
    """A module with a JetPack."""

    name: str
    jetpack: int
    module: str
    model: str
    cpus: int
    cpu_max_khz: int
    gpu_hz: tuple[int, ...]
    """Frequencies of the GPU, lowest first."""
    memory_mb: int
    modes: tuple[Mode, ...]
    conf: str
    """Name of the file to which /etc/nvpmodel.conf points."""
    default_mode: int = 2
    cpu_min_khz: int = 729_600
    emc_min_hz: int = 204_000_000
    emc_max_hz: int = 3_199_000_000

    @property
    def release(self) -> str:
        return RELEASES[self.jetpack]

    @property
    def packages(self) -> Mapping[str, str]:
        return PACKAGES[self.jetpack]

    @property
    def compatible(self) -> tuple[str, ...]:
        """The board's names in the device tree, most specific first."""
        return (f"nvidia,p3737-0000+{self.module}", "nvidia,tegra234")

    @property
    def gpu_parent(self) -> str:
        if self.jetpack == 5:
            return "/sys/devices/17000000.ga10b"
        return "/sys/devices/platform/bus@0/17000000.gpu"

    @property
    def gpu_name(self) -> str:
        """The GPU's name below /sys/class/devfreq."""
        return self.gpu_parent.rsplit("/", 1)[1]

    @property
    def devfreq(self) -> str:
        return f"{self.gpu_parent}/devfreq/{self.gpu_name}"

    @property
    def cpu_khz(self) -> tuple[int, ...]:
        """Steps of a core's clock."""
        return (*range(115_200, self.cpu_max_khz, 76_800), self.cpu_max_khz)

    @property
    def emc_hz(self) -> tuple[int, ...]:
        """Steps of the memory's clock."""
        return (self.emc_min_hz, 665_600_000, 2_133_000_000, self.emc_max_hz)

    @property
    def emc_cap(self) -> str:
        """The file in which a power mode caps the memory's clock."""
        if self.jetpack == 5:
            return "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap"
        return self.emc_files["max"] if self.jetpack == 7 else "/sys/kernel/nvpmodel_clk_cap/emc"

    @property
    def emc_files(self) -> Mapping[str, str]:
        """The memory clock's lower and upper limit and its rate. JetPack 7's are sourced: README.md."""
        if self.jetpack == 7:
            return {name: f"{BWMGR}/{name}_freq" for name in ("min", "max", "cur")}
        return {"min": f"{EMC}/min_rate", "max": f"{EMC}/max_rate", "cur": f"{EMC}/rate"}

    @property
    def tpc_mask(self) -> str:
        """The path under which the vendor's tools know the mask of TPCs."""
        return f"/sys/devices/{'' if self.jetpack == 5 else 'platform/'}gpu.0/tpc_pg_mask"

    @property
    def emc_flag(self) -> bool:
        """True if a flag in debugfs locks the memory's clock; JetPack 7 raises its lower limit instead."""
        return self.jetpack < 7

    def mode(self, name: str) -> Mode:
        """Mode of a name. Raises ValueError with the list of modes for an unknown name."""
        for mode in self.modes:
            if mode.name == name:
                return mode
        raise ValueError(f"{self.name} has no mode {name!r}, only {', '.join(m.name for m in self.modes)}")


MODES_64GB = (
    Mode(0, "MAXN", 12, UNCAPPED, 0, UNCAPPED),
    Mode(1, "MODE_15W", 4, 1_113_600, 248, 408_000_000, 2_133_000_000),
    Mode(2, "MODE_30W", 8, 1_728_000, 240, 612_000_000),
    Mode(3, "MODE_50W", 12, 1_497_600, 0, 816_000_000),
)
MODES_32GB = (
    Mode(0, "MAXN", 8, UNCAPPED, 128, UNCAPPED),
    Mode(1, "MODE_15W", 4, 1_113_600, 248, 408_000_000, 2_133_000_000),
    Mode(2, "MODE_30W", 8, 1_728_000, 240, 612_000_000),
    Mode(3, "MODE_40W", 8, 1_497_600, 128, 816_000_000),
)
GPU_HZ = (306, 408, 510, 612, 714, 816, 918)
GPU_64GB = (*(mhz * 1_000_000 for mhz in (*GPU_HZ, 1020, 1122, 1224)), 1_300_500_000)
GPU_32GB = (*(mhz * 1_000_000 for mhz in GPU_HZ), 930_750_000)


def _profile(jetpack: int, module: str) -> Profile:
    small = module == "p3701-0004"
    kit = "NVIDIA Jetson AGX Orin Developer Kit"
    carrier = "Lanner EAI-I233" if small else kit
    return Profile(
        name=f"jp{jetpack}-{module[-4:]}",
        jetpack=jetpack,
        module=module,
        model="Jetson AGX Orin" if jetpack == 5 else carrier,
        cpus=8 if small else 12,
        cpu_max_khz=2_188_800 if small else 2_201_600,
        gpu_hz=GPU_32GB if small else GPU_64GB,
        memory_mb=62_797 if module == "p3701-0005" else 30_697,
        modes=MODES_32GB if small else MODES_64GB,
        # JetPack has no file for -0005, which shares the file of -0000.
        conf="nvpmodel_p3701_0004.conf" if small else "nvpmodel_p3701_0000.conf",
    )


PROFILES: dict[str, Profile] = {
    profile.name: profile
    for profile in (
        *(_profile(jetpack, f"p3701-{sku}") for jetpack in (6, 7) for sku in ("0005", "0004", "0000")),
        _profile(5, "p3701-0005"),
    )
}
SUPPORTED: tuple[str, ...] = tuple(name for name, profile in PROFILES.items() if profile.jetpack > 5)
"""Profiles that the design supports: all but JetPack 5."""
