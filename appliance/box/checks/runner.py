"""Run the checks of the box. An exception in one check becomes its FAIL; the others still run."""

from __future__ import annotations

import contextlib
import fnmatch
import math
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

from appliance.box import dpkg, paths, platform, versions
from appliance.box.checks import boots as record
from appliance.box.checks import clocks as pinned
from appliance.box.checks import (
    counters,
    fitness,
    heat,
    jtop,
    l4t,
    power,
    quietness,
    readiness,
    reset,
    speed,
    storage,
    wear,
)
from appliance.box.checks.application import has_user
from appliance.box.checks.counters import Rise, Sample
from appliance.box.checks.finding import Finding, Level, skipped
from appliance.box.checks.readiness import READYZ
from appliance.box.clocks import boots, clocks_json, verdict
from appliance.box.clocks.boots import Boot
from appliance.box.clocks.clocks_json import Clocks
from appliance.box.clocks.reason import Reason
from appliance.box.clocks.suspects import indicator
from appliance.box.clocks.verdict import Verdict
from appliance.box.dpkg import Package
from appliance.box.platform import Platform
from appliance.box.root import Root, error_location
from appliance.box.sensors import disk, ram
from appliance.box.sensors import hwmon as sensors
from appliance.box.system import Box, Unit, unit
from appliance.box.versions import BuildInfo, Version, version

FAN_SERVICE = "nvfancontrol.service"


class Snapshot:
    """Readings of one run that several checks need or that take long, each made once, when it is needed."""

    def __init__(self, box: Box, readyz: str = READYZ) -> None:
        self.box, self.root = box, box.root
        self.readyz = readyz
        self.samples = counters.read(box)

    @cached_property
    def platform(self) -> Platform:
        return platform.identify(self.root)

    @cached_property
    def published(self) -> Clocks:
        return clocks_json.read(self.box)

    @cached_property
    def reading(self) -> Verdict:
        return verdict.take_reading(self.box)

    @cached_property
    def unit(self) -> Unit | None:
        return unit(self.box, readiness.UNIT)

    @cached_property
    def packages(self) -> Mapping[str, Package]:
        return dpkg.packages(self.root)

    @cached_property
    def l4t(self) -> Finding:
        return l4t.check_l4t(self.packages, self.platform.l4t, l4t.reboot_owed(self.box, self.packages))

    @cached_property
    def boots(self) -> tuple[Boot, ...] | Exception:
        """On record, or why they cannot be read."""
        try:
            return boots.history(self.box)
        except (OSError, ValueError) as error:
            return error

    @property
    def spoken(self) -> set[Version]:
        """Versions of TensorRT that spoke on this L4T."""
        known = () if isinstance(self.boots, Exception) else self.boots
        mine = versions.dotted(self.platform.l4t)
        return {version(one.tensorrt) for one in known if one.backend == "tensorrt" and one.l4t == mine}

    @cached_property
    def lower_mode(self) -> str:
        """Name of the power mode with the most watts below the current one's; empty if none is named so."""
        conf = self.reading.seen.modes.conf
        watts = {mode.name: _watts(mode.name) for mode in conf.modes} if conf else {}
        most = _watts(self.reading.mode) or math.inf
        return max((name for name, w in watts.items() if 0 < w < most), key=watts.__getitem__, default="")

    @cached_property
    def counters(self) -> Sample:
        counts = dict(sensors.over_current(self.root))
        swapped = ram.swapped_in_pages(self.root)
        if swapped is not None:
            counts["pswpin"] = swapped
        if self.unit is not None:
            counts["restarts"] = self.unit.restarts
        return Sample(self.box.uptime(), counts)

    def rise(self, name: str, over_s: float) -> Rise | None:
        return counters.rise(self.samples, self.counters, name, over_s)


def _watts(mode: str) -> int:
    """30 for MODE_30W; 0 for a mode that is not named by its watts."""
    found = re.search(r"([0-9]{1,4})W", mode)
    return int(found[1]) if found else 0


