"""Programs that the box runs: none outlives the wait for it."""

import os
import signal
import threading
from pathlib import Path

import pytest

from appliance.box import tools
from appliance.box.tools import Tools
from tests.harness.patience import PATIENCE_S

ASKED = """\
#!/bin/sh
exec 9> {folder}/alive
trap 'echo asked > {folder}/asked; {then}' TERM
read answer
echo running >&9
while :; do sleep 60 & wait; done
"""
"""A program that reads its answer, so that Tools waits for it by then. Its children keep the pipe `alive`
open, too."""


def interrupt_once_it_runs(alive: Path) -> None:
    """Send SIGINT when the program runs; return when the last process that holds the pipe has ended."""
    with alive.open() as stream:
        stream.readline()
        os.kill(os.getpid(), signal.SIGINT)
        stream.read()


@pytest.mark.parametrize("then", ["exit 1", ":"])
def test_ctrl_c_ends_the_program_asked_first_and_killed_after_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    monkeypatch.setattr(tools, "GRACE_S", 10.0 if then == "exit 1" else 0.5)
    program = tmp_path / "slow"
    program.write_text(ASKED.format(folder=tmp_path, then=then))
    program.chmod(0o755)
    os.mkfifo(tmp_path / "alive")
    thread = threading.Thread(target=interrupt_once_it_runs, args=(tmp_path / "alive",), daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        Tools((tmp_path,)).execute("slow", timeout_s=60.0, answer="go\n")
    assert (tmp_path / "asked").read_text() == "asked\n"
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "a process of the program's session still runs"
