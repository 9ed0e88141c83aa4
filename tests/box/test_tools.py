"""Programs that are run: none of them outlives the wait for it."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from appliance.box import tools
from appliance.box.tools import Tools

ASKED = """\
#!/bin/sh
trap 'echo asked > {folder}/asked; {then}' TERM
echo $$ > {folder}/pid.new && mv {folder}/pid.new {folder}/pid
while :; do sleep 0.05; done
"""


def interrupt_once_it_runs(folder: Path) -> None:
    while not (folder / "pid").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("then", ["exit 1", ":"])
def test_ctrl_c_ends_the_program_asked_first_and_killed_after_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    monkeypatch.setattr(tools, "GRACE_S", 10.0 if then == "exit 1" else 0.5)
    program = tmp_path / "slow"
    program.write_text(ASKED.format(folder=tmp_path, then=then))
    program.chmod(0o755)
    thread = threading.Thread(target=interrupt_once_it_runs, args=(tmp_path,), daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        Tools((tmp_path,)).run("slow", timeout_s=60.0)
    thread.join()
    assert (tmp_path / "asked").read_text() == "asked\n"
    group = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10.0
    while running(group) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not running(group)


def running(group: int) -> bool:
    """Whether any process of the group is more than its exit status."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, of = status.read_text().rpartition(") ")[2].split()[:3]
        except OSError:
            continue
        if int(of) == group and state != "Z":
            return True
    return False
