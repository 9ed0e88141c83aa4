"""What `jetson_clocks --show` prints, in the formats of JetPack 5, 6 and 7: one parser for the three.

A second opinion for technicians. `Online=` of a core and `FreqOverride=` of EMC are not in every format;
CPUs come in any order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.box.clocks.readings import KHZ, Range

FREQUENCY = re.compile(r"\b(Min|Max|Current)Freq=([0-9]{1,15})\b")


@dataclass(frozen=True)
class Core:
    """A CPU's line; frequencies in Hz."""

    online: bool
    governor: str
    range: Range
    idle: Mapping[str, bool] = field(default_factory=dict)
    """Idle states by name, e.g. c7, and whether the core may enter them."""


@dataclass(frozen=True)
class Memory:
    """The EMC line."""

    range: Range
    override: bool | None = None
    """FreqOverride; None in JetPack 7, which does not print it."""

    @property
    def pinned(self) -> bool | None:
        """True at its upper limit and kept there; an idle JetPack 6 is at it by chance, without the override.

        None where the line was not understood.
        """
        if None in (self.range.min, self.range.max, self.range.current):
            return None
        at_top = self.range.current == self.range.max
        return at_top and (self.override is True or self.range.held)


@dataclass(frozen=True)
class Show:
    """All that is understood; what is not printed is None or empty."""

    machine: str = ""
    online: tuple[int, ...] = ()
    cores: Mapping[int, Core] = field(default_factory=dict)
    gpu: Range | None = None
    emc: Memory | None = None
    tpcs: int | None = None
    """Active GPU TPCs."""
    fan: Mapping[str, str] = field(default_factory=dict)
    """E.g. control: nvfancontrol, hwmon0_pwm1: 48."""
    mode: str = ""


def parse(text: str) -> Show:
    """Read the output; lines that are not known are passed over. Does not raise."""
    online = _numbers(_after(r"Online CPUs:[ \t]*([-\d,]*)", text).rstrip(","))
    tpcs = _after(r"Active GPU TPCs:[ \t]*([0-9]{1,3})\b", text)
    emc = _line("EMC", text)
    override = re.search(r"FreqOverride=(\d)", emc)
    return Show(
        machine=_after(r"SOC family:.*?Machine:(.*)", text).strip(),
        online=online,
        cores=dict(_cores(text, online)),
        gpu=_range(gpu) if (gpu := _line("GPU", text)) else None,
        emc=Memory(_range(emc), override[1] == "1" if override else None) if emc else None,
        tpcs=int(tpcs) if tpcs else None,
        fan=_fan(text),
        mode=_after(r"NV Power Mode:[ \t]*(\S+)", text),
    )


def _cores(text: str, online: tuple[int, ...]) -> list[tuple[int, Core]]:
    cores = []
    for number, line in re.findall(r"^cpu([0-9]{1,4}):(.*)$", text, re.MULTILINE):
        told = re.search(r"\bOnline=(\d)", line)
        idle = re.findall(r"(\w+)=([01])\b", line.partition("IdleStates:")[2])
        core = Core(
            online=told[1] == "1" if told else int(number) in online,
            governor=_after(r"Governor=(\S+)", line),
            range=_range(line, KHZ),
            idle={name: value == "1" for name, value in idle},
        )
        cores.append((int(number), core))
    return sorted(cores, key=lambda numbered: numbered[0])


def _range(line: str, unit: int = 1) -> Range:
    values = {name: int(value) * unit for name, value in FREQUENCY.findall(line)}
    return Range(values.get("Min"), values.get("Max"), values.get("Current"))


def _fan(text: str) -> dict[str, str]:
    fan: dict[str, str] = {}
    for line in re.findall(r"^FAN Dynamic Speed control=(.*)$", text, re.MULTILINE | re.IGNORECASE):
        fan["control"], *rest = line.split() or [""]
        fan.update(pair for word in rest if len(pair := word.split("=", 1)) == 2)
    return fan


def _line(name: str, text: str) -> str:
    return _after(rf"^{name} (MinFreq=.*)$", text)


def _after(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else ""


def _numbers(spans: str) -> tuple[int, ...]:
    """`0-3,8` → 0, 1, 2, 3, 8"""
    ends = [
        [int(end) for end in span.split("-")]
        for span in spans.split(",")
        if re.fullmatch(r"[0-9]{1,4}(-[0-9]{1,4})?", span)
    ]
    return tuple(number for end in ends for number in range(end[0], end[-1] + 1))
