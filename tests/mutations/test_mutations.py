"""Defects seeded into our own code: each must turn the test red that is there to notice it.

The list in mutations.py is what a careless change would do: believe an exit code, believe a stale file, read
a sleeping sensor through a buffer. A test that stays green under its defect proves nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mutations.mutations import MUTATIONS, Mutation

COPIED = ("appliance", "configs", "scripts", "systemd", "tests")
TESTS_FAILED = 1
"""pytest's exit status; 2 and above mean that nothing was proved."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def checkout(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout in which defects do no harm."""
    copy = tmp_path_factory.mktemp("checkout")
    shutil.copy(root / "pyproject.toml", copy)
    for folder in COPIED:
        shutil.copytree(root / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.fixture
def mutated(checkout: Path, mutation: Mutation) -> Iterator[Path]:
    file = checkout / mutation.file
    sound = file.read_text()
    assert sound.count(mutation.sound) == 1, f"{mutation.file} does not hold this once: {mutation.sound}"
    file.write_text(sound.replace(mutation.sound, mutation.defect))
    yield checkout
    file.write_text(sound)


def run_tests(checkout: Path, *tests: str) -> subprocess.CompletedProcess[str]:
    # The copy must be found before the installed package, and leave no compiled files that outlive a defect.
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, timeout=300)


def test_the_named_tests_pass_without_a_defect(checkout: Path) -> None:
    result = run_tests(checkout, *sorted({mutation.test for mutation in MUTATIONS}))
    assert result.returncode == 0, result.stdout[-3000:]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_defect_turns_its_test_red(mutation: Mutation, mutated: Path) -> None:
    result = run_tests(mutated, mutation.test)
    assert result.returncode == TESTS_FAILED, f"{mutation.test} did not notice:\n{result.stdout[-3000:]}"
