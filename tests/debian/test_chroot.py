"""The package's life in a separate Debian 12: install, speech, upgrades, power cuts, purge.

The test runs the commands of the technician's page unchanged.
"""

import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
import wave
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.engine.cases import FEMALE, MALE
from tests.debian import made
from tests.debian.made import NEEDS_DEBIAN, built, repacked, run
from tests.harness.daemons import finished
from tests.harness.patience import PATIENCE_S
from tests.systemd.page import BACK, BUILD, IN_THE_CHROOT, INSTALL, KEPT, PURGE, REMOVE, UPGRADE, in_blocks

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "etc/f5-appliance/appliance.yaml"
GOOD, LATER_DEB = (f"/root/{line.rpartition('/')[2]}" for line in (INSTALL, UPGRADE))
TIMER = "usr/lib/systemd/system/f5-guard.timer"
NVIDIAS = "nvidia-l4t-core"
CUTS = 10
LATER = "# A later default.\n"
LEFT = {"etc/group-", "etc/gshadow-", "etc/passwd-", "etc/shadow-"}
"""Files that a purge may leave: backup copies by the programs that create users."""

pytestmark = [
    pytest.mark.once,
    *NEEDS_DEBIAN,
    pytest.mark.packaging,
    pytest.mark.skipif(os.geteuid() != 0, reason="not root: a chroot is made and entered"),
]


class Chroot:
    """Debian's smallest system with Python and systemd's programs; systemd itself does not run in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.of_the_page: set[str] = set()

    def page(self, line: str) -> str:
        """Run a line of the page in root's home, which holds the packages under the page's names, and answer
        yes."""
        assert line in in_blocks()
        self.of_the_page.add(line)
        return self.run("sh", "-c", f"cd /root && yes | DEBIAN_FRONTEND=noninteractive {line[5:]}")

    def run(self, *command: str) -> str:
        return run("chroot", self.folder, *command)

    def dpkg(self, *arguments: str) -> str:
        """Run dpkg; return stdout and stderr together."""
        return self.run("sh", "-c", 'exec dpkg "$@" 2>&1', "sh", *arguments)

    def boot(self) -> None:
        (self.folder / "run/systemd/system").mkdir(parents=True)
        self.run("systemctl", "start", "f5-appliance.service")

    def fails(self, *command: str) -> str:
        ran = finished("chroot", self.folder, *command, patience_s=5 * PATIENCE_S)
        assert ran.returncode == 1, ran.stdout + ran.stderr
        return ran.stderr

    def files(self) -> set[str]:
        """Every path except the kernel's and the records of apt, dpkg and systemd's helpers."""
        left_out = ("proc", "dev", "root", "tmp", "run", "var/log", "var/cache/ldconfig",
                    *("var/cache/apt", "var/lib/apt", "var/lib/dpkg"))  # fmt: skip
        # os.walk ignores processes that end while it reads /proc.
        found = (
            os.path.relpath(os.path.join(folder, name), self.folder)
            for folder, folders, files in os.walk(self.folder)
            for name in (*folders, *files)
        )
        return {path for path in found if not path.startswith(left_out)}

    def speaks(self) -> None:
        self.run("appliance", "say", "Hello from the package.", "--voice", FEMALE, "--out", "/root/said.wav")
        with wave.open(str(self.folder / "root/said.wav")) as said:
            assert said.getnframes() > said.getframerate() / 2
            assert any(said.readframes(said.getnframes()))

    @property
    def state(self) -> str:
        return self.run("dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", "f5-appliance")


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    run("mount", "-t", "tmpfs", "-o", options, "tmpfs", folder)
    try:
        yield
    finally:
        run("umount", folder)


@pytest.fixture(scope="module")
def package() -> Path:
    """The package for Debian 12's Python."""
    return built("--python", "3.11", "--arch", "amd64")


