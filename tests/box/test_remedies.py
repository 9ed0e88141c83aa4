"""Remedies that mend: each fault, what health and clock-lock say of it, and the box after the remedy."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from appliance.box import checks
from appliance.box.checks import Level
from appliance.box.clocks.pinning import check, lock
from appliance.box.paths import CONFIG, NVPMODEL_CONF, NVPMODEL_STATUS
from appliance.box.show import clock_status
from tests.box.boxes import quick, well
from tests.fakes.faults import FaultyRoot
from tests.fakes.jetson import Jetson

pytestmark = pytest.mark.once

PASS, WARN, FAIL = Level.PASS, Level.WARN, Level.FAIL
CODES = {"pinned": 0, "unpinned": 1, "unknown": 1, "reboot_pending": 3, "unsupported": 4}
SITE = f"below `device:` in {CONFIG} the line `  power_mode: NAME`"


def nvpower(jetson: Jetson) -> None:
    """As its script: a link for this module where none lies; one that lies there is kept."""
    link = jetson.root / NVPMODEL_CONF[1:]
    if not link.is_symlink() and not link.exists():
        link.symlink_to(f"/etc/nvpmodel/{jetson.profile.conf}")


def foreign(conf: str) -> Callable[[Jetson], None]:
    """nvpmodel.conf is a link to another module's file."""

    def arrange(jetson: Jetson) -> None:
        jetson.write("/etc/nvpmodel/other.conf", conf or jetson.read(NVPMODEL_CONF))
        link = jetson.root / NVPMODEL_CONF[1:]
        link.unlink()
        link.symlink_to("/etc/nvpmodel/other.conf")
        nvpower(jetson)
        assert link.readlink() == Path("/etc/nvpmodel/other.conf"), "restarting nvpower alone mends nothing"

    return arrange


def of_more_cores(jetson: Jetson) -> None:
    text = jetson.read(NVPMODEL_CONF)
    line = "CPU_ONLINE CORE_11 1\n"
    assert line in text
    foreign(text.replace(line, line + "CPU_ONLINE CORE_12 1\n"))(jetson)


def of_a_slower_gpu(jetson: Jetson) -> None:
    foreign(jetson.read(NVPMODEL_CONF).replace("GPU MAX_FREQ -1", "GPU MAX_FREQ 918000000"))(jetson)


def without_maxn(jetson: Jetson) -> None:
    foreign(jetson.read(NVPMODEL_CONF).replace("NAME=MAXN >", "NAME=OEM_60W >"))(jetson)


def conf_made_anew(jetson: Jetson) -> None:
    (jetson.root / NVPMODEL_CONF[1:]).unlink()
    nvpower(jetson)
    lock(quick(jetson))


def site(text: str) -> Callable[[Jetson], None]:
    return lambda jetson: jetson.write(CONFIG, text)


def site_names(mode: str) -> Callable[[Jetson], None]:
    def mend(jetson: Jetson) -> None:
        site(f"device:\n  power_mode: {mode}\n")(jetson)
        assert lock(quick(jetson)).mode == mode

    return mend


def hot(jetson: Jetson) -> None:
    jetson.fault("thermal_throttle")
    check(quick(jetson))


def cooled(jetson: Jetson) -> None:
    jetson.heal("thermal_throttle")
    check(quick(jetson))


def by_the_menu(jetson: Jetson) -> None:
    jetson.process(4711, "nvpmodel_indica")
    jetson.set_mode("MODE_50W")


def menu_ended(jetson: Jetson) -> None:
    jetson.path("/proc/4711/comm").unlink()
    lock(quick(jetson))


def silent_nvpmodel(jetson: Jetson) -> None:
    (jetson.bin / "nvpmodel").rename(jetson.bin / "aside")
    (jetson.bin / "nvpmodel").write_text("#!/bin/sh\necho 'NVPM ERROR: cannot lock'; exit 255\n")
    (jetson.bin / "nvpmodel").chmod(0o755)
    jetson.path(NVPMODEL_STATUS).unlink()


def nvpmodel_restarted(jetson: Jetson) -> None:
    (jetson.bin / "aside").rename(jetson.bin / "nvpmodel")
    jetson.set_mode("MAXN")
    lock(quick(jetson))


def locked(jetson: Jetson) -> None:
    lock(quick(jetson))


def railgated(jetson: Jetson) -> None:
    jetson.write(f"{jetson.profile.gpu_parent}/railgate_enable", "1\n")


def checked(jetson: Jetson) -> None:
    check(quick(jetson))


@dataclass(frozen=True)
class Row:
    """A fault of a pinned box in MAXN."""

    name: str
    arrange: Callable[[Jetson], None]
    check: str
    level: Level
    value: str
    remedy: str
    clock_lock: int
    """Exit status of `clock-lock status`."""
    mend: Callable[[Jetson], None]
    """Carry out the remedy."""

    @property
    def health(self) -> int:
        """Exit status of `health --only`."""
        return {PASS: 0, WARN: 1, FAIL: 2}[self.level]


