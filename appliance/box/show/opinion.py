"""Cross-check of the clock readings with `jetson_clocks --show` of JetPack 5, 6 and 7.

`Online=` of a core and `FreqOverride=` of EMC are not in every format; CPUs come in any order. Lines of an
unknown form are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from appliance.box.clocks.readings import KHZ, Range
from appliance.box.clocks.verdict import ClockReading, megahertz
from appliance.box.system import Box

SHOW_S = 30.0
FREQUENCY = re.compile(r"\b(Min|Max|Current)Freq=([0-9]{1,15})\b")


@dataclass(frozen=True)
class Core:
    """Line of a CPU; frequencies in Hz."""

    online: bool
    range: Range


@dataclass(frozen=True)
class Memory:
    range: Range
    override: bool | None = None
    """FreqOverride; None in JetPack 7, which does not print it."""

    @property
    def pinned(self) -> bool | None:
        """True if held at its upper limit; None if unknown.

        An idle JetPack 6 may be at the limit by chance, without FreqOverride.
        """
        if None in (self.range.min, self.range.max, self.range.current):
            return None
        at_top = self.range.current == self.range.max
        return at_top and (self.override is True or self.range.fixed)


@dataclass(frozen=True)
class Show:
    """Parsed output; a value that is not printed is None or empty."""

    cores: Mapping[int, Core] = field(default_factory=dict)
    gpu: Range | None = None
    emc: Memory | None = None
    mode: str = ""


def doubts(box: Box, reading: ClockReading, notes: list[str]) -> list[str]:
    """Run `jetson_clocks --show` and describe each difference; without output, add a note. Does not raise."""
    ran = box.tools.run("jetson_clocks", "--show", timeout_s=SHOW_S)
    shown = parse(ran.text)
    if not shown.cores or shown.gpu is None:
        notes.append(f"no second opinion from jetson_clocks --show: {ran.summary}")
        return []
    return [f"jetson_clocks --show says otherwise: {line}" for line in differences(reading, shown)]


def differences(reading: ClockReading, shown: Show) -> Iterator[str]:
    """Describe each clock on which --show and the kernel's files disagree."""
    for number, core in shown.cores.items():
        domain = reading.domains.get(f"cpu{number}")
        if core.online != (domain is not None):
            yield f"cpu{number} is {'online' if core.online else 'offline'}"
        elif domain is not None:
            yield from _limits(f"cpu{number}", domain.values, core.range)
    if shown.gpu is not None and "gpu" in reading.domains:
        yield from _limits("gpu", reading.domains["gpu"].values, shown.gpu)
    emc = reading.domains.get("emc")
    if shown.emc is not None and emc is not None and emc.pinned is not None:
        held = shown.emc.pinned
        if held is not None and held == emc.fixable:
            yield f"emc is {'pinned' if held else 'not pinned'}, at {megahertz(shown.emc.range.current)}"
    if shown.mode and reading.mode and shown.mode != reading.mode:
        yield f"power mode is {shown.mode}, not {reading.mode}"


def _limits(name: str, seen: Mapping[str, Any], shown: Range) -> Iterator[str]:
    understood = shown.min is not None and shown.max is not None
    if understood and (seen.get("min"), seen.get("max")) != (shown.min, shown.max):
        yield f"{name} is between {megahertz(shown.min)} and {megahertz(shown.max)}"


def parse(text: str) -> Show:
    """Does not raise."""
    gpu, emc = _after(r"^GPU (MinFreq=.*)$", text), _after(r"^EMC (MinFreq=.*)$", text)
    override = re.search(r"FreqOverride=(\d)", emc)
    return Show(
        cores=dict(_cores(text)),
        gpu=_range(gpu) if gpu else None,
        emc=Memory(_range(emc), override[1] == "1" if override else None) if emc else None,
        mode=_after(r"NV Power Mode:[ \t]*(\S+)", text),
    )


def _cores(text: str) -> Iterator[tuple[int, Core]]:
    online = _numbers(_after(r"Online CPUs:[ \t]*([-\d,]*)", text).rstrip(","))
    for number, line in re.findall(r"^cpu([0-9]{1,4}):(.*)$", text, re.MULTILINE):
        flag = re.search(r"\bOnline=(\d)", line)
        yield int(number), Core(flag[1] == "1" if flag else int(number) in online, _range(line, KHZ))


def _range(line: str, unit: int = 1) -> Range:
    values = {name: int(value) * unit for name, value in FREQUENCY.findall(line)}
    return Range(values.get("Min"), values.get("Max"), values.get("Current"))


def _after(pattern: str, text: str) -> str:
    found = re.search(pattern, text, re.MULTILINE)
    return found[1] if found else ""


def _numbers(spans: str) -> set[int]:
    """`0-3,8` → 0, 1, 2, 3, 8"""
    ends = [
        [int(end) for end in span.split("-")]
        for span in spans.split(",")
        if re.fullmatch(r"[0-9]{1,4}(-[0-9]{1,4})?", span)
    ]
    return {number for end in ends for number in range(end[0], end[-1] + 1)}
