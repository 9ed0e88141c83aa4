"""The arm64 package in an emulated Debian 12: its install, tests on its wheels, and tensors compared with
x86's."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from appliance.engine.cases import FEMALE, MALE
from tests.arm64.enter import QEMU
from tests.arm64.tensors import tensors
from tests.debian.made import ROOT, SOURCES, built, run
from tests.engine.lanes import relative

SUITE, PYTHON = "bookworm", "3.11"
SYSTEM = "python3,systemd,procps,libstdc++6"
"""Dependencies of the package; the essential packages come with them."""
TESTS = ("tests/contract", "tests/text", "tests/audio")
NOT_TIMED = "not bounded_time and not refused_before_it_is_decoded"
"""Filter for tests of time: emulation is about ten times slower."""
TOOLS = ("pytest", "pytest-asyncio", "hypothesis", "pydub",
         *("iniconfig", "pluggy", "pygments", "sortedcontainers"))  # fmt: skip
SAME = 1e-6
"""Largest ‖arm − x86‖ / ‖x86‖ of a tensor: other kernels sum in another order."""
PREPARE = """set -e
export DEBIAN_FRONTEND=noninteractive
cp /usr/share/base-passwd/passwd.master /etc/passwd
cp /usr/share/base-passwd/group.master /etc/group
echo 127.0.0.1 localhost > /etc/hosts
pam-auth-update --package --force
"""
"""Effect of the packages' install scripts. A root whose packages are only unpacked takes 5 s instead of 170.
"""

pytestmark = [pytest.mark.once, pytest.mark.slow, pytest.mark.packaging]


def missing() -> str:
    """The first requirement that this machine does not meet; empty for none."""
    if os.geteuid() != 0:
        return "not root: an arm64 system is made and entered"
    release = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
    if platform.machine() != "x86_64" or release < (6, 7):
        return "the machine must be x86_64 with Linux 6.7, whose user namespaces have a binfmt registry each"
    for program, package in {
        "mmdebstrap": "mmdebstrap", QEMU: "qemu-user-static", "unshare": "util-linux", "ip": "iproute2",
    }.items():  # fmt: skip
        if not shutil.which(program):
            return f"{program} is not installed: apt-get install {package}"
    return "" if Path(SOURCES).is_file() else f"no {SOURCES}: name one in F5_DEBIAN_SOURCES"


class Emulated:
    """A Debian for arm64 in a folder; the checkout lies next to the package."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *program: str) -> None:
        """Run a program in the root; its output goes to the output of this process."""
        enter = (sys.executable, "-m", "tests.arm64.enter", self.folder)
        assert subprocess.run([*enter, *program], cwd=ROOT).returncode == 0, "see above"

    def python(self, *arguments: str) -> None:
        """Run Python with the package's Python packages, and pytest."""
        path = "PYTHONPATH=/usr/lib/f5-appliance:/tools"
        self.run("env", "--chdir=/checkout", path, "PYTHONDONTWRITEBYTECODE=1", "python3", *arguments)


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulated]:
    if reason := missing():
        pytest.exit(reason, returncode=1)
    out = tmp_path_factory.mktemp("arm64")
    folder = out / "debian"
    include = ("--include=?essential", f"--include={SYSTEM}")
    hooks = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"
    extract = ("mmdebstrap", "--quiet", "--architectures=arm64", "--variant=extract", hooks)
    run(*extract, *include, SUITE, folder, SOURCES)
    shutil.copy(built("--python", PYTHON, "--arch", "arm64", "--compress", "none"), folder / "root")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:")
    platforms = ("--platform=manylinux2014_aarch64", "--implementation=cp", f"--python-version={PYTHON}")
    pins = ("--constraint", ROOT / "scripts/requirements/dev.txt")
    run(*pip, *platforms, *pins, "--target", folder / "tools", *TOOLS)
    tree = run("git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for name in (path for path in tree if not path.startswith("appliance/")):
        (folder / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "checkout" / name)
    (folder / "checkout/appliance").symlink_to("/usr/lib/f5-appliance/appliance")
    made = Emulated(folder)
    made.run("sh", "-c", PREPARE)
    # The extracted packages are not in dpkg's list.
    made.run("sh", "-c", "dpkg --install --force-depends /root/f5-appliance_*_arm64.deb")
    yield made
    shutil.rmtree(folder)


def test_the_scripts_install_the_package(debian: Emulated) -> None:
    debian.run("sh", "-ec", """
        [ "$(uname -m)" = aarch64 ]
        [ "$(dpkg-query -W -f '${db:Status-Status}' f5-appliance)" = installed ]
        [ "$(stat -c %U /var/lib/f5-appliance/voices)" = f5-appliance ]
        dpkg --verify f5-appliance
    """)  # fmt: skip
    voices = debian.folder / "var/lib/f5-appliance/voices"
    assert sorted(path.name for path in voices.iterdir()) == sorted((FEMALE, MALE))


def test_tensors_equal_x86s(debian: Emulated) -> None:
    debian.python("-m", "tests.arm64.tensors", "/root/tensors.npz")
    found, wanted = np.load(debian.folder / "root/tensors.npz"), tensors()
    away = {name: relative(found[name], wanted[name]) for name in wanted}
    print(", ".join(f"{name}: {value:.1e}" for name, value in away.items()))
    assert max(away.values()) <= SAME
    assert max(away.values()) > 0, "to the bit: x86's own kernels have run"


def test_contract_text_and_audio(debian: Emulated) -> None:
    chosen = ("-m", "not torch and not gpu", "-k", NOT_TIMED)
    debian.python("-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen, *TESTS)
