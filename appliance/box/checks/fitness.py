"""Checks of versions, GPU device and system time."""

from __future__ import annotations

import contextlib
import datetime
import fnmatch
import os
import re
import stat
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from appliance.box import paths, versions
from appliance.box.checks.application import USER, has_user
from appliance.box.checks.finding import Finding, Level, passed, skipped
from appliance.box.checks.snapshot import Harm, Snapshot, check
from appliance.box.clocks.reason import Reason
from appliance.box.root import Root
from appliance.box.versions import SHIPPED, BuildInfo, Version, dotted, version

GROUPS = ("video", "render")
FIRST_YEAR = 2024
NODES = (paths.GPU_NODE, paths.NVMAP, f"{paths.RENDER_NODES}/renderD*")
"""Device nodes that CUDA needs.

If one is missing, cuInit ends with 801 or 999 (public reports). /dev/nvidia* exists on Thor alone.
"""
MODULES = (
    "see which driver did not load: sudo journalctl -k -b -g 'nvgpu|nvidia'. Usually modules and kernel "
    "differ, after a camera's driver or half an upgrade. With the internet: sudo apt install --reinstall "
    "{nvidia-l4t-kernel nvidia-l4t-kernel-oot-modules nvidia-l4t-kernel-nvgpu nvidia-l4t-display-kernel}, "
    "then sudo reboot"
)
POWER_CYCLE = (
    "see why: sudo journalctl -k -b -g nvgpu. If it names ACR, switch the box off, unplug it for ten seconds "
    "and switch it on. A restart is not enough"
)
FIRMWARE = re.compile(r"(?:^|\s)firmware_class\.path=(/[\w./-]{1,200})(?=\s|$)")
LAY_FIRMWARE = "run: sudo mkdir -p {0} && sudo cp -a /lib/firmware/nvidia {0}/ && sudo reboot"
OPEN_IT = (
    "let udev set its groups again: sudo udevadm control --reload && sudo udevadm trigger. Then: sudo "
    "systemctl restart f5-appliance. If `ls -l {}` shows the same, its rule is missing from "
    "/etc/udev/rules.d/99-tegra-devices.rules (of nvidia-l4t-init)"
)
PUT_BACK = (
    "see which source of packages replaced it: apt policy libnvinfer10. Remove that source. Then, with the "
    "internet: sudo apt install --allow-downgrades libnvinfer10=VERSION python3-libnvinfer=VERSION, with the "
    "version of repo.download.nvidia.com, and sudo systemctl restart f5-appliance"
)
SET_CLOCK = (
    "with a network: sudo timedatectl set-ntp true. Without one: sudo timedatectl set-ntp false, sudo date "
    "-s 'YEAR-MONTH-DAY HOUR:MINUTE', then sudo hwclock -w -f /dev/rtcN for each RTC (`grep . "
    "/sys/class/rtc/*/name`). Which RTC has a battery differs; without one, nvvrs-pseq-rtc sets 1970 again "
    "at each boot. Only certificates and logs need the time"
)
INSTALL_AGAIN = "install the package for this JetPack again: sudo apt install --reinstall ./FILE.deb"


def _of_versions(now: Snapshot) -> tuple[Any, ...]:
    build = BuildInfo(now.platform.l4t, versions.tensorrt(now.root), now.platform.module)
    boots = () if isinstance(now.boots, Exception) else now.boots
    mine = [boot for boot in boots if boot.backend == "tensorrt" and boot.l4t == dotted(build.l4t)]
    working = {version(boot.tensorrt) for boot in mine}
    return build, versions.installed(now.root), working, now.finding("l4t")


@check("versions", Harm.LATER, 2, _of_versions)
def check_versions(
    now: BuildInfo, installed: BuildInfo | None, working: Collection[Version] = (), l4t: Finding | None = None
) -> Finding:
    """Compare the box with its state at installation, and TensorRT with the version of its JetPack.

    `installed`: None without a package. `working`: versions of TensorRT that have spoken on this L4T. `l4t`:
    finding of that check, whose remedy comes first. The daemon itself checks the versions of its TensorRT
    engines.
    """
    if installed is None:
        return skipped("versions", "the package is not installed")
    limit = "L4T, TensorRT and module as installed; TensorRT of its JetPack"
    shipped = SHIPPED.get(now.l4t[:2])
    # If JetPack's TensorRT is known, that version counts, and not the version at installation.
    compared = replace(now, tensorrt=()) if shipped else now
    wrong = [installed.problem] if installed.problem else installed.differences(compared)
    is_spoken = not now.tensorrt or now.tensorrt in working
    if shipped and now.tensorrt[:2] != shipped and not is_spoken:
        strange = f"TensorRT is {dotted(now.tensorrt)}, not its JetPack's {dotted(shipped)}"
        return Finding("versions", Level.WARN, "; ".join([*wrong, strange]), limit, PUT_BACK)
    if l4t and (l4t.reason is Reason.MIXED_RELEASES or (wrong and l4t.reason is not Reason.NONE)):
        value = "; ".join([*wrong, f"see the check l4t first: {l4t.value}"])
        return Finding("versions", Level.WARN, value, limit, l4t.remedy, reason=l4t.reason)
    if wrong:
        others = installed.problem or installed.differences(replace(compared, tensorrt=()))
        remedy = INSTALL_AGAIN if others or is_spoken else PUT_BACK
        return Finding("versions", Level.WARN, f"changed since install: {'; '.join(wrong)}", limit, remedy)
    return passed("versions", "as installed", limit)


