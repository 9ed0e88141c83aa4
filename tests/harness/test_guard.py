"""The guard around this machine: its refusals, and the failure of a test whose command it refused."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import GUARD, ROOT
from tests.harness.guard import REFUSED

pytestmark = [pytest.mark.slow, pytest.mark.once]
BARE = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
INNER = """
import os, pytest, subprocess

def asks():
    subprocess.run(["sh", "-c", "exec apt-get install -s nothing-of-that-name"])

def test_by_name():
    asks()

@pytest.fixture
def asked():
    asks()

def test_in_a_fixture(asked):
    pass

@pytest.mark.packaging
def test_in_a_root_of_its_own():
    assert "f5-refused" not in os.environ["PATH"]

def test_that_asks_nothing():
    assert "f5-refused" in os.environ["PATH"]
"""


@pytest.mark.parametrize("name", REFUSED)
def test_a_shim_refuses_a_command_by_name(name: str) -> None:
    ran = subprocess.run(["sh", "-c", f"{name} x; exit $?"], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (1, "") and ran.stderr.startswith(f"{name}: refused")
    assert GUARD.asked() == [f"{name} x"]


ACTS: dict[str, Callable[[], object]] = {
    "an absolute path": lambda: subprocess.run(["/usr/bin/apt", "install", "x"]),
    "bytes": lambda: subprocess.run([b"/usr/bin/apt", "install", "x"]),
    "an executable": lambda: subprocess.run(["x", "install"], executable="/usr/bin/apt"),
    "a PATH of its own": lambda: subprocess.run(["apt", "install", "x"], env=BARE),
    "a shell's line": lambda: subprocess.run("cd / && /usr/bin/apt install x", shell=True),
    "spawn": lambda: os.posix_spawn("/usr/bin/apt", ["apt", "install", "x"], {}),
    "exec": lambda: os.execv("/usr/bin/apt", ["apt", "install", "x"]),
}


@pytest.mark.skipif(not os.path.exists("/usr/bin/apt"), reason="no apt here")
@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_the_hook_refuses_a_command_by_path(act: Callable[[], object]) -> None:
    with pytest.raises(PermissionError, match=r"/usr/bin/apt .*install.*refused"):
        act()
    [asked] = GUARD.asked()
    assert asked.startswith("/usr/bin/apt")


@pytest.mark.parametrize("line", ["systemctl --version", "systemctl --root=FOLDER is-enabled none.service",
                                  "systemctl show -p Id x.service", "dpkg --print-architecture"])  # fmt: skip
def test_commands_that_only_read_run(line: str, tmp_path: Path) -> None:
    words = line.replace("FOLDER", str(tmp_path)).split()
    if shutil.which(words[0], path=GUARD.path) is None:
        pytest.skip(f"no {words[0]} here")
    for shell in (False, True):
        ran = subprocess.run(" ".join(words) if shell else words, shell=shell, capture_output=True, text=True)
        assert "refused" not in ran.stderr
    assert GUARD.asked() == []


@pytest.mark.parametrize("words", ["stop show", "restart x -p --root", "-i x.deb"])
def test_changes_are_refused_although_a_word_only_reads(words: str) -> None:
    name = "dpkg" if "deb" in words else "systemctl"
    assert GUARD.refuses(f"/usr/bin/{name}", [name, *words.split()], None)
    assert subprocess.run(["sh", "-c", f"{name} {words}"], capture_output=True).returncode == 1
    assert GUARD.asked() == [f"{name} {words}"]


def test_a_program_of_a_tests_own_is_run(tmp_path: Path) -> None:
    (tmp_path / "apt").write_text("#!/bin/sh\necho mine\n")
    (tmp_path / "apt").chmod(0o755)
    for command, environment in (([str(tmp_path / "apt")], None), (["apt"], {"PATH": str(tmp_path)})):
        ran = subprocess.run([*command, "install"], env=environment, capture_output=True, text=True)
        assert ran.stdout == "mine\n"
    assert GUARD.asked() == []


def test_a_test_that_asks_fails_and_names_the_command(tmp_path: Path) -> None:
    (tmp_path / "test_inner.py").write_text(INNER)
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    packaging: as ours\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_inner.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "1 failed, 2 passed, 1 error" in ran.stdout, ran.stdout
    assert ran.stdout.count("for: apt-get install -s nothing-of-that-name") >= 2
    assert GUARD.asked() == [], "not of the outer run"