def _clocks(now: Snapshot) -> Finding:
    has_tool = now.root.exists(paths.JETSON_CLOCKS) and now.box.tools.find("jetson_clocks") is not None
    age_s = max(now.box.uptime() - now.published.checked_at, 0.0)
    return pinned.check_clocks(now.published, now.reading, age_s, has_tool, now.lower_mode)


def _boots(now: Snapshot) -> Finding:
    damaged = now.root.exists(paths.DAMAGED_BOOTS)
    return record.check_boots(now.boots, now.box.boot_id, damaged, now.lower_mode)


def _fan(now: Snapshot) -> Finding:
    fan, service = sensors.fan(now.root), unit(now.box, FAN_SERVICE)
    pwm, rpm = (fan.pwm, fan.rpm) if fan else (None, None)
    state, said = service.active if service else "", ""
    if state not in ("", "active", *heat.STOPPED):
        words = ("-q", "--no-pager", "-b", "-t", "nvfancontrol", "-n", "1", "-o", "cat")
        said = now.box.tools.execute("journalctl", *words).output.strip()[:200]
    return heat.check_fan(pwm, rpm, state, sensors.junction(now.root), said)


def _bursts(now: Snapshot) -> Finding:
    slower = speed.last(now.box).level in (Level.WARN, Level.FAIL)
    return power.check_bursts(now.rise("oc3", power.INSTANT_S), slower, now.lower_mode)


def _versions(now: Snapshot) -> Finding:
    build = BuildInfo(now.platform.l4t, versions.tensorrt(now.root), now.platform.module)
    return fitness.check_versions(build, versions.installed(now.root), now.spoken, now.l4t)


def _gpu(now: Snapshot) -> Finding:
    groups = fitness.groups_of(now.root.text(paths.GROUPS) or "")
    nodes = {pattern: list(_nodes(now.root, pattern)) for pattern in fitness.NODES}
    missing = [pattern for pattern, found in nodes.items() if not found]
    readable = {
        pattern for pattern, found in nodes.items() if any(fitness.may_read(n, groups) for n in found)
    }
    closed = [pattern for pattern in nodes if pattern not in {*missing, *readable}]
    driver, ours = now.root.exists(paths.NVGPU), groups if has_user(now.box) else None
    return fitness.check_gpu(missing, driver, ours, closed, now.platform.l4t)


def _nodes(root: Root, pattern: str) -> Iterator[os.stat_result]:
    folder, _, name = pattern.rpartition("/")
    for node in fnmatch.filter(root.names(folder), name):
        with contextlib.suppress(OSError):
            yield root.at(f"{folder}/{node}").stat()


def _time(now: Snapshot) -> Finding:
    synchronised: bool | None = True
    # systemd-timesyncd leaves this file; of chrony only timedatectl knows.
    if not now.root.exists(paths.SYNCHRONISED):
        ran = now.box.tools.execute("timedatectl", "show", "-p", "NTPSynchronized", "--value", timeout_s=5.0)
        synchronised = {"yes": True, "no": False}.get(ran.output.strip()) if ran.code == 0 else None
    return fitness.check_time(now.box.wall(), synchronised)


def _daemon(now: Snapshot) -> Finding:
    ready, _ = readiness.fetch(now.readyz, "/readyz")
    alive = readiness.fetch(now.readyz, "/livez")[0] if isinstance(ready, int) else ready
    told = readiness.told(now.readyz) if isinstance(ready, int) else readiness.SILENT
    return readiness.check_daemon(ready, alive, now.readyz, now.unit, told, needs_gpu=now.platform.is_jetson)


