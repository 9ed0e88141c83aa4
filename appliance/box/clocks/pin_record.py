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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from appliance.box import paths
from appliance.box.clocks.clocks_json import NUMBERS, Count, Number, Unpin
from appliance.box.system import Box
from appliance.fields import Ranged

HOUR_S = 3600.0
REPINS_PER_HOUR = 6
MUTEX_WAIT_S = 120.0
"""Pinning takes up to a minute when the GPU is late, and the tools' time-outs on top."""
MUTEX_POLL_S = 0.2
ROUNDED_S = 0.001
"""Times of an unpin are rounded to milliseconds."""


@dataclass(frozen=True)
class PinRecord(Ranged):
    """The fields are the keys of the file."""

    boot_id: str = ""
    unlocked_at: Annotated[float | None, NUMBERS] = None
    """Time at which a technician unlocked; None if locked since."""
    reboot_for: str = ""
    """The power mode that nvpmodel wants a reboot for; it is asked once in a boot."""
    attempts: tuple[Number, ...] = ()
    """Times of the timer's pinning in the last hour."""
    repins: Count = 0
    """Number of times that clocks were pinned again after an unpin."""
    held_at: Annotated[float | None, NUMBERS] = None
    """Time of the last reading as pinned; None after a reading as unpinned."""
    mode: str = ""
    """The power mode at that time."""
    lost: bool = False
    """True from an unpin until clocks are pinned again."""
    last_unpin: Unpin | None = None
    problem: str = ""
    """Errors of the last pinning."""

    def with_pinned(self, now: float, mode: str, *, by_us: bool = False) -> PinRecord:
        """`by_us`: we have pinned them, which after an unpin counts as a re-pin."""
        repins = self.repins + int(self.lost and by_us)
        return dataclasses.replace(self, held_at=now, mode=mode, lost=False, repins=repins, problem="")

    def with_unpin(self, unpin: Unpin) -> PinRecord:
        return dataclasses.replace(self, held_at=None, lost=True, last_unpin=unpin)

    def with_attempt(self, now: float) -> PinRecord:
        return dataclasses.replace(self, attempts=(*self._last_hour(now), now))

    def wait_s(self, now: float) -> float:
        """Seconds until the timer's check may pin again; 0 when it may now."""
        recent = self._last_hour(now)
        return 0.0 if len(recent) < REPINS_PER_HOUR else HOUR_S - (now - recent[-REPINS_PER_HOUR])

    @property
    def unpinned_since_attempt(self) -> bool:
        """True if the last attempt worked, and somebody has unpinned since; else the attempt failed."""
        last, attempt = self.last_unpin, max(self.attempts, default=0.0)
        return last is not None and last.at > attempt + ROUNDED_S

    def _last_hour(self, now: float) -> tuple[float, ...]:
        return tuple(at for at in self.attempts if 0 <= now - at < HOUR_S)


def load(box: Box) -> PinRecord:
    """Load this boot's record; a new one when it is absent, damaged or of another boot.

    Raises PermissionError when others than root may have written it.
    """
    fresh = PinRecord(box.boot_id)
    if not box.root.is_private(paths.PIN_RECORD):
        return fresh
    try:
        record = box.root.load(paths.PIN_RECORD, PinRecord)
    except (OSError, ValueError):
        return fresh
    return record if record.boot_id == box.boot_id else fresh


def save(box: Box, record: PinRecord) -> None:
    """Raises OSError."""
    box.root.private_folder(paths.ROOTS_RUN)
    box.root.replace(paths.PIN_RECORD, json.dumps(dataclasses.asdict(record)) + "\n", mode=0o600)


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
