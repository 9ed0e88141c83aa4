"""Run NVIDIA's and systemd's programs: without a terminal, without a shell, with a time limit.

nvpmodel asks on its standard input whether to reboot; an end of file there declines.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from appliance.box.root import error_text

SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PASSED_ON = ("F5_SYSROOT", "F5_TOOLS")
"""To programs, of our environment."""
NOT_FOUND = 127
GRACE_S = 5.0
"""Time between SIGTERM and SIGKILL: enough for dpkg to leave its records whole."""


@dataclass(frozen=True)
class Completed:
    """`code` is 127 when it is not installed, negative when a signal or we ended it."""

    command: tuple[str, ...]
    code: int
    output: str = ""
    errors: str = ""
    timed_out: bool = False

    @property
    def text(self) -> str:
        """Both streams: releases of NVIDIA's tools differ in which one a message is on."""
        return f"{self.output}\n{self.errors}"

    @property
    def missing(self) -> bool:
        return self.code == NOT_FOUND and not self.output

    @property
    def summary(self) -> str:
        name = Path(self.command[0]).name
        if self.missing:
            return f"{name} is not installed"
        if self.timed_out:
            return f"{name} did not end in time"
        last = next((line.strip() for line in reversed(self.text.splitlines()) if line.strip()), "")
        return f"{name} ended with {self.code}" + (f": {last}" if last else "")


@dataclass(frozen=True)
class Tools:
    """Programs, found in `folders` first, then in the system's own."""

    folders: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Added to the fixed environment."""

    def find(self, name: str) -> str | None:
        return shutil.which(name, path=":".join([*map(str, self.folders), SEARCH]))

    def execute(self, name: str, *arguments: str, timeout_s: float = 30.0, answer: str = "") -> Completed:
        """Run a program; `answer` is its standard input. Does not raise."""
        path = self.find(name)
        if path is None:
            return Completed((name, *arguments), NOT_FOUND)
        command = (path, *arguments)
        passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        # Without HOME jetson_clocks writes its store into the current folder; systemd sets none.
        environment = {"PATH": SEARCH, "HOME": "/root", "LC_ALL": "C", **passed_on, **self.environment}
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if answer else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            return Completed(command, NOT_FOUND, "", f"{name} cannot be run: {error_text(error)}")
        with process:
            try:
                output, errors = process.communicate(answer or None, timeout=timeout_s)
            except subprocess.TimeoutExpired:
                # Its whole session: a script's child would keep the pipes open.
                os.killpg(process.pid, signal.SIGKILL)
                output, errors = process.communicate()
                return Completed(command, -signal.SIGKILL, output, errors, timed_out=True)
            except BaseException:
                # E.g. Ctrl-C, which does not reach a session of its own.
                _end_session(process)
                raise
        return Completed(command, process.returncode, output, errors)


def _end_session(process: subprocess.Popen[str]) -> None:
    """Send its session SIGTERM, and SIGKILL after GRACE_S."""
    deadline = time.monotonic() + GRACE_S
    with contextlib.suppress(ProcessLookupError, PermissionError):
        try:
            os.killpg(process.pid, signal.SIGTERM)
            while time.monotonic() < deadline:
                process.poll()  # reaps it: a zombie would count as alive
                os.killpg(process.pid, 0)
                time.sleep(0.02)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
