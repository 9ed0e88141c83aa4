"""The package's life in a Debian 12 of its own: install, speech, a broken upgrade, power cuts, purge."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = os.environ.get("F5_DEBIAN_SOURCES", "/etc/apt/sources.list.d/debian.sources")
INCLUDED = "python3,systemd,init-system-helpers,procps"
CONFIG = "etc/f5-appliance/appliance.yaml"
CUTS = 10
LEFT = {"etc/group-", "etc/gshadow-", "etc/passwd-", "etc/shadow-"}
"""What a purge may leave: copies that the programs for users make of their files."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.packaging,
    pytest.mark.skipif(os.geteuid() != 0, reason="not root: a chroot is made and entered"),
    pytest.mark.skipif(not shutil.which("mmdebstrap"), reason="mmdebstrap is not installed"),
    pytest.mark.skipif(not Path(SOURCES).is_file(), reason=f"no {SOURCES}: name one in F5_DEBIAN_SOURCES"),
]


def run(*command: object, timeout: float = 600.0) -> str:
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=timeout)
    assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


class Chroot:
    """Debian's smallest system with Python and systemd's programs; systemd itself does not run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *command: str) -> str:
        return run("chroot", self.folder, *command)

    def fails(self, *command: str) -> str:
        ran = subprocess.run(
            ["chroot", str(self.folder), *command], capture_output=True, text=True, timeout=600
        )
        assert ran.returncode == 1, ran.stdout + ran.stderr
        return ran.stderr

    def files(self) -> set[str]:
        """Every path but those of the kernel, and of what dpkg and systemd's helpers note for themselves."""
        left_out = ("proc", "dev", "root", "tmp", "var/log", "var/lib/dpkg", "var/cache/ldconfig", "run")
        # os.walk passes over processes that end while /proc is read.
        found = (
            os.path.relpath(os.path.join(folder, name), self.folder)
            for folder, folders, files in os.walk(self.folder)
            for name in (*folders, *files)
        )
        return {path for path in found if not path.startswith(left_out)}

    def speaks(self) -> None:
        self.run("appliance", "say", "Hello from the package.", "--voice", "slt", "--out", "/root/said.wav")
        with wave.open(str(self.folder / "root/said.wav")) as said:
            assert said.getnframes() > said.getframerate() / 2
            assert any(said.readframes(said.getnframes()))

    @property
    def state(self) -> str:
        return self.run("dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", "f5-appliance")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For Debian 12's Python."""
    out = tmp_path_factory.mktemp("package")
    script = ROOT / "scripts/build-deb"
    run(sys.executable, script, "--python", "3.11", "--arch", "amd64", "--out", out, "--with", sys.executable)
    [made] = out.glob("*.deb")
    return made


@pytest.fixture(scope="module")
def broken(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A later version whose daemon ends when it starts."""
    folder = tmp_path_factory.mktemp("broken")
    run("dpkg-deb", "-R", package, folder / "root")
    control = folder / "root/DEBIAN/control"
    control.write_text(control.read_text().replace("\nVersion: ", "\nVersion: 9+"))
    (folder / "root/usr/lib/f5-appliance/appliance/daemon.py").write_text("raise SystemExit(70)\n")
    run("dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "-b", folder / "root", folder / "broken.deb")
    return folder / "broken.deb"


@pytest.fixture
def chroot(tmp_path: Path, package: Path, broken: Path) -> Iterator[Chroot]:
    folder = tmp_path / "debian"
    run("mmdebstrap", "--variant=minbase", f"--include={INCLUDED}", "bookworm", folder, SOURCES)
    shutil.copy(ROOT / "tests/debian/systemctl", folder / "usr/local/bin/systemctl")
    shutil.copy(package, folder / "root/good.deb")
    shutil.copy(broken, folder / "root/broken.deb")
    run("mount", "-t", "proc", "proc", folder / "proc")
    run("mount", "--bind", "/dev", folder / "dev")
    made = Chroot(folder)
    try:
        yield made
    finally:
        (folder / "run/systemd/system").mkdir(parents=True, exist_ok=True)
        subprocess.run(["chroot", str(folder), "systemctl", "stop", "f5-appliance.service"], timeout=60)
        run("umount", folder / "proc", folder / "dev")


def test_a_life(chroot: Chroot) -> None:
    before = chroot.files()
    users = (chroot.folder / "etc/passwd").read_text()
    chroot.run("dpkg", "-i", "/root/good.deb")
    units = sorted(
        path.name for path in (ROOT / "systemd").iterdir() if path.suffix in (".service", ".timer")
    )
    run("systemd-analyze", "verify", f"--root={chroot.folder}", "--man=no", "--recursive-errors=no", *units)
    (chroot.folder / "run/systemd/system").mkdir(parents=True)
    chroot.run("systemctl", "start", "f5-appliance.service")
    chroot.speaks()
    good = chroot.state

    config = chroot.folder / CONFIG
    config.write_text(config.read_text() + "# The operator was here.\n")
    complaint = chroot.fails("f5-upgrade", "/root/broken.deb")
    assert "is not well" in complaint and "is back and speaks" in complaint
    assert chroot.state == good
    assert config.read_text().endswith("# The operator was here.\n")
    chroot.speaks()

    chroot.run("f5-upgrade", "/root/good.deb")
    chroot.run("f5-upgrade", "--back")
    chroot.speaks()

    chroot.run("systemctl", "stop", "f5-appliance.service")
    chroot.run("dpkg", "--remove", "f5-appliance")
    assert (chroot.folder / "var/lib/f5-appliance/voices/slt/audio").is_file()
    assert not (chroot.folder / "usr/lib/f5-appliance").exists()
    chroot.run("dpkg", "--purge", "f5-appliance")
    # Bytecode of the system's own Python is not the package's.
    left = {path for path in chroot.files() - before if "__pycache__" not in path}
    assert left <= LEFT, left - LEFT
    assert (chroot.folder / "etc/passwd").read_text() == users


def test_power_cuts(chroot: Chroot) -> None:
    """dpkg killed at ten moments, spread over the time that an install takes."""
    started = time.monotonic()
    chroot.run("dpkg", "-i", "/root/good.deb")
    whole_s = time.monotonic() - started
    moments = random.Random(17)
    for cut in range(CUTS):
        command = ["chroot", str(chroot.folder), "dpkg", "-i", "/root/good.deb"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              start_new_session=True) as dpkg:  # fmt: skip
            try:
                dpkg.wait(whole_s * (cut + moments.random()) / CUTS)
            except subprocess.TimeoutExpired:
                os.killpg(dpkg.pid, signal.SIGKILL)
        subprocess.run(["chroot", str(chroot.folder), "dpkg", "--configure", "-a"], capture_output=True)
        if not chroot.state.startswith("installed "):
            # Cut off while it was unpacking: dpkg itself asks for the package again.
            chroot.run("dpkg", "-i", "/root/good.deb")
        assert chroot.state.startswith("installed ")
        assert chroot.run("dpkg", "--verify", "f5-appliance") == ""
    (chroot.folder / "run/systemd/system").mkdir(parents=True)
    chroot.run("systemctl", "start", "f5-appliance.service")
    chroot.speaks()


@pytest.mark.skipif(not shutil.which("lintian"), reason="lintian is not installed")
def test_lintian_finds_no_error(package: Path) -> None:
    run("lintian", "--fail-on", "error", "--allow-root", package)
