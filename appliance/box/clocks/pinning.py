"""Lock, unlock and check the clocks: what root's clock-lock does.

    lock     power mode → baseline, once → jetson_clocks → verify → publish
    unlock   restore the baseline, or write the minima → verify → publish
    check    one run of the timer: read → pin again if something has unpinned the clocks → publish

A step that fails does not stop the following ones, and the state that is published is the one read back.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator

from appliance.box import paths, platform
from appliance.box.clocks import minima, pin_record, readings, vendor
from appliance.box.clocks.assessment import LOCK_COMMAND, Assessment, assess
from appliance.box.clocks.clocks_json import Clocks, Unpin, publish
from appliance.box.clocks.modes import Mode
from appliance.box.clocks.pin_record import REPINS_PER_HOUR, PinRecord, mutex
from appliance.box.clocks.suspects import indicator, suspects
from appliance.box.clocks.verdict import ClockReading, take_reading
from appliance.box.root import error_text
from appliance.box.system import Box

LOCK_PATIENCE_S = 60.0
"""Longest wait for the GPU's driver early at boot."""
CHECK_PATIENCE_S = 5.0
VERIFY_PAUSES_S = (0.25, 0.5, 1.0)
"""Pinning may take effect with a delay."""
MINIMA = f"the least of each clock in {paths.NVPMODEL_CONF}, or the hardware's"
Report = Callable[[str], None]
"""Called with a line for each step."""


class ClockError(Exception):
    """The command cannot be carried out."""


class NotRoot(ClockError):
    pass


class NotPublished(ClockError):
    """The clocks were set, but CLOCKS cannot be written."""

    def __init__(self, clocks: Clocks, message: str) -> None:
        super().__init__(message)
        self.clocks = clocks


def no_report(line: str) -> None:
    pass


def lock(
    box: Box,
    *,
    allow_reboot: bool = False,
    unless_unlocked: bool = False,
    dry_run: bool = False,
    report: Report = no_report,
) -> Clocks:
    """Pin, and publish what was read back.

    `allow_reboot` answers nvpmodel's question with yes: the box may then reboot at once. `unless_unlocked`
    leaves clocks alone that a technician has unlocked. `dry_run` reports what would be done and returns the
    present state. Raises NotRoot, NotPublished, ClockError.
    """
    if refused := _refuse_unsupported(box, dry_run=dry_run):
        return refused
    if dry_run:
        now = _observe_read_only(box)
        if not (unless_unlocked and now.record.unlocked_at is not None):
            _report_plan(box, now, allow_reboot=allow_reboot, report=report)
        return now.clocks
    _require_root(box, "lock")
    with _exclusive(box, report):
        record = _load(box, report)
        if unless_unlocked and record.unlocked_at is not None:
            return _save_and_publish(box, _observe(box, record), report)
        before = _observe(box, dataclasses.replace(record, unlocked_at=None))
        after = _apply(box, before, allow_reboot=allow_reboot, patience_s=LOCK_PATIENCE_S, report=report)
        return _save_and_publish(box, after, report)


def unlock(box: Box, *, dry_run: bool = False, report: Report = no_report) -> Clocks:
    """Release the clocks and publish; the check leaves them alone until the next lock or boot.

    Restores the baseline; a clock that is still pinned after that, or without one, goes to its minimum.
    Raises NotRoot, NotPublished, and ClockError when that had no effect either.
    """
    if refused := _refuse_unsupported(box, dry_run=dry_run):
        return refused
    if dry_run:
        restore = f"would run: jetson_clocks --restore {vendor.BASELINE}"
        report(f"would write: {MINIMA}" if _no_baseline(box) else restore)
        return _observe_read_only(box).clocks
    _require_root(box, "unlock")
    with _exclusive(box, report):
        before = _load(box, report)
        unlocked = dataclasses.replace(before, unlocked_at=box.uptime(), held_at=None, lost=False)
        try:
            # Before anything is released: without this record the check would pin the clocks again.
            pin_record.save(box, unlocked)
        except OSError as error:
            raise ClockError(
                f"nothing was changed: the unlock cannot be noted: {error_text(error)}"
            ) from None
        problems = [_no_baseline(box) or vendor.restore_baseline(box)]
        reading = take_reading(box)
        if not _is_free(reading):
            report("; ".join(filter(None, [*problems, f"so {MINIMA} is written"])))
            mode = reading.conf.by_name(reading.mode) if reading.conf else None
            problems += minima.write_minima(box.root, reading.conf, mode)
            reading = take_reading(box)
        if not reading.fixable:
            with contextlib.suppress(OSError):
                pin_record.save(box, before)
            raise ClockError("; ".join(filter(None, ["clocks are still held", *problems])))
        return _save_and_publish(box, Assessment(reading, unlocked), report)


