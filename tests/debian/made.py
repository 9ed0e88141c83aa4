"""Packages of this checkout, kept under out/kept until any of their inputs changes."""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.debian.package import MACHINES
from tests.harness.kept import kept
from tests.harness.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
ARCH = next((arch for arch, machine in MACHINES.items() if machine == os.uname().machine), "")
"""Debian's name of this machine; empty if no package supports it."""
PARTS = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")
ALONE = ("-I", "-S")
"""Options that hide the packages of the tests' environment: imports come from the package."""
UNPACKED_PYTHON = (sys.executable, *ALONE)
SOURCES = os.environ.get("F5_DEBIAN_SOURCES", "/etc/apt/sources.list.d/debian.sources")
INCLUDED = "python3,systemd,init-system-helpers,procps,openssl"
NEEDS_DEBIAN = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("mmdebstrap"), reason="mmdebstrap is not installed"),
    pytest.mark.skipif(not Path(SOURCES).is_file(), reason=f"no {SOURCES}: name one in F5_DEBIAN_SOURCES"),
]
needs_dpkg = pytest.mark.skipif(
    not (ARCH and shutil.which("dpkg-deb")), reason="no dpkg-deb, or no package is for this machine"
)


def run(*command: object) -> str:
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=5 * PATIENCE_S)
    assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def debian(folder: Path) -> Path:
    """Make Debian 12's smallest system with Python and systemd's programs."""
    run("mmdebstrap", "--variant=minbase", f"--include={INCLUDED}", "bookworm", folder, SOURCES)
    return folder


def package() -> Path:
    """The package for this machine and the Python that runs the tests."""
    return built("--python", PYTHON, "--arch", ARCH, "--compress", "none")


def built(*options: str) -> Path:
    """The file that build-deb makes with these options, now or in an earlier run."""
    folder = kept("deb", ("scripts.debian.package",), _build, options, _contents(), unused_s=3_600)
    [made] = folder.glob("*.deb")
    return made


@contextlib.contextmanager
def repacked(package: Path, version: str, out: Path) -> Iterator[Path]:
    """Unpack a package, let the block change it, and pack it under a later version."""
    root = out.with_suffix("")
    run("dpkg-deb", "-R", package, root)
    control = root / "DEBIAN/control"
    control.write_text(control.read_text().replace("\nVersion: ", f"\nVersion: {version}+"))
    yield root
    run("dpkg-deb", "--root-owner-group", "-Znone", "-b", root, out)
    shutil.rmtree(root)


def _build(folder: Path, options: tuple[str, ...], _: str) -> None:
    # A killed build leaves its tree. No other build runs now, because all builds take one lock.
    for left in folder.parent.glob("deb-*/.deb.*"):
        shutil.rmtree(left)
    # A copy of the checkout without git's folder has no commit time.
    dated = () if (ROOT / ".git").exists() else ("env", "SOURCE_DATE_EPOCH=1700000000")
    command = (*dated, sys.executable, ROOT / "scripts/build-deb", *options, "--out", folder)
    ran = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=5 * PATIENCE_S)
    if ran.returncode and not _is_index_reached(folder):
        pytest.skip("wheels of the package cannot be downloaded: no package index is reached")
    assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"


def _is_index_reached(folder: Path) -> bool:
    pip = (
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--retries", "0", "--dest", folder,
    )  # fmt: skip
    # A package that a mirror on this machine is unlikely to hold.
    return subprocess.run([*pip, "rjieba"], capture_output=True).returncode == 0


def _contents() -> str:
    """Hash of all that goes into a package, or makes it."""
    digest = hashlib.sha256()
    for top in (ROOT / name for name in ("appliance", "scripts", "systemd", "configs", *PARTS)):
        for path in (top, *sorted(top.rglob("*"))):
            if path.is_file() and "__pycache__" not in path.parts:
                name = f"{path.relative_to(ROOT)} {path.stat().st_mode:o}"
                digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()
