"""Downloads the wheels of locks with pip, for another Python version and machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "scripts/requirements"
GLIBC = {"3.10": 35, "3.11": 36, "3.12": 39, "3.13": 41, "3.14": 41}
"""Python version → minor version of glibc on the oldest system that ships it, or less: Ubuntu 22.04, Debian
12, Ubuntu 24.04, Debian 13, Ubuntu 26.04.
"""
OLDEST_GLIBC = 17
PIP = (sys.executable, "-m", "pip")
QUIET = ("--quiet", "--disable-pip-version-check", "--no-input")


class Failure(Exception):
    """A failure, as one line with the remedy."""


def fetch(folder: Path, locks: Sequence[str], python: str, machine: str) -> None:
    """Fill a folder with our own wheel and the wheels of the locks. Raises Failure, OSError."""
    # A copy is built, because the build must leave nothing in the checkout.
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        caches = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "appliance", copy / "appliance", ignore=caches)
        for part in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
            shutil.copy(ROOT / part, copy)
        run(*PIP, "wheel", *QUIET, "--no-deps", "--wheel-dir", str(folder), str(copy))
    requirements = folder / "requirements.txt"
    wanted = [pin for lock in locks for pin in pins(lock, python, machine)]
    requirements.write_text("\n".join(wanted), "utf-8")
    system = ("--only-binary=:all:", "--implementation", "cp", "--python-version", python)
    platforms = (word for tag in _tags(python, machine) for word in ("--platform", tag))
    target = ("--no-deps", "--dest", str(folder), *system, *platforms)
    run(*PIP, "download", *QUIET, "--require-hashes", *target, "--requirement", str(requirements))


def pins(lock: str, python: str, machine: str) -> list[str]:
    """Pins of a lock for that Python on that machine, with hashes. Raises Failure.

    pip evaluates markers for the Python that it runs on, even if it downloads for another.
    """
    try:
        from pip._vendor.packaging.requirements import Requirement
    except ImportError as error:
        raise Failure(f"{sys.executable} has no pip: run this by a Python that has pip") from error
    target = {
        "python_version": python, "python_full_version": f"{python}.0", "platform_machine": machine,
        "implementation_name": "cpython", "platform_python_implementation": "CPython",
        "os_name": "posix", "sys_platform": "linux", "platform_system": "Linux",
    }  # fmt: skip
    found = []
    for line in (LOCKS / f"{lock}.hashes").read_text("utf-8").replace("\\\n", "").splitlines():
        pin, *hashes = line.partition("#")[0].split(" --hash=")
        if pin.strip():
            parsed = Requirement(pin.strip())
            if parsed.marker is None or parsed.marker.evaluate(target):
                found.append(" --hash=".join((f"{parsed.name}{parsed.specifier}", *map(str.strip, hashes))))
    return found


def _tags(python: str, machine: str) -> Iterator[str]:
    """Every platform tag of the target: pip download needs them listed one by one."""
    yield from (f"manylinux_2_{minor}_{machine}" for minor in range(GLIBC[python], OLDEST_GLIBC - 1, -1))
    yield f"manylinux2014_{machine}"
    if machine == "x86_64":
        yield from ("manylinux2010_x86_64", "manylinux1_x86_64")
    yield f"linux_{machine}"


def run(*command: str, environment: dict[str, str] | None = None) -> str:
    """Run a program; return its output. Raises Failure."""
    try:
        ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise Failure(f"{command[0]} is not installed") from error
    if ran.returncode:
        lines = [line for line in ran.stderr.splitlines() if line.strip()] or ["no output"]
        errors = [line for line in lines if line.startswith("ERROR: ")]
        raise Failure(f"{' '.join(command[:4])}: {(errors or lines)[-1]}")
    return ran.stdout