def gpu_services(l4t: Version) -> str:
    """Services that load JetPack 7's libcuda, and nvgpu, which is on a deny list (docs.nvidia.com, r39.2)."""
    return "`systemctl status nv-load-display-modules nv-load-gpu-libs`" if l4t >= (39,) else ""


@check("gpu_node", Harm.SILENCE, 3, lambda now: (now.root, now.platform.l4t, has_user(now.box)))
def check_gpu(root: Root, l4t: Version, is_installed: bool) -> Finding:
    """Check that CUDA's device nodes exist, that GROUPS may read them, and that USER, if any, is in both."""
    limit = f"{', '.join(NODES)} for {' and '.join(GROUPS)}; {USER} in both"
    lines = (line.split(":") for line in (root.text(paths.GROUPS) or "").splitlines())
    groups = {fields[0]: (fields[2], fields[3].split(",")) for fields in lines if len(fields) == 4}
    numbers = [groups[name][0] for name in GROUPS if name in groups]
    nodes = {pattern: list(_nodes(root, pattern)) for pattern in NODES}
    if missing := [pattern for pattern, files in nodes.items() if not files]:
        services = gpu_services(l4t)
        remedy = f"see why it did not load: {services}. Then {MODULES}" if services else MODULES
        if paths.GPU_NODE in missing and root.exists(paths.NVGPU):
            remedy = POWER_CYCLE
            path = FIRMWARE.search(root.text(paths.KERNEL_LINE) or "")
            if path and not root.exists(f"{path[1]}/nvidia"):
                value = f"no GPU: the kernel looks for firmware in {path[1]}, which has none"
                return Finding("gpu_node", Level.FAIL, value, limit, LAY_FIRMWARE.format(path[1]))
        return Finding("gpu_node", Level.FAIL, f"missing: {', '.join(missing)}", limit, remedy)
    if closed := [name for name, files in nodes.items() if not any(_may_read(n, numbers) for n in files)]:
        value = f"{' and '.join(GROUPS)} may not open {', '.join(closed)}"
        return Finding("gpu_node", Level.FAIL, value, limit, OPEN_IT.format(" ".join(closed)))
    if not is_installed:
        return passed("gpu_node", f"{paths.GPU_NODE}; no user {USER} here", limit)
    lacking = [name for name in GROUPS if USER not in groups.get(name, ("", ()))[1]]
    remedy = f"run: sudo usermod -aG {','.join(lacking)} {USER} && sudo systemctl restart f5-appliance"
    value = f"{USER} is not in {', '.join(lacking)}" if lacking else f"{paths.GPU_NODE}; {USER} may open it"
    return Finding("gpu_node", Level.of(warn=False, fail=bool(lacking)), value, limit, remedy)


def _nodes(root: Root, pattern: str) -> Iterator[os.stat_result]:
    folder, _, name = pattern.rpartition("/")
    for node in fnmatch.filter(root.names(folder), name):
        with contextlib.suppress(OSError):
            yield root.at(f"{folder}/{node}").stat()


def _may_read(node: os.stat_result, groups: Collection[str]) -> bool:
    """True if these groups (by number) may read the node. /dev/nvmap has mode 440 (public listing)."""
    return bool(node.st_mode & stat.S_IROTH or (node.st_mode & stat.S_IRGRP and str(node.st_gid) in groups))


def _of_time(now: Snapshot) -> tuple[float, bool | None]:
    synchronised: bool | None = True
    # systemd-timesyncd writes this file. Only timedatectl knows the state of chrony.
    if not now.root.exists(paths.SYNCHRONISED):
        ran = now.box.tools.execute("timedatectl", "show", "-p", "NTPSynchronized", "--value", timeout_s=5.0)
        synchronised = {"yes": True, "no": False}.get(ran.output.strip()) if ran.code == 0 else None
    return now.box.wall(), synchronised


@check("time", Harm.UPKEEP, 4, _of_time, anywhere=True)
def check_time(seconds: float, synchronised: bool | None) -> Finding:
    """`seconds`: Unix time. `synchronised`: None if unknown."""
    now = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    labels = {True: "synchronised", False: "not synchronised", None: "synchronisation unknown"}
    value = f"{now:%Y-%m-%d %H:%M} UTC, {labels[synchronised]}"
    level = Level.of(warn=now.year < FIRST_YEAR or synchronised is False)
    limit = f"{FIRST_YEAR} or later; synchronised"
    return Finding("time", level, value, limit, SET_CLOCK, {"synchronised": synchronised})
