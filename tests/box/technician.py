"""A technician who types the commands of a remedy on a fake box, as they are printed and in that order."""

import re
import shutil
from collections.abc import Callable, Mapping

from appliance.box import paths
from appliance.box.clocks.pinning import lock
from tests.fakes.jetson.board import Jetson
from tests.harness.boxes import quick, run_script

Typed = Callable[[Jetson, re.Match[str]], object]
LOOKS = re.compile(
    r"sudo (?:journalctl|nvpmodel|ss|du|nvme|appliance (?:check|bundle install FOLDER)|f5-health|f5-setup"
    r"|f5-support-bundle|f5-clock-lock status)\b"
)
"""Commands that change nothing."""


def nvpower(jetson: Jetson) -> None:
    """Link nvpmodel.conf to the module's file unless a link or a file exists, as nvpower.sh does."""
    link = jetson.root / paths.NVPMODEL_CONF[1:]
    if not link.is_symlink() and not link.exists():
        link.symlink_to(f"/etc/nvpmodel/{jetson.profile.conf}")


def _systemctl(jetson: Jetson, typed: re.Match[str]) -> None:
    quick(jetson).tools.execute("systemctl", *typed[1].split())
    if typed[1].startswith("restart"):
        nvpower(jetson) if "nvpower" in typed[1] else None
        lock(quick(jetson)) if "f5-clocks" in typed[1] else None


def _lock(jetson: Jetson, typed: re.Match[str]) -> None:
    run_script("clock-lock", quick(jetson), "lock", *typed[1].split())


def _end(jetson: Jetson, typed: re.Match[str]) -> None:
    for folder in jetson.path("/proc").iterdir():
        if folder.name.isdecimal() and typed[1] in (folder / "cmdline").read_text():
            shutil.rmtree(folder)


def _apt(jetson: Jetson, typed: re.Match[str]) -> None:
    ran = quick(jetson).tools.execute("apt", "install", *typed[1].split())
    assert ran.code == 0, ran


def _configure(jetson: Jetson, typed: re.Match[str]) -> None:
    status = jetson.path(paths.PACKAGES)
    status.write_text(
        re.sub(r"(?m)^(Status: \w+) ok (?:half-configured|unpacked)$", r"\1 ok installed", status.read_text())
    )


def _trigger(jetson: Jetson, typed: re.Match[str]) -> None:
    jetson.path(paths.NVMAP).chmod(0o644)


def _boot(jetson: Jetson, typed: re.Match[str]) -> None:
    jetson.boot()
    lock(quick(jetson))


def _mount(jetson: Jetson, typed: re.Match[str]) -> None:
    jetson.path(typed[1]).rmdir()
    (jetson.root / "debugfs").rename(jetson.path(typed[1]))


COMMANDS: Mapping[str, Typed] = {
    r"sudo systemctl ((?:restart|enable --now|start|stop|unmask|disable|reset-failed)(?: (?!&&)[\w.@-]+)+)":
        _systemctl,
    r"sudo f5-clock-lock lock((?: --[\w-]+)*)": _lock,
    r"sudo rm (?:-f )?(/[\w./-]+)": lambda jetson, typed: (jetson.root / typed[1][1:]).unlink(),
    r"sudo pkill -f (\w+)": _end,
    r"sudo apt install ((?:--[\w-]+ |[\w.+-]+(?:=\S+[\w])? ?)+)": _apt,
    r"(?:sudo |then )reboot\b": _boot,
    r"sudo dpkg --configure -a": _configure,
    r"sudo udevadm control --reload && sudo udevadm trigger": _trigger,
    r"sudo cp -a /lib/firmware/nvidia (/[\w/.-]+)/": lambda jetson, typed: (
        jetson.write(f"{typed[1]}/nvidia/ga10b/fecs.bin", ""), jetson.write(paths.GPU_NODE, "")),
    r"sudo mount -t debugfs debugfs (/[\w/]+)": _mount,
    r"echo (\S+) \| sudo tee (/[\w/]+)": lambda jetson, typed: jetson.write(typed[2], f"{typed[1]}\n"),
    r"`  power_mode: (\S+)`": lambda jetson, typed: jetson.write(
        paths.CONFIG, f"device:\n  power_mode: {typed[1]}\n"),
}  # fmt: skip
"""Effects of commands on the box."""
OTHERS = re.compile(
    r"sudo (?:apt install (?:--reinstall )?\./FILE\.deb|apt remove f5-appliance|f5-upgrade --back|f5-quiet"
    r"|f5-backup box.tar.gz|usermod -aG \S+|timedatectl set-ntp (?:true|false)|date -s '[A-Z: -]+'"
    r"|hwclock -w -f /dev/rtcN|mkdir -p /[\w/.-]+|mount -o remount,rw|apt-get clean|tee /proc/sys/vm/"
    r"|systemd-tmpfiles --create|apt --fix-broken install)"
)
"""Commands whose effect no fake has; only their form is checked."""


def unknown(remedy: str) -> str:
    """Remainder of a remedy with an unknown command; empty if there is none."""
    for pattern in (*COMMANDS, OTHERS.pattern, LOOKS.pattern):
        remedy = re.sub(pattern, "", remedy)
    return remedy if "sudo " in remedy else ""


def follow(jetson: Jetson, remedy: str, words: Mapping[str, str]) -> None:
    for word, typed in words.items():
        remedy = remedy.replace(word, typed)
    assert not unknown(remedy), remedy
    found = [(m.start(), act, m) for pattern, act in COMMANDS.items() for m in re.finditer(pattern, remedy)]
    for _, act, match in sorted(found, key=lambda one: one[0]):
        act(jetson, match)
