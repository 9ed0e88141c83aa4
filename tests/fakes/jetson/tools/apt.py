"""apt: installs packages by name, adds them to dpkg's status file, and writes the files that readers look
for.

Guessed: the version of a new package, and the output. The fake knows no dependencies and asks no questions.
"""

from __future__ import annotations

import re
import sys

from tests.fakes.jetson import conf
from tests.fakes.jetson.machine import Machine
from tests.fakes.jetson.tools.apt_mark import STATUS
from tests.fakes.jetson.tree import Tree

FAILED = 100
ENTRY = "\nPackage: {}\nStatus: install ok installed\nArchitecture: arm64\nVersion: {}\n"


def main(arguments: list[str], machine: Machine) -> int:
    machine.log("apt", arguments)
    verb, *words = [word for word in arguments if not word.startswith("-")] or [""]
    if verb != "install" or any("/" in word for word in words):
        print(f"E: a fake apt installs packages by name only, not: {' '.join(arguments)}", file=sys.stderr)
        return FAILED
    for name, _, version in (word.partition("=") for word in words):
        _install(machine, name, version)
        _unpack(machine, name)
        print(f"Setting up {name} ...")
    return 0


def _install(machine: Machine, name: str, version: str) -> None:
    """Add a package to the status file; an installed package changes its version only if `version` is not
    empty."""
    status = machine.path(STATUS)
    text = status.read_text(encoding="utf-8")
    there = rf"(^Package: {re.escape(name)}\n(?:.+\n)*?Version: )(\S+)"
    if not re.search(there, text, re.MULTILINE):
        text += ENTRY.format(name, version or "1.0-1")
    elif version:
        text = re.sub(there, rf"\g<1>{version}", text, flags=re.MULTILINE)
    status.write_text(text, encoding="utf-8")


def _unpack(machine: Machine, name: str) -> None:
    """Create the files of NVIDIA's packages; drivers create their nodes at the next boot."""
    if name == "nvidia-l4t-nvpmodel":
        path = machine.path(f"/etc/nvpmodel/{machine.profile.conf}")
        path.parent.mkdir(exist_ok=True)
        path.write_text(conf.text(machine.profile), encoding="utf-8")
    elif name == "nvidia-l4t-tools":
        machine.path("/usr/bin/jetson_clocks").touch()
    elif name == "nvidia-l4t-kernel-oot-modules":
        Tree(machine.root, machine.profile).nodes()
