"""The fake Jetson beside its vendor's tools: boots, heat, faults, systemd, and what is not root's."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.box.system import Box, open_box, seconds_since_boot
from tests.fakes.faults import FAULTS
from tests.fakes.jetson import Clock, Jetson

README = Path(__file__).resolve().parents[1] / "fakes" / "README.md"
EMC = "/sys/kernel/debug/bpmp/debug/clk/emc"
DEVFREQ = "/sys/class/devfreq"

Make = Callable[[str], Jetson]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda profile: Jetson(tmp_path / profile, profile)


def run(box: Box, *command: str, answer: str = "") -> tuple[int, list[str]]:
    """Exit status and the lines of both streams."""
    ran = box.tools.run(*command, answer=answer)
    return ran.code, [line for line in ran.text.split("\n") if line]


# -- boots, heat, and what happens behind the tools' back ----------------------------------------------------


def test_a_boot_takes_the_status_file_s_mode_and_unpins(make: Make) -> None:
    jetson = make("jp6-0005")
    jetson.pin()
    before = jetson.box().boot_id
    jetson.box().root.replace("/run/f5-appliance/clocks.json", "{}")
    # The way to another mode without a prompt.
    jetson.write("/var/lib/nvpmodel/status", "pmode:0000\n")
    jetson.boot()
    assert jetson.box().boot_id not in ("", before)
    assert jetson.mode == "MAXN"
    assert jetson.read("/sys/devices/system/cpu/online") == "0-11"
    assert jetson.read(f"{DEVFREQ}/17000000.gpu/min_freq") == "306000000"
    assert not jetson.path("/run/f5-appliance").exists()


def test_heat_keeps_a_pinned_core_pinned_only_lower(make: Make) -> None:
    jetson = make("jp6-0005")
    jetson.pin()
    jetson.fault("thermal_throttle", cap_khz=1_190_400)
    run(jetson.box(), "jetson_clocks")
    cpufreq = "/sys/devices/system/cpu/cpu0/cpufreq"
    assert [jetson.read(f"{cpufreq}/scaling_{kind}_freq") for kind in ("min", "max")] == ["1190400"] * 2
    jetson.heal("thermal_throttle")
    assert jetson.read(f"{cpufreq}/scaling_max_freq") == "1728000"


def test_nvpmodel_service_run_again_unpins_and_leaves_its_traces(make: Make) -> None:
    jetson = make("jp6-0005")
    jetson.pin()
    before_us = seconds_since_boot() * 1e6
    jetson.fault("nvpmodel_rerun")
    box = jetson.box()
    assert jetson.read(f"{DEVFREQ}/17000000.gpu/min_freq") == "306000000"
    shown = run(box, "systemctl", "show", "-p", "ExecMainStartTimestampMonotonic,Result", "nvpmodel.service")
    stamp, result = shown[1]
    assert float(stamp.partition("=")[2]) >= before_us - 1
    assert result == "Result=success"
    lines = run(box, "journalctl", "-u", "nvpmodel", "--since", "-1min", "-o", "cat")[1]
    assert lines == ["Starting nvpmodel service...", "Finished nvpmodel service."]


def test_restarting_the_service_does_the_same(make: Make) -> None:
    jetson = make("jp6-0005")
    jetson.pin()
    assert run(jetson.box(), "systemctl", "restart", "nvpmodel")[0] == 0
    assert jetson.read(f"{EMC}/mrq_rate_locked") == "0"


# -- faults of the Box ---------------------------------------------------------------------------------------


def test_every_fault_is_described(make: Make) -> None:
    readme = README.read_text()
    assert [name for name in FAULTS if f"| `{name}` |" not in readme] == []
    assert all(fault.__doc__ for fault in FAULTS.values())
    with pytest.raises(ValueError, match="no fault 'fire', only not_root, "):
        make("jp6-0005").fault("fire")


def test_a_plain_user_cannot_look_into_what_is_root_s(make: Make) -> None:
    jetson = make("jp6-0005")
    jetson.write("/run/f5-appliance/root/repins.json", "{}")
    box = jetson.box(user=lambda: 1000)
    assert not box.is_root
    assert box.root.text(f"{EMC}/rate") is None
    assert box.root.names("/sys/kernel/debug") == ()
    assert box.root.text("/run/f5-appliance/root/repins.json") is None
    assert box.root.number(f"{DEVFREQ}/17000000.gpu/max_freq") == 612_000_000
    for refused in (
        lambda: box.root.read(f"{EMC}/rate"),
        lambda: box.root.replace("/run/f5-appliance/clocks.json", "{}"),
        lambda: box.root.write(f"{DEVFREQ}/17000000.gpu/min_freq", "1"),
    ):
        with pytest.raises(PermissionError):
            refused()


@pytest.mark.parametrize(("fault", "number"), [("read_only_root", 30), ("disk_full", 28)])
def test_a_disk_that_refuses_leaves_memory_writable(make: Make, fault: str, number: int) -> None:
    jetson = make("jp6-0005")
    jetson.fault(fault)
    root = jetson.box().root
    root.replace("/run/f5-appliance/clocks.json", "{}")
    with pytest.raises(OSError) as caught:
        root.replace("/var/lib/f5-appliance/baseline.json", "{}")
    assert caught.value.errno == number
    jetson.fault(fault, folders=("/run",))
    with pytest.raises(OSError):
        jetson.box().root.replace("/run/f5-appliance/clocks.json", "{}")


def test_what_a_disk_tells_of_itself(make: Make) -> None:
    jetson = make("jp6-0005")
    healthy = jetson.box().statvfs(Path("/"))
    assert healthy.f_bavail / healthy.f_blocks == pytest.approx(0.5)
    jetson.fault("disk_full", free=0.04, free_inodes=0.01)
    full = jetson.box().statvfs(Path("/"))
    assert full.f_bavail / full.f_blocks == pytest.approx(0.04)
    assert full.f_favail / full.f_files == pytest.approx(0.01)
    jetson.box().root.replace("/var/lib/f5-appliance/baseline.json", "{}")


def test_a_clock_that_starts_in_1970(make: Make) -> None:
    jetson = make("jp6-0005")
    jetson.fault("clock_1970")
    box = jetson.box()
    assert time.gmtime(box.wall()).tm_year == 1970
    assert run(box, "timedatectl", "show", "-p", "NTPSynchronized", "--value") == (0, ["no"])
    jetson.heal("clock_1970")
    assert run(jetson.box(), "timedatectl", "show", "-p", "NTPSynchronized", "--value") == (0, ["yes"])


def test_a_clock_that_only_sleeping_moves(make: Make) -> None:
    clock = Clock(uptime_s=10.0)
    box = make("jp6-0005").box(**clock.arguments)
    box.sleep(60.0)
    assert (box.uptime(), clock.uptime_s) == (70.0, 70.0)


def test_a_script_gets_the_same_box_by_its_environment(make: Make) -> None:
    jetson = make("jp6-0005")
    environment = jetson.environment
    box = open_box(environment["F5_SYSROOT"], environment["F5_TOOLS"])
    assert box.boot_id == jetson.box().boot_id
    assert run(box, "nvpmodel", "-q")[1][0] == "NV Power Mode: MODE_30W"


# -- systemctl, journalctl, jtop -----------------------------------------------------------------------------


def test_units_that_are_not_there_and_units_that_failed(make: Make) -> None:
    jetson = make("jp6-0005")
    box = jetson.box()
    assert run(box, "systemctl", "is-active", "f5-appliance.service") == (3, ["inactive"])
    assert run(box, "systemctl", "start", "f5-appliance")[0] == 5
    jetson.unit("f5-appliance.service", NRestarts=4)
    assert run(box, "systemctl", "is-active", "f5-appliance") == (0, ["active"])
    jetson.fault("unit_down", unit="f5-appliance.service", result="watchdog")
    shown = run(box, "systemctl", "show", "f5-appliance", "-p", "NRestarts,Result,ActiveState")
    assert shown == (0, ["NRestarts=4", "Result=watchdog", "ActiveState=failed"])
    assert run(box, "systemctl", "reset-failed")[0] == 0
    assert run(box, "systemctl", "start", "f5-appliance.service")[0] == 0
    jetson.unit("f5-appliance.service", StartFails="the control process exited with error code")
    code, lines = run(box, "systemctl", "restart", "f5-appliance.service")
    assert code == 1
    assert lines[0].startswith("Job for f5-appliance.service failed because the control process exited")


@pytest.mark.parametrize("staged", [True, False])
def test_enabling_makes_the_links_and_disabling_takes_them_away(make: Make, staged: bool) -> None:
    jetson = make("jp6-0005")
    jetson.write(
        "/etc/systemd/system/f5-clocks.timer",
        "[Timer]\nOnBootSec=30\n[Install]\nWantedBy=timers.target multi-user.target\n",
    )
    link = jetson.root / "etc/systemd/system/timers.target.wants/f5-clocks.timer"
    where = [f"--root={jetson.root}"] if staged else ["--now"]
    box = jetson.box()
    assert run(box, "systemctl", "is-enabled", "f5-clocks.timer") == (1, ["disabled"])
    assert run(box, "systemctl", *where, "enable", "f5-clocks.timer")[0] == 0
    assert str(link.readlink()) == "/etc/systemd/system/f5-clocks.timer"
    assert (link.parent.parent / "multi-user.target.wants/f5-clocks.timer").is_symlink()
    assert run(box, "systemctl", "is-enabled", "f5-clocks.timer") == (0, ["enabled"])
    assert run(box, "systemctl", "is-active", "f5-clocks.timer")[0] == (3 if staged else 0)
    assert run(box, "systemctl", *where, "disable", "f5-clocks.timer")[0] == 0
    assert not link.is_symlink()
    assert run(box, "systemctl", "enable", "f5-nothing.timer")[0] == 1


def test_asking_for_a_reboot_is_counted_and_calls_are_kept(make: Make) -> None:
    jetson = make("jp6-0005")
    run(jetson.box(), "systemctl", "reboot")
    assert jetson.reboots == 1
    assert jetson.calls() == jetson.calls("systemctl") == ["systemctl reboot"]


def test_the_journal_is_chosen_by_unit_identifier_and_time(make: Make) -> None:
    jetson = make("jp6-0005")
    now = seconds_since_boot()
    jetson.journal("tech : COMMAND=/usr/sbin/nvpmodel -m 2", identifier="sudo", at=now - 20, pid=4711)
    jetson.journal("old", identifier="sudo", at=now - 4000)
    jetson.journal("tegra-xudc: cable", identifier="kernel", at=now - 10)
    box = jetson.box()
    assert run(box, "journalctl", "-q", "-t", "sudo", "--since=-90s")[1][0].endswith(
        "ward-7-box sudo[4711]: tech : COMMAND=/usr/sbin/nvpmodel -m 2"
    )
    assert run(box, "journalctl", "_COMM=sudo", "-o", "cat")[1][0] == "old"
    assert run(box, "journalctl", "-k", "-o", "cat", "--since", f"@{time.time() - 60:.0f}")[1] == [
        "tegra-xudc: cable"
    ]
    assert run(box, "journalctl", "-u", "nvpmodel.service")[1] == ["-- No entries --"]
    jetson.boot()
    assert run(box, "journalctl", "-q", "-b", "-t", "sudo")[1] == []


@pytest.mark.parametrize(
    ("kind", "code", "told"),
    [
        ("absent", 1, "ModuleNotFoundError: No module named 'jtop'"),
        ("inactive", 1, "The jtop.service is not active. Please run:\nsudo jtop --install-service"),
        ("green", 0, "True True MAXN"),
    ],
)
def test_jtop_is_absent_off_or_green_whatever_the_box_does(
    make: Make, kind: str, code: int, told: str
) -> None:
    folder = make("jp6-0005").jtop(kind)
    program = "from jtop import jtop\nwith jtop() as j: print(j.ok(), bool(j.jetson_clocks), j.nvpmodel)\n"
    ran = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == code
    assert told in ran.stdout + ran.stderr
