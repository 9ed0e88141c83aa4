"""Temperatures, power, over-current events, cooling and the fan, from sysfs.

Zones and chips are found by name: their numbers differ between releases and boots. Values that cannot be read
are left out. Nothing here raises.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from appliance.box import paths
from appliance.box.root import Root

POWERED_DOWN_MILLIDEGREES = -256_000
"""Reading of a part without power in some releases; others give 0, or EAGAIN."""
MODULE_MONITOR = "0040"
"""Bus address of the power monitor whose rails add up to the module's power."""
RAILS = (1, 2, 3)
NO_RAIL = "NC"
"""Label of an unconnected input."""
OVER_CURRENT = (1, 2, 3)
ALERTS = ("hot-surface-alert",)
"""Devices that only raise an alarm."""


@dataclass(frozen=True)
class Fan:
    pwm: int
    """Duty of the fan, 0 to 255."""
    rpm: int | None
    """Speed; None if there is no tachometer."""


def temperatures(root: Root) -> dict[str, float]:
    """Temperature in °C by zone (cpu, gpu, tj, soc0 …), without zones that have no power."""
    degrees: dict[str, float] = {}
    for folder in _entries(root, paths.THERMAL, "thermal_zone"):
        kind, milli = root.text(f"{folder}/type"), root.number(f"{folder}/temp")
        if kind and milli and milli > POWERED_DOWN_MILLIDEGREES:
            name = zone_name(kind)
            degrees[name] = max(milli / 1000, degrees.get(name, -273.15))
    return degrees


def zone_name(kind: str) -> str:
    """Name of a zone: CPU-therm, cpu-thermal → cpu; Tboard_tegra → tboard."""
    return re.sub(r"(-thermal|-therm|_thermal|_tegra)$", "", kind.lower())


def junction(root: Root) -> float | None:
    """Temperature in °C of the hottest place on the chip: tj, else the hottest zone."""
    degrees = temperatures(root)
    return degrees.get("tj", max(degrees.values(), default=None))


def rails(root: Root) -> dict[str, float]:
    """Power in mW by the label of the rail (VDD_GPU_SOC …), of all monitors."""
    return {label: milliwatts for _, label, milliwatts in _measured(root)}


def total_power(root: Root) -> float | None:
    """Power of the module in mW: the sum of the first monitor's rails."""
    measured = [milliwatts for monitor, _, milliwatts in _measured(root) if monitor == MODULE_MONITOR]
    return sum(measured) if measured else None


def over_current(root: Root) -> dict[str, int]:
    """Events since boot: oc1 under-voltage, oc2 average, oc3 instantaneous over-current."""
    kinds = [(folder, f"oc{number}") for folder in _chips(root, "soctherm_oc") for number in OVER_CURRENT]
    counts = {kind: root.number(f"{folder}/{kind}_event_cnt") for folder, kind in kinds}
    return {kind: count for kind, count in counts.items() if count is not None}


def cooling(root: Root) -> dict[str, int] | None:
    """Device that heat slows → its state, without fans and alarms; None if unreadable."""
    states: dict[str, int] = {}
    for folder in _entries(root, paths.THERMAL, "cooling_device"):
        kind, state = root.text(f"{folder}/type"), root.number(f"{folder}/cur_state")
        if kind and state is not None and "fan" not in kind and kind not in ALERTS:
            states[kind] = max(state, states.get(kind, 0))
    return {kind: state for kind, state in states.items() if state} if states else None


def fan(root: Root) -> Fan | None:
    """Readings of the fan; None if there is no fan."""
    fans = ((folder, root.number(f"{folder}/pwm1")) for folder in _chips(root, "pwmfan"))
    return next((Fan(pwm, _speed(root, folder)) for folder, pwm in fans if pwm is not None), None)


def _speed(root: Root, fan_folder: str) -> int | None:
    """Speed of the fan in rpm, from the fan's chip, else from a tachometer, which is another chip."""
    files = [f"{fan_folder}/fan1_input", *(f"{one}/rpm" for one in _entries(root, paths.HWMON, "hwmon"))]
    return next((rpm for rpm in map(root.number, files) if rpm is not None), None)


def _measured(root: Root) -> Iterator[tuple[str, str, float]]:
    """Address of the monitor or "", label of the rail, power in mW."""
    for folder in _chips(root, "ina3221"):
        # For example 1-0040.
        device = os.path.realpath(root.unresolved(f"{folder}/device"))
        monitor = "".join(re.findall(r"/\d+-([0-9a-f]{4})$", device))
        for number in RAILS:
            label = root.text(f"{folder}/in{number}_label")
            millivolts = root.number(f"{folder}/in{number}_input")
            milliamperes = root.number(f"{folder}/curr{number}_input")
            if label and label != NO_RAIL and millivolts is not None and milliamperes is not None:
                yield monitor, label, millivolts * milliamperes / 1000


def _chips(root: Root, name: str) -> Iterator[str]:
    return (folder for folder in _entries(root, paths.HWMON, "hwmon") if root.text(f"{folder}/name") == name)


def _entries(root: Root, folder: str, start: str) -> Iterator[str]:
    return (f"{folder}/{name}" for name in root.names(folder) if name.startswith(start))
