"""tegrastats: a line a second from the same tree, in the format of the machine's JetPack, until it is ended.

Option: --interval MILLISECONDS. Of JetPack 6 no whole line is known; ours has the tokens that are.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

from tests.fakes.machine import CPU, Machine
from tests.fakes.monitors import POWERED_DOWN

ABANDONED_S = 60.0
"""A real one runs for ever; ours, when a test has forgotten it, does not."""
ORDER_JP5 = ("CV0", "CPU", "Tboard", "SOC2", "Tdiode", "SOC0", "CV1", "GPU", "tj", "SOC1", "CV2")
ORDER_JP6 = ("cpu", "tboard", "soc2", "tdiode", "soc0", "gpu", "tj", "soc1")
ORDER_JP7 = ("cpu", "soc2", "soc0", "gpu")
ENGINES = ("NVENC0", "NVDEC0", "NVJPG0", "NVJPG1", "VIC", "OFA", "NVDLA0", "NVDLA1")


def main(arguments: list[str], machine: Machine) -> int:
    """Run it; the exit status."""
    machine.log("tegrastats", arguments)
    options = dict(zip(arguments, [*arguments[1:], ""], strict=True))
    interval_s = int(options.get("--interval", 1000)) / 1000
    end = time.monotonic() + ABANDONED_S
    while time.monotonic() < end:
        print(line(machine, time.gmtime()), flush=True)
        time.sleep(interval_s)
    return 0


def line(machine: Machine, now: time.struct_time) -> str:
    """One line of the machine as it is."""
    return " ".join((time.strftime("%m-%d-%Y %H:%M:%S", now), *_tokens(machine)))


def _tokens(machine: Machine) -> Iterator[str]:
    jetpack = machine.profile.jetpack
    yield _memory(machine)
    yield f"CPU [{','.join(_core(machine, core) for core in range(machine.profile.cpus))}]"
    yield f"EMC_FREQ 0%@{machine.number(machine.profile.emc_files['cur']) // 1_000_000}"
    yield from _gpu(machine)
    if jetpack == 5:
        yield "VIC_FREQ 729 APE 174"
    else:
        yield " ".join(f"{name} off" for name in ENGINES) + " PVA0_FREQ off APE 174"
    yield from _temperatures(machine)
    yield from _power(machine)


def _memory(machine: Machine) -> str:
    info = dict(re.findall(r"(\w+): +(\d+) kB", machine.read("/proc/meminfo")))
    total, free = int(info["MemTotal"]) // 1024, int(info["MemAvailable"]) // 1024
    blocks = sum(int(row.split()[-1]) for row in machine.read("/proc/buddyinfo").splitlines())
    ram = f"RAM {total - free}/{total}MB (lfb {blocks}x4MB)"
    if machine.profile.jetpack == 7:
        return ram
    swap, left = int(info["SwapTotal"]) // 1024, int(info["SwapFree"]) // 1024
    return f"{ram} SWAP {swap - left}/{swap}MB (cached 0MB)"


def _core(machine: Machine, core: int) -> str:
    if not machine.core_online(core):
        return "off"
    return f"0%@{machine.number(f'{CPU}/cpu{core}/cpufreq/scaling_cur_freq') // 1000}"


def _gpu(machine: Machine) -> Iterator[str]:
    # A GPU that sleeps shows a clock of nothing.
    folder = machine.gpu
    mhz = machine.number(f"{folder}/cur_freq") // 1_000_000 if folder else 0
    if machine.profile.jetpack == 5:
        yield f"GR3D_FREQ 0%@{mhz} GR3D2_FREQ 0%@{mhz}"
    elif machine.profile.jetpack == 6:
        yield f"GR3D_FREQ 0%@{mhz}"
    else:
        yield f"GR3D_FREQ 0%@[{mhz},{mhz}]"


def _temperatures(machine: Machine) -> Iterator[str]:
    jetpack = machine.profile.jetpack
    zones = {}
    for folder in machine.path("/sys/class/thermal").glob("thermal_zone*"):
        name = re.sub(r"-thermal$|-therm$|_tegra$", "", (folder / "type").read_text().strip())
        zones[name] = _milli(folder / "temp")
    for name in {5: ORDER_JP5, 6: ORDER_JP6, 7: ORDER_JP7}[jetpack]:
        milli = zones[name]
        if milli is None and name.lower() not in POWERED_DOWN:
            continue
        degrees = "-256" if milli is None else f"{milli / 1000:g}"
        yield f"{name}@{degrees}C" + (f"/{degrees}C" if jetpack == 7 else "")


def _milli(path: Path) -> int | None:
    """A zone's temperature; None when its part is powered down."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return int(os.read(handle, 64))
    except (BlockingIOError, ValueError):
        return None
    finally:
        os.close(handle)


def _power(machine: Machine) -> Iterator[str]:
    jetpack = machine.profile.jetpack
    for address in ("40", "41"):
        folder = _monitor(machine, address)
        for number in (1, 2, 3):
            label = (folder / f"in{number}_label").read_text().strip()
            milliwatts = int((folder / f"in{number}_input").read_text()) * int(
                (folder / f"curr{number}_input").read_text()
            )
            if jetpack < 7 or address == "40":
                yield f"{label} " + "/".join([f"{milliwatts // 1000}mW"] * (3 if jetpack == 7 else 2))


def _monitor(machine: Machine, address: str) -> Path:
    for folder in machine.path("/sys/class/hwmon").iterdir():
        if (folder / "device").resolve().name == f"1-00{address}":
            return folder
    raise LookupError(f"no power monitor at 0x{address}")
