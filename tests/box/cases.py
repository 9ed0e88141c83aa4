"""The table of faults: each row has a fault of a box, the check that finds it, its level and its words."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from appliance.box import paths
from appliance.box.checks.finding import Finding, Level
from appliance.box.checks.runner import run_checks
from appliance.box.clocks import boots, pinning
from appliance.box.clocks.reason import Reason
from appliance.box.show.findings import table
from tests.fakes.jetson.board import Clock, Jetson
from tests.harness.boxes import quick

PASS, WARN, FAIL, SKIP = Level.PASS, Level.WARN, Level.FAIL, Level.SKIP


@dataclass(frozen=True)
class Case:
    name: str
    arrange: Callable[[Jetson], object]
    check: str
    level: Level
    value: str
    remedy: str = ""
    seen: str = ""
    """Key of test_remedies.SEEN."""
    by_hand: Callable[[Jetson], object] = lambda jetson: None
    """Follows the words of the remedy that are no commands. The commands come after it."""
    words: Mapping[str, str] = field(default_factory=dict)
    """Value typed for each word in capitals."""
    profile: str = "jp6-0005"
    readyz: tuple[int, int] | None = (200, 200)
    """Statuses of /readyz and /livez; None: connection refused."""
    box: dict[str, Any] = field(default_factory=dict)
    reason: Reason | None = None
    """Reason that the case reports; None if any will do."""

    def expect(self, found: Finding) -> None:
        assert found.level is self.level, found
        assert self.value in found.value and self.remedy in found.remedy, found
        assert self.reason in (None, found.reason), found
        lines = table([found]).splitlines()[:-1]
        assert max(map(len, lines)) <= 120, lines
        # The first sentence of a remedy is not cut; the first sentence of a value only if it is a list.
        assert not any(line.endswith("…") and (line[6] == "→" or "," not in line) for line in lines), lines


def fault(name: str, **details: Any) -> Callable[[Jetson], object]:
    return lambda jetson: jetson.fault(name, **details)


def unit(name: str, **properties: Any) -> Callable[[Jetson], object]:
    return lambda jetson: jetson.unit(name, **properties)


def writes(path: str, text: str) -> Callable[[Jetson], object]:
    return lambda jetson: jetson.write(path, text)


def replaces(path: str, old: str, new: str) -> Callable[[Jetson], object]:
    def arrange(jetson: Jetson) -> None:
        text = jetson.read(path)
        assert old in text
        jetson.write(path, text.replace(old, new) + "\n")

    return arrange


def storm(**counts: int) -> Callable[[Jetson], object]:
    """Over-current events since a sample that root took 100 s ago."""

    def arrange(jetson: Jetson) -> None:
        clock = Clock(500.0)
        run_checks(quick(jetson, **clock.arguments))
        jetson.fault("over_current_storm", **{"oc3": 0, **counts})

    return arrange


def daemon(**properties: Any) -> Callable[[Jetson], object]:
    return unit("f5-appliance.service", **properties)


FAILED = {"ActiveState": "failed", "SubState": "failed"}


def removed(path: str) -> Callable[[Jetson], object]:
    return lambda jetson: jetson.path(path).unlink()


def nothing(jetson: Jetson) -> None:
    """Leave the box as it is."""


def entry(path: str, name: str, text: str) -> Callable[[Jetson], object]:
    """Replace the line that begins with `name` by `text`."""
    return lambda jetson: jetson.write(path, re.sub(rf"(?m)^{name}\b.*$", text, jetson.read(path)) + "\n")


def swapping(jetson: Jetson) -> None:
    run_checks(quick(jetson, **Clock(500.0).arguments))
    entry("/proc/meminfo", "SwapTotal", "SwapTotal: 32000000 kB")(jetson)
    entry("/proc/meminfo", "SwapFree", "SwapFree: 31000000 kB")(jetson)
    before = re.findall(r"(?m)^pswpin (\d+)$", jetson.read("/proc/vmstat"))
    entry("/proc/vmstat", "pswpin", f"pswpin {int(before[0]) + 500_000}")(jetson)


def factory(jetson: Jetson) -> None:
    """Return to 30 W, nothing pinned, nothing published."""
    jetson.set_mode("MODE_30W")
    jetson.unpin()
    jetson.path("/run/f5-appliance/clocks.json").unlink()


def lock_fails(name: str, **details: Any) -> Callable[[Jetson], object]:
    """Root's lock runs into a fault and publishes the clocks that it read back."""

    def arrange(jetson: Jetson) -> None:
        jetson.set_mode("MAXN")
        jetson.unpin()
        jetson.fault(name, **details)
        pinning.lock(quick(jetson, **Clock().arguments))
        publish_as_seen_now(jetson)

    return arrange


