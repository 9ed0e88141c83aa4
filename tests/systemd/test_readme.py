"""The technician's page: its commands run in order on a fake box, next to a real daemon.

The box holds the package as dpkg-deb unpacks it, for the Python and machine of the tests. Commands that need
a real dpkg are run by tests/debian/test_chroot.py, which reads the same page.
"""

import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from appliance.engine.cases import FEMALE
from tests.debian.made import UNPACKED_PYTHON, needs_dpkg, package, run
from tests.fakes.jetson.board import Jetson
from tests.harness.daemons import Running, Shared, finished, reference_wav
from tests.harness.rows import rows
from tests.systemd.page import IN_THE_CHROOT, INSTALL, in_blocks, in_text

ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = dict(rows(__file__, "elsewhere.jsonl"))
"""Commands on the page that no test runs, with the reason."""
REPORTING = (
    *("f5-health", "f5-setup", "f5-clock-lock status", "--allow-reboot", "appliance check"),
    "systemctl status",
)
"""Commands whose exit status is a result, not an error."""
PYTHON = shlex.join(UNPACKED_PYTHON)
CONFIG = "/etc/f5-appliance/appliance.yaml"
WITHIN = 10
"""Most commands from a flashed box to speech, and to speech with the operator's voice."""

pytestmark = [
    pytest.mark.once,
    needs_dpkg,
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="not root: folders are given to the daemon's user"),
    pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not installed"),
]


class Place:
    def __init__(self, folder: Path, daemon: Running, deb: Path) -> None:
        self.jetson = Jetson(folder / "jetson", "jp6-0005")
        self.jetson.unit("display-manager.service", SubState="running")
        self.daemon, self.deb = daemon, deb
        self.home = folder / "home"
        self.home.mkdir()
        (self.home / "anna.wav").write_bytes(reference_wav())
        self.shims = folder / "shims"
        self.shims.mkdir()
        self._shim("sudo", 'exec "$@"')

    def _shim(self, name: str, script: str) -> None:
        (self.shims / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.shims / name).chmod(0o755)

    def install(self) -> None:
        """Act as apt does: unpack, and run the parts of postinst that work in a tree."""
        root = self.jetson.root
        run("dpkg-deb", "-x", self.deb, root)
        run("systemd-sysusers", f"--root={root}", "f5-appliance.conf")
        run("systemd-tmpfiles", f"--root={root}", "--create", "f5-appliance.conf")
        for command in root.glob("usr/bin/*"):
            if command.name == "appliance" or command.name.startswith("f5-"):
                self._shim(command.name, f'exec {PYTHON} {command} "$@"')
        record = root / "usr/lib/f5-appliance/scripts/record-install"
        ran = self.run(f"{PYTHON} {record} {run('dpkg-deb', '-f', self.deb, 'Version').strip()}")
        assert ran.returncode == 0, ran.stderr
        self.daemon.add_voice(FEMALE)

    def run(self, command: str) -> CompletedProcess[str]:
        """Run a line in a shell with the address of the running daemon."""
        if command.startswith(("appliance voices", "appliance say", "appliance queue")):
            command += f" --address {self.daemon.address}"
        if command.startswith("sudo appliance check"):
            command = command.replace(CONFIG, str(self.daemon.folder / "config.yaml"))
        path = f"{self.shims}:{self.jetson.bin}:{os.environ['PATH']}"
        return finished("sh", "-c", command, cwd=self.home, **self.jetson.environment, PATH=path)

    def must_run(self, command: str) -> str:
        """Run a line of the page and return its output."""
        ran = self.run(command)
        output = f"{command}: {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        reports = any(words in command for words in REPORTING)
        assert ran.returncode == 0 or reports, output
        assert ran.stdout.strip() or not reports, output
        assert "Traceback" not in output, output
        return ran.stdout

    @property
    def state(self) -> str:
        return str(json.loads(self.run("sudo f5-clock-lock status --json").stdout)["state"])

    def reboot(self) -> None:
        """Reboot the box, and run f5-clocks.service."""
        assert self.jetson.reboots == 1
        self.jetson.boot()
        assert self.run("sudo f5-clock-lock lock").returncode == 0
        assert self.state == "pinned"


@pytest.fixture
def place(shared_box: Shared, tmp_path: Path) -> Place:
    return Place(tmp_path, shared_box, package())


@pytest.mark.thorough
def test_the_page_from_top_to_bottom(place: Place) -> None:
    proved = set()
    blocks = in_blocks()
    # Commands in tables and sentences come last, unless a block has them too, perhaps with more words.
    others = (words for words in in_text() if not any(line.startswith(words) for line in blocks))
    for command in (*blocks, *others):
        if command == INSTALL:
            place.install()
        elif command not in {*ELSEWHERE, *IN_THE_CHROOT}:
            printed = place.must_run(command)
            if command == "sudo f5-setup" and place.state != "pinned":
                place.reboot()
            elif command in PROOFS:
                assert PROOFS[command](place, printed), (command, printed)
                proved.add(command)
    assert proved == set(PROOFS)
    installed = json.loads(place.jetson.read("/var/lib/f5-appliance/installed.json"))
    assert (installed["l4t"], installed["module"]) == ("36.4.3", "p3701-0005")


def named(findings: str, check: str) -> dict[str, str]:
    found: dict[str, str] = next(f for f in json.loads(findings)["findings"] if f["check"] == check)
    return found


PROOFS: dict[str, Callable[[Place, str], bool]] = {
    "sudo f5-clock-lock status": lambda place, printed: place.state in printed,
    "sudo f5-clock-lock unlock": lambda place, _: place.state == "unpinned",
    "sudo f5-clock-lock lock": lambda place, _: place.state == "pinned",
    "f5-health --json": lambda _, printed: named(printed, "versions")["level"] == "PASS",
    'appliance say "Hello, chat." --voice anna --out hello.wav': lambda place, _: (
        (place.home / "hello.wav").stat().st_size > 10_000
    ),
    "sudo apt install libespeak-ng1": lambda place, _: (
        place.jetson.calls("apt")[-1:] == ["apt install libespeak-ng1"]
    ),
    "sudo tar -tzf support.tar.gz": lambda _, printed: "INDEX" in printed,
}
"""Condition that must hold after a command."""


def test_untested_commands_are_on_the_page() -> None:
    assert {*PROOFS, *ELSEWHERE, *IN_THE_CHROOT} <= {*in_blocks(), *in_text()}


def test_few_commands_lead_from_a_flashed_box_to_speech() -> None:
    commands = in_blocks()
    spoken = [number for number, command in enumerate(commands, 1) if command.startswith("appliance say")]
    assert spoken[1] < WITHIN
