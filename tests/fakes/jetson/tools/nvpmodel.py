"""nvpmodel: shows the power mode, sets it, or asks for a reboot, in the vendor's words."""

from __future__ import annotations

import errno
import sys

from tests.fakes.jetson import conf
from tests.fakes.jetson.machine import CONF, Machine, captured

FAILED = 255


def main(arguments: list[str], machine: Machine) -> int:
    machine.log("nvpmodel", arguments)
    try:
        return _run(arguments, machine)
    except OSError as error:
        _error(f"Error opening {error.filename}: {error.errno}")
        return FAILED


def _run(arguments: list[str], machine: Machine) -> int:
    verbose = "--verbose" in arguments
    rest = [word for word in arguments if word != "--verbose"]
    match rest:
        case ["-q" | "--query"]:
            return _query(machine, verbose)
        case ["-m" | "--mode", mode] if mode.isdigit():
            return _set(machine, int(mode))
    _error("optMask is 0, no request")
    return FAILED


def _error(text: str) -> None:
    print(f"NVPM ERROR: {text}", file=sys.stderr)


def _warn(text: str, end: str = "\n") -> None:
    print(f"NVPM WARN: {text}", end=end, flush=True)


def _query(machine: Machine, verbose: bool) -> int:
    mode = machine.mode
    if machine.fault("mode_not_set") is not None:
        _warn("power mode is not set!")
        return 0
    if machine.profile.jetpack == 5:
        print("NV Fan Mode:quiet")
    if verbose:
        print(f"NVPM VERB: Config file: {CONF}\nNVPM VERB: parsing done for {CONF}")
        print("NVPM VERB: Current mode: ", end="")
    print(f"NV Power Mode: {mode.name}\n{mode.id}")
    if machine.user != 0:
        _error(f"Error opening {machine.profile.emc_cap} : {errno.EACCES}")
    elif verbose:
        print(*captured("nvpmodel-q-verbose")[4:], sep="\n")
    return 0


def _set(machine: Machine, number: int) -> int:
    block = machine.power_modes.blocks[number]
    mask = machine.power_modes.paths["TPC_POWER_GATING", "TPC_PG_MASK"]
    wanted = next(value for parameter, _, value in block.settings if parameter == "TPC_POWER_GATING")
    if machine.fault("ebusy") is not None:
        _error(f"Error writing {wanted} to {mask}: {errno.EBUSY}")
        _error("failed to set power mode!")
        return FAILED
    if machine.gpu is None:
        raise FileNotFoundError(errno.ENOENT, "", machine.power_modes.paths["GPU", "FREQ_TABLE"])
    # The GPU's golden context fits only the present set of TPCs: another set needs a boot.
    if machine.read(mask) != wanted or machine.fault("reboot_prompt") is not None:
        return _ask_for_reboot(machine, block)
    machine.apply(block)
    machine.clear_fault("mode_not_set")
    return 0


def _ask_for_reboot(machine: Machine, block: conf.Block) -> int:
    _warn("Golden image context is already created")
    _warn(f"Reboot required for changing to this power mode: {block.id}")
    _warn("DO YOU WANT TO REBOOT NOW? enter YES/yes to confirm: ", end="")
    answer = sys.stdin.readline()
    print()
    if not answer:
        _error("bad input!")
        return FAILED
    if answer.strip() not in ("YES", "yes"):
        _error("optMask is 1, no request for power mode")
        return FAILED
    _warn("rebooting..")
    machine.write("/var/lib/nvpmodel/status", f"pmode:{block.id:04d}")
    machine.clear_fault("reboot_prompt")
    machine.append("reboots", "nvpmodel")
    return 0
