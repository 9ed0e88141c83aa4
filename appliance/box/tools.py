"""Runs NVIDIA's and systemd's programs: without a terminal, without a shell, with a timeout.

nvpmodel asks on its standard input whether to reboot; the end of the input declines.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from appliance.box.root import error_text

SEARCH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
PASSED_ON = ("F5_SYSROOT", "F5_TOOLS")
"""Variables of this process's environment that programs get."""
NOT_FOUND = 127
FOLLOW_S = 1.0
GRACE_S = 5.0
"""Time between SIGTERM and SIGKILL: enough for dpkg to finish its records."""


@dataclass(frozen=True)
class Completed:
    """Result of a program.

    `code` is 127 if the program is not installed, and negative if a signal or the timeout ended it.
    """

    command: tuple[str, ...]
    code: int
    output: str = ""
    errors: str = ""
    timed_out: bool = False

    @property
    def text(self) -> str:
        """Output of both streams, because NVIDIA's releases differ in the stream of a message."""
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
    """Programs, searched in `folders` first, then in the system's folders."""

    folders: tuple[Path, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables in addition to the fixed environment."""

    def find(self, name: str) -> str | None:
        return shutil.which(name, path=":".join([*map(str, self.folders), SEARCH]))

    def execute(self, name: str, *arguments: str, timeout_s: float = 30.0, answer: str = "") -> Completed:
        """Run a program with `answer` as its standard input. Does not raise."""
        process = self._started(name, arguments, stdin=bool(answer))
        if isinstance(process, Completed):
            return process
        command = (name, *arguments)
        with _session(process):
            try:
                output, errors = process.communicate(answer or None, timeout=timeout_s)
            except subprocess.TimeoutExpired:
                # The whole session is killed, because a script's child would keep the pipes open.
                os.killpg(process.pid, signal.SIGKILL)
                output, errors = process.communicate()
                return Completed(command, -signal.SIGKILL, output, errors, timed_out=True)
        return Completed(command, process.returncode, output, errors)

    def follow(self, name: str, *arguments: str, say: Callable[[str], None]) -> Completed:
        """Run a program without a timeout. `say` gets each line, and "" after FOLLOW_S without one.

        The output contains both streams. Does not raise.
        """
        process = self._started(name, arguments, errors=subprocess.STDOUT)
        if isinstance(process, Completed):
            return process
        output: list[str] = []
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

        def read() -> None:
            for line in process.stdout or ():
                lines.put(line.rstrip())
            lines.put(None)

        with _session(process):
            threading.Thread(target=read, daemon=True).start()
            while True:
                try:
                    line = lines.get(timeout=FOLLOW_S)
                except queue.Empty:
                    say("")
                    continue
                if line is None:
                    break
                output.append(line)
                say(line)
        return Completed((name, *arguments), process.returncode, "\n".join(output))

    def _started(
        self, name: str, arguments: Sequence[str], *, stdin: bool = False, errors: int = subprocess.PIPE
    ) -> subprocess.Popen[str] | Completed:
        """Start a program with a fixed environment.

        Returns a Completed with NOT_FOUND if it cannot be started.
        """
        path = self.find(name)
        if path is None:
            return Completed((name, *arguments), NOT_FOUND)
        command = (path, *arguments)
        passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        # Without HOME, which systemd does not set, jetson_clocks writes its store into the current folder.
        environment = {"PATH": SEARCH, "HOME": "/root", "LC_ALL": "C", **passed_on, **self.environment}
        try:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environment,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError as error:
            return Completed(command, NOT_FOUND, "", f"{name} cannot be run: {error_text(error)}")


@contextlib.contextmanager
def _session(process: subprocess.Popen[str]) -> Iterator[None]:
    """Wait for the process to end.

    After an exception (Ctrl-C does not reach the process), end its whole session.
    """
    with process:
        try:
            yield
        except BaseException:
            _end_session(process)
            raise


def _end_session(process: subprocess.Popen[str]) -> None:
    """Send SIGTERM to the process's session, and SIGKILL after GRACE_S."""
    deadline = time.monotonic() + GRACE_S
    with contextlib.suppress(ProcessLookupError, PermissionError):
        try:
            os.killpg(process.pid, signal.SIGTERM)
            while time.monotonic() < deadline:
                process.poll()  # reaps the process: a zombie would count as alive
                os.killpg(process.pid, 0)
                time.sleep(0.02)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