ANEW = "sudo rm /etc/nvpmodel.conf && sudo systemctl restart nvpower nvpmodel && sudo f5-clock-lock lock"
HAS = "it has OEM_60W, MODE_15W, MODE_30W, MODE_50W"
TABLE = [
    Row("conf of more cores", of_more_cores, "power_mode", FAIL, "cpu12 of /etc", ANEW, 1, conf_made_anew),
    Row("conf of more cores: cores", of_more_cores, "cores", WARN, "cpu12 of /etc", ANEW, 1, conf_made_anew),
    Row("conf of a slower GPU", of_a_slower_gpu, "power_mode", FAIL, "918 MHz", ANEW, 1, conf_made_anew),
    Row("conf of an OEM", without_maxn, "power_mode", FAIL, HAS, SITE, 1, site_names("OEM_60W")),
    Row("site: no such mode", site("device:\n  power_mode: MODE_60W\n"), "power_mode", FAIL,
        "no power mode MODE_60W", SITE, 1, site_names("MODE_50W")),
    Row("site: in another form", site("device: {power_mode: MAXN}\n"), "power_mode", FAIL,
        "to be written as", SITE, 1, site_names("MAXN")),
    Row("site: a lesser one", site("device:\n  power_mode: MODE_50W\n"), "power_mode", WARN, "MAXN",
        "sudo f5-clock-lock lock", 1, locked),
    Row("heat", hot, "clocks", WARN, "held down: cpu0–cpu11: capped at 1190", "cool the box", 1, cooled),
    Row("heat: caps", hot, "caps", WARN, "1190.4 MHz of 2201.6 MHz", "cool the box", 1, cooled),
    Row("the desktop's menu", by_the_menu, "power_mode", WARN, "nvpmodel_indicator",
        "sudo pkill -f nvpmodel_indicator; then run: sudo f5-clock-lock lock", 1, menu_ended),
    Row("nvpmodel says nothing", silent_nvpmodel, "power_mode", FAIL, "unknown: NVPM ERROR: cannot lock",
        "sudo nvpmodel -q --verbose", 1, nvpmodel_restarted),
    Row("railgating", railgated, "clocks", WARN, "railgate: the GPU may be powered down when idle",
        "pins them again within 30 s", 1, checked),
]  # fmt: skip


class Closed(FaultyRoot):
    """Without the configuration, which an install may keep for root and the daemon."""

    def read(self, path: str) -> str:
        if path == CONFIG:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return super().read(path)


@pytest.fixture
def jetson(tmp_path: Path) -> Jetson:
    found = well(tmp_path / "box")
    lock(quick(found))
    return found


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_the_remedy_mends(jetson: Jetson, row: Row) -> None:
    [before] = checks.run_checks(quick(jetson), only={row.check})
    assert before.level is PASS
    row.arrange(jetson)
    [found] = checks.run_checks(quick(jetson), only={row.check})
    assert found.level is row.level, found
    assert row.value in found.value and row.remedy in found.remedy, found
    assert checks.exit_code([found]) == row.health
    assert CODES[clock_status.status(quick(jetson)).clocks.state] == row.clock_lock
    row.mend(jetson)
    [after] = checks.run_checks(quick(jetson), only={row.check})
    assert after.level is PASS, after
    assert clock_status.status(quick(jetson)).clocks.state == "pinned"


def test_a_better_mode_that_nobody_knows_yet_is_never_lowered(jetson: Jetson) -> None:
    text = jetson.read(NVPMODEL_CONF)
    head, _, rest = text.partition("< POWER_MODEL ID=0 NAME=MAXN >")
    block = rest.partition("< ")[0]
    maxn = "< POWER_MODEL ID=0 NAME=MAXN >"
    jetson.write(NVPMODEL_CONF, f"{head}< POWER_MODEL ID=7 NAME=MAXN_ULTRA >{block}{maxn}{rest}")
    jetson.write(NVPMODEL_STATUS, "pmode:0007")
    calls = len(jetson.calls("nvpmodel"))
    assert (lock(quick(jetson)).state, lock(quick(jetson)).mode) == ("pinned", "MAXN_ULTRA")
    assert {*jetson.calls("nvpmodel")[calls:]} == {"nvpmodel -q"}
    lesser = text.replace("NAME=MODE_50W", "NAME=MAXN_ECO")
    jetson.write(NVPMODEL_CONF, lesser)
    jetson.write(NVPMODEL_STATUS, "pmode:0003")
    assert lock(quick(jetson)).mode == "MAXN", "one that caps more is not better"


def test_the_site_may_want_less_than_a_better_mode(jetson: Jetson) -> None:
    site("device:\n  power_mode: MODE_50W\n")(jetson)
    clocks = lock(quick(jetson))
    assert (clocks.state, clocks.mode, clocks.domains["cpu0"]["ceiling"]) == (
        "pinned",
        "MODE_50W",
        1_497_600_000,
    )
    found = checks.run_checks(quick(jetson), only={"power_mode", "clocks", "caps", "cores", "reboot"})
    assert {finding.level for finding in found} == {PASS}, found


def test_a_technician_who_may_not_read_the_configuration(jetson: Jetson) -> None:
    """The configured mode is then known from root's check only."""
    site("device:\n  power_mode: MODE_50W\n")(jetson)
    lock(quick(jetson))
    mine = quick(jetson, user=lambda: 1000)
    mine = dataclasses.replace(mine, root=Closed(mine.root.folder, private=True))
    assert clock_status.status(mine).clocks.state == "pinned"
    [found] = checks.run_checks(mine, only={"power_mode"})
    assert (found.level, found.value) == (PASS, "MODE_50W, as root's check saw it")
    jetson.path("/run/f5-appliance/clocks.json").unlink()
    assert clock_status.status(mine).clocks.state == "unknown"
    [found] = checks.run_checks(mine, only={"power_mode"})
    assert found.level is Level.SKIP and "needs root" in found.value
