"""Makes the folder of wheels that a box without a network is installed from, on a machine that has one."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.box.tools import Ran, Tools
from scripts.installer import wheels
from scripts.installer.actions import Failure, Tell
from scripts.installer.source import Source

PIP = "pip==25.3"
"""The last that runs on Python 3.10; it is taken along because a box may have none."""
PYTHONS = ("3.10", "3.12")
"""What JetPack 6 and 7 bring."""
GLIBC = {"3.10": 35, "3.11": 36, "3.12": 39}
"""Minor glibc of the system that brings this Python: Ubuntu 22.04, Debian 12, Ubuntu 24.04."""
OLDEST_GLIBC = 17
DOWNLOAD_S = 3_600.0
# pip reads a lock's markers as for the Python that it runs on, also when it downloads for another.
PINS_CODE = """
import pathlib, sys
from pip._vendor.packaging.requirements import Requirement
lock, version, machine = sys.argv[1:]
box = dict(python_version=version, python_full_version=version + ".0", platform_machine=machine,
           implementation_name="cpython", platform_python_implementation="CPython",
           os_name="posix", sys_platform="linux", platform_system="Linux")
for line in pathlib.Path(lock).read_text("utf-8").splitlines():
    if line.strip() and not line.startswith("#"):
        wanted = Requirement(line)
        if wanted.marker is None or wanted.marker.evaluate(box):
            print(f"{wanted.name}{wanted.specifier}")
"""
QUIET = ("--quiet", "--disable-pip-version-check", "--no-input")


@dataclass(frozen=True)
class Wish:
    """For which boxes."""

    pythons: tuple[str, ...] = PYTHONS
    machine: str = "aarch64"


def make(tools: Tools, python: str, source: Source, out: Path, wish: Wish, tell: Tell) -> wheels.Wheels:
    """Fill `out`, which appears whole or not at all. Raises Failure, OSError."""
    if out.exists():
        raise Failure(f"{out} is there already", "remove it, or name another folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as name:
        folder = Path(name) / "wheels"
        folder.mkdir()
        tell(f"building the wheel of {source.version}")
        build_ours(tools, python, source, folder)
        for version in wish.pythons:
            tell(f"downloading wheels for Python {version} on {wish.machine}")
            wanted = pins(tools, python, source, version, wish.machine)
            download(tools, python, version, wish.machine, folder, wanted)
        download(tools, python, wish.pythons[0], wish.machine, folder, (PIP,))
        made = wheels.write(folder, wish.pythons, wish.machine)
        for version in wish.pythons:
            if wrong := wheels.suits(made, version, wish.machine, source):
                raise Failure(wrong, "the checkout changed meanwhile: run this again")
        folder.chmod(0o755)
        folder.rename(out)
    return wheels.read(out)


def build_ours(tools: Tools, python: str, source: Source, folder: Path) -> None:
    """Our own wheel; pip builds it in an environment that it throws away."""
    # From a copy: a build must leave nothing in the checkout, and take nothing that git would not.
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "checkout"
        copy.mkdir()
        shutil.copytree(
            source.folder / "appliance", copy / "appliance", ignore=shutil.ignore_patterns("__pycache__")
        )
        for part in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
            shutil.copy(source.folder / part, copy)
        arguments = ("wheel", *QUIET, "--no-deps", "--wheel-dir", str(folder), str(copy))
        _ran(_pip(tools, python, *arguments))


def download(
    tools: Tools, python: str, version: str, machine: str, folder: Path, what: Sequence[str]
) -> None:
    """Put wheels of these requirements for another Python and machine into a folder. Raises Failure."""
    target = (
        "--only-binary=:all:",
        "--python-version",
        version,
        "--implementation",
        "cp",
        *_platforms(version, machine),
    )
    _ran(_pip(tools, python, "download", *QUIET, "--no-deps", *target, "--dest", str(folder), *what))


def pins(tools: Tools, python: str, source: Source, version: str, machine: str) -> list[str]:
    """What the lock pins for that Python on that machine. Raises Failure."""
    ran = tools.run(python, "-c", PINS_CODE, str(source.lock), version, machine, timeout_s=DOWNLOAD_S)
    _ran(ran)
    return ran.output.split()


def _platforms(version: str, machine: str) -> Iterable[str]:
    """pip takes a wheel for another system only by the exact tags that this system can use."""
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC[version], OLDEST_GLIBC - 1, -1)]
    older = {"x86_64": ["manylinux2010_x86_64", "manylinux1_x86_64"]}.get(machine, [])
    for tag in (*tags, f"manylinux2014_{machine}", *older, f"linux_{machine}"):
        yield from ("--platform", tag)


def _pip(tools: Tools, python: str, *arguments: str) -> Ran:
    return tools.run(python, "-m", "pip", *arguments, timeout_s=DOWNLOAD_S)


def _ran(ran: Ran) -> None:
    if ran.code:
        lines = [line for line in ran.text.splitlines() if line.startswith("ERROR: ")]
        what = lines[-1].removeprefix("ERROR: ") if lines else ran.told
        raise Failure(what, "check the network and that `python3 -m pip` works, or pass another --python")
