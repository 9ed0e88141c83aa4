"""The technician's page: every command on it is run, in its order, on a fake box beside a real daemon."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scripts.installer.source import Source
from tests.daemons import Running, reference_wav, running
from tests.fakes.jetson import Jetson
from tests.install import small

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "systemd" / "README.md").read_text("utf-8")
PROGRAMS = ("sudo ", "f5-", "systemctl ", "journalctl ", "appliance ", "scripts/", "tar ")
ELSEWHERE = {
    "scripts/make-offline-bundle --out f5-offline": "real wheels: tests/install/test_offline.py runs it",
    "systemctl edit f5-appliance": "opens an editor",
}
"""Commands on the page that are not run here, and why."""
JUDGES = ("f5-health", "f5-clock-lock status", "--allow-reboot", "appliance check", "systemctl status")
"""Their exit status tells what they found."""
PYTHON = shlex.quote(sys.executable)
SUDO = f"""\
case "$1" in
scripts/install) shift; exec {PYTHON} -I scripts/install --python {PYTHON} "$@" ;;
scripts/*) exec {PYTHON} -I "$@" ;;
esac
exec "$@"
"""
COMMANDS = ("f5-clock-lock", "f5-health", "f5-support-bundle", "f5-switch", "f5-uninstall")
CONFIG = "/etc/f5-appliance/appliance.yaml"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="not root: an install gives files to root and to a user"),
    pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not installed"),
]


def in_blocks() -> list[str]:
    """The lines of the page's shell blocks, in order."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


def in_text() -> list[str]:
    """The commands in its tables and sentences."""
    text = re.sub(r"^```.*?^```", "", PAGE, flags=re.DOTALL | re.MULTILINE)
    found = dict.fromkeys(" ".join(words.split()) for words in re.findall(r"`([^`]+)`", text))
    return [words for words in found if words.startswith(PROGRAMS) and " " in words]


class Place:
    """A box as flashed; a checkout, wheels and a bundle on it; and a daemon that speaks."""

    def __init__(self, folder: Path, daemon: Running) -> None:
        self.jetson = Jetson(folder / "jetson", "jp6-0005")
        self.jetson.unit("display-manager.service", SubState="running")
        self.daemon = daemon
        self.checkout = folder / "checkout"
        small.checkout(self.checkout)
        for name in ("appliance", "configs", "scripts", "systemd"):
            ignored = shutil.ignore_patterns("__pycache__", "requirements", "demo")
            shutil.copytree(ROOT / name, self.checkout / name, ignore=ignored, dirs_exist_ok=True)
        self.bring("0.9.0")
        shutil.copytree(ROOT / "tests" / "tiny" / "bundle", self.checkout / "bundle")
        (self.checkout / "anna.wav").write_bytes(reference_wav())
        self.shims = folder / "shims"
        self._put_commands()

    def bring(self, version: str) -> None:
        """This checkout under some version, and wheels of which one finds the packages of these tests."""
        (self.checkout / "pyproject.toml").write_text(
            f'[project]\nname = "f5-appliance"\nversion = "{version}"\n'
        )
        packages = {"tinylib.pth": f"{sysconfig.get_paths()['purelib']}\n".encode()}
        shutil.rmtree(self.checkout / "f5-offline", ignore_errors=True)
        small.offline(self.checkout / "f5-offline", Source(self.checkout), library=packages)

    def _put_commands(self) -> None:
        self.shims.mkdir()
        root = shlex.quote(str(self.jetson.root))
        scripts = {"sudo": SUDO, "appliance": f'exec {PYTHON} -m appliance "$@"'}
        for name in COMMANDS:
            # Where the link in /usr/local/sbin leads inside the tree.
            scripts[name] = f'exec {PYTHON} -I {root}"$(readlink {root}/usr/local/sbin/{name})" "$@"'
        for name, script in scripts.items():
            path = self.shims / name
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run a line in the checkout, as a technician's shell would; the daemon is another than the box's."""
        if command.startswith(("appliance voices", "appliance say")):
            command += f" --address {self.daemon.address}"
        if command.startswith("sudo appliance check"):
            command = command.replace(CONFIG, str(self.daemon.folder / "config.yaml"))
        path = f"{self.shims}:{self.jetson.bin}:{os.environ['PATH']}"
        environment = {**os.environ, **self.jetson.environment, "PATH": path, "PYTHONPATH": str(ROOT)}
        return subprocess.run(
            ["sh", "-c", command],
            cwd=self.checkout,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def must_run(self, command: str) -> str:
        """Run a line of the page; what it printed."""
        ran = self.run(command)
        told = f"{command}: {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        judges = any(judge in command for judge in JUDGES)
        assert ran.returncode == 0 or judges, told
        assert ran.stdout.strip() or not judges, told
        assert "Traceback" not in told, told
        return ran.stdout

    @property
    def state(self) -> str:
        """Of the clocks."""
        return str(json.loads(self.run("sudo f5-clock-lock status --json").stdout)["state"])

    def another_release(self) -> None:
        """Install a second one."""
        self.bring("0.9.1")
        ran = self.run("sudo scripts/install --offline f5-offline")
        assert ran.returncode == 0, ran.stdout + ran.stderr

    def reboot(self) -> None:
        """As the box does once it was asked to, f5-clocks.service included."""
        assert self.jetson.reboots == 1
        self.jetson.boot()
        assert self.run("sudo f5-clock-lock lock").returncode == 0
        assert self.state == "pinned"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "daemon").mkdir()
    with running(tmp_path / "daemon") as daemon:
        yield Place(tmp_path, daemon)


def test_the_page_from_top_to_bottom(place: Place) -> None:
    jetson = place.jetson
    flashed = jetson.snapshot()
    lines = in_blocks()
    cut = lines.index("sudo f5-uninstall --dry-run")
    # What the tables say is tried on the installed box, before it is taken away again.
    for command in (*lines[:cut], *in_text(), *lines[cut:]):
        if command in ELSEWHERE:
            continue
        if command == "sudo f5-switch list":
            place.another_release()
        printed = place.must_run(command)
        if command.startswith("sudo scripts/install") and command.endswith("--dry-run"):
            assert jetson.snapshot() == flashed, "a dry run changed the box"
        elif command.endswith("--allow-reboot") and place.state != "pinned":
            place.reboot()
        elif command in PROOFS:
            assert PROOFS[command](place, printed), (command, printed)


PROOFS: dict[str, Callable[[Place, str], bool]] = {
    "sudo f5-clock-lock status": lambda place, printed: place.state in printed,
    "sudo f5-clock-lock unlock": lambda place, _: place.state == "unpinned",
    "sudo f5-clock-lock lock": lambda place, _: place.state == "pinned",
    "sudo f5-switch back": lambda _, printed: "0.9.0 runs" in printed,
    "sudo tar -tzf support.tar.gz": lambda _, printed: "INDEX" in printed,
    "sudo f5-uninstall": lambda place, _: (
        not place.jetson.path("/opt/f5-appliance").exists()
        and place.jetson.path("/var/lib/f5-appliance/bundle/manifest.yaml").is_file()
    ),
}
"""What must be true after a command."""


def test_what_is_proved_and_what_is_left_out_is_on_the_page() -> None:
    assert {*PROOFS, *ELSEWHERE} <= {*in_blocks(), *in_text()}
