"""Every path of the box that the appliance reads, writes or names; absolute inside Root's tree."""

from __future__ import annotations

# Ours. Root's commands publish in RUN, which everybody can read; ROOTS_RUN is root's alone. A boot empties
# both.
RUN = "/run/f5-appliance"
ROOTS_RUN = f"{RUN}/root"
THIS_BOOT = f"{ROOTS_RUN}/clocks.json"
CLOCK_MUTEX = f"{ROOTS_RUN}/turn"
COUNTERS = f"{ROOTS_RUN}/throttle.json"
CLOCKS = f"{RUN}/clocks.json"
HEALTH = f"{RUN}/health.json"
CONFIG = "/etc/f5-appliance/appliance.yaml"
STATE = "/var/lib/f5-appliance"
CACHE = "/var/cache/f5-appliance"
BASELINE_FOLDER = f"{STATE}/clocks"
BUNDLE = f"{STATE}/bundle"
VOICES = f"{STATE}/voices"
JOURNAL = f"{STATE}/journal/measurements.jsonl"
QUIET = f"{STATE}/quiet.json"
SETUP = f"{STATE}/setup.json"
BOOTS = f"{STATE}/boots.json"
DAMAGED_BOOTS = f"{BOOTS}.damaged"
DEBS = f"{STATE}/debs"
"""Packages of f5-upgrade. Unlike CACHE, only root can write here, because root installs them."""
INSTALLATION = "/usr/lib/f5-appliance"
SHIPPED_CONFIG = f"{INSTALLATION}/configs/appliance.yaml"
INSTALLED = f"{STATE}/installed.json"
"""Versions at the time of the installation; the package's postinst writes them."""

# NVIDIA's.
MODEL = "/proc/device-tree/model"
COMPATIBLE = "/proc/device-tree/compatible"
SERIAL_NUMBER = "/proc/device-tree/serial-number"
RELEASE = "/etc/nv_tegra_release"
NVPMODEL_CONF = "/etc/nvpmodel.conf"
NVPMODEL_STATUS = "/var/lib/nvpmodel/status"
NVPMODEL_FOLDER = "/etc/nvpmodel"
"""Folder with the files of all modules. nvpower.sh makes NVPMODEL_CONF a link to one of the files."""
DRIVER = "/proc/driver/nvidia/version"
NVGPU = "/sys/module/nvgpu"
GPU_NODE = "/dev/nvgpu/igpu0/ctrl"
NVMAP = "/dev/nvmap"
RENDER_NODES = "/dev/dri"
JETSON_CLOCKS = "/usr/bin/jetson_clocks"
INDICATOR = "/etc/xdg/autostart/nvpmodel_indicator.desktop"
LIBRARIES = ("/usr/lib/aarch64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/x86_64-linux-gnu")

# The kernel's.
CPUS = "/sys/devices/system/cpu"
DEVFREQ = "/sys/class/devfreq"
BWMGR = f"{DEVFREQ}/bwmgr"
"""EMC on JetPack 7: devfreq of NVIDIA's driver tegra-bpmp-bwmgr; max_freq is the power mode's cap."""
DEBUGFS = "/sys/kernel/debug"
EMC = f"{DEBUGFS}/bpmp/debug/clk/emc"
"""EMC on JetPack 5 and 6, in debugfs, which only root can read."""
EMC_LOCK = f"{EMC}/mrq_rate_locked"
EMC_STEPS = f"{DEBUGFS}/bpmp/debug/emc/possible_rates"
EMC_CAPS = ("/sys/kernel/nvpmodel_clk_cap/emc", "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap")
TPC_MASKS = ("/sys/devices/platform/gpu.0/tpc_pg_mask", "/sys/devices/gpu.0/tpc_pg_mask")
RESET_REASONS = (
    "/sys/devices/platform/bus@0/c360000.pmc/reset_reason",
    "/sys/devices/platform/c360000.pmc/reset_reason",
)
"""Attribute of the Tegra234 in the device tree of JetPack 6 and 7, and in an older one."""
THERMAL = "/sys/class/thermal"
HWMON = "/sys/class/hwmon"
DISKS = "/sys/block"
INTERFACES = "/sys/class/net"
PROCESSES = "/proc"
KERNEL_RELEASE = "/proc/sys/kernel/osrelease"
KERNEL_LINE = "/proc/cmdline"
KERNEL_MODULES = "/lib/modules"
BOOT_ID = "/proc/sys/kernel/random/boot_id"
HOST_NAME = "/proc/sys/kernel/hostname"
MEMORY = "/proc/meminfo"
PAGING = "/proc/vmstat"
FREE_PIECES = "/proc/buddyinfo"
MOUNTS = "/proc/mounts"

# The system's.
UNITS_OF_ROOT = "/etc/systemd/system"
UNITS_OF_PACKAGES = ("/usr/lib/systemd/system", "/lib/systemd/system")
JOURNALD_CONF = "/etc/systemd/journald.conf"
JOURNALD = tuple(f"{folder}/systemd/journald.conf.d" for folder in ("/etc", "/run", "/usr/lib"))
USERS = "/etc/passwd"
GROUPS = "/etc/group"
ETC_HOST_NAME = "/etc/hostname"
MACHINE_ID = "/etc/machine-id"
PACKAGES = "/var/lib/dpkg/status"
PACKAGE_UPDATES = "/var/lib/dpkg/updates"
DPKG_LOCK = "/var/lib/dpkg/lock-frontend"
PACKAGE_INFO = "/var/lib/dpkg/info"
REBOOT_REQUIRED = "/run/reboot-required"
SYNCHRONISED = "/run/systemd/timesync/synchronized"
WRITTEN = ("/", STATE, CACHE, "/var/log")
"""Folders on the file systems that the appliance and its logs write to."""
NEEDED = (STATE, CACHE)
"""Folders without which the appliance does not work, or loses its data."""
