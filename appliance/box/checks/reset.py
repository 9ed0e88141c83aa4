"""Check of the reason of the last reset, which the Tegra's power management controller stores.

The names are from tegra234_reset_sources in Linux's drivers/soc/tegra/pmc.c; MAINSWRST and SYS_RESET_N also
occur in public captures. Other names give SKIP.
"""

from __future__ import annotations

from appliance.box.checks.finding import Finding, Level, passed, skipped
from appliance.box.checks.snapshot import Harm, check

WELL = {"SYS_RESET_N": "power on, or the reset button", "MAINSWRST": "a reboot"}
HEAT = ("SENSOR", "FSI_THERM")
SUPPLY = ("VREFRO_POWERBAD", "VMON", "FSI_VMON")
LAST_WORDS = (
    "see how it ended: sudo journalctl -b -1 -e. Then send the maker a bundle: sudo f5-support-bundle"
)


@check("reset", Harm.LATER, 11, lambda now: (now.box.reset_source,))
def check_reset(source: str) -> Finding:
    """WARN until the next boot if a watchdog, heat or the supply reset the box."""
    limit = "switched on or rebooted"
    if source in WELL:
        return passed("reset", f"{WELL[source]} ({source})", limit)
    if source.endswith("WDT"):
        value, remedy = "a watchdog: the system hung", LAST_WORDS
    elif source in HEAT:
        value, remedy = "a temperature sensor: the module was too hot", "clean the fan and give the box air"
    elif source in SUPPLY:
        value, remedy = "a voltage out of bounds", "check the power supply and its cable"
    else:
        return skipped("reset", f"unknown source: {source[:40]}" if source else "the kernel does not say")
    return Finding("reset", Level.WARN, f"{value} ({source})", limit, remedy)
