"""One examination: read what can be read, and let each check judge its part.

What the checks share is read once. A check that meets what nobody foresaw is itself a finding: the others
still run, and nobody gets a traceback instead of an answer.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from appliance.box import paths, platform, services, versions
from appliance.box.clocks import published, readings, verdict
from appliance.box.clocks.published import Clocks
from appliance.box.clocks.suspects import indicator
from appliance.box.clocks.verdict import ClockReading
from appliance.box.judge import clocks as pinned
from appliance.box.judge import (
    daemon,
    fitness,
    heat,
    history,
    jtop,
    power,
    quiet,
    reset,
    speed,
    storage,
    wear,
)
from appliance.box.judge.daemon import READYZ
from appliance.box.judge.finding import Finding, Level, skipped
from appliance.box.judge.history import Rise, Sample
from appliance.box.platform import Platform
from appliance.box.root import error_location
from appliance.box.sensors import disk, memory
from appliance.box.sensors import hwmon as sensors
from appliance.box.sensors.memory import Memory
from appliance.box.services import Unit
from appliance.box.system import Box
from appliance.box.versions import BuildInfo

FAN_SERVICE = "nvfancontrol.service"
NOT_A_JETSON = "not a Jetson"


class Look:
    """The box as one examination sees it: each thing is read when a check first asks, and then once."""

    def __init__(self, box: Box, readyz: str = READYZ) -> None:
        self.box = box
        self.readyz = readyz
        self.samples = history.read(box)

    @cached_property
    def platform(self) -> Platform:
        return platform.identify(self.box.root)

    @cached_property
    def published(self) -> Clocks:
        return published.read(self.box)

    @cached_property
    def age_s(self) -> float:
        """How long ago root's check last looked."""
        return max(self.box.uptime() - self.published.checked_at, 0.0)

    @cached_property
    def reading(self) -> ClockReading:
        return verdict.take_reading(self.box)

    @cached_property
    def junction_c(self) -> float | None:
        return sensors.junction(self.box.root)

    @cached_property
    def memory(self) -> Memory | None:
        return memory.memory(self.box.root)

    @cached_property
    def unit(self) -> Unit | None:
        return services.unit(self.box, daemon.UNIT)

    @cached_property
    def speed(self) -> Finding:
        return speed.last(self.box)

    @cached_property
    def made(self) -> BuildInfo:
        """What the box is now."""
        root = self.box.root
        return BuildInfo(self.platform.l4t, versions.tensorrt(root), self.platform.module)

    @cached_property
    def lower_mode(self) -> str:
        """Name of the mode to fall back to: named by its watts, the next below the one that is set."""
        conf = self.reading.conf
        watts = {mode.name: _watts(mode.name) for mode in conf.modes} if conf else {}
        most = _watts(self.reading.mode) or math.inf
        return max((name for name, w in watts.items() if 0 < w < most), key=watts.__getitem__, default="")

    @cached_property
    def now(self) -> Sample:
        """Every counter."""
        counts = dict(sensors.over_current(self.box.root))
        swapped = memory.swapped_in_pages(self.box.root)
        if swapped is not None:
            counts["pswpin"] = swapped
        if self.unit is not None:
            counts["restarts"] = self.unit.restarts
        return Sample(self.box.uptime(), counts)

    def rise(self, name: str, over_s: float) -> Rise | None:
        """Of a counter, over the last seconds."""
        return history.rise(self.samples, self.now, name, over_s)


def _watts(mode: str) -> int:
    """Of a mode that is named by them, as MODE_30W; else 0."""
    found = re.search(r"([0-9]{1,4})W", mode)
    return int(found[1]) if found else 0


def _fan(look: Look) -> Finding:
    fan = sensors.fan(look.box.root)
    service = services.unit(look.box, FAN_SERVICE)
    pwm, rpm = (fan.pwm, fan.rpm) if fan else (None, None)
    return heat.judge_fan(pwm, rpm, service.active if service else "", look.junction_c)


def _bursts(look: Look) -> Finding:
    slower = look.speed.level in (Level.WARN, Level.FAIL)
    return power.judge_bursts(look.rise("oc3", power.INSTANT_S), slower, look.lower_mode)


def _power(look: Look) -> Finding:
    root = look.box.root
    return power.judge_power(sensors.rails(root), sensors.total_power(root), look.platform.module)


def _caps(look: Look) -> Finding:
    emc = readings.emc(look.box.root)
    return pinned.judge_caps(look.reading, emc.cap if emc else None)


def _versions(look: Look) -> Finding:
    return fitness.judge_versions(look.made, versions.installed(look.box.root))


def _gpu(look: Look) -> Finding:
    root = look.box.root
    exists = f"\n{fitness.USER}:" in "\n" + (root.text(paths.USERS) or "")
    groups = fitness.members(root.text(paths.GROUPS) or "") if exists else None
    return fitness.judge_gpu(root.exists(paths.GPU_NODE), groups)


