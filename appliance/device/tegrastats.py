"""A line of tegrastats, of any release: for logs from the field; the box itself is read from sysfs.

Tokens are found wherever they stand: their order, and which there are, differ between releases.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

TIME = re.compile(r"^(\d\d-\d\d-\d{4} \d\d:\d\d:\d\d) ")
RAM = re.compile(r"\bRAM (\d+)/(\d+)MB \(lfb (\d+)x(\d+)([kM])B\)")
SWAP = re.compile(r"\bSWAP (\d+)/(\d+)MB")
CPU = re.compile(r"\bCPU \[([^\]]*)\]")
CORE = re.compile(r"(\d+)%(?:@(\d+))?")
CLOCK = re.compile(r"\b([A-Z][A-Z0-9]*)_FREQ (?:(\d+)%)?(?:@(\d+|\[[\d,]*\]))?(?= |$)")
ENGINE = re.compile(
    r"\b((?:NVENC|NVDEC|NVJPG|NVDLA|PVA)\d*|VIC|OFA|APE)(?:_FREQ)? (?:(off)|(?:\d+%)?@?(\d+))(?= |$)"
)
DEGREES = re.compile(r"(\S+)@(-?\d+(?:\.\d+)?)C(?:/-?\d+(?:\.\d+)?C)?(?= |$)")
POWER = re.compile(r"(\S+) (\d+)mW/(\d+)mW(?:/\d+mW)?(?= |$)")
POWERED_DOWN = (-256.0, 0.0)
"""°C that are shown for a part without power."""
NO_RAIL = "NC"


@dataclass(frozen=True)
class Core:
    """A processor core that is online."""

    load: int
    """Percent."""
    mhz: int | None


@dataclass(frozen=True)
class Clocked:
    """The memory or the GPU; None or empty where the line does not say."""

    load: int | None = None
    """Percent."""
    mhz: tuple[int, ...] = ()
    """One for each cluster of the GPU on newer releases."""


@dataclass(frozen=True)
class Tegrastats:
    """One line."""

    time: str
    """MM-DD-YYYY HH:MM:SS of the device's clock, in its own time zone; empty on old releases."""
    ram_used_mb: int
    ram_total_mb: int
    largest_free_blocks: int
    largest_free_block_kb: int
    swap_used_mb: int | None
    swap_total_mb: int | None
    """None where the line has no swap."""
    cores: tuple[Core | None, ...]
    """None is a core that is off. Cores whose entry is not understood are left out."""
    emc: Clocked
    gpu: Clocked
    engines: dict[str, int | None]
    """MHz by name (NVDEC0, VIC, APE); None is off."""
    temperatures: dict[str, float]
    """°C by name in lower case; parts without power are left out."""
    power: dict[str, int]
    """mW now, by rail."""
    power_average: dict[str, int]
    """mW on average since tegrastats began, by rail."""


def parse(line: str) -> Tegrastats:
    """Read a line. Raises ValueError when it is none of tegrastats."""
    ram = RAM.search(line)
    if ram is None:
        raise ValueError(f"not a line of tegrastats, it has no RAM used/total: {line[:60]!r}")
    swap = SWAP.search(line)
    time = TIME.search(line)
    clocks = {match[1]: _clocked(match) for match in CLOCK.finditer(line)}
    rails = [match for match in POWER.finditer(line) if match[1] != NO_RAIL]
    return Tegrastats(
        time=time[1] if time else "",
        ram_used_mb=int(ram[1]),
        ram_total_mb=int(ram[2]),
        largest_free_blocks=int(ram[3]),
        largest_free_block_kb=int(ram[4]) * (1024 if ram[5] == "M" else 1),
        swap_used_mb=int(swap[1]) if swap else None,
        swap_total_mb=int(swap[2]) if swap else None,
        cores=tuple(_cores(line)),
        emc=clocks.get("EMC", Clocked()),
        gpu=clocks.get("GR3D", Clocked()),
        engines={match[1]: None if match[2] else int(match[3]) for match in ENGINE.finditer(line)},
        temperatures={
            match[1].lower(): float(match[2])
            for match in DEGREES.finditer(line)
            if float(match[2]) not in POWERED_DOWN
        },
        power={match[1]: int(match[2]) for match in rails},
        power_average={match[1]: int(match[3]) for match in rails},
    )


def _cores(line: str) -> Iterator[Core | None]:
    match = CPU.search(line)
    for entry in match[1].split(",") if match else ():
        if entry == "off":
            yield None
        elif core := CORE.fullmatch(entry):
            yield Core(int(core[1]), int(core[2]) if core[2] else None)


def _clocked(match: re.Match[str]) -> Clocked:
    """`12%`, `12%@1300`, `12%@[1300,1300]`, `@[1300]` or `@1600`."""
    load, mhz = match[2], re.findall(r"\d+", match[3] or "")
    return Clocked(int(load) if load else None, tuple(map(int, mhz)))
