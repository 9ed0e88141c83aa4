"""The package for the Python that runs the tests, built once in a run, and unpacked."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.debian.package import MACHINES
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
ARCH = next((arch for arch, machine in MACHINES.items() if machine == os.uname().machine), "")
"""Debian's name of the machine; empty for one that no package is for."""
ALONE = ("-I", "-S")
"""Without the packages of the tests' environment: what is imported is the package's own."""
UNPACKED_PYTHON = (sys.executable, *ALONE)
needs_dpkg = pytest.mark.skipif(
    not (ARCH and shutil.which("dpkg-deb")), reason="no dpkg-deb, or no package is for this machine"
)


def run(*command: object) -> str:
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=5 * PATIENCE_S)
    assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def package(factory: pytest.TempPathFactory) -> Path:
    """Build it for this machine, or take what another worker of this run has built."""
    base = factory.getbasetemp()
    shared = base.parent if base.name.startswith("popen-") else base
    out = shared / f"package-{PYTHON}"
    with (shared / f"package-{PYTHON}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(out.glob("*.deb")):
            build = (sys.executable, ROOT / "scripts/build-deb", "--python", PYTHON, "--arch", ARCH)
            run(*build, "--compress", "none", "--out", out)
    [made] = out.glob("*.deb")
    return made
