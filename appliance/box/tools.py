"""Running the vendor's programs and systemd's: never with a terminal, never for ever, never through a shell.

nvpmodel asks on its standard input whether to reboot; with nothing there to answer it declines.
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

from appliance.box.root import reason

SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KEPT = ("F5_SYSROOT", "F5_TOOLS")
"""What a program gets of our own environment, beside a fixed one."""
NOT_FOUND = 127
GRACE_S = 5.0
"""How long a program that we stop may take to end by itself: dpkg leaves its records whole then."""


@dataclass(frozen=True)
class Completed:
    """How a program ended; `code` is 127 when it is not installed, negative when a signal or we ended it."""

    command: tuple[str, ...]
    code: int
    output: str = ""
    errors: str = ""
    timed_out: bool = False

    @property
    def text(self) -> str:
        """Both streams; which one a message is on differs between releases of the vendor's tools."""
        return f"{self.output}\n{self.errors}"

    @property
    def missing(self) -> bool:
        """Whether the program is not installed."""
        return self.code == NOT_FOUND and not self.output

    @property
    def summary(self) -> str:
        """How it ended, in one line for a person."""
        name = Path(self.command[0]).name
        if self.missing:
            return f"{name} is not installed"
        if self.timed_out:
            return f"{name} did not end in time"
        last = next((line.strip() for line in reversed(self.text.splitlines()) if line.strip()), "")
        return f"{name} ended with {self.code}" + (f": {last}" if last else "")


@dataclass(frozen=True)
class Tools:
    """Where programs are found: first in `folders`, then where the system keeps its own."""

    folders: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Laid over the fixed environment that programs get."""

    def find(self, name: str) -> str | None:
        """The program of that name, or None."""
        return shutil.which(name, path=":".join([*map(str, self.folders), SEARCH]))

    def run(self, name: str, *arguments: str, timeout_s: float = 30.0, answer: str = "") -> Completed:
        """Run a program by name and read all that it prints. Does not raise.

        `answer` is its standard input: empty, so that whatever asks gets an end of file.
        """
        path = self.find(name)
        if path is None:
            return Completed((name, *arguments), NOT_FOUND)
        command = (path, *arguments)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if answer else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment(),
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            return Completed(command, NOT_FOUND, "", f"{name} cannot be run: {reason(error)}")
        with process:
            try:
                output, errors = process.communicate(answer or None, timeout=timeout_s)
            except subprocess.TimeoutExpired:
                # The whole session of it: a script's child would keep the pipes open.
                os.killpg(process.pid, signal.SIGKILL)
                output, errors = process.communicate()
                return Completed(command, -signal.SIGKILL, output, errors, timed_out=True)
            except BaseException:
                # It has a session of its own, so that nothing else stops it.
                _end(process)
                raise
        return Completed(command, process.returncode, output, errors)

    def _environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        # Without HOME jetson_clocks writes its store into the current folder; systemd sets none.
        return {"PATH": SEARCH, "HOME": "/root", "LC_ALL": "C", **kept, **self.environment}


def _end(process: subprocess.Popen[str]) -> None:
    """End all of its session: asked first, killed after the grace."""
    deadline = time.monotonic() + GRACE_S
    with contextlib.suppress(ProcessLookupError, PermissionError):
        try:
            os.killpg(process.pid, signal.SIGTERM)
            while time.monotonic() < deadline:
                process.poll()  # a child that nobody waits for counts as there
                os.killpg(process.pid, 0)
                time.sleep(0.02)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
