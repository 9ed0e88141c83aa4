"""Packages: dpkg's record, the check of it, and every remedy that names apt, typed into the real one."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.box import dpkg, paths
from appliance.box.checks.finding import Level
from appliance.box.checks.fitness import MODULES
from appliance.box.checks.readiness import GPU_REMEDY
from appliance.box.checks.runner import run_checks
from appliance.box.clocks.reason import Reason
from appliance.box.root import Root
from tests.box.cases import CASES
from tests.box.test_remedies import TABLE, of_packages
from tests.conftest import GUARD
from tests.fakes.jetson.board import Clock, Jetson
from tests.fakes.jetson.profiles import DRIVERS
from tests.harness.boxes import quick, well
from tests.harness.patience import PATIENCE_S

pytestmark = pytest.mark.once

PASS, WARN, FAIL = Level.PASS, Level.WARN, Level.FAIL
KERNEL, CORE = "nvidia-l4t-kernel", "nvidia-l4t-core"
WALL = 1_795_000_000.0
"""Wall clock's time 600 s after the boot."""


def unpacked(at: float, name: str = KERNEL) -> Callable[[Jetson], object]:
    def arrange(jetson: Jetson) -> None:
        jetson.write(f"{paths.PACKAGE_INFO}/{name}.list", "/.\n")
        os.utime(jetson.path(f"{paths.PACKAGE_INFO}/{name}.list"), (at, at))

    return arrange


def state(words: str, *names: str) -> Callable[[Jetson], None]:
    return of_packages("hold ok installed", words, *names)


def owed(*names: str) -> Callable[[Jetson], object]:
    def arrange(jetson: Jetson) -> None:
        jetson.write(paths.REBOOT_REQUIRED, "*** System restart required ***\n")
        jetson.write(f"{paths.REBOOT_REQUIRED}.pkgs", "".join(f"{name}\n" for name in names))

    return arrange


def other_kernel_runs(jetson: Jetson) -> None:
    """Modules of 36.5.0 replace the modules of the running kernel, 36.4.3."""
    jetson.path("/lib/modules/5.15.148-tegra").rename(jetson.path("/lib/modules/5.15.185-tegra"))


def interrupted(jetson: Jetson) -> None:
    """A power cut: dpkg's journal, with its padding, has an entry that the status file lacks."""
    stanza = f"Package: {KERNEL}\nStatus: hold ok half-installed\nVersion: 5.15.148-tegra-36.4.3-1\n"
    jetson.write(f"{paths.PACKAGE_UPDATES}/0003", f"{stanza}#padding\n#padding\n")


other_core = of_packages("36.4.3", "36.5.0", CORE)


def others(words: str, name: str = "wine") -> Callable[[Jetson], object]:
    stanza = f"\n\nPackage: {name}\nStatus: install {words}\nVersion: 8.0-1\n"
    return lambda jetson: jetson.write(paths.PACKAGES, jetson.read(paths.PACKAGES) + stanza)


L4T: list[tuple[Callable[[Jetson], object], Level, Reason, str]] = [
    (lambda j: None, PASS, Reason.NONE, "7 packages of 36.4.3"),
    *((state(f"hold ok {words}", KERNEL), FAIL, Reason.DPKG_UNFINISHED, f"{KERNEL} ({words})")
      for words in ("half-configured", "half-installed", "unpacked", "triggers-pending", "triggers-awaited")),
    (state("hold reinstreq installed", KERNEL), FAIL, Reason.DPKG_UNFINISHED, KERNEL),
    (interrupted, FAIL, Reason.DPKG_UNFINISHED, "(half-installed)"),
    (state("deinstall ok config-files", KERNEL), PASS, Reason.NONE, "6 packages"),
    (others("ok half-configured"), WARN, Reason.DPKG_UNFINISHED, "wine (half-configured)"),
    (other_core, WARN, Reason.MIXED_RELEASES, "36.5.0, but nvidia-l4t-nvpmodel"),
    (of_packages("-36.4.3-", "-36.5.0-", KERNEL), WARN, Reason.MIXED_RELEASES, f"but {KERNEL} 36.5.0"),
    (lambda j: j.write(paths.RELEASE, j.read(paths.RELEASE).replace("4.3", "5.0")), WARN,
     Reason.MIXED_RELEASES, "36.4.3, but /etc/nv_tegra_release 36.5.0"),
    (others("ok installed", "nvidia-l4t-dla-compiler"), PASS, Reason.NONE, "7 packages"),
    (owed("linux-base", "linux-base", "$(evil)"), WARN, Reason.REBOOT_DUE, "due: linux-base"),
    (owed(), WARN, Reason.REBOOT_DUE, "due: /run/reboot-required"),
    (unpacked(WALL - 599), FAIL, Reason.REBOOT_DUE, f"due: {KERNEL}"),
    (unpacked(WALL - 5, "nvidia-l4t-bootloader:arm64"), FAIL, Reason.REBOOT_DUE, "nvidia-l4t-bootloader"),
    (unpacked(WALL - 601), PASS, Reason.NONE, ""),
    (unpacked(WALL + 9), PASS, Reason.NONE, ""),  # the clock is wrong: no conclusion
    (unpacked(WALL - 5, "nvidia-l4t-tools"), PASS, Reason.NONE, ""),
    (other_kernel_runs, FAIL, Reason.REBOOT_DUE, "5.15.148-tegra still runs"),
    (of_packages("5.15.148", "5.15.185", *DRIVERS),
     WARN, Reason.REBOOT_DUE, "5.15.148-tegra runs, 5.15.185-tegra is installed"),
    (lambda j: (j.write(paths.KERNEL_RELEASE, "5.15.148-ark"), j.write("/lib/modules/5.15.148-ark/x", "")),
     PASS, Reason.NONE, ""),
    (lambda j: (state("hold ok unpacked", KERNEL)(j), other_core(j), owed("libc6")(j)), FAIL,
     Reason.DPKG_UNFINISHED, "a reboot is due: libc6"),
]  # fmt: skip


