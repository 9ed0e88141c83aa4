"""The budget of the tests: its counts and its excesses."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import budget
from tests.harness.kept import ROOT

pytestmark = pytest.mark.slow

COUNTED = """
import subprocess, sys
pytest_plugins = ["tests.harness.budget"]
def test_starts_a_daemon():
    subprocess.run([sys.executable, "-c", "sum(range(10**7))", "serve"], check=True)
def test_starts_another_program():
    subprocess.run([sys.executable, "-c", "", "voices"], check=True)
"""


def test_daemons_and_the_seconds_of_children_are_counted(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(COUNTED)
    (tmp_path / "test_them.py").write_text("from conftest import *\n")
    environment = {**os.environ, "F5_COSTS": str(tmp_path / "costs"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    [written] = (tmp_path / "costs").iterdir()
    costs = json.loads(written.read_text())
    assert costs["counts"] == {"daemons": 1}
    daemon, other = (costs["tests"][name] for name in costs["tests"] if name.startswith("test_them"))
    assert daemon > other > 0


@pytest.mark.parametrize(("counts", "tests", "over"), [
    ({"daemons": 40, "traces": 4}, {"a": 16.0, "what a builds on": 24.0}, []),
    ({"daemons": 41}, {}, ["41 daemons, at most 40"]),
    ({"traces": 5}, {}, ["5 traces, at most 4"]),
    ({}, {"a": 16.1, "b": 1.0}, ["a takes 16.1 CPU s, at most 16.0"]),
    ({}, {"what a builds on": 24.1}, ["what a builds on takes 24.1 CPU s, at most 24.0"]),
])  # fmt: skip
def test_a_broken_bound_is_named(counts: dict[str, int], tests: dict[str, float], over: list[str]) -> None:
    halves = [{"counts": counts, "tests": {}}, {"counts": {}, "tests": tests}]
    assert budget.excesses(budget.summed(halves)) == over
