"""Check of NVIDIA's packages: dpkg has finished, all belong to one L4T release, and no reboot is due."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping

from appliance.box import paths, versions
from appliance.box.checks.finding import Finding, Level, passed, skipped
from appliance.box.checks.snapshot import Harm, check
from appliance.box.clocks.reason import Reason
from appliance.box.dpkg import CORE, NAME, NVIDIAS, Package
from appliance.box.system import Box
from appliance.box.versions import Version, differ, dotted

LIMIT = "dpkg has finished; one L4T release; no reboot due after an upgrade"
APART = ("nvidia-l4t-dla-compiler", "nvidia-l4t-jetson-multimedia-api")
"""Packages of NVIDIA's source `common`, whose versions may differ from the release: 36.4.0 and 36.5.0 have
the first package as 36.4.1 (public reports).
"""
TEGRA = "-tegra-"
"""Separator of kernel and release in a version: 5.15.148-tegra-36.4.4-20250616085344."""
NEEDS_BOOT = re.compile(r"nvidia-l4t-(?:(?:display-|rt-)?kernel|bootloader)(?!.*-headers)")
CLOCK_IS_SET = 1_704_067_200.0
"""Start of 2024 in Unix time. An earlier time means that the clock is not set."""
NAMED = 12
FINISH = (
    "when no apt is running, run: sudo dpkg --configure -a. Do not reboot before, because the boot files may "
    "be half written. If a package is missing then, with the internet: sudo apt --fix-broken install; if "
    "nvidia-l4t-bootloader refuses the board, ask its maker for the configuration"
)
ONE_RELEASE = (
    "if the carrier's maker supplies the kernel, ask the maker first. Else, with the internet: sudo apt "
    "install --reinstall --allow-downgrades {}, then sudo reboot. `apt-cache madison NAME` lists versions"
)
REBOOT = "run: sudo reboot. If this remains, another kernel boots: see /boot/extlinux/extlinux.conf"


@check("l4t", Harm.LATER, 1, lambda now: (now.packages, now.platform.l4t, reboot_owed(now.box, now.packages)))
def check_l4t(packages: Mapping[str, Package], release_file: Version, evidence: Iterable[str]) -> Finding:
    """`release_file`: L4T of /etc/nv_tegra_release, which belongs to CORE. `evidence`: signs that a reboot is
    due.

    Reason and remedy of the finding belong to the first of DPKG_UNFINISHED, MIXED_RELEASES and REBOOT_DUE
    that applies.
    """
    owed = list(dict.fromkeys(evidence))
    half = [package for package in packages.values() if not package.is_finished]
    mine = [one for name, one in packages.items() if name.startswith("nvidia-l4t-") and name not in APART]
    bsp = {one.name: versions.version(one.version.rpartition(TEGRA)[2])[:3] for one in mine}
    if not bsp and not half:
        return skipped("l4t", "dpkg lists no package of L4T")
    release = bsp.get(CORE) or release_file
    odd = [name for name, package_version in bsp.items() if differ(package_version, release)]
    others = [f"{name} {dotted(bsp[name])}" for name in odd]
    others += [f"{paths.RELEASE} {dotted(release_file)}"] * differ(release_file, release)
    # Each kind of package, kernel or not, should have the version of a package that is of the release
    # already.
    right = {TEGRA in one.version: one.version for one in mine if bsp[one.name] == release}
    kinds = {name: TEGRA in packages[name].version for name in odd or (others and [CORE])}
    pairs = " ".join(f"{name}={right.get(kind, 'VERSION')}" for name, kind in kinds.items())
    halves = [f"{one.name} ({one.state})" for one in half]
    parts = (
        (Reason.DPKG_UNFINISHED, "dpkg has not finished ", halves, FINISH),
        (Reason.MIXED_RELEASES, f"L4T is mixed: {dotted(release)}, but ", others, ONE_RELEASE.format(pairs)),
        (Reason.REBOOT_DUE, "a reboot is due: ", owed, REBOOT),
    )
    faults = [part for part in parts if part[2]]
    figures = {"unfinished": len(half), "mixed": len(others), "reboot_owed": bool(owed)}
    if not faults:
        return passed("l4t", f"{len(bsp)} packages of {dotted(release)}", LIMIT, figures)
    level = Level.FAIL if any(map(NVIDIAS.match, (*halves, *owed))) else Level.WARN
    value = "; ".join(what + ", ".join(n[:NAMED] + ["…"] * (len(n) > NAMED)) for _, what, n, _ in faults)
    return Finding("l4t", level, value, LIMIT, faults[0][3], figures, faults[0][0])


def reboot_owed(box: Box, packages: Mapping[str, Package]) -> Iterator[str]:
    """Signs that an installed package takes effect at the next boot."""
    root, now = box.root, box.wall()
    if root.exists(paths.REBOOT_REQUIRED):
        named = filter(NAME.fullmatch, (root.text(f"{paths.REBOOT_REQUIRED}.pkgs") or "").split())
        yield from [*named] or [paths.REBOOT_REQUIRED]
    kernels = [package for name, package in packages.items() if NEEDS_BOOT.match(name)]
    for file, package in ((f"{p.name}{arch}.list", p) for p in kernels for arch in ("", ":arm64")):
        with contextlib.suppress(OSError):
            unpacked = root.at(f"{paths.PACKAGE_INFO}/{file}").stat().st_mtime
            # Without network and battery each boot begins in 1970, which proves nothing. Nor does a time in
            # the future.
            if max(now - box.uptime(), CLOCK_IS_SET) < unpacked <= now:
                yield package.name
    running, modules = root.text(paths.KERNEL_RELEASE) or "", root.names(paths.KERNEL_MODULES)
    installed = {p.version.partition(TEGRA)[0] + TEGRA[:-1] for p in kernels if TEGRA in p.version}
    # An equal name proves nothing: 6.8.12-1021-tegra is in 39.2.0 and 39.2.1. Another name may be the carrier
    # maker's.
    if running and modules and running not in modules:
        yield f"nvidia-l4t-kernel: {running[:100]} still runs, without its modules"
    elif running.endswith(TEGRA[:-1]) and installed and running not in installed:
        yield f"{running[:100]} runs, {', '.join(sorted(installed))} is installed"