def check(box: Box, *, report: Report = no_report) -> Clocks:
    """Read the clocks once, pin them again if they are unpinned, and publish.

    Pins at most REPINS_PER_HOUR times an hour. Raises NotRoot, NotPublished, ClockError.
    """
    if refused := _refuse_unsupported(box):
        return refused
    _require_root(box, "watch")
    with _exclusive(box, report):
        now = _observe(box, _load(box, report))
        # Decide.
        if now.pinned or now.record.unlocked_at is not None or not now.fixable:
            return _save_and_publish(box, now, report)
        if wait_s := now.record.wait_s(box.uptime()):
            cause = "who unpins" if now.record.last_unpin else "why it fails"
            last = f"; the last time: {now.record.problem}" if now.record.problem else ""
            again = f"not again for {wait_s / 60:.0f} min: find out {cause}, then `{LOCK_COMMAND}`{last}"
            problem = f"tried {REPINS_PER_HOUR} times within an hour to pin, so {again}"
            return _save_and_publish(box, dataclasses.replace(now, problems=(problem,)), report)
        # Apply; the attempt counts even if it never returns.
        report("unpinned: " + "; ".join(now.reading.faults))
        now = dataclasses.replace(now, record=now.record.with_attempt(box.uptime()))
        _save(box, now.record, report)
        after = _apply(box, now, allow_reboot=False, patience_s=CHECK_PATIENCE_S, report=report)
        return _save_and_publish(box, after, report)


# Preconditions.


def _require_root(box: Box, command: str) -> None:
    if not box.is_root:
        raise NotRoot(f"{command} takes root: sudo f5-clock-lock {command}")


def _refuse_unsupported(box: Box, *, dry_run: bool = False) -> Clocks | None:
    """Publish and return the refusal of an unsupported box; None when it is supported."""
    if not platform.refusal(platform.identify(box.root)):
        return None
    clocks = take_reading(box).clocks
    return _publish(box, clocks) if box.is_root and not dry_run else clocks


@contextlib.contextmanager
def _exclusive(box: Box, report: Report) -> Iterator[None]:
    """Hold the mutex. If it cannot be taken, as on a full disk, go on: pinning matters more."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(mutex(box))
        except TimeoutError as error:
            raise ClockError(error_text(error)) from None
        except OSError as error:
            report(
                f"cannot lock {paths.CLOCK_MUTEX}, so another clock-lock may interfere: {error_text(error)}"
            )
        yield


# Observe.


def _observe(box: Box, record: PinRecord) -> Assessment:
    """Read the clocks; note in the record that they are pinned, or unpinned since, with the suspects."""
    reading = take_reading(box)
    now = assess(reading, record)
    if record.unlocked_at is not None:
        return now
    if now.pinned:
        return dataclasses.replace(now, record=now.record.with_pinned(box.uptime(), reading.mode))
    if record.held_at is None:
        return now
    who = suspects(box, record.held_at, record.mode, reading.mode)
    unpin = Unpin(round(box.uptime(), 3), reading.faults, who)
    return dataclasses.replace(now, record=now.record.with_unpin(unpin))


def _observe_read_only(box: Box) -> Assessment:
    """Read the clocks without saving anything; the record only as root."""
    return assess(take_reading(box), _load(box, no_report) if box.is_root else PinRecord())


# Apply and verify.


def _apply(
    box: Box, before: Assessment, *, allow_reboot: bool, patience_s: float, report: Report
) -> Assessment:
    """Pin the clocks, and verify."""
    now, mode = before, before.mode_to_set(allow_reboot=allow_reboot)
    if mode is not None:
        # nvpmodel fails where the GPU's driver is not up.
        if not vendor.await_gpu(box, patience_s=patience_s):
            patience_s = 0.0
        now = _set_mode(box, before, mode, allow_reboot=allow_reboot, report=report)
        if now.rebooting:
            return now
    problems = list(now.problems)
    for number in _cores_off(box, now.reading):
        problem = f"cpu{number} cannot be turned on"
        problems.append(_write_switch(box, readings.core_switch(number), "1", problem, report))
    if not _store_baseline(box, now.reading, patience_s, report):
        patience_s = 0.0
    report("jetson_clocks")
    problems.append(vendor.pin(box, patience_s=patience_s))
    if readings.railgate(box.root):
        problem = "the GPU's power cannot be kept on"
        problems.append(_write_switch(box, readings.railgate_switch(box.root), "0", problem, report))
    reading = _verify(box)
    found = tuple(filter(None, problems))
    after = assess(reading, dataclasses.replace(now.record, problem="; ".join(found)), found)
    if after.pinned:
        record = after.record.with_pinned(box.uptime(), reading.mode, by_us=True)
        after = dataclasses.replace(after, record=record)
    return after


def _set_mode(box: Box, now: Assessment, mode: Mode, *, allow_reboot: bool, report: Report) -> Assessment:
    report(f"nvpmodel -m {mode.id}  ({mode.name})")
    if allow_reboot:
        # The box may be gone before nvpmodel returns.
        _save(box, dataclasses.replace(now.record, reboot_for=mode.name), report)
    change = vendor.set_mode(box, mode, allow_reboot=allow_reboot)
    record = dataclasses.replace(now.record, reboot_for=mode.name if change.reboot else "")
    problems = tuple(filter(None, (change.problem, change.problem and indicator(box))))
    return Assessment(take_reading(box), record, problems, change.rebooting)


def _cores_off(box: Box, reading: ClockReading) -> list[int]:
    """Numbers of the target mode's cores that are off. To set the mode again may ask for a reboot."""
    mode = reading.target_mode
    if mode is None or not reading.in_target_mode:
        return []
    return [number for number in mode.cores if box.root.number(readings.core_switch(number)) == 0]


