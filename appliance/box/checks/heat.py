"""Checks of temperature, throttling by heat, and the fan."""

from __future__ import annotations

from collections.abc import Mapping

from appliance.box.checks.finding import Finding, Level, skipped
from appliance.box.checks.snapshot import Harm, Snapshot, check
from appliance.box.sensors import hwmon
from appliance.box.system import unit

WARM_C = 85.0
HOT_C = 95.0
"""Temperature in °C for FAIL. At 99 °C the module lowers its clocks."""
FAN_NEEDED_C = 60.0
STOPPED = ("inactive", "deactivating")
RESTART_FAN = (
    "run: sudo systemctl restart nvfancontrol. If the fan still does not turn, check its plug or replace it"
)
REPAIR_FAN = (
    "see why: sudo journalctl -u nvfancontrol -b. FAN_DEFAULT_PROFILE in /etc/nvfancontrol.conf must name a "
    "FAN_PROFILE of that file (NVIDIA's fan page): correct it. Then: sudo rm -f "
    "/var/lib/nvfancontrol/status, which keeps the last profile, and sudo systemctl restart nvfancontrol"
)
COOL_IT = "clean the fan and the heat sink, give the box air, or lower the temperature around it"


@check("temperature", Harm.SLOW, 7, lambda now: (hwmon.junction(now.root), hwmon.temperatures(now.root)))
def check_temperature(junction_c: float | None, zones: Mapping[str, float]) -> Finding:
    """`junction_c`: temperature of the hottest place on the chip; None if no thermal zone can be read."""
    if junction_c is None:
        remedy = (
            "restart the box: sudo reboot. If none appears, its kernel is not JetPack's: flash the box again"
        )
        return Finding("temperature", Level.WARN, "no thermal zone can be read", remedy=remedy)
    limit = f"WARN from {WARM_C:g} °C, FAIL from {HOT_C:g} °C"
    figures = {"junction_c": junction_c, "zones_c": dict(zones)}
    level = Level.of(warn=junction_c >= WARM_C, fail=junction_c >= HOT_C)
    return Finding("temperature", level, f"{junction_c:.1f} °C", limit, COOL_IT, figures)


@check("cooling", Harm.SLOW, 8, lambda now: (hwmon.cooling(now.root),))
def check_cooling(devices: Mapping[str, int] | None) -> Finding:
    """`devices`: state of each passive cooling device, 0 if it is off; None if none can be read."""
    if devices is None:
        return skipped("cooling", "no passive cooling device can be read")
    active = {name: state for name, state in devices.items() if state > 0}
    value = "throttled by heat: " + (", ".join(f"{n} at {state}" for n, state in active.items()) or "nothing")
    limit, figures = "no passive cooling at work", {"states": active}
    return Finding("cooling", Level.of(warn=bool(active)), value, limit, COOL_IT, figures)


def _of_fan(now: Snapshot) -> tuple[int | None, int | None, str, float | None]:
    fan, service = hwmon.fan(now.root), unit(now.box, "nvfancontrol.service")
    pwm, rpm = (fan.pwm, fan.rpm) if fan else (None, None)
    return pwm, rpm, service.active if service else "", hwmon.junction(now.root)


@check("fan", Harm.SLOW, 9, _of_fan)
def check_fan(pwm: int | None, rpm: int | None, service: str, junction_c: float | None) -> Finding:
    """`pwm`: 0 to 255. `pwm`, `rpm`: None if unreadable. `service`: state of nvfancontrol, "" if unknown."""
    limit = f"nvfancontrol active; turning above {FAN_NEEDED_C:g} °C"
    figures = {"pwm": pwm, "rpm": rpm, "service": service}
    readings = (("rpm", rpm), ("of 255 pwm", pwm))
    turning = ", ".join(f"{value} {name}" for name, value in readings if value is not None)
    failed = service not in ("", "active", *STOPPED)
    if (pwm == 0 or rpm == 0) and junction_c is not None and junction_c > FAN_NEEDED_C:
        value = f"stands still at {junction_c:.0f} °C ({turning})"
        return Finding("fan", Level.FAIL, value, limit, REPAIR_FAN if failed else RESTART_FAN, figures)
    if service not in ("", "active"):
        value = f"nvfancontrol: {service}" + (f" ({turning})" if turning else "")
        remedy = REPAIR_FAN if failed else "run: sudo systemctl enable --now nvfancontrol"
        return Finding("fan", Level.WARN, value, limit, remedy, figures)
    if not turning:
        return skipped("fan", "no fan can be read")
    return Finding("fan", Level.PASS, turning, limit, figures=figures)