def test_a_clock_in_1970_never_demands_a_second_reboot(jetson: Jetson) -> None:
    """The clock has the same time at each boot; dpkg unpacked the kernel 20 min after the previous boot."""
    unpacked(1211.0)(jetson)
    [found] = run_checks(quick(jetson, **Clock(2400.0, 2411.0).arguments), only={"l4t"})
    assert found.level is PASS


@pytest.mark.parametrize(("arrange", "level", "reason", "value"), L4T)
def test_states_that_apt_leaves_are_judged(
    arrange: Callable[[Jetson], object], level: Level, reason: Reason, value: str, jetson: Jetson
) -> None:
    arrange(jetson)
    [found] = run_checks(quick(jetson, **Clock(600.0, WALL).arguments), only={"l4t"})
    assert (found.level, found.reason) == (level, reason) and value in found.value, found
    assert "evil" not in found.value + found.remedy
    assert ("dpkg --configure -a" in found.remedy) == (reason is Reason.DPKG_UNFINISHED)
    assert ("sudo reboot" in found.remedy) == (reason in (Reason.REBOOT_DUE, Reason.MIXED_RELEASES))
    assert found.figures["reboot_owed"] is ("reboot is due" in found.value)


def test_an_upgrade_without_its_reboot_is_no_matter_of_our_package(jetson: Jetson) -> None:
    jetson.write(paths.INSTALLED, jetson.read(paths.INSTALLED).replace("36.4.3", "36.4.0"))
    owed("linux-base")(jetson)
    [found] = run_checks(quick(jetson), only={"versions"})
    assert (found.level, found.reason) == (WARN, Reason.REBOOT_DUE) and "FILE.deb" not in found.remedy


def test_a_record_of_dpkg_is_read_as_dpkg_reads_it(tmp_path: Path) -> None:
    """dpkg-query reads the same from the record of this machine."""
    if shutil.which("dpkg-query") is None:
        pytest.skip("dpkg is not installed")
    shown = "${Package} ${Version} ${Status}\n"
    listed = subprocess.run(["dpkg-query", "-W", "-f", shown], capture_output=True, text=True, check=True)
    read = {f"{p.name} {p.version} {p.want} {p.flag} {p.state}" for p in dpkg.packages(Root()).values()}
    assert read == {p for p in listed.stdout.splitlines() if not p.endswith((" config-files", "-installed"))}


