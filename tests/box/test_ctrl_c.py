"""Ctrl-C at twenty moments of each program of the box: one line, status 130, and the next run repairs."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from appliance.box import backup, program
from appliance.box.root import Root
from appliance.box.support import archive
from appliance.box.system import Box
from appliance.box.tools import Completed
from tests.box.test_upgrade import UPGRADE, Programs
from tests.fakes.jetson.board import Clock, Entry, Jetson
from tests.harness.boxes import install, quick, run_script, script, well
from tests.harness.killing import CHANGES, in_a_process_of_its_own

pytestmark = [pytest.mark.slow, pytest.mark.once]

MOMENTS = 20
VOLATILE = re.compile(
    r"^(?:errors|moments|out)$|^box/(?:state|bin)|root/run/|boots\.json|setup\.json|\.before-|/sys/.*cur_freq"
)
"""Files with times of their own, and of the harness."""
VERBS = {
    "lock": ("clock-lock", "lock"),
    "quiet": ("quiet",),
    "undo": ("quiet", "--undo"),
    "setup": ("setup", "--no-reboot"),
    "support-bundle": ("support-bundle", "--out", "FILE"),
    "backup": ("backup", "FILE"),
    "restore": ("restore", "FILE"),
}


class Disk(Programs):
    """The programs of an upgrade, whose installed version outlives the process."""

    def execute(self, name: str, *arguments: str, **options: Any) -> Completed:
        self.done[:] = [self.folders[0].joinpath("installed").read_text()]
        ran = super().execute(name, *arguments, **options)
        self.folders[0].joinpath("installed").write_text(self.version)
        return ran


def interrupted(moment: int, folder: Path, run: Callable[[], int]) -> tuple[int, str, int]:
    """Run a program in a fork, with SIGINT at a moment; return its status, its errors and its moments."""
    errors, moments = folder / "errors", folder / "moments"
    if child := os.fork():
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return status, errors.read_text(), len(moments.read_bytes())
    count = os.open(moments, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for number, path in ((1, os.devnull), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    seen = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in CHANGES:
            seen += 1
            os.write(count, b".")
            if seen == moment:
                os.kill(os.getpid(), signal.SIGINT)

    try:
        sys.addaudithook(hook)
        program.run("the program", run)
    except SystemExit as ended:
        os._exit(int(ended.code or 0))
    finally:
        os._exit(99)


def of_upgrade(folder: Path) -> Callable[[], int]:
    """Upgrade version 1 to 2."""
    for name in ("1", "installed"):
        (folder / name).write_text("1")
    (folder / "now.deb").write_text("1")
    (folder / "2.deb").write_text("2")
    names = {name: folder / getattr(UPGRADE, name).name for name in ("NOW", "BEFORE", "NEXT", "TRIAL")}
    keep = mock.Mock(side_effect=lambda tools, present: names["NOW"].write_text(present))
    box = Box(Root(folder), Disk((folder,), answers={"1": "s", "2": "s"}), **Clock().arguments)

    def run() -> int:
        with mock.patch.multiple(UPGRADE, DEBS=folder, keep_present=keep, **names):
            UPGRADE.upgrade(box, folder / "2.deb", 60.0, prepared=False)
        return 0

    return run


def of_box(folder: Path, verb: str, saved: Iterable[Entry]) -> Callable[[], int]:
    """Run a program on a saved box; FILE is a backup, or is to be made."""
    jetson = Jetson(folder / "box", "jp6-0005", saved)
    name, *words = (str(folder / "out") if word == "FILE" else word for word in VERBS[verb])
    if verb == "restore":
        shutil.copy(folder.parent / "kept", folder / "out")

    def run() -> int:
        # Each run, a process, at a time of its own.
        box = quick(jetson, **Clock(wall_s=1_795_000_000.0 + os.getpid()).arguments)
        if name in ("backup", "restore"):
            act = backup.back_up if name == "backup" else backup.restore
            if name == "backup":  # a file that is there is never replaced: its maker removes it
                Path(words[0]).unlink(missing_ok=True)
            act(box, Path(words[0]), lambda line: None)
            return 0
        return run_script(name, box, *words)

    return run


def state(folder: Path) -> dict[str, Any]:
    """Everything that is left, but for times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if not VOLATILE.search(name):
            found[name] = os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
    return found


def furnished(folder: Path, verb: str) -> Iterable[Entry]:
    """Return the box that each run begins with."""
    made = well(folder / "from") if verb == "undo" else Jetson(folder / "from", "jp6-0005")
    made.set_mode("MAXN") if verb == "lock" else None
    if verb in ("backup", "restore"):
        install(made)
        for path in ("/etc/f5-appliance/appliance.yaml", "/var/lib/f5-appliance/voices/ann/audio"):
            made.write(path, "")
        backup.back_up(quick(made), folder / "kept", lambda line: None)
        made.write("/etc/f5-appliance/appliance.yaml", "mine")
    return made.saved()


def lives(folder: Path, verb: str) -> dict[str, Any]:
    """Interrupt a program at MOMENTS moments of its changes, run it again, and return what is wrong then."""
    backup.application.refused = lambda box, text: ""
    script("support-bundle").archive.collect = lambda box, app: [archive.Part("states.txt", "pinned")]
    setup = script("setup")
    setup.waited_for = lambda *arguments: Completed(("x",), 0, "{}")
    setup.following.start_daemon = lambda *arguments: ""
    saved = furnished(folder, verb) if verb != "upgrade" else ()

    def prepared(number: int) -> tuple[Path, Callable[[], int]]:
        (here := folder / f"{number:03}").mkdir()
        return here, of_upgrade(here) if verb == "upgrade" else of_box(here, verb, saved)

    here, run = prepared(0)
    status, errors, count = interrupted(0, here, run)
    good, wrong = state(here), []
    for moment in sorted({1 + count * number // MOMENTS for number in range(MOMENTS)}):
        here, run = prepared(moment)
        ended, said, _ = interrupted(moment, here, run)
        if (ended, said) != (130, f"the program: {program.INTERRUPTED}\n"):
            wrong.append((moment, ended, said))
        again, said, _ = interrupted(0, here, run)
        left = state(here)
        if again != status or left != good:
            wrong.append(
                (moment, again, said, sorted(k for k in {*left, *good} if left.get(k) != good.get(k)))
            )
        shutil.rmtree(here)
    return {"wrong": wrong, "count": count, "status": status, "errors": errors}


@pytest.mark.skipif(os.geteuid() != 0, reason="not root")
@pytest.mark.parametrize("verb", [*VERBS, "upgrade"])
def test_the_next_run_repairs(verb: str, tmp_path: Path) -> None:
    seen = in_a_process_of_its_own("box.test_ctrl_c", tmp_path, verb)
    assert not seen["wrong"] and seen["count"] >= 1, seen
    assert (seen["status"], seen["errors"]) == (0, "") or verb == "setup", seen
