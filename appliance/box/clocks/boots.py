"""Root's record of the last boots, and the mutex of processes that set clocks.

This boot's record is in /run/f5-appliance/root, which only root can enter and each boot empties, so a full
disk does not matter. BOOTS, which everybody can read, has this record and those of earlier boots. Times are
in seconds since boot.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated

from appliance.box import paths, platform, versions
from appliance.box.clocks.clocks_json import NUMBERS, Count, Number, Unpin
from appliance.box.root import error_text
from appliance.box.system import Box
from appliance.fields import Between, Ranged

Report = Callable[[str], None]
"""Function that gets a line for each step."""
SCHEMA = 1
KEPT = 20
SOON_S = 1200.0
"""Power supply and cooling are strong enough for a pinned mode if they last longer than this in it."""
GROWTH, LEAST_S = 1.5, 60.0
"""Growth of `held_s`, as a factor and in seconds, after which BOOTS is written again even if nothing else
changed.

Fewer writes spare the disk.
"""
MUTEX_WAIT_S = 120.0
"""Timeout of the mutex. Pinning takes a minute if the GPU is late, and timeouts come on top."""
MUTEX_POLL_S = 0.2


@dataclass(frozen=True)
class Boot(Ranged):
    """Record of a boot. The fields are the keys of the file."""

    boot_id: str = ""
    asked: str = ""
    """Power mode that the box is to be in."""
    applied: str = ""
    """Power mode that the box is in."""
    pinned: str = ""
    """Power mode in which clocks were last pinned, or were about to be; "" if never."""
    pinned_at: Annotated[float | None, NUMBERS] = None
    """Time of the first pin in that mode."""
    seen_at: Number = 0.0
    """Time of the last check. On disk it may be an earlier check's."""
    ended: bool = False
    """True if a shutdown ended the boot."""
    after_hang: bool = False
    """True if a watchdog ended the previous boot, as the PMC reports."""
    reboot_for: str = ""
    """Mode for which nvpmodel wants a reboot. nvpmodel is asked once in a boot."""
    rebooting_for: str = ""
    """Mode for which a reboot has begun."""
    came_by: str = ""
    """Mode that the reboot before this boot was for."""
    unlocked_at: Annotated[float | None, NUMBERS] = None
    """Time at which a technician unlocked the clocks; None if they were locked since."""
    attempts: tuple[Number, ...] = ()
    """Times at which the timer's check pinned clocks, in the last hour."""
    repins: Count = 0
    held_at: Annotated[float | None, NUMBERS] = None
    """Time of the last reading, if the clocks were pinned in it; else None."""
    lost: bool = False
    """True from an unpin until the clocks are pinned again."""
    last_unpin: Unpin | None = None
    problem: str = ""
    """Errors of the last pinning."""
    backend: str = ""
    """Backend that spoke last; "" if no speech was recorded."""
    passed_over: tuple[str, ...] = ()
    """Backends that were tried before `backend`, and could not be used."""
    l4t: str = ""
    tensorrt: str = ""
    driver: str = ""

    @property
    def reboot_failed(self) -> bool:
        """True if the reboot before this boot was for the mode that still wants one."""
        return bool(self.reboot_for) and self.reboot_for == self.came_by

    @property
    def held_s(self) -> float:
        """Seconds from the first pin in the mode to the last check."""
        return 0.0 if self.pinned_at is None else self.seen_at - self.pinned_at

    def lost_power(self, after: Boot) -> bool:
        """True if the clocks were pinned, and neither a shutdown nor a watchdog ended the boot.

        `after`: the next boot.
        """
        return self.pinned_at is not None and not (self.ended or self.rebooting_for or after.after_hang)


@dataclass(frozen=True)
class Boots(Ranged):
    """Content of the file."""

    boots: tuple[Boot, ...]
    """Recorded boots, oldest first."""
    schema: Annotated[int, Between(SCHEMA, SCHEMA)] = SCHEMA


def losses(boots: Sequence[Boot], mode: str) -> list[Boot]:
    """Boots that lost power soon after pinning in `mode`, since a boot that lasted in it.

    The last of `boots` is the current one.
    """
    lost: list[Boot] = []
    for boot, after in zip(boots[-2::-1], boots[:0:-1], strict=True):
        if boot.pinned == mode and boot.held_s > SOON_S:
            break
        lost += [boot] if boot.pinned == mode and boot.lost_power(after) else []
    return lost


def history(box: Box) -> tuple[Boot, ...]:
    """Recorded boots, oldest first; () without a record. Raises OSError, ValueError."""
    try:
        return box.root.load(paths.BOOTS, Boots).boots
    except FileNotFoundError:
        return ()


