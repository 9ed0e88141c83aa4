"""A step of the installation as data: whether it is done, what it does in words, and how to do it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Tell = Callable[[str], None]
"""Takes one line for the person who watches."""

REMEDIES = {
    errno.ENOSPC: "free space on that disk and run this again",
    errno.EDQUOT: "free space on that disk and run this again",
    errno.EROFS: "the disk is mounted read-only: see its errors with `journalctl -k`, then run this again",
    errno.EACCES: "run this with sudo",
    errno.EPERM: "run this with sudo",
}


class Failure(Exception):
    """What failed, in one line, and what to do."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


@dataclass(frozen=True)
class Action:
    """One step."""

    name: str
    words: str
    """What it does, as the end of "would …"."""
    done: Callable[[], bool]
    do: Callable[[], None]
    """Raises Failure or OSError."""
    remedy: str = "correct that and run this again; it goes on where it stopped"
    """What to do when it fails and the failure itself names nothing better."""


def perform(actions: Iterable[Action], tell: Tell, *, dry_run: bool = False) -> int:
    """Do what is not done yet; how many steps that were. A dry run only says them.

    Raises Failure that names the step; those before it stay done, and nothing that ran before was touched.
    """
    count = 0
    for action in actions:
        if _tried(action, action.done):
            continue
        count += 1
        if dry_run:
            tell(f"would {action.words}")
            continue
        tell(f"{action.name}: {action.words}")
        _tried(action, action.do)
    return count


def _tried(action: Action, part: Callable[[], bool | None]) -> bool | None:
    try:
        return part()
    except Failure as failure:
        raise Failure(f"{action.name}: {failure.what}", failure.remedy or action.remedy) from failure
    except OSError as error:
        raise Failure(
            f"{action.name}: {told(error)}", REMEDIES.get(error.errno or 0, action.remedy)
        ) from error


def told(error: OSError) -> str:
    """An operating system's error in one line, with the file."""
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
