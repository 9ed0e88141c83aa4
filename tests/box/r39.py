"""An AGX Orin devkit with L4T 39.2 (JetPack 7.2) in a folder, from what was made public of real ones.

It owes nothing to tests/fakes: each file says where it is from. What nobody has shown is GUESSED, and a test
goes through those: they may make a state `unknown`, never `pinned` or `unpinned`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from appliance.box.root import Root
from appliance.box.system import Box
from appliance.box.tools import Completed, Tools

SOURCES = {
    "show": "`jetson_clocks --show` of a devkit, L4T 39.2.0 (GCID 45755727), MAXN and pinned, July 2026, in a"
    " public environment log; `nvpmodel -q` in the same",
    "release": "/etc/nv_tegra_release in the same log",
    "bwmgr": "NVIDIA's GPL driver tegra-bpmp-bwmgr; AGX Orin 64 GB scripts that call clocks fixed when the "
    "three files of /sys/devices/platform/bwmgr/devfreq/bwmgr are equal; nvpmodel 39.2.1 naming its max_freq",
    "gpu": "the same scripts: .../17000000.gpu/devfreq/17000000.gpu/{min,cur,max}_freq",
    "tree": "device trees of upstream Linux: tegra234-p3737-0000+p3701-0005",
    "kernel": "Documentation/ABI/testing of the kernel: cpufreq, cpuidle, cpu hotplug",
    "nvgpu": "NVIDIA's GPL driver nvgpu; public scripts that write 0 to ….gpu/railgate_enable (L4T 36)",
    "conf": "nvpmodel_p3701_0000.conf: modes and values of the LineageOS and meta-tegra copies",
}
GUESSED = ""
CPU = "/sys/devices/system/cpu/cpu{}"
GPU = "/sys/class/devfreq/17000000.gpu"
BWMGR = "/sys/class/devfreq/bwmgr"
DEBUGFS = "/sys/kernel/debug/bpmp/debug/clk/emc"
CORES, TOP_KHZ, LOW_KHZ = 12, 2_201_600, 729_600
GPU_TOP, GPU_LOW = 1_300_500_000, 306_000_000
EMC_TOP, EMC_LOW = 3_199_000_000, 204_000_000
MODES = {
    "MAXN": (0, 12, -1, 0, -1),
    "MODE_15W": (1, 4, 1_113_600, 248, 408_000_000),
    "MODE_30W": (2, 8, 1_728_000, 240, 612_000_000),
    "MODE_50W": (3, 12, 1_497_600, 0, 816_000_000),
}
"""Name → id, cores, CPU cap in kHz, TPC mask, GPU cap in Hz."""


def _conf() -> str:
    lines = ["< PARAM TYPE=FILE NAME=CPU_ONLINE >"]
    lines += [f"CORE_{core} {CPU.format(core)}/online" for core in range(CORES)]
    lines += ["< PARAM TYPE=FILE NAME=TPC_POWER_GATING >", f"TPC_PG_MASK {TPC_MASK}"]
    for cluster in range(3):
        lines += [f"< PARAM TYPE=CLOCK NAME=CPU_A78_{cluster} >"]
        lines += [
            f"{kind}_FREQ {CPU.format(4 * cluster)}/cpufreq/scaling_{kind.lower()}_freq"
            for kind in ("MAX", "MIN")
        ]
    lines += ["< PARAM TYPE=CLOCK NAME=GPU >", f"MAX_FREQ {GPU}/max_freq", f"MIN_FREQ {GPU}/min_freq"]
    lines += ["< PARAM TYPE=CLOCK NAME=EMC >", f"MAX_FREQ {BWMGR}/max_freq"]
    for name, (number, cores, khz, mask, hz) in MODES.items():
        lines += [f"< POWER_MODEL ID={number} NAME={name} >"]
        lines += [f"CPU_ONLINE CORE_{core} {int(core < cores)}" for core in range(CORES)]
        lines += [f"TPC_POWER_GATING TPC_PG_MASK {mask}"]
        for cluster in range(3):
            lines += [f"CPU_A78_{cluster} MIN_FREQ {LOW_KHZ}", f"CPU_A78_{cluster} MAX_FREQ {khz}"]
        lines += [f"GPU MIN_FREQ {GPU_LOW}", f"GPU MAX_FREQ {hz}", "EMC MAX_FREQ -1"]
    return "\n".join([*lines, "< PM_CONFIG DEFAULT=2 >"])


TPC_MASK = "/sys/devices/platform/gpu.0/tpc_pg_mask"


def attributes() -> Iterator[tuple[str, str, str]]:
    """Each file: path, text in MAXN with nothing pinned, source."""
    yield "/proc/device-tree/compatible", "nvidia,p3737-0000+p3701-0005\0nvidia,tegra234\0", "tree"
    yield "/proc/device-tree/model", "NVIDIA Jetson AGX Orin Developer Kit\0", "show"
    yield "/etc/nv_tegra_release", "# R39 (release), REVISION: 2.0, GCID: 45755727, BOARD: generic", "release"
    yield "/proc/sys/kernel/random/boot_id", "7d6a1f0e-3c57-4be0-9a43-0f1e2d3c4b5a", "kernel"
    yield "/etc/nvpmodel.conf", _conf(), "conf"
    for core in range(CORES):
        folder = CPU.format(core)
        yield f"{folder}/online", "1", "kernel"
        yield f"{folder}/cpufreq/cpuinfo_max_freq", str(TOP_KHZ), "show"
        yield f"{folder}/cpufreq/cpuinfo_min_freq", str(LOW_KHZ), GUESSED
        yield f"{folder}/cpufreq/scaling_min_freq", str(LOW_KHZ), "kernel"
        yield f"{folder}/cpufreq/scaling_max_freq", str(TOP_KHZ), "show"
        yield f"{folder}/cpufreq/scaling_cur_freq", str(LOW_KHZ), "kernel"
        for state, name in enumerate(("WFI", "c7")):
            yield f"{folder}/cpuidle/state{state}/name", name, "show"
            yield f"{folder}/cpuidle/state{state}/disable", "0", "kernel"
    yield f"{GPU}/device/of_node/name", "gpu\0", "tree"
    yield f"{GPU}/device/railgate_enable", "1", "nvgpu"
    yield f"{GPU}/device/power/control", "auto", GUESSED
    yield f"{GPU}/min_freq", str(GPU_LOW), "gpu"
    yield f"{GPU}/max_freq", str(GPU_TOP), "show"
    yield f"{GPU}/cur_freq", str(GPU_LOW), "gpu"
    yield f"{GPU}/available_frequencies", f"{GPU_LOW} 408000000 612000000 816000000 {GPU_TOP}", "conf"
    yield f"{BWMGR}/min_freq", str(EMC_LOW), "bwmgr"
    yield f"{BWMGR}/max_freq", str(EMC_TOP), "show"
    yield f"{BWMGR}/cur_freq", str(EMC_LOW), "bwmgr"
    yield f"{BWMGR}/available_frequencies", f"{EMC_LOW} 2133000000 {EMC_TOP}", "bwmgr"
    yield f"{DEBUGFS}/rate", str(EMC_LOW), GUESSED
    yield f"{DEBUGFS}/min_rate", "0", GUESSED
    yield f"{DEBUGFS}/max_rate", "1", GUESSED
    yield f"{DEBUGFS}/mrq_rate_locked", "0", GUESSED
    yield TPC_MASK, "0", GUESSED
    yield "/sys/devices/gpu.0/tpc_pg_mask", "0", GUESSED
    yield "/sys/kernel/nvpmodel_clk_cap/emc", str(EMC_TOP), GUESSED
    yield "/usr/bin/jetson_clocks", "", "show"
    yield "/var/lib/nvpmodel/status", "pmode:0000", GUESSED


GUESSES = tuple(path for path, _, source in attributes() if source is GUESSED)


@dataclass(frozen=True)
class R39(Tools):
    """The tree, and the vendor's tools on it, which write what they are known to, and print the log's."""

    folder: Path = Path()
    calls: list[str] = field(default_factory=list)
    now: dict[str, str] = field(default_factory=lambda: {"mode": "MAXN"})
    garble: Callable[[str, str], str] = lambda name, text: text
    """Damage to a tool's output."""

    def build(self) -> R39:
        for path, text, _ in attributes():
            self.path(path).parent.mkdir(parents=True, exist_ok=True)
            self.path(path).write_text(text)
        return self

    def box(self, user: int = 0) -> Box:
        """Root's, or that of another user; no time passes."""
        return Box(
            Root(self.folder),
            self,
            wall=lambda: 1.8e9,
            uptime=lambda: 600.0,
            sleep=lambda seconds: None,
            user=lambda: user,
        )

    def path(self, path: str) -> Path:
        return self.folder / path[1:]

    def read(self, path: str) -> str:
        return self.path(path).read_text().strip("\0\n")

    def write(self, path: str, value: object) -> None:
        if self.path(path).is_file():
            self.path(path).write_text(f"{value}\n")

    def copy(self, source: str, *targets: str) -> None:
        for target in targets:
            self.write(target, self.read(source))

    def execute(self, name: str, *arguments: str, timeout_s: float = 30.0, answer: str = "") -> Completed:
        self.calls.append(" ".join((name, *arguments)))
        known = {"jetson_clocks": self._jetson_clocks, "nvpmodel": self._nvpmodel}
        if name not in known:
            return Completed((name, *arguments), 127)
        try:
            text = known[name](arguments)
        except (OSError, ValueError):
            return Completed((name, *arguments), 1, "Error: a file cannot be read")
        return Completed((name, *arguments), 0, self.garble(name, text))

    def find(self, name: str) -> str | None:
        return name if name in ("jetson_clocks", "nvpmodel") else None

    def _nvpmodel(self, arguments: tuple[str, ...]) -> str:
        if arguments[0] == "-q":
            return f"NV Power Mode: {self.now['mode']}\n{MODES[self.now['mode']][0]}\n"
        self.set_mode([*MODES][int(arguments[1])])
        return ""

    def set_mode(self, name: str) -> None:
        number, cores, khz, mask, hz = MODES[name]
        self.now["mode"] = name
        self.write("/var/lib/nvpmodel/status", f"pmode:{number:04d}")
        self.write(TPC_MASK, mask)
        for core in range(CORES):
            self.write(f"{CPU.format(core)}/online", int(core < cores))
            self.write(f"{CPU.format(core)}/cpufreq/scaling_max_freq", khz if khz > 0 else TOP_KHZ)
            self.write(f"{CPU.format(core)}/cpufreq/scaling_min_freq", LOW_KHZ)
        self.write(f"{GPU}/max_freq", hz if hz > 0 else GPU_TOP)
        self.write(f"{GPU}/min_freq", GPU_LOW)

    def _jetson_clocks(self, arguments: tuple[str, ...]) -> str:
        if not arguments:
            return self.pin()
        if arguments[0] == "--show":
            return "\n".join(self._show())
        if arguments[0] == "--store":
            # Two reports say that it stores lines of its own, which it complains of when it restores them.
            lines = [
                "persistence: cannot be stored",
                *(f"{path}:{self.read(path)}" for path in self._stored()),
            ]
            self.path(arguments[1]).write_text("\n".join(lines) + "\n")
            return ""
        for line in self.path(arguments[1]).read_text().splitlines():
            path, colon, value = line.rpartition(":")
            if colon and path.startswith("/"):
                self.write(path, value)
        return "Error: persistence path not found\n"

    def _stored(self) -> list[str]:
        written = ("scaling_min_freq", "disable", "railgate_enable", "min_freq")
        return [path for path, _, _ in attributes() if path.rpartition("/")[2] in written]

    def pin(self) -> str:
        for core in range(CORES):
            cpufreq = f"{CPU.format(core)}/cpufreq"
            self.copy(
                f"{cpufreq}/scaling_max_freq", f"{cpufreq}/scaling_min_freq", f"{cpufreq}/scaling_cur_freq"
            )
            for state in range(2):
                self.write(f"{CPU.format(core)}/cpuidle/state{state}/disable", 1)
        self.write(f"{GPU}/device/railgate_enable", 0)
        for device in (GPU, BWMGR):
            self.copy(f"{device}/max_freq", f"{device}/min_freq", f"{device}/cur_freq")
        return ""

    def _show(self) -> Iterator[str]:
        yield "SOC family:tegra234  Machine:NVIDIA Jetson AGX Orin Developer Kit"
        online = sum(self.read(f"{CPU.format(core)}/online") == "1" for core in range(CORES))
        yield f"Online CPUs: 0-{online - 1}, Offline CPUs: {f'{online}-11' if online < CORES else ''}"
        for core in range(CORES):
            folder = CPU.format(core)
            idle = " ".join(
                f"{name}={1 - int(self.read(f'{folder}/cpuidle/state{state}/disable'))}"
                for state, name in enumerate(("WFI", "c7"))
            )
            limits = self._limits(f"{folder}/cpufreq/scaling_{{}}_freq")
            yield f"{f'cpu{core}:':7}Governor=schedutil {limits} IdleStates: {idle} "
        yield f"GPU {self._limits(f'{GPU}/{{}}_freq')}"
        yield "Active GPU TPCs: 8"
        yield f"EMC {self._limits(f'{BWMGR}/{{}}_freq')}"
        yield "FAN Dynamic Speed Control=nvfancontrol hwmon2_pwm1=66"
        yield f"NV Power Mode: {self.now['mode']}"

    def _limits(self, path: str) -> str:
        low, high, now = (self.read(path.format(kind)) for kind in ("min", "max", "cur"))
        return f"MinFreq={low} MaxFreq={high} CurrentFreq={now}"
