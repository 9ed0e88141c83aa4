"""Ctrl-C at ever later moments of a program that changes the box: one line, 130, the next run repairs."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from appliance.box import program
from appliance.box.root import Root
from appliance.box.system import Box
from appliance.box.tools import Completed
from tests.box.test_upgrade import UPGRADE, Programs
from tests.fakes.jetson.board import Clock, Jetson
from tests.harness.boxes import quick, run_script, well
from tests.harness.killing import in_a_process_of_its_own, killed

pytestmark = [pytest.mark.slow, pytest.mark.once]

VERBS = {"lock": ("clock-lock", "lock"), "quiet": ("quiet",), "undo": ("quiet", "--undo")}


class Disk(Programs):
    """The programs of an upgrade, whose installed version outlives the process."""

    def execute(self, name: str, *arguments: str, **options: Any) -> Completed:
        installed = self.folders[0] / "installed"
        self.done[:] = [installed.read_text()]
        ran = super().execute(name, *arguments, **options)
        installed.write_text(next(word for word in reversed(self.done) if word.isdecimal()))
        return ran


def of_upgrade(folder: Path, saved: Any) -> tuple[Callable[[], int], Callable[[], Any]]:
    """An upgrade from version 1 to 2: the function that runs it, and the function that reads the result."""
    folder.mkdir()
    for name, text in (("installed", "1"), ("now.deb", "1"), ("2.deb", "2")):
        (folder / name).write_text(text)
    names = {name: folder / getattr(UPGRADE, name).name for name in ("NOW", "BEFORE", "NEXT", "TRIAL")}
    keep = mock.Mock(side_effect=lambda tools, present: names["NOW"].write_text(present))
    box = Box(Root(folder), Disk((folder,), answers={"1": "s", "2": "s"}), **Clock().arguments)

    def run() -> int:
        with mock.patch.multiple(UPGRADE, DEBS=folder, keep_present=keep, **names):
            UPGRADE.upgrade(box, folder / "2.deb", 60.0, prepared=False)
        return 0

    return run, lambda: {path.name: path.read_text() for path in folder.iterdir()}


def of_box(folder: Path, saved: Any, *words: str) -> tuple[Callable[[], int], Callable[[], Any]]:
    jetson = Jetson(folder, "jp6-0005", saved)

    def left() -> dict[str, Any]:
        """Return contents; modes may differ in a folder of root's own."""
        shown = jetson.snapshot().items()
        return {
            path: what for path, (_, what) in shown if not path.startswith("run/") and "boots" not in path
        }

    return lambda: run_script(words[0], quick(jetson, **Clock().arguments), *words[1:]), left


def lives(folder: Path, verb: str) -> list[Any]:
    """Interrupt a program at ever later moments, run it again, and return the wrong outcomes."""
    made = well(folder / "made") if verb == "undo" else Jetson(folder / "made", "jp6-0005")
    made.set_mode("MAXN")
    saved = made.saved()
    errors, numbers, wrong = folder / "errors", itertools.count(), list[Any]()

    def prepared() -> tuple[Callable[[], int], Callable[[], Any]]:
        here = folder / str(next(numbers))
        return of_upgrade(here, saved) if verb == "upgrade" else of_box(here, saved, *VERBS[verb])

    def ended(run: Callable[[], int], moment: int) -> int:
        return os.waitstatus_to_exitcode(killed(moment, lambda: as_a_program(run, errors), signal.SIGINT))

    run, left = prepared()
    assert ended(run, 0) == 0, errors.read_text()
    good = left()
    for moment in range(1, 2000):
        run, left = prepared()
        if (status := ended(run, moment * moment // 6 + 3)) == 0:
            break  # the program ended before the signal
        said = errors.read_text()
        again = ended(run, 0)
        if (status, said, again) != (130, f"it: {program.INTERRUPTED}\n", 0) or left() != good:
            wrong.append((moment, status, said, again, [k for k, v in left().items() if good.get(k) != v]))
    return wrong


def as_a_program(run: Callable[[], int], errors: Path) -> None:
    for number, path in ((1, os.devnull), (2, str(errors))):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    try:
        program.run("it", run)
    except SystemExit as end:
        os._exit(int(end.code or 0))


@pytest.mark.parametrize("verb", [*VERBS, "upgrade"])
def test_the_next_run_repairs(verb: str, tmp_path: Path) -> None:
    assert in_a_process_of_its_own("box.test_ctrl_c", tmp_path, verb) == []
