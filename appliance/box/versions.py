"""Versions of L4T, TensorRT and the module: current ones, and those recorded at installation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from appliance.box import dpkg, paths
from appliance.box.root import Root, error_text

Version = tuple[int, ...]
SHIPPED: Mapping[Version, Version] = {(36, 4): (10, 3), (36, 5): (10, 3), (39, 2): (10, 16)}
"""L4T → TensorRT of its JetPack (NVIDIA's release notes).

Others, such as 10.13, may lack code for this GPU.
"""


@dataclass(frozen=True)
class BuildInfo:
    """Versions of L4T, TensorRT and the module that the package or an engine was built for. Empty fields
    match anything.
    """

    l4t: Version = ()
    tensorrt: Version = ()
    module: str = ""
    """Module, as "p3701-0005"."""
    problem: str = ""

    def differences(self, now: BuildInfo) -> list[str]:
        """Differences, a line each. Versions are compared as far as both are precise."""
        lines = []
        for name, then, today in (("L4T", self.l4t, now.l4t), ("TensorRT", self.tensorrt, now.tensorrt)):
            if differ(then, today):
                lines.append(f"{name} {dotted(then)}, now {dotted(today)}")
        if self.module and now.module and self.module != now.module:
            lines.append(f"module {self.module}, now {now.module}")
        return lines


def tensorrt(root: Root) -> Version:
    """Version of the Debian package, else of the library's file name; () without TensorRT."""
    for package in dpkg.packages(root).values():
        if re.fullmatch(r"libnvinfer\d+", package.name):
            return version(package.version)[:3]
    names = (name for folder in paths.LIBRARIES for name in root.names(folder))
    files = (re.fullmatch(r"libnvinfer\.so\.([0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9})", name) for name in names)
    return next((version(match[1]) for match in files if match), ())


def driver(root: Root) -> str:
    """Version of NVIDIA's display driver, as "540.4.0" on JetPack 6; "" without one."""
    form = r"^NVRM version:.* Kernel Module\b.*?\s([0-9]{1,4}(?:\.[0-9]{1,4})+)\s"
    match = re.search(form, root.text(paths.DRIVER) or "")
    return match[1] if match else ""


def installed(root: Root) -> BuildInfo | None:
    """Versions recorded at installation; None if there is no record."""
    if not root.exists(paths.INSTALLATION):
        return None
    try:
        raw = root.record(paths.INSTALLED)
    except FileNotFoundError:
        return BuildInfo(problem=f"{paths.INSTALLED} is missing")
    except (OSError, ValueError) as error:
        return BuildInfo(problem=f"{paths.INSTALLED} cannot be read: {error_text(error)}")
    return BuildInfo(version(raw.get("l4t")), version(raw.get("tensorrt")), str(raw.get("module") or ""))


def version(value: object) -> Version:
    """Parse "36.4.3", "36.4.3-2025…" or [36, 4, 3]."""
    text = ".".join(map(str, value)) if isinstance(value, list) else str(value or "")
    match = re.match(r"[0-9]{1,9}(?:\.[0-9]{1,9})*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def differ(one: Version, other: Version) -> bool:
    """True if the versions differ in a number that both have."""
    common = min(len(one), len(other))
    return one[:common] != other[:common]


def dotted(version: Version) -> str:
    return ".".join(map(str, version))
