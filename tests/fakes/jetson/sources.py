"""Sources of the files by which clocks are judged on an AGX Orin devkit with L4T 39.2, JetPack 7.2.

Of the profile jp7-0005. What nobody has shown is GUESSED, and a test goes through those: they may make a
state `unknown`, never `pinned` or `unpinned`.
"""

from __future__ import annotations

SOURCES = {
    "show": "`jetson_clocks --show` of a devkit, L4T 39.2.0 (GCID 45755727), MAXN and pinned, July 2026, in a"
    " public environment log; `nvpmodel -q` in the same",
    "bwmgr": "NVIDIA's GPL driver tegra-bpmp-bwmgr; AGX Orin 64 GB scripts that call clocks fixed when the "
    "three files of /sys/devices/platform/bwmgr/devfreq/bwmgr are equal; nvpmodel 39.2.1 naming its max_freq",
    "gpu": "the same scripts: .../17000000.gpu/devfreq/17000000.gpu/{min,cur,max}_freq",
    "tree": "device trees of upstream Linux: tegra234-p3737-0000+p3701-0005",
    "kernel": "Documentation/ABI/testing of the kernel: cpufreq, cpuidle, cpu hotplug",
    "nvgpu": "NVIDIA's GPL driver nvgpu; public scripts that write 0 to ….gpu/railgate_enable (L4T 36)",
    "conf": "nvpmodel_p3701_0000.conf: modes and values of the LineageOS and meta-tegra copies",
}
GUESSED = "guessed"
CPU = "/sys/devices/system/cpu/cpu{}"
GPU = "/sys/class/devfreq/17000000.gpu"
BWMGR = "/sys/class/devfreq/bwmgr"
EMC = "/sys/kernel/debug/bpmp/debug/clk/emc"
TPC_MASK = "/sys/devices/platform/gpu.0/tpc_pg_mask"
FILES = {
    f"{CPU}/online": "kernel",
    f"{CPU}/cpufreq/cpuinfo_max_freq": "show",
    f"{CPU}/cpufreq/scaling_min_freq": "kernel",
    f"{CPU}/cpufreq/scaling_max_freq": "show",
    f"{CPU}/cpufreq/scaling_cur_freq": "kernel",
    f"{CPU}/cpufreq/cpuinfo_cur_freq": "kernel",
    f"{CPU}/cpufreq/scaling_available_frequencies": "conf",
    f"{CPU}/cpuidle/state0/disable": "kernel",
    f"{CPU}/cpuidle/state1/disable": "kernel",
    f"{CPU}/cpuidle/state1/name": "show",
    f"{GPU}/device/of_node/name": "tree",
    f"{GPU}/device/railgate_enable": "nvgpu",
    f"{GPU}/device/power/control": GUESSED,
    f"{GPU}/min_freq": "gpu",
    f"{GPU}/max_freq": "show",
    f"{GPU}/cur_freq": "gpu",
    f"{GPU}/available_frequencies": "conf",
    f"{BWMGR}/min_freq": "bwmgr",
    f"{BWMGR}/max_freq": "show",
    f"{BWMGR}/cur_freq": "bwmgr",
    f"{BWMGR}/available_frequencies": "bwmgr",
    f"{EMC}/rate": GUESSED,
    f"{EMC}/min_rate": GUESSED,
    f"{EMC}/max_rate": GUESSED,
    f"{EMC}/mrq_rate_locked": GUESSED,
    TPC_MASK: GUESSED,
    "/var/lib/nvpmodel/status": GUESSED,
}
"""File → key of SOURCES; {} is each core's number."""
