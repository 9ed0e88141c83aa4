"""Monitors: thermal zones, cooling devices, power monitors, over-current counters and the fan."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from tests.fakes.jetson import conf
from tests.fakes.jetson.planter import Files, Planter

HWMON = "/sys/class/hwmon"
THERMAL = "/sys/class/thermal"
ZONES_JP6 = ("cpu", "gpu", "cv0", "cv1", "cv2", "soc0", "soc1", "soc2", "tj", "tboard", "tdiode")
DEGREES = {"cpu": 48.593, "gpu": 45.25, "soc0": 46.156, "soc1": 47.0, "soc2": 46.875, "tj": 48.593}
DEGREES_BOARD = {"tboard": 36.0, "tdiode": 38.25}
POWERED_DOWN = ("cv0", "cv1", "cv2")
ABSENT_MILLIDEGREES = -256_000
ALERTED = ("cpu", "gpu", "cv0", "cv1", "cv2", "soc0", "soc1", "soc2")

TRIPS = {
    "trip_point_0_type": "passive",
    "trip_point_0_temp": "99000",
    "trip_point_1_type": "critical",
    "trip_point_1_temp": "104500",
    # The type is passive, but only the alarm of the hot surface is bound to this zone.
    "trip_point_2_type": "passive",
    "trip_point_2_temp": "70000",
}


class Monitors(Planter):
    """Sensors of an idle box in a cool room."""

    def thermal(self) -> None:
        """Plant the zones under JetPack's names and numbers, and the cooling devices that act on heat."""
        names = ZONES_JP6 if self.profile.jetpack < 7 else tuple(reversed(ZONES_JP6))
        for number, name in enumerate(names):
            degrees = DEGREES | DEGREES_BOARD
            asleep = name in POWERED_DOWN or (name == "gpu" and self.profile.jetpack == 5)
            milli = ABSENT_MILLIDEGREES if asleep else round(degrees[name] * 1000)
            files = {"type": zone_type(name, self.profile.jetpack), "temp": str(milli)}
            files |= TRIPS if name in ("cpu", "tj") else {}
            self._thermal_device(f"thermal_zone{number}", files)
        for number, kind in enumerate(self._cooling()):
            files = {"type": kind, "cur_state": "1" if kind == "pwm-fan" else "0", "max_state": "10"}
            self._thermal_device(f"cooling_device{number}", files)

    def _cooling(self) -> Iterator[str]:
        """Types of the cooling devices: the fan, the clocks, and alarms. The alarm of the surface slows
        nothing."""
        yield "pwm-fan"
        yield from (f"cpufreq-cpu{core}" for core in range(0, self.profile.cpus, conf.CLUSTER))
        yield f"devfreq-{self.profile.gpu_name}"
        yield from (f"{part}-throttle-alert" for part in ALERTED)
        yield "hot-surface-alert"

    def _thermal_device(self, name: str, files: Files) -> None:
        self.put_all(f"/sys/devices/virtual/thermal/{name}", files)
        self.link(f"{THERMAL}/{name}", f"/sys/devices/virtual/thermal/{name}")

    def hwmon(self, boots: int) -> None:
        """Renumber the sensors, because the order of the drivers differs from boot to boot. The readings
        stay."""
        chips = self._chips()
        shutil.rmtree(self.root / HWMON[1:], ignore_errors=True)
        for place, (device, files) in enumerate(chips.items()):
            folder = self.root / device[1:] / "hwmon"
            name = f"hwmon{(place + boots) % len(chips)}"
            old = next(iter(folder.iterdir()), None) if folder.is_dir() else None
            if old is not None:
                old.rename(folder / name)
            else:
                self.put_all(f"{device}/hwmon/{name}", files)
                self.link(f"{device}/hwmon/{name}/device", device)
            self.link(f"{HWMON}/{name}", f"{device}/hwmon/{name}")

    def _chips(self) -> dict[str, Files]:
        bus = "/sys/devices" if self.profile.jetpack == 5 else "/sys/devices/platform/bus@0"
        fan = {"name": "pwmfan", "pwm1": "66", "pwm1_enable": "1"}
        chips: dict[str, Files] = {
            f"{bus}/c240000.i2c/i2c-1/1-0040": _ina3221(
                ("VDD_GPU_SOC", 20_136, 119), ("VDD_CPU_CV", 20_144, 40), ("VIN_SYS_5V0", 5_024, 803)
            ),
            f"{bus}/c240000.i2c/i2c-1/1-0041": _ina3221(
                ("NC", 0, 0), ("VDDQ_VDD2_1V8AO", 20_128, 15), ("NC", 0, 0)
            ),
            "/sys/devices/platform/soctherm-oc-event": {
                "name": "soctherm_oc",
                **{f"oc{number}_event_cnt": "0" for number in (1, 2, 3)},
                **{f"oc{number}_throt_en": "1" for number in (1, 2, 3)},
            },
            f"{bus}/14160000.pcie/nvme0": dict(name="nvme", temp1_input="41850", temp1_label="Composite"),
        }
        if self.profile.jetpack == 7:
            chips["/sys/devices/platform/pwm-fan"] = {**fan, "fan1_input": "1740"}
        else:
            chips["/sys/devices/platform/pwm-fan"] = fan
            chips["/sys/devices/platform/39c0000.tachometer"] = {"name": "pwm_tach", "rpm": "1740"}
        return chips


def zone_type(name: str, jetpack: int) -> str:
    """Name of a thermal zone by JetPack: CPU-therm and Tboard_tegra, or cpu-thermal."""
    if jetpack > 5:
        return f"{name}-thermal"
    if name in DEGREES_BOARD:
        return f"{name.capitalize()}_tegra"
    return f"{name if name == 'tj' else name.upper()}-therm"


def _ina3221(*rails: tuple[str, int, int]) -> dict[str, str]:
    """A power monitor: three rails as (label, mV, mA), and the sum over its shunts."""
    files = {"name": "ina3221", "in7_label": "sum of shunt voltages", "in7_input": "1120"}
    for number, (label, millivolts, milliamperes) in enumerate(rails, start=1):
        files |= {
            f"in{number}_label": label,
            f"in{number}_input": str(millivolts),
            f"curr{number}_input": str(milliamperes),
            f"curr{number}_max": "32760",
            f"curr{number}_crit": "32760",
            f"curr{number}_max_alarm": "0",
            f"curr{number}_crit_alarm": "0",
        }
    return files
