"""dpkg's records of packages, and apt commands that keep the installed versions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from appliance.box import paths
from appliance.box.root import Root

FIELDS = ("Package: ", "Status: ", "Version: ")
NAME = re.compile(r"[a-z0-9][a-z0-9+.-]{0,99}")
VERSION = re.compile(r"[A-Za-z0-9.+:~-]{1,200}")
NVIDIAS = re.compile(r"nvidia-(?:l4t-|jetpack)|(?:python3-)?libnvinfer|tensorrt")
"""Prefixes of packages that an update of JetPack replaces. Afterwards TensorRT engines have to be rebuilt."""
FINISH_FIRST = "run sudo dpkg --configure -a, then sudo f5-quiet"
CORE = "nvidia-l4t-core"
TWINS = {"nvidia-l4t-nvpmodel": CORE, "nvidia-l4t-tools": CORE, "python3-libnvinfer": "libnvinfer10"}
"""Package → package that has the same version in every release."""


class Package(NamedTuple):
    """A package, as dpkg reports it."""

    name: str
    version: str
    want: str
    """Selection: install, hold, deinstall or purge."""
    flag: str
    """Error flag: ok or reinstreq."""
    state: str
    """State: installed, unpacked, half-configured, …"""

    @property
    def is_finished(self) -> bool:
        """False if dpkg was interrupted in this package, or a script of it failed."""
        return (self.state, self.flag) == ("installed", "ok")


def packages(root: Root) -> dict[str, Package]:
    """Read dpkg's records, including the journal of an interrupted run. Does not raise."""
    by_name = {}
    journal = [f"{paths.PACKAGE_UPDATES}/{n}" for n in root.names(paths.PACKAGE_UPDATES) if n.isdecimal()]
    for stanza in "\n\n".join(root.text(path) or "" for path in (paths.PACKAGES, *journal)).split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.split("\n") if line.startswith(FIELDS))
        name, version, status = (fields.get(key, "") for key in ("Package", "Version", "Status"))
        if len(words := status.split(" ")) == 3 and all(map(NAME.fullmatch, (name, *words))):
            by_name[name] = Package(name, version if VERSION.fullmatch(version) else "", *words)
    return {n: one for n, one in by_name.items() if one.state not in ("not-installed", "config-files")}


def loose(root: Root) -> tuple[list[str], list[str]]:
    """NVIDIA's packages that are not held, and unfinished packages with their states."""
    mine = sorted(package for name, package in packages(root).items() if NVIDIAS.match(name))
    ready = [package.name for package in mine if package.want == "install" and package.is_finished]
    return ready, [f"{package.name} ({package.state})" for package in mine if not package.is_finished]


def pin(remedy: str, known: Mapping[str, Package]) -> str:
    """Replace each `{NAME …}` by `NAME=VERSION …`, as installed: given a bare name, apt installs the newest
    version.

    Of several names, only installed packages stay. A single name that is not installed gets the version of
    its twin.
    """

    def pinned(match: re.Match[str]) -> str:
        names = match[1].split()
        pairs = [f"{name}={known[name].version}" for name in names if name in known and known[name].version]
        pairs = pairs or [f"{n}={known[twin].version}" for n in names if (twin := TWINS.get(n, "")) in known]
        shell = "{0}=$(dpkg-query -W -f='${{Version}}' {1})"
        return " ".join(pairs or [shell.format(name, TWINS.get(name, name)) for name in names])

    return re.sub(r"\{([a-z0-9][a-z0-9+. -]*)\}", pinned, remedy)
