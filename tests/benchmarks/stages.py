"""Stages of a long check: each is a process with a limit, and one that fails leaves the others.

A stage yields rows, and STAGE.json holds them as soon as they are known, with the status: done, failed, ended
with a status, or over its limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Rows = Iterator[tuple[str, Any]]
"""Names and values, each written when it is there."""
DONE = "done"


@dataclass(frozen=True)
class Stage:
    rows: Callable[..., Rows]
    limit_s: float
    needs: str = ""
    """The stage without whose result it cannot begin."""


def tried(work: Callable[..., Any], *arguments: object) -> Any:
    """Its result, or its error as a row: of several, one that fails leaves the others."""
    try:
        return work(*arguments)
    except Exception as error:
        say(f"{type(error).__name__}: {error}")
        told = f"{type(error).__name__}: {error}"
        return {"error": told if len(told) < 1000 else f"{told[:300]} … {told[-700:]}"}


def failed(row: object) -> bool:
    return isinstance(row, Mapping) and "error" in row


def fill(file: Path, rows: Rows) -> None:
    """Run a stage in this process. Raises what it raises, after writing it."""
    left: dict[str, Any] = {"status": "running", "rows": {}}
    begun = time.monotonic()
    try:
        for name, value in rows:
            left["rows"][name] = value
            write(file, left)
        left["status"] = DONE
    except Exception as error:
        left |= {"status": "failed", "error": f"{type(error).__name__}: {error}"[:2000]}
        raise
    finally:
        write(file, left | {"seconds": round(time.monotonic() - begun, 3)})


class Check:
    """Stages in processes of their own, `command` and a name. Files are in `work`, with copies in `out`."""

    def __init__(self, stages: Mapping[str, Stage], command: Sequence[str], work: Path, out: Path) -> None:
        self.stages, self.command, self.work, self.out = stages, command, work, out
        self._running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}

    def left(self, name: str) -> dict[str, Any]:
        """The stage's file; empty without any."""
        file = self.work / f"{name}.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def is_done(self, name: str) -> bool:
        return self.left(name).get("status") == DONE

    def run(self, names: Sequence[str], limits: Mapping[str, float], *, again: bool) -> None:
        """Run stages in order, one that others need beside those before; those done only `again`."""
        due = [name for name in names if again or not self.is_done(name)]
        needed = dict.fromkeys(self.stages[name].needs for name in due if self.stages[name].needs)
        beside = [name for name in needed if name in due or not self.is_done(name)]
        try:
            for name in beside:
                self._begin(name, limits)
            for name in (name for name in due if name not in beside):
                needs = self.stages[name].needs
                if needs in self._running:
                    self._end(needs)
                if needs and not self.is_done(needs):
                    self._leave(name, {"status": f"not run: {needs} is not done", "rows": {}})
                else:
                    self._begin(name, limits)
                    self._end(name)
            for name in list(self._running):
                self._end(name)
        finally:
            for process, _ in self._running.values():
                _kill(process)

    def _begin(self, name: str, limits: Mapping[str, float]) -> None:
        self._leave(name, {"status": "running", "rows": {}})
        process = subprocess.Popen([*self.command, name], start_new_session=True)
        self._running[name] = process, time.monotonic() + limits.get(name, self.stages[name].limit_s)

    def _end(self, name: str) -> None:
        """Wait for a stage, and end it with all that it has started at its limit."""
        process, deadline = self._running[name]
        late = False
        try:
            process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            late = True
        _kill(process)
        del self._running[name]
        left = self.left(name)
        if left["status"] == "running":
            left["status"] = "over its limit" if late else f"ended with status {process.returncode}"
        self._leave(name, left)

    def _leave(self, name: str, left: Mapping[str, Any]) -> None:
        say(f"==> {name}: {left['status']}")
        for folder in {self.work, self.out}:
            write(folder / f"{name}.json", left)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def write(file: Path, value: object) -> None:
    """Replace a JSON file whole."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(new, file)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