def recorded(box: Box, report: Report) -> Boot:
    """Load this boot's record, or begin it.

    A record that others may have written is reported and not used.
    """
    try:
        if box.root.is_private(paths.THIS_BOOT):
            boot = box.root.load(paths.THIS_BOOT, Boot)
            if boot.boot_id == box.boot_id:
                return boot
    except OSError as error:
        report(f"{paths.THIS_BOOT} is not used: {error_text(error)}")
    except ValueError:
        pass
    past = _stored(box, report)
    return past[-1] if past and past[-1].boot_id == box.boot_id else _begun(box, past)


def _begun(box: Box, past: Sequence[Boot]) -> Boot:
    """New record of this boot. It notes the mode for which the previous boot rebooted, and whether a watchdog
    ended that boot.
    """
    last = past[-1] if past else Boot()
    # Any reboot applies a mode that is set but not yet on the GPU. A mode that is not set needs nvpmodel's
    # own reboot.
    came_by = last.rebooting_for or (last.reboot_for if last.reboot_for == last.applied else "")
    after_hang = box.reset_source.endswith("WDT")
    fresh = Boot(box.boot_id, came_by=came_by, after_hang=after_hang)
    return _with_versions(box, fresh)


def _with_versions(box: Box, boot: Boot) -> Boot:
    l4t, tensorrt = map(versions.dotted, (platform.identify(box.root).l4t, versions.tensorrt(box.root)))
    return replace(boot, l4t=l4t, tensorrt=tensorrt, driver=versions.driver(box.root))


def _stored(box: Box, report: Report) -> tuple[Boot, ...]:
    """Recorded boots that root may act on. A damaged file is renamed."""
    try:
        return history(box) if box.root.is_private(paths.BOOTS) else ()
    except ValueError:
        why = "it is damaged"
        with contextlib.suppress(OSError):
            box.root.unresolved(paths.BOOTS).replace(box.root.unresolved(paths.DAMAGED_BOOTS))
            why += f", and now {paths.DAMAGED_BOOTS}"
    except OSError as error:
        why = error_text(error)
    report(f"{paths.BOOTS} is not used: {why}")
    return ()


def save(box: Box, boot: Boot, report: Report) -> None:
    """Save a record. Raises OSError if this boot's file cannot be written.

    A failure to write BOOTS is reported.
    """
    box.root.private_folder(paths.ROOTS_RUN)
    box.root.replace(paths.THIS_BOOT, json.dumps(asdict(boot)) + "\n", mode=0o600)
    past = _stored(box, report)
    before = past[-1] if past and past[-1].boot_id == boot.boot_id else None
    if before and _lasting(before) == _lasting(boot) and not _has_grown(before, boot):
        return
    recent = (*(one for one in past if one.boot_id != boot.boot_id), boot)[-KEPT:]
    try:
        box.root.replace(paths.BOOTS, json.dumps(asdict(Boots(recent)), indent=1) + "\n")
    except OSError as error:
        report(f"{paths.BOOTS} cannot be written: {error_text(error)}")


def _has_grown(before: Boot, boot: Boot) -> bool:
    """True if `held_s` has grown by GROWTH and LEAST_S, or has passed SOON_S."""
    times = ((before.held_s, boot.held_s), (before.seen_at, boot.seen_at))
    return boot.held_s >= GROWTH * before.held_s + LEAST_S or any(a <= SOON_S < b for a, b in times)


def _lasting(boot: Boot) -> Boot:
    """Copy of a record without the fields that change at each check."""
    return replace(boot, seen_at=0.0, attempts=(), held_at=None if boot.held_at is None else 0.0)


def try_save(box: Box, boot: Boot, report: Report) -> None:
    """Save a record. A failure is only reported, because pinning matters more."""
    try:
        save(box, boot, report)
    except OSError as error:
        report(f"cannot write {paths.THIS_BOOT}, so re-pins are not counted: {error_text(error)}")


def no_report(line: str) -> None:
    pass


def note_end(box: Box) -> None:
    """Record, as root, that the box is being shut down. Raises OSError."""
    _change(box, lambda boot: replace(boot, ended=True, seen_at=box.uptime()))


def note_backend(box: Box, backend: str, passed_over: tuple[str, ...] = ()) -> None:
    """Record, as root, the backend that speaks now, and the versions it speaks on. Raises OSError."""
    _change(box, lambda boot: _with_versions(box, replace(boot, backend=backend, passed_over=passed_over)))


def _change(box: Box, change: Callable[[Boot], Boot]) -> None:
    with mutex(box):
        before = recorded(box, no_report)
        if (after := change(before)) != before:
            save(box, after, no_report)


@contextlib.contextmanager
def mutex(box: Box) -> Iterator[None]:
    """Let one process at a time set clocks: the timer's check waits for a technician's command.

    Raises TimeoutError after MUTEX_WAIT_S, OSError if the file cannot be made.
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
            raise TimeoutError(f"another clock-lock has been running for {MUTEX_WAIT_S:.0f} s")
        yield
    finally:
        os.close(handle)