def _time(look: Look) -> Finding:
    return fitness.judge_time(look.box.wall(), _synchronised(look.box))


def _synchronised(box: Box) -> bool | None:
    """systemd's own service leaves a mark; of another (chrony), timedatectl knows."""
    if box.root.exists(paths.SYNCHRONISED):
        return True
    ran = box.tools.run("timedatectl", "show", "-p", "NTPSynchronized", "--value", timeout_s=5.0)
    return {"yes": True, "no": False}.get(ran.output.strip()) if ran.code == 0 else None


def _daemon(look: Look) -> Finding:
    ready = daemon.ask(look.readyz, "/readyz")
    alive = daemon.ask(look.readyz, "/livez") if isinstance(ready, int) else ready
    return daemon.judge_daemon(ready, alive, look.readyz, look.unit)


@dataclass(frozen=True)
class Check:
    """One check, and whether it is of the box itself, which nothing but a Jetson has."""

    run: Callable[[Look], Finding]
    of_the_box: bool = True


CHECKS: Mapping[str, Check] = {
    "platform": Check(lambda look: pinned.judge_platform(look.platform)),
    "power_mode": Check(lambda look: pinned.judge_mode(look.reading, look.published, indicator(look.box))),
    "reboot": Check(lambda look: pinned.judge_reboot(look.published)),
    "clocks": Check(lambda look: pinned.judge_clocks(look.published, look.reading, look.age_s)),
    "caps": Check(_caps),
    "cores": Check(lambda look: pinned.judge_cores(look.reading, look.published)),
    "temperature": Check(
        lambda look: heat.judge_temperature(look.junction_c, sensors.temperatures(look.box.root))
    ),
    "cooling": Check(lambda look: heat.judge_cooling(sensors.cooling(look.box.root))),
    "oc1": Check(lambda look: power.judge_under_voltage(look.rise("oc1", power.UNDER_VOLTAGE_S))),
    "oc2": Check(
        lambda look: power.judge_average_current(look.rise("oc2", power.AVERAGE_S), look.lower_mode)
    ),
    "oc3": Check(_bursts),
    "power": Check(_power),
    "fan": Check(_fan),
    "memory": Check(lambda look: storage.judge_memory(look.memory)),
    "lfb": Check(lambda look: storage.judge_large_blocks(memory.free_large_blocks(look.box.root))),
    "swap": Check(lambda look: storage.judge_swap(look.memory, look.rise("pswpin", storage.SWAP_S))),
    "disk": Check(lambda look: storage.judge_disk(disk.volumes(look.box))),
    "wear": Check(lambda look: wear.judge_wear(look.box.root)),
    "reset": Check(lambda look: reset.judge_reset(look.box.root)),
    "sleep": Check(lambda look: quiet.judge_sleep(look.box.root)),
    "desktop": Check(lambda look: quiet.judge_desktop(look.box.root)),
    "journal": Check(lambda look: quiet.judge_journal(look.box.root)),
    "packages": Check(lambda look: quiet.judge_packages(look.box.root)),
    "versions": Check(_versions),
    "gpu_node": Check(_gpu),
    "time": Check(_time),
    "jtop": Check(lambda look: jtop.judge(jtop.ask(look.box), look.reading)),
    "daemon": Check(_daemon, of_the_box=False),
    "restarts": Check(
        lambda look: daemon.judge_restarts(look.unit, look.rise("restarts", daemon.HOUR_S)), of_the_box=False
    ),
    "speed": Check(lambda look: look.speed, of_the_box=False),
}
"""In the order of the table."""


def examine(box: Box, *, readyz: str = READYZ, only: Collection[str] = ()) -> list[Finding]:
    """Every check, or those named in `only`. Does not raise; as root it keeps the counters for next time."""
    look = Look(box, readyz)
    findings = list(_findings(look, only))
    if box.is_root and look.platform.is_jetson and not only:
        # /run may be full, a counter unreadable: rates are then means since boot, and say so.
        with contextlib.suppress(Exception):
            history.keep(box, look.samples, look.now)
    return findings


def _findings(look: Look, only: Collection[str]) -> Iterator[Finding]:
    for name, check in CHECKS.items():
        if only and name not in only:
            continue
        try:
            if check.of_the_box and not look.platform.is_jetson:
                yield skipped(name, NOT_A_JETSON)
            else:
                yield check.run(look)
        except Exception as error:
            yield broken(name, error)


def broken(name: str, error: Exception) -> Finding:
    """A check that could not be carried out; the error itself is for the maker, in the figures."""
    figures = {"error": f"{type(error).__name__}: {error}", "at": error_location(error)}
    value = f"could not be checked: a fault in this program, at {figures['at']}"
    return Finding(name, Level.FAIL, value, "", "send the maker a bundle: sudo f5-support-bundle", figures)
