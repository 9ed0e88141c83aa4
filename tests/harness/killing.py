"""SIGKILL, or another signal, before the n-th change that a program makes on the disk."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harness.daemons import ROOT, finished

CHANGES = {"ctypes.dlsym", "open"}
CHANGES |= {f"os.{change}" for change in ("chmod", "chown", "mkdir", "remove", "rename", "rmdir", "symlink")}
"""Audit events before a change on the disk; `ctypes.dlsym` precedes the exchange of two names."""


def killed(number: int, run: Callable[[], None], by: int = signal.SIGKILL) -> int:
    """Run a function in a fork that gets a signal before its n-th change on the disk; return waitpid's
    status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event not in CHANGES or (event == "open" and not _counts(arguments)):
            return
        count += 1
        if count == number:
            os.kill(os.getpid(), by)

    sys.addaudithook(hook)
    run()
    os._exit(0)


def _counts(arguments: tuple[Any, ...]) -> bool:
    """True for a file opened for writing, or a folder opened to sync it."""
    return bool(arguments[2] & (os.O_WRONLY | os.O_RDWR)) or os.path.isdir(arguments[0])


def in_a_process_of_its_own(module: str, folder: Path, *arguments: str) -> Any:
    """Return the result of `lives(folder, …)` of a test module, run in a separate process.

    A fork of pytest itself would have the locks of its threads without the threads.
    """
    code = (
        f"import json, pathlib, sys; from tests.{module} import lives; "
        "print(json.dumps(lives(pathlib.Path(sys.argv[1]), *sys.argv[2:])))"
    )
    own = {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    ran = finished(sys.executable, "-c", code, folder, *arguments, cwd=ROOT, **own)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)