def publish_as_seen_now(jetson: Jetson) -> None:
    """Publish the same clocks as read a moment ago, by the examination's clock."""
    document = json.loads(jetson.read("/run/f5-appliance/clocks.json"))
    document["checked_at"] = quick(jetson).uptime()
    jetson.write("/run/f5-appliance/clocks.json", json.dumps(document))


def reboot_due(jetson: Jetson) -> None:
    jetson.set_mode("MODE_30W")
    pinning.lock(quick(jetson))


def unpinned_too_often(jetson: Jetson) -> None:
    """Root's check has pinned again six times in the last hour; now it does so for the seventh time."""
    box = quick(jetson)
    at = box.uptime()
    record = boots.Boot(
        box.boot_id, attempts=(at - 60,) * 6, repins=6, held_at=at - 30, pinned="MAXN", pinned_at=at - 60
    )
    boots.save(box, record, print)
    jetson.unpin()
    pinning.check(box)


def pinning_fails_too_often(jetson: Jetson) -> None:
    """Somebody unpinned once; since then pinning has had no effect, six times in the last hour."""
    box = quick(jetson, **Clock(quick(jetson).uptime()).arguments)
    pinning.lock(box)
    jetson.unpin()
    jetson.fault("silent_gpu", message=False)
    for _ in range(7):
        pinning.check(box)
    publish_as_seen_now(jetson)


def unlocked(jetson: Jetson) -> None:
    """Lock and unlock a box that was unpinned before."""
    jetson.unpin()
    pinning.lock(quick(jetson))
    pinning.unlock(quick(jetson))


def stale(jetson: Jetson, age_s: float = 120.0) -> None:
    """The timer stopped two minutes ago; since then somebody unpinned."""
    document = json.loads(jetson.read("/run/f5-appliance/clocks.json"))
    document["checked_at"] -= age_s
    jetson.write("/run/f5-appliance/clocks.json", json.dumps(document))
    jetson.unpin()


def of_another_boot(jetson: Jetson) -> None:
    text = jetson.read("/run/f5-appliance/clocks.json")
    jetson.boot()
    jetson.set_mode("MAXN")
    jetson.pin()
    jetson.write("/run/f5-appliance/clocks.json", text)


def slow(jetson: Jetson) -> None:
    """The guard found speech much slower in this boot, and bursts of current go on."""
    storm(oc3=3000)(jetson)
    entry = {"level": "FAIL", "value": "slow", "rtf": 1.0, "first_audio_s": 1.0, "uptime_s": 1.0}
    entry["boot_id"] = quick(jetson).boot_id
    jetson.write("/var/lib/f5-appliance/journal/measurements.jsonl", json.dumps(entry) + "\n")


def stopped_fan(jetson: Jetson) -> None:
    for folder in jetson.path("/sys/class/hwmon").iterdir():
        for name in ("fan1_input", "rpm", "pwm1"):
            if (folder / name).exists():
                (folder / name).write_text("0\n")
    jetson.fault("thermal_throttle", degrees=70.0, cap_khz=0)


def few_large_blocks(jetson: Jetson) -> None:
    rows = [line.split() for line in jetson.read("/proc/buddyinfo").splitlines()]
    small = [" ".join([*row[:4], *["900"] * 10, *["0"] * (len(row) - 14)]) for row in rows]
    jetson.write("/proc/buddyinfo", "\n".join(small) + "\n")
    little_memory(jetson, 15_000_000)


def little_memory(jetson: Jetson, kib: int = 1_000_000) -> None:
    entry("/proc/meminfo", "MemAvailable", f"MemAvailable: {kib} kB")(jetson)


PMC = "/sys/devices/platform/bus@0/c360000.pmc/reset_reason"
EMMC = "/sys/block/mmcblk0/device"


def wear(life: str, end: str) -> Callable[[Jetson], object]:
    def arrange(jetson: Jetson) -> None:
        jetson.write(f"{EMMC}/life_time", f"{life}\n")
        jetson.write(f"{EMMC}/pre_eol_info", f"{end}\n")

    return arrange


ZONES = ("cpu", "gpu", "tj", "cv0", "cv1", "cv2", "soc0", "soc1", "soc2", "tboard", "tdiode")
LATER = Clock(600.0).arguments
WITHOUT_ROOT = {"user": lambda: 1000}

