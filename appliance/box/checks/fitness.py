"""Versions, GPU device and system time."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

from appliance.box import paths
from appliance.box.checks.application import USER
from appliance.box.checks.finding import Finding, Level, passed, skipped
from appliance.box.versions import BuildInfo

GROUPS = ("video", "render")
FIRST_YEAR = 2024


def check_versions(now: BuildInfo, installed: BuildInfo | None) -> Finding:
    """Compare the box with what it was at the install. `installed`: None if no package is.

    The daemon itself checks the versions of its TensorRT engines.
    """
    if installed is None:
        return skipped("versions", "the package is not installed")
    limit = "L4T, TensorRT and module as at the install"
    if wrong := installed.problem or "; ".join(installed.differences(now)):
        remedy = "install the package for this JetPack again: sudo apt install --reinstall ./FILE.deb"
        return Finding("versions", Level.WARN, f"the install: {wrong}", limit, remedy)
    return passed("versions", "as installed", limit)


def check_gpu(node: bool, groups: Mapping[str, Sequence[str]] | None) -> Finding:
    """`groups`: members by group, None if there is no user f5-appliance."""
    limit = f"{paths.GPU_NODE} there; {USER} in {' and '.join(GROUPS)}"
    if not node:
        remedy = "switch the box off, unplug it for ten seconds, and switch it on: a restart is not enough"
        return Finding(
            "gpu_node", Level.FAIL, f"{paths.GPU_NODE} is missing: the GPU did not start", limit, remedy
        )
    if groups is None:
        return passed("gpu_node", f"{paths.GPU_NODE}; no user {USER} here", limit)
    lacking = [name for name in GROUPS if USER not in groups.get(name, ())]
    if lacking:
        remedy = f"run: sudo usermod -aG {','.join(lacking)} {USER} && sudo systemctl restart f5-appliance"
        return Finding("gpu_node", Level.FAIL, f"{USER} is not in {', '.join(lacking)}", limit, remedy)
    return passed("gpu_node", f"{paths.GPU_NODE}; {USER} in {', '.join(GROUPS)}", limit)


def members(etc_group: str) -> dict[str, list[str]]:
    """Parse /etc/group: group → members."""
    lines = (line.split(":") for line in etc_group.splitlines())
    return {fields[0]: fields[3].split(",") for fields in lines if len(fields) == 4}


def check_time(seconds: float, synchronised: bool | None) -> Finding:
    """`seconds`: Unix time; `synchronised`: None if unknown."""
    now = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    value = f"{now:%Y-%m-%d %H:%M} UTC"
    limit = f"{FIRST_YEAR} or later; synchronised"
    remedy = (
        "connect the box to a time server: sudo timedatectl set-ntp true; without a network set it with "
        "`sudo timedatectl set-time`, and replace the clock's battery if it forgets"
    )
    if now.year < FIRST_YEAR:
        return Finding("time", Level.FAIL, value, limit, remedy, {"synchronised": synchronised})
    if synchronised is False:
        return Finding(
            "time", Level.WARN, f"{value}, not synchronised", limit, remedy, {"synchronised": False}
        )
    value += ", synchronised" if synchronised else "; nothing says whether it is synchronised"
    return passed("time", value, limit, {"synchronised": synchronised})
