"""Root's record of this boot, and the mutex of processes that set clocks.

Both lie in /run/f5-appliance/root, which only root can enter and a boot empties. Times are in seconds since
boot.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

from appliance.box import paths
from appliance.box.clocks.clocks_json import NUMBERS, Count, Number, Unpin
from appliance.box.root import error_text
from appliance.box.system import Box
from appliance.fields import Ranged

Report = Callable[[str], None]
"""Gets a line for each step."""
MUTEX_WAIT_S = 120.0
"""Pinning takes a minute when the GPU is late, and time-outs on top."""
MUTEX_POLL_S = 0.2


@dataclass(frozen=True)
class PinRecord(Ranged):
    """The fields are the keys of the file."""

    boot_id: str = ""
    unlocked_at: Annotated[float | None, NUMBERS] = None
    """By a technician; None if locked since."""
    reboot_for: str = ""
    """Mode that nvpmodel wants a reboot for; asked once in a boot."""
    attempts: tuple[Number, ...] = ()
    """Pins of the timer's check, in the last hour."""
    repins: Count = 0
    held_at: Annotated[float | None, NUMBERS] = None
    """Last reading as pinned; None after one as unpinned."""
    mode: str = ""
    lost: bool = False
    """From an unpin until clocks are pinned again."""
    last_unpin: Unpin | None = None
    problem: str = ""
    """Errors of the last pinning."""


def save(box: Box, record: PinRecord) -> None:
    """Raises OSError."""
    box.root.private_folder(paths.ROOTS_RUN)
    box.root.replace(paths.PIN_RECORD, json.dumps(dataclasses.asdict(record)) + "\n", mode=0o600)


def recorded(box: Box, report: Report) -> PinRecord:
    """Load this boot's record; a new one when it is absent, damaged, of another boot, or others may have
    written it, which is reported."""
    fresh = PinRecord(box.boot_id)
    try:
        if not box.root.is_private(paths.PIN_RECORD):
            return fresh
        record = box.root.load(paths.PIN_RECORD, PinRecord)
    except OSError as error:
        report(f"{paths.PIN_RECORD} is not used: {error_text(error)}")
        return fresh
    except ValueError:
        return fresh
    return record if record.boot_id == box.boot_id else fresh


def try_save(box: Box, record: PinRecord, report: Report) -> None:
    """Pinning matters more."""
    try:
        save(box, record)
    except OSError as error:
        report(f"cannot write {paths.PIN_RECORD}, so re-pins are not counted: {error_text(error)}")


@contextlib.contextmanager
def mutex(box: Box) -> Iterator[None]:
    """Let one process at a time set clocks: the timer's check waits for a technician's command.

    Raises TimeoutError after MUTEX_WAIT_S, OSError when the file cannot be made.
    """
    folder = box.root.private_folder(paths.ROOTS_RUN)
    name = os.path.basename(paths.CLOCK_MUTEX)
    handle = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        for _ in range(int(MUTEX_WAIT_S / MUTEX_POLL_S)):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                box.sleep(MUTEX_POLL_S)
        else:
            locked = f"{paths.CLOCK_MUTEX} is locked"
            raise TimeoutError(f"another clock-lock has been at work for {MUTEX_WAIT_S:.0f} s ({locked})")
        yield
    finally:
        os.close(handle)
