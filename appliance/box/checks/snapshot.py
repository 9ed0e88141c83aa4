"""Readings of the box, each made once, and the registration of checks."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from appliance.box import dpkg, platform
from appliance.box.checks import counters
from appliance.box.checks.counters import Rise, Sample
from appliance.box.checks.finding import Finding
from appliance.box.clocks import boots, clocks_json, verdict
from appliance.box.clocks.boots import Boot
from appliance.box.clocks.clocks_json import Clocks
from appliance.box.clocks.verdict import ClockVerdict
from appliance.box.dpkg import Package
from appliance.box.platform import Platform
from appliance.box.sensors import hwmon, ram
from appliance.box.system import Box, Unit, unit

UNIT = "f5-appliance.service"
REGISTERED: dict[str, Check] = {}

Judge = TypeVar("Judge", bound=Callable[..., Finding])


class Harm(enum.IntEnum):
    """Harm that the fault of a check does."""

    SILENCE = 0
    SLOW = 1
    LATER = 2
    """The fault does harm later."""
    UPKEEP = 3


@dataclass(frozen=True)
class Check:
    """A registered check, and its place in the report."""

    place: tuple[Harm, int, str]
    run: Callable[[Snapshot], Finding]
    anywhere: bool
    """True for a check that needs no Jetson."""


def check(
    name: str, harm: Harm, place: int, readings: Callable[[Snapshot], tuple[Any, ...]], anywhere: bool = False
) -> Callable[[Judge], Judge]:
    """Register a function of `readings` as a Check. `place` orders the checks of the same harm."""

    def register(judge: Judge) -> Judge:
        REGISTERED[name] = Check((harm, place, name), lambda now: judge(*readings(now)), anywhere)
        return judge

    return register


class Snapshot:
    """Readings of one run that are slow, or that several checks need. Each is read once, at its first use."""

    def __init__(self, box: Box, readyz: str) -> None:
        self.box, self.root, self.readyz = box, box.root, readyz
        self.samples = counters.read(box)
        self._findings: dict[str, Finding] = {}

    def finding(self, name: str) -> Finding:
        """Result of a check, which runs once."""
        if name not in self._findings:
            self._findings[name] = REGISTERED[name].run(self)
        return self._findings[name]

    @cached_property
    def platform(self) -> Platform:
        return platform.identify(self.root)

    @cached_property
    def published(self) -> Clocks:
        return clocks_json.read(self.box)

    @cached_property
    def reading(self) -> ClockVerdict:
        return verdict.take_reading(self.box)

    @cached_property
    def unit(self) -> Unit | None:
        return unit(self.box, UNIT)

    @cached_property
    def packages(self) -> Mapping[str, Package]:
        return dpkg.packages(self.root)

    @cached_property
    def boots(self) -> tuple[Boot, ...] | Exception:
        """Recorded boots, or the error that reading them raised."""
        try:
            return boots.history(self.box)
        except (OSError, ValueError) as error:
            return error

    @cached_property
    def lower_mode(self) -> str:
        """Name of the power mode with the next lower number of watts; "" if no name has watts."""
        conf, mine = self.reading.raw.modes.conf, self.reading.mode
        names = [*(mode.name for mode in conf.modes), mine] if conf else []
        watts = {name: int(match[1]) for name in names if (match := re.search(r"([0-9]{1,4})W", name))}
        most = watts.get(mine) or math.inf
        return max((name for name, w in watts.items() if 0 < w < most), key=watts.__getitem__, default="")

    @cached_property
    def counters(self) -> Sample:
        counts = dict(hwmon.over_current(self.root))
        if (swapped := ram.swapped_in_pages(self.root)) is not None:
            counts["pswpin"] = swapped
        if self.unit is not None:
            counts["restarts"] = self.unit.restarts
        return Sample(self.box.uptime(), counts)

    def rise(self, name: str, over_s: float) -> Rise | None:
        return counters.rise(self.samples, self.counters, name, over_s)
