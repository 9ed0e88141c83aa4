"""L4T, TensorRT and module: now, and as recorded at installation."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from appliance.box import dpkg, paths
from appliance.box.root import Root, error_text

Version = tuple[int, ...]
SHIPPED: Mapping[Version, Version] = {(36, 4): (10, 3), (36, 5): (10, 3), (39, 2): (10, 16)}
"""L4T → its JetPack's TensorRT (NVIDIA's release notes). Others, as 10.13, may lack code for this GPU."""


@dataclass(frozen=True)
class BuildInfo:
    """L4T, TensorRT and module versions something was built for. Empty fields match anything."""

    l4t: Version = ()
    tensorrt: Version = ()
    module: str = ""
    """E.g. p3701-0005."""
    problem: str = ""

    def differences(self, now: BuildInfo) -> list[str]:
        """In the parts of versions that both have."""
        found = []
        for name, then, today in (("L4T", self.l4t, now.l4t), ("TensorRT", self.tensorrt, now.tensorrt)):
            if differ(then, today):
                found.append(f"{name} {dotted(then)}, now {dotted(today)}")
        if self.module and now.module and self.module != now.module:
            found.append(f"module {self.module}, now {now.module}")
        return found


def tensorrt(root: Root) -> Version:
    """By its Debian package, or its library's name; () without one."""
    for package in dpkg.packages(root).values():
        if re.fullmatch(r"libnvinfer\d+", package.name):
            return version(package.version)[:3]
    names = (name for folder in paths.LIBRARIES for name in root.names(folder))
    files = (re.fullmatch(r"libnvinfer\.so\.([0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,9})", name) for name in names)
    return next((version(found[1]) for found in files if found), ())


def driver(root: Root) -> str:
    """Version of NVIDIA's display driver, e.g. 540.4.0 on JetPack 6; empty without one."""
    form = r"^NVRM version:.* Kernel Module\b.*?\s([0-9]{1,4}(?:\.[0-9]{1,4})+)\s"
    found = re.search(form, root.text(paths.DRIVER) or "")
    return found[1] if found else ""


def installed(root: Root) -> BuildInfo | None:
    """None when nothing is installed."""
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
    found = re.match(r"[0-9]{1,9}(?:\.[0-9]{1,9})*", text)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def differ(one: Version, other: Version) -> bool:
    """In the parts that both have."""
    common = min(len(one), len(other))
    return one[:common] != other[:common]


def dotted(version: Version) -> str:
    return ".".join(map(str, version))
