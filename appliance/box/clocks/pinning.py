"""Lock, unlock and check the clocks: the commands of root's clock-lock.

Each goes the same way: read → judge → decide → act → publish. The published state was read back after the
act.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from appliance.box import paths
from appliance.box.clocks import acting, boots
from appliance.box.clocks.boots import Boot, Report, no_report
from appliance.box.clocks.clocks_json import Clocks, Unpin, publish
from appliance.box.clocks.decision import Assessment, assess, decide, noted
from appliance.box.clocks.suspects import suspects
from appliance.box.clocks.verdict import take_reading
from appliance.box.root import error_text
from appliance.box.system import Box

LOCK_PATIENCE_S = 60.0
"""Longest wait for the GPU's driver early at boot."""
CHECK_PATIENCE_S = 5.0


class ClockError(Exception):
    """A command that could not be carried out. The message ends with the remedy."""


class NotRoot(ClockError):
    pass


class NotPublished(ClockError):
    """The clocks were set, but CLOCKS cannot be written."""

    def __init__(self, clocks: Clocks, message: str) -> None:
        super().__init__(message)
        self.clocks = clocks


def lock(
    box: Box,
    *,
    allow_reboot: bool = False,
    unless_unlocked: bool = False,
    dry_run: bool = False,
    report: Report = no_report,
) -> Clocks:
    """Pin the clocks, and publish the state that is read back.

    `allow_reboot` answers nvpmodel's question with yes: the box may then reboot at once. `unless_unlocked`
    leaves clocks alone that a technician has unlocked. `dry_run` only reports the steps, and returns the
    current state. Raises NotRoot, NotPublished, ClockError.
    """
    if dry_run:
        now = _look(box, no_report)
        if not now.reading.refusal and not (unless_unlocked and now.record.unlocked_at is not None):
            for line in acting.plan(box, now, allow_reboot=allow_reboot):
                report(line)
        return now.clocks
    with _turn(box, "lock", report) as assessment:
        if assessment.reading.refusal or (unless_unlocked and assessment.record.unlocked_at is not None):
            return _publish(box, assessment, report)
        record = dataclasses.replace(assessment.record, unlocked_at=None)
        before = _noted(box, dataclasses.replace(assessment, record=record))
        after = acting.pin(box, before, allow_reboot=allow_reboot, patience_s=LOCK_PATIENCE_S, report=report)
        return _publish(box, after, report)


def unlock(box: Box, *, dry_run: bool = False, report: Report = no_report) -> Clocks:
    """Release the clocks and publish. The check leaves them alone until the next lock or boot.

    Raises NotRoot, NotPublished, and ClockError if it had no effect.
    """
    if dry_run:
        now = _look(box, no_report)
        restore = f"would run: jetson_clocks --restore {acting.BASELINE}"
        if not now.reading.refusal:
            report(f"would write: {acting.MINIMA}" if acting.no_baseline(box) else restore)
        return now.clocks
    with _turn(box, "unlock", report) as assessment:
        if assessment.reading.refusal:
            return _publish(box, assessment, report)
        unlocked = dataclasses.replace(assessment.record, unlocked_at=box.uptime(), held_at=None, lost=False)
        try:
            # This is saved before anything is released: without the record, the check would pin the clocks
            # again.
            boots.save(box, unlocked, report)
        except OSError as error:
            why = f"nothing was changed: the unlock cannot be recorded: {error_text(error)}"
            raise ClockError(why) from None
        reading, problems = acting.release(box, report)
        if not reading.fixable:
            with contextlib.suppress(OSError):
                boots.save(box, assessment.record, report)
            raise ClockError("; ".join(["clocks are still held", *problems]))
        return _publish(box, Assessment(reading, unlocked), report)


def check(box: Box, *, report: Report = no_report) -> Clocks:
    """Read the clocks once, pin them again if they are unpinned, and publish: one run of the timer.

    Pins at most REPINS_PER_HOUR times an hour. Raises NotRoot, NotPublished, ClockError.
    """
    with _turn(box, "watch", report) as assessment:
        to_pin, now = decide(_noted(box, assessment), box.uptime())
        if not to_pin:
            return _publish(box, now, report)
        report("unpinned: " + "; ".join(now.reading.faults))
        # The attempt counts even if it never returns.
        boots.try_save(box, now.record, report)
        after = acting.pin(box, now, allow_reboot=False, patience_s=CHECK_PATIENCE_S, report=report)
        return _publish(box, after, report)


def end(box: Box) -> None:
    """Record that the box is being shut down. Raises NotRoot, ClockError."""
    if not box.is_root:
        raise NotRoot("end needs root")
    try:
        boots.note_end(box)
    except OSError as error:
        raise ClockError(f"the shutdown cannot be recorded: {error_text(error)}") from None


@contextlib.contextmanager
def _turn(box: Box, command: str, report: Report) -> Iterator[Assessment]:
    """Hold the mutex, read and judge. On an unsupported box this works without root.

    If the mutex cannot be acquired, as on a full disk, a line reports it and the work goes on, because
    pinning matters more. Raises NotRoot, ClockError.
    """
    with contextlib.ExitStack() as stack:
        try:
            if box.is_root:
                stack.enter_context(boots.mutex(box))
        except TimeoutError as error:
            raise ClockError(error_text(error)) from None
        except OSError as error:
            report(f"cannot lock {paths.CLOCK_MUTEX}: {error_text(error)}")
        assessment = _look(box, report)
        if not (box.is_root or assessment.reading.refusal):
            raise NotRoot(f"{command} needs root: sudo f5-clock-lock {command}")
        yield assessment


def _look(box: Box, report: Report) -> Assessment:
    return assess(take_reading(box), boots.recorded(box, report) if box.is_root else Boot())


def _noted(box: Box, now: Assessment) -> Assessment:
    """Record that the clocks are pinned, or were unpinned since the last check, and by which suspects."""
    if now.unpinned:
        unpin = Unpin(round(box.uptime(), 3), now.reading.faults, suspects(box, now))
        record = dataclasses.replace(now.record, held_at=None, lost=True, last_unpin=unpin)
        return dataclasses.replace(now, record=record)
    return noted(now, box.uptime()) if now.record.unlocked_at is None else now


def _publish(box: Box, now: Assessment, report: Report) -> Clocks:
    """Save the record and publish it, if this is root. Raises NotPublished."""
    clocks = now.clocks
    if not box.is_root:
        return clocks
    if not now.reading.refusal:
        boots.try_save(box, dataclasses.replace(now.record, seen_at=box.uptime()), report)
    try:
        return publish(box, clocks)
    except OSError as error:
        raise NotPublished(clocks, f"{paths.CLOCKS} cannot be written: {error_text(error)}") from None