def _write_switch(box: Box, path: str, value: str, problem: str, report: Report) -> str:
    report(f"echo {value} > {path}")
    try:
        box.root.write(path, value)
    except OSError as error:
        return f"{problem}: {error_text(error)}"
    return ""


def _store_baseline(box: Box, reading: ClockReading, patience_s: float, report: Report) -> bool:
    """Store how clocks are unpinned, for unlock: once ever, in the target mode, and never from a pinned box.

    Returns False if the GPU did not come up within `patience_s`.
    """
    try:
        if not _lacks_baseline(box, reading):
            return True
        if not vendor.await_gpu(box, patience_s=patience_s):
            return False
        report(f"jetson_clocks --store {vendor.BASELINE}")
        if problem := vendor.store_baseline(box):
            report(problem)
    except OSError as error:
        report(f"no baseline was stored, so unlock will use {MINIMA}: {error_text(error)}")
    return True


def _lacks_baseline(box: Box, reading: ClockReading) -> bool:
    return reading.target_in_effect and _is_free(reading) and not vendor.has_baseline(box)


def _no_baseline(box: Box) -> str:
    """Return why no baseline can be restored, if so."""
    try:
        return "" if vendor.has_baseline(box) else f"there is no baseline at {vendor.BASELINE}"
    except OSError as error:
        return f"the baseline is not restored: {error_text(error)}"


def _is_free(reading: ClockReading) -> bool:
    return all(domain.fixable for domain in reading.domains.values() if "max" in domain.values)


def _verify(box: Box) -> ClockReading:
    """Read the clocks again: an exit status of 0 proves nothing."""
    reading = take_reading(box)
    for pause_s in VERIFY_PAUSES_S:
        if not reading.fixable:
            break
        box.sleep(pause_s)
        reading = take_reading(box)
    return reading


def _report_plan(box: Box, now: Assessment, *, allow_reboot: bool, report: Report) -> None:
    if mode := now.mode_to_set(allow_reboot=allow_reboot):
        report(f"would run: nvpmodel -m {mode.id}  (from {now.reading.mode or 'unknown'} to {mode.name})")
        report(f"if it asks for a reboot: {'YES, the box reboots at once' if allow_reboot else 'no'}")
    for number in _cores_off(box, now.reading):
        report(f"would write 1 to {readings.core_switch(number)}")
    with contextlib.suppress(OSError):
        if _lacks_baseline(box, now.reading):
            report(f"would run: jetson_clocks --store {vendor.BASELINE}")
    report("would run: jetson_clocks")
    report(f"would write: {paths.CLOCKS}")


# Record and publish.


def _load(box: Box, report: Report) -> PinRecord:
    try:
        return pin_record.load(box)
    except OSError as error:
        report(f"{paths.PIN_RECORD} is not used: {error_text(error)}")
        return PinRecord(box.boot_id)


def _save(box: Box, record: PinRecord, report: Report) -> None:
    try:
        pin_record.save(box, record)
    except OSError as error:
        report(f"cannot write {paths.PIN_RECORD}, so re-pins are not counted: {error_text(error)}")


def _save_and_publish(box: Box, now: Assessment, report: Report) -> Clocks:
    _save(box, now.record, report)
    return _publish(box, now.clocks)


def _publish(box: Box, clocks: Clocks) -> Clocks:
    try:
        return publish(box, clocks)
    except OSError as error:
        raise NotPublished(clocks, f"{paths.CLOCKS} cannot be written: {error_text(error)}") from None
