"""A staged root for systemd's programs: our units, enabled next to NVIDIA's and systemd's."""

import functools
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.harness.daemons import ROOT, finished

SOURCE = ROOT / "systemd"
SYSTEM_UNITS = Path("/usr/lib/systemd/system")
PROGRAMS = (
    "/usr/bin/python3", "/usr/bin/f5-clock-lock", "/usr/bin/f5-health", "/usr/bin/jetson_clocks",
    "/etc/systemd/nvpower.sh", "/etc/systemd/nvpmodel.sh", "/usr/sbin/nvfancontrol", "/bin/kill",
    "/usr/bin/systemctl", "/usr/bin/f5-upgrade",
)  # fmt: skip
NVIDIA = {
    "nvpower": ("oneshot", "systemd-modules-load.service", "/etc/systemd/nvpower.sh"),
    "nvpmodel": ("oneshot", "nv.service nvpower.service", "/etc/systemd/nvpmodel.sh"),
    "nvfancontrol": ("simple", "nvfb-early.service nvpower.service", "/usr/sbin/nvfancontrol"),
}
"""Type, After, ExecStart, as read on an AGX Orin with R36.4.7; the first two units are inactive there."""
NVIDIAS_UNIT = Path(__file__).with_name("nvidia.service").read_text("utf-8")
ENABLED = (
    *(f"f5-{name}.service" for name in ("appliance", "clocks", "gateway")),
    *(f"f5-{name}.timer" for name in ("clocks-check", "health", "guard", "upgrade-again")),
)


NEWER = ("RestartSteps", "RestartMaxDelaySec")
"""Keys since systemd 254; an older systemd gets units without them, because it does not know them."""


def unit_names() -> list[str]:
    return sorted(path.name for path in SOURCE.iterdir() if path.suffix in (".service", ".timer"))


def values(text: str, key: str) -> list[str]:
    """Return the values of a key in a unit's text, in the order of its lines."""
    lines = (line.partition("=") for line in text.splitlines() if not line.startswith(("#", ";")))
    return [value.strip() for name, _, value in lines if name.strip() == key]


@dataclass(frozen=True)
class Staged:
    """A folder that systemd's programs get as --root."""

    folder: Path

    def at(self, path: str) -> Path:
        return self.folder / path.lstrip("/")

    def unit(self, name: str) -> Path:
        return self.at("/etc/systemd/system") / name

    def change(self, name: str, before: str, after: str) -> None:
        """Replace one line of a unit."""
        text = self.unit(name).read_text()
        assert text.count(f"\n{before}\n") == 1, f"{name}: {before}"
        self.unit(name).write_text(text.replace(f"\n{before}\n", f"\n{after}\n"))

    def add(self, name: str, text: str, *, enable: bool = False) -> None:
        self.unit(name).write_text(text)
        if enable:
            self._run("systemctl", f"--root={self.folder}", "--quiet", "enable", name)

    def verify(self) -> list[str]:
        """Return systemd's complaints about each of our units alone, unknown keys included."""
        names = [*unit_names(), "nvpmodel.service"]
        return self._verify("--recursive-errors=no", *names)

    def boot(self) -> list[str]:
        """Return systemd's output when it plans a boot, which lists ordering cycles.

        Dependencies are followed only without --recursive-errors=no. systemd breaks a cycle by leaving a unit
        out and exits with 0, so that only its output counts.
        """
        return self._verify("default.target", "timers.target")

    def _verify(self, *arguments: str) -> list[str]:
        ran = self._run("systemd-analyze", "verify", f"--root={self.folder}", "--man=no", *arguments)
        said = [line for line in (ran.stdout + ran.stderr).splitlines() if line.strip()]
        return said or ([f"exit status {ran.returncode}"] if ran.returncode else [])

    def _run(self, *command: str) -> subprocess.CompletedProcess[str]:
        # The folder is / because systemctl would take a name for a file of that name in the current folder.
        return finished(*command, cwd=Path("/"))


@functools.cache
def systemd() -> int:
    """Version of the systemd that is installed here."""
    return int(finished("systemctl", "--version").stdout.split()[1])


def stand_in_programs(root: Path, names: Iterable[str]) -> None:
    """Create programs that do nothing: systemd only checks that they exist."""
    for name in names:
        program = root / name.lstrip("/")
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)


def stage(folder: Path) -> Staged:
    """Fill a folder. Raises CalledProcessError when a unit cannot be enabled."""
    staged = Staged(folder)
    stand_in_programs(folder, PROGRAMS)
    system = staged.at("/usr/lib/systemd/system")
    system.mkdir(parents=True)
    for target in SYSTEM_UNITS.glob("*.target"):
        shutil.copy(target, system / target.name, follow_symlinks=False)
    for name, unit in NVIDIA.items():
        (system / f"{name}.service").write_text(NVIDIAS_UNIT.format(*unit))
    ours = staged.unit("")
    ours.mkdir(parents=True)
    for path in SOURCE.iterdir():
        if path.suffix in (".service", ".timer"):
            lines = path.read_text().splitlines(keepends=True)
            known = [line for line in lines if systemd() >= 254 or line.partition("=")[0] not in NEWER]
            (ours / path.name).write_text("".join(known))
        elif path.name.endswith(".service.d"):
            shutil.copytree(path, ours / path.name)
    names = [*(f"{name}.service" for name in NVIDIA), *ENABLED]
    assert not finished("systemctl", f"--root={folder}", "--quiet", "enable", *names).returncode
    return staged