class Apt:
    """apt with private folders: a box's record of packages, and a source that also has a newer release."""

    def __init__(self, folder: Path, known: dict[str, dpkg.Package], shape: str) -> None:
        partial = ("state/lists/partial", "cache/archives/partial")
        for part in (*partial, "etc/apt.conf.d", "etc/preferences.d", "repo"):
            (folder / part).mkdir(parents=True)
        self.status = folder / "status"
        stanzas = [
            f"Package: {p.name}\nStatus: {shape}\nArchitecture: arm64\nMaintainer: x\n"
            f"Description: x\nVersion: {p.version}\n" for p in known.values()
        ]  # fmt: skip
        self.status.write_text("\n".join(stanzas))
        offered = [
            f"Package: {p.name}\nVersion: {version}\nArchitecture: arm64\nMaintainer: x\nDescription: x\n"
            f"Filename: ./{p.name}_{number}.deb\nSize: 9\nSHA256: {number:064}\n"
            for p in known.values() for number, version in enumerate((p.version, newer(p.version)))
        ]  # fmt: skip
        (folder / "repo/Packages").write_text("\n".join(offered))
        (folder / "etc/sources.list").write_text(f"deb [trusted=yes] file:{folder}/repo ./\n")
        settings = {
            "Dir::State": folder / "state", "Dir::State::status": self.status, "Dir::Cache": folder / "cache",
            "Dir::Etc": folder / "etc", "Dir::Etc::sourcelist": folder / "etc/sources.list",
            "Dir::Etc::sourceparts": "-", "APT::Sandbox::User": "root", "Debug::NoLocking": "1",
            "APT::Architecture": "arm64", "APT::Architectures": "arm64",
        }  # fmt: skip
        self.options = " ".join(f"-o {name}={value}" for name, value in settings.items())
        self.run("apt-get {} update")

    def run(self, command: str) -> str:
        environment = {"PATH": GUARD.path, "LC_ALL": "C"}
        words = ["sh", "-c", command.replace("{}", self.options)]
        with GUARD.lifted():  # the command is simulated, or in its own folders
            ran = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=PATIENCE_S)
        assert ran.returncode == 0, (command, ran.stdout, ran.stderr)
        return ran.stdout

    def typed(self, command: str) -> dict[str, str]:
        """Package → the version that a line of a remedy would unpack."""
        line = command.replace("sudo apt ", "apt-get {} -s ").replace(
            "-W", f"--admindir={self.status.parent} -W"
        )
        printed = self.run(line)
        assert "Remv" not in printed, printed
        return dict(re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+)", printed, re.M))


def newer(version: str) -> str:
    return (
        re.sub(r"36\.4\.3-\d+$", "36.5.2-20260716114719", version) if "36.4.3" in version else f"{version}.1"
    )


NAMING_APT = re.compile(r"sudo apt (?:install|--fix-broken)(?: (?!&&|and\b)(?:\$\([^)]*\)|[^;,` ])+)+")
"""A command of apt within a remedy, up to its end."""


@pytest.mark.skipif(shutil.which("apt-get") is None, reason="apt is not installed")
@pytest.mark.slow
def test_no_remedy_changes_a_version(tmp_path: Path) -> None:
    """The source may have any version, and packages may be on hold or not configured yet."""
    known = dpkg.packages(quick(well(tmp_path / "box")).root)
    sentences = [sentence for remedy in remedies(tmp_path) for sentence in remedy.split(". ")]
    commands = sorted({command for sentence in sentences for command in NAMING_APT.findall(sentence)})
    # FILE is a file of ours; a technician looks VERSION up.
    commands = [command for command in commands if "FILE.deb" not in command and "VERSION" not in command]
    assert len(commands) >= 6 and not re.search(r"[{}]", "".join(commands)), commands
    for number, shape in enumerate(("install ok installed", "hold ok installed", "install ok unpacked")):
        apt = Apt(tmp_path / f"apt{number}", known, shape)
        bare = apt.typed("sudo apt install --reinstall nvidia-l4t-tools")
        assert bare["nvidia-l4t-tools"] == newer(known["nvidia-l4t-tools"].version), "what must not happen"
        for command in commands:
            for name, after in apt.typed(command).items():
                assert after == known[name].version, command


def remedies(folder: Path) -> list[str]:
    """Remedies that health prints for each fault of the tables, and the remedy of `appliance check`."""
    printed = [GPU_REMEDY]
    faults = [row for row in (*TABLE, *CASES) if row.level in (WARN, FAIL) and row.profile == "jp6-0005"]
    for number, row in enumerate(faults):
        jetson = well(folder / f"{number}")
        row.arrange(jetson)
        printed += [found.remedy for found in run_checks(quick(jetson), only={row.check})]
        shutil.rmtree(folder / f"{number}", ignore_errors=True)
    known = dpkg.packages(quick(well(folder / "well")).root)
    return [dpkg.pin(remedy, known) for remedy in printed]


def test_unknown_versions_come_from_dpkg_query(jetson: Jetson) -> None:
    """Remedies whose versions are unknown ask dpkg-query: apt would install the newest version of a bare
    name."""
    known = dpkg.packages(quick(jetson).root)
    typed = dpkg.pin("sudo apt install --reinstall {nvidia-l4t-tools}", {})
    assert typed.endswith("nvidia-l4t-tools=$(dpkg-query -W -f='${Version}' nvidia-l4t-core)")
    gone = {name: one for name, one in known.items() if name != "python3-libnvinfer"}
    assert dpkg.pin("{python3-libnvinfer}", gone) == f"python3-libnvinfer={known['libnvinfer10'].version}"
    assert "l4t-kernel-nvgpu" not in dpkg.pin(MODULES, known), "JetPack 6 has none"
