"""The README's commands on a machine with a single Python, of each version."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.harness.daemons import ROOT, finished
from tests.harness.patience import PATIENCE_S

pytestmark = pytest.mark.slow

VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
ANOTHER = re.compile(r"(python|pip|uv|pyenv|pydoc|idle|2to3)[\d.x]*$")
"""Names of interpreters, and of programs that lead to one."""


def found(version: str) -> Path:
    """An interpreter of that version; skips the test if this machine has none."""
    ran = in_shell(f"find_python {version}", dict(os.environ))
    if ran.returncode:
        pytest.skip(f"no Python {version} is here")
    return Path(finished(ran.stdout.strip(), "-c", "import sys; print(sys.executable)").stdout.strip())


def in_shell(command: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a function of scripts/lib.sh."""
    line = ["/bin/bash", "-euc", f". scripts/lib.sh; {command}"]
    return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with all programs of this one, except interpreters."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in ("/usr/bin", "/bin", "/usr/sbin"):
        for program in os.scandir(folder):
            if not ANOTHER.match(program.name) and not (programs / program.name).is_symlink():
                (programs / program.name).symlink_to(program.path)
    return {
        **{
            name: value
            for name, value in os.environ.items()
            if name.startswith(("PIP_", "SSL_", "LC_", "LANG"))
        },
        **{"PATH": str(programs), "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path)},
    }


def install(version: str, path: Path) -> None:
    """Install a program that runs an interpreter of that version; skips the test if this machine has none."""
    python = found(version)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\nexec {python} "$@"\n')
    path.chmod(0o755)


@pytest.mark.parametrize("name", ["python{version}", "python3"])
@pytest.mark.parametrize("version", VERSIONS)
def test_any_one_python_suffices(version: str, name: str, alone: dict[str, str]) -> None:
    program = Path(alone["PATH"]) / name.format(version=version)
    install(version, program)
    ran = in_shell("newest_python; name_of $(newest_python)", alone)
    assert ran.stdout.split() == [str(program), f"py{version.replace('.', '')}"], ran.stderr


def test_the_newest_python_runs_unless_another_is_named(alone: dict[str, str]) -> None:
    programs = Path(alone["PATH"])
    for version in ("3.12", "3.13", "3.15"):
        says(programs / f"python{version}", version)
    assert in_shell("newest_python", alone).stdout.strip() == str(programs / "python3.13")
    assert in_shell("newest_python", {**alone, "F5_PYTHON": "3.12"}).stdout == f"{programs}/python3.12\n"
    ran = in_shell("newest_python || no_python", {**alone, "F5_PYTHON": "3.15"})
    assert ran.returncode == 1
    assert "3.15" in ran.stderr and "3.14" in ran.stderr


def says(path: Path, version: str, *, venv: bool = True) -> None:
    """Install a program that answers like an interpreter of that version, with or without venv."""
    ensurepip = "exit 0" if venv else "exit 1"
    path.write_text(f'#!/bin/sh\ncase "$2" in *ensurepip*) {ensurepip} ;; *) echo {version} ;; esac\n')
    path.chmod(0o755)


@pytest.mark.once
@pytest.mark.parametrize("command", ["demo", "test", "test --quick"])
@pytest.mark.parametrize("there", ["nothing", "3.9", "3.15", "3.13 without venv"])
def test_a_missing_python_is_reported_in_a_line(there: str, command: str, alone: dict[str, str]) -> None:
    if there != "nothing":
        says(Path(alone["PATH"]) / "python3", there.split()[0], venv="without" not in there)
    ran = in_shell(f"scripts/{command}", alone)
    assert ran.returncode == 1
    [line] = ran.stderr.splitlines()
    ways = ("apt install python3 python3-venv", "dnf install python3", "brew install python", "uv")
    for words in ("3.10 to 3.14", *ways):
        assert words in line


def test_uv_brings_a_missing_python(alone: dict[str, str], tmp_path: Path) -> None:
    programs = Path(alone["PATH"])
    brought = tmp_path / "brought"
    says(tmp_path / "python", "3.13")
    (programs / "uv").write_text(
        f"""#!/bin/sh
case "$1 $2" in
"python install") echo "$4" > {brought} ;;
"python find") [ "$(cat {brought} 2>/dev/null)" = "$5" ] && echo {tmp_path}/python ;;
esac
"""
    )
    (programs / "uv").chmod(0o755)
    ran = in_shell("newest_python", alone)
    assert (ran.stdout.strip(), brought.read_text().strip()) == (f"{tmp_path}/python", "3.13"), ran.stderr


@pytest.mark.thorough
@pytest.mark.once
@pytest.mark.parametrize("version", VERSIONS)
def test_both_commands_on_one_python_alone(version: str, alone: dict[str, str], tmp_path: Path) -> None:
    """The commands start in a fresh clone and make their environments, for which pip needs an index or its
    cache."""
    install(version, Path(alone["PATH"]) / "python3")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    for command, proof in (
        ("scripts/demo", "time to first audio"),
        ("scripts/test --quick tests/test_durable.py", " passed"),
    ):
        ran = subprocess.run(
            command.split(), cwd=clone, env=alone, capture_output=True, text=True, timeout=20 * PATIENCE_S
        )
        if "No matching distribution" in ran.stderr or "NewConnectionError" in ran.stderr:
            pytest.skip(f"pip could not install: {ran.stderr[-300:]}")
        assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
        assert proof in ran.stdout
    assert (clone / "out/demo/demo.wav").stat().st_size > 50_000
