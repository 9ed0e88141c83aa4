"""The virtual environment of a release, built under one name to be used under another.

It sees the system's packages, for TensorRT's binding, and shadows all that the lock names.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path

from appliance.box.tools import Ran, Tools
from scripts.installer.actions import Failure
from scripts.installer.source import Source
from scripts.installer.wheels import AGAIN, Wheels, verify

PIP_S = 3_600.0
QUICK_S = 60.0
VERSION_CODE = "import platform, sys; print('%d.%d' % sys.version_info[:2], platform.machine())"
# What decides which files arrive where; everything else is pip's default.
PIP_OPTIONS = ("--no-deps", "--ignore-installed", "--no-compile", "--no-input", "--quiet",
               "--no-warn-script-location", "--disable-pip-version-check")  # fmt: skip
NO_PIP = ("--yes", "--quiet", "--disable-pip-version-check", "pip", "setuptools")
# A dead end for whoever looks for a network all the same.
OFFLINE = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": "/dev/null"}
NO_NETWORK = "check the network, or prepare a folder with scripts/make-offline-bundle and pass --offline DIR"


@dataclass(frozen=True)
class Python:
    """An interpreter to build with."""

    path: str
    version: str
    """e.g. 3.10; empty when it does not run."""
    machine: str = ""


def interpreter(tools: Tools, path: str) -> Python:
    """Ask an interpreter which one it is."""
    ran = tools.run(path, "-I", "-c", VERSION_CODE, timeout_s=QUICK_S)
    found = re.fullmatch(r"(\d+\.\d+) (\S+)", ran.output.strip())
    return Python(path, found[1], found[2]) if ran.code == 0 and found else Python(path, "")


def can_import(tools: Tools, python: str, module: str) -> bool:
    """Whether an interpreter has a module."""
    return tools.run(python, "-I", "-c", f"import {module}", timeout_s=QUICK_S).code == 0


def build(tools: Tools, python: str, venv: Path, source: Source, wheels: Wheels | None) -> None:
    """Make the environment and install the lock and the daemon, without `wheels` from the network.

    Raises Failure.
    """
    if wheels is None:
        _make(tools, python, venv)
        what = ["-m", "pip", "install", *PIP_OPTIONS, "-r", str(source.lock), str(source.folder)]
        _ran(tools.run(str(venv / "bin" / "python"), "-I", *what, timeout_s=PIP_S), NO_NETWORK)
        # A release does not change any more, so it needs none.
        _ran(
            tools.run(str(venv / "bin" / "python"), "-I", "-m", "pip", "uninstall", *NO_PIP, timeout_s=PIP_S)
        )
        return
    verify(wheels)
    # Debian's venv cannot bring a pip without python3-venv, so pip runs out of its wheel.
    _make(tools, python, venv, "--without-pip")
    options = ["--isolated", "--no-index", "--find-links", str(wheels.folder), *PIP_OPTIONS]
    what = [f"{wheels.pip}/pip", "install", *options, "-r", str(source.lock), str(wheels.ours)]
    tools = dataclasses.replace(tools, environment={**tools.environment, **OFFLINE})
    _ran(tools.run(str(venv / "bin" / "python"), "-I", *what, timeout_s=PIP_S), AGAIN)


def _make(tools: Tools, python: str, venv: Path, *options: str) -> None:
    command = ("-I", "-m", "venv", "--system-site-packages", *options, str(venv))
    _ran(tools.run(python, *command, timeout_s=PIP_S), "install python3-venv: apt-get install python3-venv")


def settle(tools: Tools, folder: Path, name: str) -> None:
    """Give what was built in `folder` the name under which it will be used, and compile it. Raises OSError.

    Scripts' first lines and bytecode hold paths. Compiled now, since root's programs would do it later, and
    write into a release that must not change.
    """
    venv = folder / "venv"
    for path in (*(venv / "bin").iterdir(), venv / "pyvenv.cfg"):
        if path.is_file() and not path.is_symlink():
            _rename_inside(path, str(folder), name)
    parts = (str(folder / "appliance"), str(folder / "scripts"), str(venv / "lib"))
    compileall = ("-I", "-m", "compileall", "-qq", "-j", "0", "-s", str(folder), "-p", name, *parts)
    # A package may ship files for another Python: those stay uncompiled, nothing imports them.
    tools.run(str(venv / "bin" / "python"), *compileall, timeout_s=PIP_S)


def _rename_inside(path: Path, old: str, new: str) -> None:
    data = path.read_bytes()
    if b"\0" not in data and old.encode() in data:
        path.write_bytes(data.replace(old.encode(), new.encode()))


def packages(venv: Path) -> dict[str, str]:
    """Name → version of all that the environment itself holds."""
    found = (
        path.name[: -len(".dist-info")].rpartition("-")
        for path in venv.glob("lib/python*/site-packages/*.dist-info")
    )
    return {name: version for name, _, version in sorted(found)}


def _ran(ran: Ran, remedy: str = "") -> None:
    if ran.code == 0:
        return
    errors = [line.strip() for line in ran.text.splitlines() if line.startswith("ERROR: ")]
    raise Failure(errors[-1].removeprefix("ERROR: ") if errors else ran.told, remedy)