@pytest.fixture(scope="module")
def later(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A later version, which ships another configuration."""
    out = tmp_path_factory.mktemp("later") / "later.deb"
    with repacked(package, "9", out) as root:
        (root / CONFIG).write_text((root / CONFIG).read_text() + LATER)
        shipped = root / "usr/lib/f5-appliance/configs/appliance.yaml"
        shutil.copy(root / CONFIG, shipped)
        sums = root / "DEBIAN/md5sums"
        name = shipped.relative_to(root)
        new = hashlib.md5(shipped.read_bytes()).hexdigest()
        sums.write_text(re.sub(rf"^\w+(?=  {name}$)", new, sums.read_text(), flags=re.MULTILINE))
    return out


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.debian(tmp_path_factory.mktemp("fresh") / "debian")


@pytest.fixture
def chroot(tmp_path: Path, debian: Path, package: Path, later: Path) -> Iterator[Chroot]:
    folder = tmp_path / "debian"
    run("cp", "-a", debian, folder)
    # /usr/local would not do: apt runs a package's scripts with a PATH that lacks it.
    shutil.copy(ROOT / "tests/debian/systemctl", folder / "usr/bin/systemctl")
    for deb, place in ((package, GOOD), (later, LATER_DEB)):
        shutil.copy(deb, folder / place[1:])
    run("mount", "-t", "proc", "proc", folder / "proc")
    run("mount", "--bind", "/dev", folder / "dev")
    made = Chroot(folder)
    try:
        yield made
    finally:
        (folder / "run/systemd/system").mkdir(parents=True, exist_ok=True)
        finished("chroot", folder, "systemctl", "stop", "f5-appliance.service")
        run("umount", folder / "proc", folder / "dev")


def test_a_life(chroot: Chroot) -> None:
    before = chroot.files()
    users = (chroot.folder / "etc/passwd").read_text()
    chroot.page(INSTALL)
    installed = json.loads((chroot.folder / "var/lib/f5-appliance/installed.json").read_text())
    assert (installed["l4t"], installed["version"]) == ("", chroot.state.split()[1])
    chroot.boot()
    chroot.speaks()
    good = chroot.state

    config = chroot.folder / CONFIG
    mine = config.read_text() + "# The operator was here.\n"
    config.write_text(mine)
    chroot.page(UPGRADE)
    assert chroot.state.startswith("installed 9+")
    assert config.read_text() == mine
    assert config.with_suffix(".yaml.dpkg-dist").read_text().endswith(LATER)
    assert chroot.page(KEPT).split()[::2] == ["now", "before"]
    chroot.page(BACK)
    assert chroot.state == good and config.read_text() == mine
    chroot.speaks()

    # If dpkg installs the package instead of f5-upgrade, it asks; N, the default, keeps the operator's file.
    shown = chroot.run("sh", "-c", f"echo N | dpkg -i {LATER_DEB} 2>&1")
    assert "Configuration file '/etc/f5-appliance/appliance.yaml'" in shown
    assert config.read_text() == mine

    chroot.page(REMOVE)
    assert (chroot.folder / f"var/lib/f5-appliance/voices/{FEMALE}/audio").is_file()
    assert config.read_text() == mine
    assert not (chroot.folder / "usr/lib/f5-appliance").exists()
    assert not (chroot.folder / "var/lib/f5-appliance/installed.json").exists()
    chroot.page(PURGE)
    # Bytecode of the system's Python does not belong to the package.
    left = {path for path in chroot.files() - before if "__pycache__" not in path}
    assert left <= LEFT, left - LEFT
    assert (chroot.folder / "etc/passwd").read_text() == users
    assert chroot.of_the_page == IN_THE_CHROOT - {BUILD}


def test_a_package_without_its_folder_can_be_installed_and_removed(chroot: Chroot) -> None:
    """An operator who frees space, or fsck, may remove the folder."""
    for command in (("-i", GOOD), ("-i", GOOD), ("-P", "f5-appliance")):
        chroot.dpkg(*command)
        shutil.rmtree(chroot.folder / "usr/lib/f5-appliance", ignore_errors=True)


def test_purge_undoes_f5_quiet_but_for_holds_and_says_how(chroot: Chroot) -> None:
    """apt-mark needs dpkg's lock, which dpkg holds during the purge."""
    control = chroot.folder / "root/nvidia/DEBIAN/control"
    control.parent.mkdir(parents=True)
    control.write_text(f"Package: {NVIDIAS}\nVersion: 1\nArchitecture: all\nMaintainer: m\nDescription: d\n")
    chroot.run("dpkg-deb", "-b", "/root/nvidia", "/root/nvidia.deb")
    units = chroot.folder / "etc/systemd/system"
    (units / "default.target").symlink_to("/lib/systemd/system/graphical.target")
    before = {path.name: os.readlink(path) for path in units.iterdir() if path.is_symlink()}
    chroot.dpkg("-i", "/root/nvidia.deb", GOOD)
    chroot.run("f5-quiet")
    assert os.readlink(units / "suspend.target") == "/dev/null"
    undo = f"sudo apt-mark unhold {NVIDIAS}"
    assert undo in chroot.dpkg("-P", "f5-appliance").splitlines()[-1]
    assert {path.name: os.readlink(path) for path in units.iterdir() if path.is_symlink()} == before
    assert os.listdir(chroot.folder / "var/lib/f5-appliance") == ["quiet.json"]
    chroot.run(*undo.split()[1:])
    chroot.dpkg("-i", GOOD)
    assert "quiet" not in chroot.dpkg("-P", "f5-appliance"), "nothing is held any more"
    assert not (chroot.folder / "var/lib/f5-appliance").exists()


def test_files_excluded_or_diverted_on_purpose_are_no_damage(chroot: Chroot) -> None:
    rules = f"path-exclude=/usr/share/doc/*\npath-include=*/copyright\npath-exclude /{TIMER}\n"
    (chroot.folder / "etc/dpkg/dpkg.cfg.d/excludes").write_text(rules)
    chroot.run("dpkg-divert", "--rename", "--divert", "/usr/bin/f5-own", "--add", "/usr/bin/f5-health")
    (chroot.folder / "usr/bin/f5-health").write_text(own := "#!/bin/sh\n# The operator's.\n")
    chroot.dpkg("-i", GOOD)
    for place in ("usr/lib/f5-appliance", "etc/f5-appliance"):
        (chroot.folder / "srv" / place).parent.mkdir(parents=True)
        shutil.move(chroot.folder / place, chroot.folder / "srv" / place)
        (chroot.folder / place).symlink_to(f"/srv/{place}")
    config = chroot.folder / "srv" / CONFIG
    config.write_text(mine := config.read_text() + "# The operator was here.\n")
    chroot.boot()
    needed = chroot.folder / "srv/usr/lib/f5-appliance/appliance/gateway/pages.py"
    needed.rename(aside := needed.with_suffix(".aside"))
    assert "damaged" in chroot.fails("f5-upgrade", LATER_DEB)
    aside.rename(needed)
    chroot.run("f5-upgrade", LATER_DEB)
    chroot.run("f5-upgrade", "--back")
    assert config.read_text() == mine and not (chroot.folder / TIMER).exists()
    assert (chroot.folder / "usr/bin/f5-health").read_text() == own
    chroot.speaks()


def test_another_python3_is_used_by_nothing(chroot: Chroot) -> None:
    """The other python3 lies in the place that update-alternatives uses."""
    python = chroot.folder / "usr/bin/python3"
    python.unlink()
    python.write_text("#!/bin/sh\necho of another version >&2\nexit 1\n")
    python.chmod(0o755)
    said = chroot.dpkg("-i", GOOD)
    assert "of another version" not in said and "not recorded" not in said
    chroot.boot()
    chroot.speaks()
    health = "f5-health --json --speak --only bundle,synthesis; [ $? -lt 2 ]"
    found = json.loads(chroot.run("sh", "-c", health))["findings"]
    assert {finding["check"] for finding in found} >= {"bundle", "synthesis"}
    chroot.dpkg("-P", "f5-appliance")


def test_an_operators_user_and_mount_stay_and_voices_that_did_not_fit_are_tried_again(chroot: Chroot) -> None:
    chroot.run("useradd", "--system", "f5-appliance")
    users = (chroot.folder / "etc/passwd").read_text()
    voices = chroot.folder / "var/lib/f5-appliance/voices"
    voices.mkdir(parents=True)
    with mounted(voices, "size=64k"):
        said = chroot.dpkg("-i", GOOD)
    assert "not all voices" in said and "Traceback" not in said
    chroot.dpkg("-i", GOOD)
    assert sorted(os.listdir(voices)) == sorted((FEMALE, MALE))
    shutil.rmtree(voices / FEMALE)
    chroot.dpkg("-i", GOOD)
    assert os.listdir(voices) == [MALE], "what an operator removes stays removed"
    with mounted(voices, "size=1m"):
        chroot.dpkg("-P", "f5-appliance")
    assert (chroot.folder / "etc/passwd").read_text() == users


def test_power_cuts(chroot: Chroot) -> None:
    """Kill dpkg at ten moments, spread over the time of an install."""
    started = time.monotonic()
    chroot.dpkg("-i", GOOD)
    whole_s = time.monotonic() - started
    moments = random.Random(17)
    for cut in range(CUTS):
        command = ["chroot", str(chroot.folder), "dpkg", "-i", GOOD]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                              start_new_session=True) as dpkg:  # fmt: skip
            try:
                dpkg.wait(whole_s * (cut + moments.random()) / CUTS)
            except subprocess.TimeoutExpired:
                os.killpg(dpkg.pid, signal.SIGKILL)
        subprocess.run(["chroot", str(chroot.folder), "dpkg", "--configure", "-a"], capture_output=True)
        if not chroot.state.startswith("installed "):
            # The cut came during the unpacking: dpkg wants the package again.
            chroot.dpkg("-i", GOOD)
        assert chroot.state.startswith("installed ")
        assert chroot.run("dpkg", "--verify", "f5-appliance") == ""
    chroot.boot()
    chroot.speaks()


@pytest.mark.skipif(not shutil.which("lintian"), reason="lintian is not installed")
def test_lintian_finds_no_error(package: Path) -> None:
    run("lintian", "--fail-on", "error", "--allow-root", package)
