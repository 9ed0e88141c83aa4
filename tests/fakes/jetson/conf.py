"""nvpmodel.conf in the vendor's format: written from a profile, and parsed as nvpmodel parses it.

Comments, order and section names are this project's; the syntax is the device's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.fakes.jetson.profiles import UNCAPPED, Mode, Profile

CLUSTER = 4
"""Cores that share a clock."""


def text(profile: Profile) -> str:
    lines = [
        "# Power modes of a fake Jetson, in the format of nvpmodel.conf.",
        "# A PARAM section says which file an argument is written to; a POWER_MODEL block what is written.",
        "",
        *_parameters(profile),
    ]
    for mode in profile.modes:
        lines += ["", "###########################", f"#  {mode.name}", "###########################"]
        lines += _block(profile, mode)
    return "\n".join([*lines, "", f"< PM_CONFIG DEFAULT={profile.default_mode} >", ""])


def _parameters(profile: Profile) -> Iterator[str]:
    yield "< PARAM TYPE=FILE NAME=CPU_ONLINE >"
    for core in range(profile.cpus):
        yield f"CORE_{core} /sys/devices/system/cpu/cpu{core}/online"
    yield from ("", "< PARAM TYPE=FILE NAME=TPC_POWER_GATING >", f"TPC_PG_MASK {profile.tpc_mask}")
    gpu = profile.gpu_parent if profile.jetpack == 5 else "/sys/devices/platform/17000000.gpu"
    yield from (
        "",
        "< PARAM TYPE=FILE NAME=GPU_POWER_CONTROL_ENABLE >",
        f"GPU_PWR_CNTL_EN {gpu}/power/control",
    )
    for cluster in range(profile.cpus // CLUSTER):
        cpufreq = f"/sys/devices/system/cpu/cpu{cluster * CLUSTER}/cpufreq"
        yield from ("", f"< PARAM TYPE=CLOCK NAME=CPU_A78_{cluster} >")
        yield f"FREQ_TABLE {cpufreq}/scaling_available_frequencies"
        yield f"MAX_FREQ {cpufreq}/scaling_max_freq"
        yield f"MIN_FREQ {cpufreq}/scaling_min_freq"
    devfreq = profile.devfreq if profile.jetpack == 5 else f"{gpu}/devfreq_dev"
    yield from ("", "< PARAM TYPE=CLOCK NAME=GPU >", f"FREQ_TABLE {devfreq}/available_frequencies")
    yield from (f"MAX_FREQ {devfreq}/max_freq", f"MIN_FREQ {devfreq}/min_freq")
    yield from ("", "< PARAM TYPE=CLOCK NAME=EMC >", f"MAX_FREQ {profile.emc_cap}")


def _block(profile: Profile, mode: Mode) -> Iterator[str]:
    yield f"< POWER_MODEL ID={mode.id} NAME={mode.name} >"
    for core in range(profile.cpus):
        yield f"CPU_ONLINE CORE_{core} {int(core < mode.cpus)}"
    yield f"TPC_POWER_GATING TPC_PG_MASK {mode.tpc_mask}"
    yield "GPU_POWER_CONTROL_ENABLE GPU_PWR_CNTL_EN on"
    for cluster in range(mode.cpus // CLUSTER):
        yield f"CPU_A78_{cluster} MIN_FREQ {profile.cpu_min_khz}"
        yield f"CPU_A78_{cluster} MAX_FREQ {mode.cpu_khz}"
    yield from ("GPU MIN_FREQ 0", f"GPU MAX_FREQ {mode.gpu_hz}", f"EMC MAX_FREQ {mode.emc_hz}")


@dataclass
class Block:
    """A power mode of the file."""

    id: int
    name: str
    settings: list[tuple[str, str, str]] = field(default_factory=list)
    """(parameter, argument, value), in the file's order."""


@dataclass
class Conf:
    paths: dict[tuple[str, str], str] = field(default_factory=dict)
    """(parameter, argument) → the file that nvpmodel writes."""
    blocks: dict[int, Block] = field(default_factory=dict)
    default: int = 0


def read(content: str) -> Conf:
    """Parse a file of this format; unknown lines are ignored."""
    conf = Conf()
    block: Block | None = None
    parameter = ""
    for line in content.splitlines():
        if match := re.match(r"< PARAM TYPE=\w+ NAME=(\w+) >", line):
            parameter, block = match[1], None
        elif match := re.match(r"< POWER_MODEL ID=(\d+) NAME=(\S+) >", line):
            block = conf.blocks[int(match[1])] = Block(int(match[1]), match[2])
        elif match := re.match(r"< PM_CONFIG DEFAULT=(\d+) >", line):
            conf.default = int(match[1])
        elif block is not None and (match := re.match(r"(\w+) (\w+) (\S+)$", line)):
            block.settings.append((match[1], match[2], match[3]))
        elif block is None and (match := re.match(r"(\w+) (/\S+)$", line)):
            conf.paths[parameter, match[1]] = match[2]
    return conf


def capped(value: str) -> int | None:
    """A frequency limit of a block; None for no limit."""
    return None if int(value) == UNCAPPED else int(value)
