"""Our units under a real systemd, booted in namespaces; their programs are stand-ins that write a line."""

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness.patience import PATIENCE_S, until
from tests.systemd.namespaces import NEEDS_SYSTEMD, SYSTEMD, booting
from tests.systemd.staging import SOURCE, SYSTEM_UNITS

EMPTY = ("sysinit.target", "basic.target", "shutdown.target", "network.target")
"""Empty targets, so that nothing of this machine starts."""
HERE = Path(__file__).parent
BOOT = (HERE / "boot.sh").read_text("utf-8")
DROP_INS = {
    "nvpmodel.service": "[Service]\nExecStart=\nExecStart=/bin/sh -c 'echo nvpmodel >> /run/test/log'\n",
    "f5-clocks.service": "[Unit]\nConditionPathExists=\n",
    "f5-appliance.service": (HERE / "f5-appliance.conf").read_text("utf-8"),
}
"""Changes for the test: programs, and the time between starts."""

pytestmark = NEEDS_SYSTEMD


@dataclass(frozen=True)
class Booted:
    pid: int

    def systemctl(self, *words: str) -> str:
        command = ["nsenter", "--mount", "--pid", "--target", str(self.pid), "systemctl", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S).stdout.strip()

    def lines(self, name: str) -> list[str]:
        path = Path(f"/proc/{self.pid}/root/run/test/{name}")
        return path.read_text().splitlines() if path.exists() else []

    def write(self, name: str, text: str) -> None:
        Path(f"/proc/{self.pid}/root/run/test/{name}").write_text(text)

    def show(self, unit: str, key: str) -> str:
        return self.systemctl("show", "--value", "-p", key, unit)


def stage(units: Path) -> None:
    units.mkdir()
    shutil.copy(HERE / "f5-clock-lock.sh", units.parent / "f5-clock-lock")
    (units.parent / "f5-clock-lock").chmod(0o755)
    for name in EMPTY:
        (units / name).write_text("[Unit]\nDefaultDependencies=no\n")
    shutil.copy(SYSTEM_UNITS / "multi-user.target", units)
    (units / "nvpmodel.service").write_text("[Unit]\nDescription=A stand-in\n[Service]\nType=oneshot\n")
    wants = units / "multi-user.target.wants"
    wants.mkdir()
    for name, text in DROP_INS.items():
        (units / f"{name}.d").mkdir()
        if name != "nvpmodel.service":
            unit = (SOURCE / name).read_text()
            (units / name).write_text(unit.replace("/usr/bin/f5-clock", "/run/test/f5-clock"))
        else:
            shutil.copy(SOURCE / f"{name}.d/f5-appliance.conf", units / f"{name}.d")
        (units / f"{name}.d/test.conf").write_text(text)
    for name in ("nvpmodel.service", "f5-clocks.service"):
        (wants / name).symlink_to(f"../{name}")


@pytest.fixture
def booted(tmp_path: Path) -> Iterator[Booted]:
    stage(tmp_path / "units")
    with booting(BOOT, units=tmp_path / "units", system=SYSTEM_UNITS, systemd=SYSTEMD) as pid:

        def is_up() -> bool:
            if pid() < 0:
                pytest.skip("systemd does not boot in a namespace here")
            return pid() > 0 and Booted(pid()).systemctl("is-system-running") in ("running", "degraded")

        until(is_up)
        yield Booted(pid())


def test_clocks_are_pinned_once_at_boot_and_again_when_nvpmodel_has_run_again(booted: Booted) -> None:
    assert booted.lines("log") == ["nvpmodel", "lock"]
    assert booted.show("f5-clocks.service", "ActiveState") == "active", "a pending reboot (3) is no failure"
    booted.systemctl("restart", "nvpmodel.service")
    again = ["nvpmodel", "lock", "nvpmodel", "lock --unless-unlocked"]
    until(lambda: booted.lines("log") == again, lambda: str(booted.lines("log")))


def test_a_shutdown_is_noted_however_the_pin_ended(booted: Booted) -> None:
    """systemd runs no ExecStop of a failed unit."""
    for status in ("4", "0", "1"):
        booted.write("clocks", status)
        booted.systemctl("restart", "f5-clocks.service")
        assert booted.show("f5-clocks.service", "ActiveState") == "active", status
    # systemd does not reload a failed unit either, when nvpmodel has run again.
    booted.systemctl("restart", "nvpmodel.service")
    until(lambda: booted.lines("log")[-1] == "lock --unless-unlocked")
    booted.systemctl("start", "--no-block", "shutdown.target")
    until(lambda: booted.lines("log")[-1] == "end", lambda: str(booted.lines("log")))


def test_the_daemon_restarts_forever_except_after_errors_of_an_operator(booted: Booted) -> None:
    booted.systemctl("start", "--no-block", "f5-appliance.service")
    until(lambda: len(booted.lines("starts")) > 12)
    booted.write("status", "78")
    until(lambda: booted.show("f5-appliance.service", "ActiveState") == "failed")
    starts = len(booted.lines("starts"))
    # The start works at once, without reset-failed: there is no limit for an operator to lift.
    booted.systemctl("start", "f5-appliance.service")
    until(lambda: len(booted.lines("starts")) == starts + 1)
    until(lambda: booted.show("f5-appliance.service", "ActiveState") == "failed")
