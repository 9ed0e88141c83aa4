"""Root's memory of this boot (an unlock, a due reboot, re-pins), and the outcome with it.

In /run/f5-appliance/root, which only root can enter and which is empty after a boot. Times are seconds since
boot. One process works on the clocks at a time: the timer's check waits for a technician's lock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from appliance.box import paths
from appliance.box.clocks.published import Clocks, Unpin, number, parse_unpin
from appliance.box.clocks.verdict import ClockReading
from appliance.box.private import is_private_file, private_folder
from appliance.box.system import Box

HOUR_S = 3600.0
REPINS_PER_HOUR = 6
UNLOCKED = "unlocked by a technician"
LOCK_COMMAND = "sudo f5-clock-lock lock"
TURN_WAIT_S = 120.0
"""A turn takes up to a minute when the GPU is late, and a tool's time-outs on top."""
TURN_POLL_S = 0.2


@dataclass(frozen=True)
class Ledger:
    """Root's memory of this boot."""

    boot_id: str = ""
    unlocked_at: float | None = None
    """When a technician unlocked; None when not, or locked since."""
    reboot_for: str = ""
    """The power mode that nvpmodel wants a reboot for; it is asked once in a boot."""
    attempts: tuple[float, ...] = ()
    """When the check pinned, of the last hour."""
    repins: int = 0
    """How often clocks were pinned again after something had unpinned them."""
    held_at: float | None = None
    """When clocks were last seen held; None before that, and once they were seen unpinned."""
    mode: str = ""
    """The power mode at that time."""
    lost: bool = False
    """Whether they were seen unpinned and are not pinned again yet."""
    last_unpin: Unpin | None = None
    problem: str = ""
    """What went wrong when clocks were last pinned without success."""

    def held(self, now: float, mode: str, *, by_us: bool = False) -> Ledger:
        """Clocks are held; when `by_us` and after an unpin, that is one re-pin more."""
        repins = self.repins + int(self.lost and by_us)
        return dataclasses.replace(self, held_at=now, mode=mode, lost=False, repins=repins, problem="")

    def unpinned(self, unpin: Unpin) -> Ledger:
        """Clocks that were held are not any more."""
        return dataclasses.replace(self, held_at=None, lost=True, last_unpin=unpin)

    def attempted(self, now: float) -> Ledger:
        """The check pins now."""
        return dataclasses.replace(self, attempts=(*self.recent(now), now))

    def recent(self, now: float) -> tuple[float, ...]:
        """Attempts of the last hour."""
        return tuple(at for at in self.attempts if 0 <= now - at < HOUR_S)

    def wait_s(self, now: float) -> float:
        """How long until the check may pin again; 0 when it may now."""
        recent = self.recent(now)
        return 0.0 if len(recent) < REPINS_PER_HOUR else HOUR_S - (now - recent[-REPINS_PER_HOUR])


@dataclass(frozen=True)
class Outcome:
    """State of the box after work on it."""

    reading: ClockReading
    ledger: Ledger
    problems: tuple[str, ...] = ()
    rebooting: bool = False

    @property
    def reboot_pending(self) -> bool:
        """True if the best mode waits for a reboot that nvpmodel has asked for."""
        return bool(self.ledger.reboot_for) and not self.reading.complete

    @property
    def held(self) -> bool:
        """True if clocks are as they should be, as far as that is possible before a reboot."""
        return self.reading.state == "pinned" or (self.reboot_pending and not self.reading.loose)

    @property
    def clocks(self) -> Clocks:
        """State in the published form."""
        seen, ledger = self.reading.clocks, self.ledger
        state, why = seen.state, "; ".join([seen.why, *self.problems]) if seen.why else ""
        if state == "unpinned" and ledger.unlocked_at is not None:
            why = f"{UNLOCKED}; `{LOCK_COMMAND}` pins again; {why}"
        elif state == "unpinned" and self.reboot_pending:
            state, why = "reboot_pending", self._reboot_why(why)
        return dataclasses.replace(
            seen, state=state, why=why, repins=ledger.repins, last_unpin=ledger.last_unpin
        )

    def _reboot_why(self, why: str) -> str:
        mode = self.ledger.reboot_for
        if self.rebooting:
            return f"rebooting into power mode {mode}"
        return f"power mode {mode} takes a reboot: `{LOCK_COMMAND} --allow-reboot` reboots at once; {why}"


def recall(box: Box) -> Ledger:
    """This boot's ledger; a new one when there is none, or it is damaged or of another boot.

    Raises PermissionError when others than root may have written it.
    """
    fresh = Ledger(box.boot_id)
    if not is_private_file(box.root, paths.LEDGER):
        return fresh
    try:
        ledger = _parse(box.root.record(paths.LEDGER))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return fresh
    return ledger if ledger.boot_id == box.boot_id else fresh


def remember(box: Box, ledger: Ledger) -> None:
    """Write it down. Raises OSError."""
    private_folder(box.root, paths.ROOTS_RUN)
    box.root.replace(paths.LEDGER, json.dumps(dataclasses.asdict(ledger)) + "\n", mode=0o600)


@contextlib.contextmanager
def turn(box: Box) -> Iterator[None]:
    """Wait until nobody else works on the clocks, and keep others waiting. Raises TimeoutError, OSError."""
    folder = private_folder(box.root, paths.ROOTS_RUN)
    handle = os.open(folder / "turn", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _wait_for(box, handle)
        yield
    finally:
        os.close(handle)


def _wait_for(box: Box, handle: int) -> None:
    for _ in range(int(TURN_WAIT_S / TURN_POLL_S)):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        box.sleep(TURN_POLL_S)
    raise TimeoutError(
        f"another clock-lock has been at work for {TURN_WAIT_S:.0f} s ({paths.TURN} is locked)"
    )


def _parse(document: dict[str, Any]) -> Ledger:
    last = document.pop("last_unpin")
    attempts = tuple(number(at) for at in document.pop("attempts"))
    for name in ("unlocked_at", "held_at"):
        document[name] = None if document[name] is None else number(document[name])
    document["repins"] = int(number(document["repins"]))
    for name in ("boot_id", "reboot_for", "mode", "problem"):
        if not isinstance(document[name], str):
            raise TypeError(f"{name} is no text")
    return Ledger(**document, attempts=attempts, last_unpin=None if last is None else parse_unpin(last))
