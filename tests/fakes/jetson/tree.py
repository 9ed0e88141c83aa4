"""The tree of files that a Jetson shows: sysfs with its links, procfs, and JetPack's files on the disk.

The values are an idle box's; the machine sets clocks and power mode afterwards.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from tests.fakes.jetson import conf
from tests.fakes.jetson.monitors import Monitors
from tests.fakes.jetson.profiles import BWMGR, EMC, EMC_STEPS, KERNELS, UBUNTU

DEVICE_TREE = "/sys/firmware/devicetree/base"
DRIVERS = {5: "35.3.1", 6: "540.4.0", 7: "595.58.03"}
"""Versions of the display driver, by JetPack; the last two parts of JetPack 7's are guessed."""


class Tree(Monitors):
    def plant(self) -> None:
        self.cpus()
        self.gpu()
        self.memory_clock()
        self.device_tree()
        self.thermal()
        self.hwmon(0)
        self.proc()
        self.wear_and_reset()
        self.nodes()
        self.disk()

    def cpus(self) -> None:
        profile = self.profile
        low, high = str(profile.cpu_min_khz), str(profile.cpu_max_khz)
        for core in range(profile.cpus):
            folder = f"/sys/devices/system/cpu/cpu{core}"
            self.put_all(folder, {"online": "1"})
            scaling = {"min_freq": low, "max_freq": high, "cur_freq": low, "governor": "schedutil"}
            self.put_all(f"{folder}/cpufreq", {f"scaling_{name}": text for name, text in scaling.items()})
            table = " ".join(map(str, profile.cpu_khz))
            self.put_all(f"{folder}/cpufreq", {"cpuinfo_max_freq": high, "cpuinfo_cur_freq": low})
            self.put_all(f"{folder}/cpufreq", {"scaling_available_frequencies": table})
            for state, name in enumerate(("WFI", "c7")):
                self.put_all(f"{folder}/cpuidle/state{state}", {"name": name, "disable": "0"})
        self.put_all(
            "/sys/devices/system/cpu",
            dict.fromkeys(("present", "possible", "online"), f"0-{profile.cpus - 1}") | {"offline": ""},
        )

    def gpu(self) -> None:
        """Plant the GPU's device and clock, and a second clock of the same class that is not the GPU's."""
        profile = self.profile
        files = {"load": "0", "railgate_enable": "1", "tpc_pg_mask": "0", "power/control": "auto"}
        self.put_all(profile.gpu_parent, files)
        # Some devices of the class are no GPU: the image compositor has a clock there too.
        decoy = "/sys/devices/platform/bus@0/13e00000.host1x/15340000.vic"
        low, high = profile.gpu_hz[0], profile.gpu_hz[-1]
        table = " ".join(map(str, profile.gpu_hz))
        self._devfreq(profile.gpu_parent, "ga10b" if profile.jetpack == 5 else "gpu", low, high, table)
        self._devfreq(decoy, "vic", 115_200_000, 729_600_000, "115200000 729600000")
        if profile.jetpack < 7:
            self.put_all(profile.devfreq, {"enable_3d_scaling": "1"})
        if profile.jetpack == 5:
            self.link("/sys/devices/gpu.0", profile.gpu_parent)
        else:
            self.link("/sys/devices/platform/gpu.0", profile.gpu_parent)
            self.link("/sys/devices/platform/17000000.gpu", profile.gpu_parent)
            self.link(f"{profile.gpu_parent}/devfreq_dev", profile.devfreq)

    def _devfreq(self, device: str, node: str, low: int, high: int, table: str) -> None:
        name = device.rsplit("/", 1)[1]
        folder = f"{device}/devfreq/{name}"
        limits = {"min_freq": str(low), "max_freq": str(high), "cur_freq": str(low)}
        self.put_all(folder, limits | {"available_frequencies": table, "governor": "nvhost_podgov"})
        in_tree = f"{DEVICE_TREE}/{node}@{name.split('.')[0]}"
        self.put(f"{in_tree}/name", f"{node}\0")
        self.link(f"{device}/of_node", in_tree)
        self.link(f"{folder}/device", device)
        self.link(f"/sys/class/devfreq/{name}", folder)

    def memory_clock(self) -> None:
        profile = self.profile
        low, high = str(profile.emc_min_hz), str(profile.emc_max_hz)
        # JetPack 7 has these files too, but its lock of the clock does not change them.
        self.put_all(EMC, {"rate": low, "min_rate": low, "max_rate": high, "mrq_rate_locked": "0"})
        if profile.jetpack == 7:
            table = " ".join(map(str, profile.emc_hz))
            limits = {"min_freq": low, "max_freq": high, "cur_freq": low}
            self.put_all(BWMGR, limits | {"available_frequencies": table, "governor": "bpmp-bwmgr"})
            self.link("/sys/class/devfreq/bwmgr", BWMGR)
        else:
            self.put(profile.emc_cap, f"{high}\n")
            self.put(EMC_STEPS, f"{' '.join(str(hz // 1000) for hz in profile.emc_hz)} (kHz)\n")

    def device_tree(self) -> None:
        self.put(f"{DEVICE_TREE}/model", f"{self.profile.model}\0")
        self.put(f"{DEVICE_TREE}/compatible", "".join(f"{word}\0" for word in self.profile.compatible))
        self.put(f"{DEVICE_TREE}/serial-number", "1423622012345\0")
        self.link("/proc/device-tree", DEVICE_TREE, absolute=True)

    def proc(self) -> None:
        total_kb = self.profile.memory_mb * 1024
        free_kb = round(total_kb * 0.72)
        swap_kb = total_kb // 2
        self.put(
            "/proc/meminfo",
            f"MemTotal:       {total_kb:8d} kB\nMemFree:        {free_kb:8d} kB\n"
            f"MemAvailable:   {free_kb + 2_000_000:8d} kB\nBuffers:           65536 kB\n"
            f"Cached:          1900000 kB\nSwapTotal:      {swap_kb:8d} kB\n"
            f"SwapFree:       {swap_kb:8d} kB\n",
        )
        blocks = free_kb // 4096
        self.put(
            "/proc/buddyinfo",
            "Node 0, zone      DMA     12     10      8      6      5      4      3      2      2      1 "
            "   300 \n"
            f"Node 0, zone   Normal    812    604    420    260    180     96     64     40     22     12 "
            f"{blocks - 300:6d} \n",
        )
        self.put("/proc/vmstat", "pgpgin 812345\npgpgout 423111\npswpin 0\npswpout 0\noom_kill 0\n")
        self.put("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n" + self._zram(swap_kb))
        self.put("/proc/mounts", mounts("rw"))
        self.put("/proc/uptime", "183.52 2101.10\n")
        self.put("/proc/sys/kernel/hostname", "ward-7-box\n")
        self.put("/proc/sys/kernel/osrelease", f"{KERNELS[self.profile.jetpack]}\n")
        self.put(f"/lib/modules/{KERNELS[self.profile.jetpack]}/modules.dep")
        self.boot_id()

    def _zram(self, swap_kb: int) -> str:
        each = swap_kb // self.profile.cpus
        return "".join(f"/dev/zram{core}\tpartition\t{each}\t0\t5\n" for core in range(self.profile.cpus))

    def boot_id(self) -> None:
        # The module uuid would do too, but its import takes a tenth of the time of a fake program's call.
        self.put("/proc/sys/kernel/random/boot_id", Path("/proc/sys/kernel/random/uuid").read_text())

    def wear_and_reset(self) -> None:
        """Plant an eMMC with little wear, and the reset reason of a reboot."""
        self.put_all("/sys/block/mmcblk0/device", {"life_time": "0x01 0x02", "pre_eol_info": "0x01"})
        self.put("/sys/devices/platform/bus@0/c360000.pmc/reset_reason", "MAINSWRST\n")

    def nodes(self) -> None:
        gpu = ("nvhost-ctrl-gpu", "nvhost-gpu") if self.profile.jetpack == 5 else ("nvgpu/igpu0/ctrl",)
        for name in ("nvmap", "host1x-fence", "dri/renderD128", *gpu):
            self.put(f"/dev/{name}")
        self.put("/sys/module/nvgpu/refcnt", "12\n")
        build = f"{DRIVERS[self.profile.jetpack]}  Release Build  (buildbrain@fake)"
        self.put(
            "/proc/driver/nvidia/version",
            f"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  {build}\n",
        )

    def disk(self) -> None:
        version, name, python = UBUNTU[self.profile.jetpack]
        self.put("/etc/nv_tegra_release", self.profile.release)
        self.put(
            "/etc/os-release",
            f'NAME="Ubuntu"\nVERSION_ID="{version}"\nVERSION_CODENAME={name}\nID=ubuntu\n'
            f'PRETTY_NAME="Ubuntu {version} LTS"\n',
        )
        self.put(f"/etc/nvpmodel/{self.profile.conf}", conf.text(self.profile))
        self.link("/etc/nvpmodel.conf", f"/etc/nvpmodel/{self.profile.conf}", absolute=True)
        self.put("/etc/nvfancontrol.conf", "# fan profiles of a fake Jetson\n")
        self.put("/etc/passwd", "root:x:0:0:root:/root:/bin/bash\ntech:x:1000:1000::/home/tech:/bin/bash\n")
        self.put("/etc/group", "root:x:0:\nvideo:x:44:tech\nrender:x:104:tech\ntech:x:1000:\n")
        self.put("/etc/hostname", "ward-7-box\n")
        self.put(
            "/var/lib/dpkg/status", "\n".join(itertools.starmap(_package, self.profile.packages.items()))
        )
        self.put("/run/systemd/timesync/synchronized")
        self.link("/usr/lib/systemd/system/default.target", "/usr/lib/systemd/system/graphical.target")
        self.put("/etc/systemd/journald.conf", "[Journal]\n#SystemMaxUse=\n")
        indicator = (
            "[Desktop Entry]\nType=Application\nExec=/usr/share/nvpmodel_indicator/nvpmodel_indicator.py\n"
        )
        self.put("/etc/xdg/autostart/nvpmodel_indicator.desktop", indicator)
        self.put("/lib/systemd/system/nvpmodel.service", NVPMODEL_SERVICE)
        for program in ("jetson_clocks", "nvpmodel", "tegrastats", f"python{python}", "python3"):
            self.put(f"/usr/{'sbin' if program == 'nvpmodel' else 'bin'}/{program}", "a fake program\n")
        for folder in ("run", "tmp", "root", "var/lib/nvpmodel", "var/cache", "etc/systemd/system", "opt"):
            (self.root / folder).mkdir(parents=True, exist_ok=True)


NVPMODEL_SERVICE = Path(__file__).with_name("nvpmodel.service").read_text("utf-8")


def mounts(state: str) -> str:
    """/proc/mounts with the root file system `rw` or `ro`."""
    return (
        f"/dev/mmcblk0p1 / ext4 {state},relatime 0 0\n"
        "proc /proc proc rw,nosuid,nodev,noexec,relatime 0 0\n"
        "sysfs /sys sysfs rw,nosuid,nodev,noexec,relatime 0 0\n"
        "debugfs /sys/kernel/debug debugfs rw,nosuid,nodev,noexec,relatime 0 0\n"
        "tmpfs /run tmpfs rw,nosuid,nodev,size=6430064k,mode=755 0 0\n"
    )


def _package(name: str, version: str) -> str:
    return f"Package: {name}\nStatus: install ok installed\nArchitecture: arm64\nVersion: {version}\n"