CASES = [
    # Clocks.
    Case("factory: power mode", factory, "power_mode", WARN, "MODE_30W", "sudo f5-clock-lock lock"),
    Case("factory: clocks", factory, "clocks", FAIL, "is absent", "sudo systemctl restart f5-clocks",
        reason=Reason.ABSENT),
    Case("factory: cores", factory, "cores", WARN, "cpu8–cpu11 offline", "f5-clock-lock lock"),
    Case("reboot due", reboot_due, "reboot", FAIL, "reboot", "f5-clock-lock lock --allow-reboot"),
    Case("reboot due: mode", reboot_due, "power_mode", WARN, "MODE_30W", "--allow-reboot"),
    Case("reboot due: clocks", reboot_due, "clocks", WARN, "reboot", "--allow-reboot",
        reason=Reason.REBOOT_DUE),
    Case("reboot prompt for the present mode", fault("reboot_prompt"), "reboot", PASS, "none"),
    Case("EBUSY", lambda j: (j.set_mode("MODE_30W"), j.fault("ebusy"), pinning.lock(quick(j))), "clocks",
        FAIL, "MODE_30W", "sudo systemctl restart f5-clocks"),
    Case("GPU silently not pinned", lock_fails("silent_gpu", message=False), "clocks", FAIL, "gpu",
        "restart f5-clocks"),
    Case("no GPU clock yet", fault("no_devfreq", calls=99), "clocks", WARN, "gpu", "restart f5-clocks"),
    Case("GPU clock never comes", lock_fails("no_devfreq", calls=999), "clocks", FAIL, "gpu",
        "restart f5-clocks"),
    Case("sysfs edited", lambda j: j.unpin(), "clocks", WARN, "came loose", "wait 30 s"),
    Case("nvpmodel ran again", fault("nvpmodel_rerun"), "clocks", WARN, "came loose",
        "journalctl -u f5-clocks-check"),
    Case("pinning fails too often", pinning_fails_too_often, "clocks", FAIL, "pinning failed 6 times",
        "run: sudo systemctl restart f5-clocks", reason=Reason.PINNING_FAILS),
    Case("unpinned too often", unpinned_too_often, "clocks", WARN, "something keeps unpinning",
        "Then run: sudo f5-clock-lock lock", reason=Reason.UNPINNED_AGAIN),
    Case("unlocked by a technician", unlocked, "clocks", WARN, "unlocked by a technician",
        "f5-clock-lock lock", reason=Reason.UNLOCKED),
    Case("timer stopped, unpinned since", stale, "clocks", FAIL, "was written 120 s ago",
        "f5-clocks-check.timer", reason=Reason.STALE),
    Case("state of another boot", of_another_boot, "clocks", WARN, "the check does not run",
        "f5-clocks-check.timer", reason=Reason.OTHER_BOOT),
    Case("state of the future", lambda j: stale(j, -9e9), "clocks", FAIL, "its time is in the future",
        "enable --now f5-clocks"),
    Case("state damaged", writes("/run/f5-appliance/clocks.json", "{"), "clocks", WARN, "cannot be used",
        "enable --now f5-clocks"),
    # Heat and power.
    Case("hot", fault("thermal_throttle"), "temperature", FAIL, "99.5 °C", "clean the fan"),
    Case("throttled", fault("thermal_throttle"), "cooling", WARN, "at 3", "clean the fan"),
    Case("no cooling devices", lambda j: shutil.rmtree(j.path("/sys/class/thermal")), "cooling", SKIP,
        "can be read"),
    Case("zones without power", fault("eagain_zones"), "temperature", PASS, "°C"),
    Case("every zone without power", fault("eagain_zones", zones=ZONES), "temperature", WARN,
        "no thermal zone", "restart the box"),
    Case("voltage sags again and again", storm(oc1=9), "oc1", FAIL, "9 in 100 s", "cable", box=LATER),
    Case("average current in MODE_50W", lambda j: (storm(oc2=9)(j), j.set_mode("MODE_50W")), "oc2", FAIL,
        "9 in 100 s", "power_mode: MODE_30W", box=LATER),
    Case("bursts of current", storm(oc3=3000), "oc3", WARN, "30.0 bursts a second", "power_mode: MODE_50W",
        box=LATER),
    Case("bursts, and slower", slow, "oc3", FAIL, "30.0 bursts a second", "slower", box=LATER),
    Case("fan stands still", stopped_fan, "fan", FAIL, "stands still at 70 °C", "replace it"),
    Case("fan control off", unit("nvfancontrol.service", ActiveState="inactive"), "fan", WARN, "inactive",
        "enable --now nvfancontrol"),
    # Memory and disk.
    Case("memory short", little_memory, "memory", FAIL, "available", "stop display-manager"),
    Case("memory in small pieces", few_large_blocks, "lfb", WARN, "0 free blocks", "drop_caches"),
    Case("swapping", swapping, "swap", FAIL, "pages a second", "nvzramconfig", box=LATER),
    Case("disk full", fault("disk_full"), "disk", FAIL, "0%", "journalctl --vacuum-size"),
    Case("inodes", fault("disk_full", free=0.5, free_inodes=0.01), "disk", FAIL, "inodes", "du --inodes"),
    Case("read-only root, /var on its own",
        writes("/proc/mounts", "/dev/a / ext4 ro 0 0\n/dev/b /var ext4 rw 0 0\n"), "disk", PASS, "/var: "),
    Case("read-only root", fault("read_only_root"), "disk", FAIL, "read-only", "remount,rw"),
    # Reset and wear.
    *(Case(f"reset: {source[:11]}", writes(PMC, source), "reset", level, value) for source, level, value in (
        ("MAINSWRST", PASS, "a reboot"), ("SYS_RESET_N", PASS, "power on"),
        ("BCCPLEXWDT", WARN, "a watchdog: the system hung"),
        ("SENSOR", WARN, "too hot"), ("VREFRO_POWERBAD", WARN, "voltage"),
        ("BPMPBOOT", SKIP, "unknown source: BPMPBOOT"), ("", SKIP, "does not say"),
        ("x" * 5000, SKIP, "unknown source: x"),
    )),
    *(Case(f"wear: {life}, {end}", wear(life, end), "wear", level, value) for life, end, level, value in (
        ("0x01 0x01", "0x01", PASS, "mmcblk0: 0 to 10 % of its life"),
        ("0x00 0x03", "0x00", PASS, "20 to 30 %"), ("0x09 0x01", "0x01", WARN, "80 to 90 %"),
        ("0x02 0x0b", "0x01", FAIL, "beyond its life"),
        ("0x01 0x01", "0x02", WARN, "few spare blocks"), ("0x01 0x01", "0x03", FAIL, "few spare blocks"),
        ("0x00 0x00", "0x00", SKIP, "no eMMC"), ("no life", "0xzz", SKIP, "no eMMC"),
    )),
    # Versions, GPU, time.
    Case("JetPack upgraded", replaces(paths.INSTALLED, "36.4.3", "36.4.0"), "versions", WARN, "L4T 36.4.0",
        "apt install --reinstall"),
    Case("install's record damaged", writes(paths.INSTALLED, "[]"), "versions", WARN, "cannot be read",
        "apt install --reinstall"),
    Case("user not in render", replaces("/etc/group", "other,f5-appliance", "other"), "gpu_node", FAIL,
        "render", "usermod -aG render f5-appliance"),
    Case("one of two render nodes closed",
        lambda j: (j.write("/dev/dri/renderD129", ""), j.path("/dev/dri/renderD129").chmod(0o600)),
        "gpu_node", PASS, "may open it"),
    Case("clock in 1970", fault("clock_1970"), "time", WARN, "1970", "hwclock -w -f /dev/rtc"),
    Case("clock not set", removed("/run/systemd/timesync/synchronized"), "time", WARN, "not synchronised",
        "sudo date -s"),
    # The daemon.
    Case("daemon down", daemon(ActiveState="inactive"), "daemon", FAIL, "refused",
        "enable --now f5-appliance", readyz=None),
    Case("engine hangs", nothing, "daemon", FAIL, "engine hangs", "systemctl restart f5-appliance",
        readyz=(503, 503)),
    Case("restarted, and runs again", daemon(NRestarts=3), "restarts", FAIL, "3 ", "f5-support-bundle",
        box=LATER),
    Case("systemd gave up: the watchdog's aborts",
        daemon(**FAILED, Result="watchdog", NRestarts=4, ExecMainStatus=6), "restarts", FAIL,
        "stopped restarting it; last by the watchdog", "reset-failed", box=LATER),
    # The checks do not run as root.
    Case("not root: pinned, as root's check read it", nothing, "clocks", PASS, "emc as root's check read it",
        box=WITHOUT_ROOT),
    Case("not root: unpinned", lambda j: j.unpin(), "clocks", WARN, "came loose", "30 s", box=WITHOUT_ROOT),
    Case("not root: nothing published", removed("/run/f5-appliance/clocks.json"), "clocks", WARN,
        "the check does not run", "f5-clocks-check.timer", box=WITHOUT_ROOT),
]  # fmt: skip