CHECKS: Mapping[str, Callable[[Snapshot], Finding]] = {
    "platform": lambda now: pinned.check_platform(now.platform),
    "l4t": lambda now: now.l4t,
    "power_mode": lambda now: pinned.check_mode(
        now.reading, now.published, indicator(now.box), now.lower_mode
    ),
    "reboot": lambda now: pinned.check_reboot(now.published, now.reading),
    "boots": _boots,
    "clocks": _clocks,
    "caps": lambda now: pinned.check_caps(now.reading),
    "cores": lambda now: pinned.check_cores(now.reading, now.published),
    "temperature": lambda now: heat.check_temperature(
        sensors.junction(now.root), sensors.temperatures(now.root)
    ),
    "cooling": lambda now: heat.check_cooling(sensors.cooling(now.root)),
    "oc1": lambda now: power.check_under_voltage(now.rise("oc1", power.UNDER_VOLTAGE_S)),
    "oc2": lambda now: power.check_average_current(now.rise("oc2", power.AVERAGE_S), now.lower_mode),
    "oc3": _bursts,
    "power": lambda now: power.check_power(
        sensors.rails(now.root), sensors.total_power(now.root), now.platform.module
    ),
    "fan": _fan,
    "memory": lambda now: storage.check_memory(ram.memory(now.root)),
    "lfb": lambda now: storage.check_large_blocks(ram.free_large_blocks(now.root), ram.memory(now.root)),
    "swap": lambda now: storage.check_swap(ram.memory(now.root), now.rise("pswpin", storage.SWAP_S)),
    "disk": lambda now: storage.check_disk(disk.volumes(now.box)),
    "wear": lambda now: wear.check_wear(now.root),
    "reset": lambda now: reset.check_reset(now.box.reset_source),
    "sleep": lambda now: quietness.check_sleep(now.root),
    "desktop": lambda now: quietness.check_desktop(now.root),
    "journal": lambda now: quietness.check_journal(now.root),
    "packages": lambda now: quietness.check_packages(now.root),
    "versions": _versions,
    "backend": lambda now: record.check_backend(now.boots, now.box.boot_id),
    "gpu_node": _gpu,
    "time": _time,
    "jtop": lambda now: jtop.check_jtop(jtop.query(now.box), now.reading),
    "daemon": _daemon,
    "restarts": lambda now: readiness.check_restarts(now.unit, now.rise("restarts", readiness.HOUR_S)),
    "speed": lambda now: speed.last(now.box),
}
ANYWHERE = ("memory", "disk", "time", "daemon", "restarts", "speed")
"""Checks that need no Jetson."""


def run_checks(box: Box, *, readyz: str = READYZ, only: Collection[str] = ()) -> list[Finding]:
    """`only`: names; empty for all. As root, keep the counters for the next run. Does not raise."""
    snapshot = Snapshot(box, readyz)
    findings = list(_findings(snapshot, only))
    if box.is_root and snapshot.platform.is_jetson and not only:
        # /run may be full or a counter unreadable: the next rates are then means since boot, labelled so.
        with contextlib.suppress(Exception):
            counters.keep(box, snapshot.samples, snapshot.counters)
    return findings


def _findings(snapshot: Snapshot, only: Collection[str]) -> Iterator[Finding]:
    for name, check in CHECKS.items():
        if only and name not in only:
            continue
        try:
            if name not in ANYWHERE and not snapshot.platform.is_jetson:
                yield skipped(name, "not a Jetson")
            else:
                found = check(snapshot)
                yield replace(found, remedy=dpkg.pin(found.remedy, snapshot.packages))
        except Exception as error:
            yield crashed(name, error)


def crashed(name: str, error: Exception) -> Finding:
    """The error is in the figures, for the maker."""
    figures = {"error": f"{type(error).__name__}: {error}", "at": error_location(error)}
    value = f"could not be checked: a fault in this program, at {figures['at']}"
    remedy = "send the maker a bundle: sudo f5-support-bundle"
    return Finding(name, Level.FAIL, value, "", remedy, figures, Reason.CRASHED)
