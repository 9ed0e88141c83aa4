"""jetson_clocks: shows, pins, stores and restores. Like the real one's, its exit code proves nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from tests.fakes.jetson.machine import CPU, Machine, captured
from tests.fakes.jetson.profiles import EMC

ME = "/usr/bin/jetson_clocks"


def main(arguments: list[str], machine: Machine) -> int:
    machine.log("jetson_clocks", arguments)
    option, file = [*arguments, "", ""][:2]
    if option not in ("", "--show", "--store", "--restore"):
        print(f"\033[0;31mUnknown option {option}\033[0m")
        return 0
    if option == "--show":
        print(f"SOC family:tegra234  Machine:{machine.profile.model}")
    if machine.user != 0:
        print(f"Error: Run this script({ME}) as a root user")
        return 1
    if option in ("--store", "--restore"):
        file = file or f"{os.environ.get('HOME', '')}/.jetsonclocks_conf.txt"
        return _store(machine, file) if option == "--store" else _restore(machine, file)
    if _gpu_not_up(machine):
        print("Error! GPU frequency scaling not supported!")
        return 1
    if option == "--show":
        print("\n".join(show(machine)))
    else:
        _pin(machine)
    return 0


def _gpu_not_up(machine: Machine) -> bool:
    """True while the GPU's clock is absent; each call counts down to its appearance."""
    fault = machine.fault("no_devfreq")
    if fault is None:
        return machine.gpu is None
    fault["calls"] -= 1
    if fault["calls"] < 0:
        machine.path(fault["aside"]).rename(machine.path(machine.profile.devfreq))
        machine.clear_fault("no_devfreq")
        machine.apply(machine.mode)
        return False
    machine.set_fault("no_devfreq", fault)
    return True


def _pin(machine: Machine) -> None:
    silent = machine.fault("silent_gpu")
    machine.pin(gpu=silent is None)
    if silent is not None and silent["message"]:
        print("Error: Failed to max GPU frequency!")


def show(machine: Machine) -> Iterator[str]:
    """Lines of --show after the first, captured from a real device of this JetPack, with this machine's
    mode."""
    for line in captured(f"show-jp{machine.profile.jetpack}"):
        if not line.startswith(("SOC family", "NV Power Mode")):
            yield line
    yield f"NV Power Mode: {machine.mode.name}"


def _kept(machine: Machine) -> Iterator[str]:
    for core in range(machine.profile.cpus):
        folder = f"{CPU}/cpu{core}"
        yield f"{folder}/online"
        yield f"{folder}/cpufreq/scaling_min_freq"
        yield from (f"{folder}/cpuidle/state{state}/disable" for state in (0, 1))
    yield f"{machine.profile.devfreq}/min_freq"
    yield f"{machine.profile.gpu_parent}/railgate_enable"
    yield f"{EMC}/mrq_rate_locked" if machine.profile.emc_flag else machine.profile.emc_files["min"]


def _store(machine: Machine, file: str) -> int:
    path = machine.path(file)
    if path.exists():
        print(f"File {file} already exists. Can I overwrite it? Y/N: ", end="")
        if sys.stdin.readline().strip() not in ("Y", "y"):
            print(f"Error: file {file} already exists!")
            return 1
    print(f"Storing system configuration in {file}")
    # The script redirects into the file without a check: its exit code stays 0 on a full disk.
    if machine.refuses(file):
        print(f"{ME}: line 281: {file}: {machine.refuses(file)}", file=sys.stderr)
        return 0
    try:
        path.write_text("".join(f"{kept}:{machine.read(kept)}\n" for kept in _kept(machine)))
    except OSError as error:
        print(f"{ME}: line 281: {file}: {error.strerror}", file=sys.stderr)
    return 0


def _restore(machine: Machine, file: str) -> int:
    path = machine.path(file)
    if not path.exists():
        print(f"Error: {file} file not found !")
        return 1
    print(f"Restoring system configuration from {file}")
    for line in path.read_text().splitlines():
        kept, _, value = line.rpartition(":")
        if kept.startswith("/") and machine.path(kept).exists():
            machine.write(kept, value)
    _settle(machine)
    return 0


def _settle(machine: Machine) -> None:
    """Move the running clocks within the limits that were written."""
    for core in range(machine.profile.cpus):
        cpufreq = f"{CPU}/cpu{core}/cpufreq"
        high = machine.number(f"{cpufreq}/scaling_max_freq")
        for name in ("scaling", "cpuinfo"):
            low = machine.number(f"{cpufreq}/scaling_min_freq")
            machine.write(f"{cpufreq}/{name}_cur_freq", min(low, high))
    if machine.gpu is not None:
        high = machine.number(f"{machine.gpu}/max_freq")
        machine.set_gpu(min(machine.number(f"{machine.gpu}/min_freq"), high), high)
    flag = f"{EMC}/mrq_rate_locked"
    locked = machine.read(flag) == "1" if machine.profile.emc_flag else _emc_is_raised(machine)
    machine.set_emc(locked=locked)


def _emc_is_raised(machine: Machine) -> bool:
    return machine.number(machine.profile.emc_files["min"]) == machine.number(machine.profile.emc_cap)
