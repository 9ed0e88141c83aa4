"""Pin the clocks, let them go, and see that they stay pinned: what root's clock-lock does.

    lock     power mode → baseline, once → jetson_clocks → read back → publish
    unlock   restore the baseline, else the least of nvpmodel.conf; remember that it was wanted
    check    one turn of the timer: read → pin again when somebody has unpinned → publish

Whatever fails on the way, what could be done is done, and the state that is published is the one read back.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable

from appliance.box import paths, platform
from appliance.box.clocks import ledger as ledgers
from appliance.box.clocks import minima, readings, vendor
from appliance.box.clocks.culprits import culprits, indicator
from appliance.box.clocks.ledger import LOCK_COMMAND, REPINS_PER_HOUR, Ledger, Outcome
from appliance.box.clocks.modes import Mode
from appliance.box.clocks.published import Clocks, Unpin, publish
from appliance.box.clocks.verdict import ClockReading, look
from appliance.box.root import reason
from appliance.box.system import Box

LOCK_PATIENCE_S = 60.0
"""How long a lock waits for the GPU's driver early at boot."""
CHECK_PATIENCE_S = 5.0
READ_BACK_S = (0.25, 0.5, 1.0)
"""Pauses between looks after pinning: it may take effect with a delay."""
LEAST = f"the least of each clock in {paths.NVPMODEL_CONF}, or the hardware's"
Say = Callable[[str], None]


class ClockError(Exception):
    """What was asked for cannot be done; why, in plain words."""


class NotRoot(ClockError):
    """It takes root."""


class NotPublished(ClockError):
    """Done, but the state could not be published."""

    def __init__(self, clocks: Clocks, message: str) -> None:
        super().__init__(message)
        self.clocks = clocks


def quiet(line: str) -> None:
    """Say nothing."""


def lock(
    box: Box,
    *,
    allow_reboot: bool = False,
    unless_unlocked: bool = False,
    dry_run: bool = False,
    say: Say = quiet,
) -> Clocks:
    """Pin, and publish what was read back.

    `allow_reboot` answers nvpmodel's question with yes: the box may then reboot at once. `unless_unlocked`
    leaves clocks alone that a technician has unlocked. `dry_run` says what would be done and returns the
    state as it is. Raises NotRoot, NotPublished, ClockError.
    """
    if platform.refusal(platform.identify(box.root)):
        return _refused(box, dry_run=dry_run)
    if dry_run:
        now = _present(box, look(box))
        if unless_unlocked and now.ledger.unlocked_at is not None:
            return now.clocks
        return _rehearse_lock(box, now, allow_reboot=allow_reboot, say=say)
    _insist_on_root(box, "lock")
    with _turn(box, say):
        ledger = _recall(box, say)
        if unless_unlocked and ledger.unlocked_at is not None:
            return _publish(box, _settled(box, look(box), ledger), say)
        before = _settled(box, look(box), dataclasses.replace(ledger, unlocked_at=None))
        after = _bring(box, before, allow_reboot=allow_reboot, patience_s=LOCK_PATIENCE_S, say=say)
        return _publish(box, after, say)


def unlock(box: Box, *, dry_run: bool = False, say: Say = quiet) -> Clocks:
    """Let clocks go and publish; the check leaves them alone until the next lock or boot.

    Restores the baseline; what is still held after that, or without one, goes to the least that nvpmodel.conf
    has. Raises NotRoot, NotPublished, and ClockError when that had no effect either.
    """
    if platform.refusal(platform.identify(box.root)):
        return _refused(box, dry_run=dry_run)
    if dry_run:
        lacking = _lacking(box)
        say(f"would write: {LEAST}" if lacking else f"would run: jetson_clocks --restore {vendor.BASELINE}")
        return _present(box, look(box)).clocks
    _insist_on_root(box, "unlock")
    with _turn(box, say):
        before = _recall(box, say)
        _note_unlock(box, before)
        problems = [_lacking(box) or vendor.restore_baseline(box)]
        reading = look(box)
        if not _free(reading):
            say("; ".join(filter(None, [*problems, f"so {LEAST} is written"])))
            mode = reading.conf.by_name(reading.mode) if reading.conf else None
            problems += minima.let_go(box.root, reading.conf, mode)
            reading = look(box)
        if not reading.loose:
            with contextlib.suppress(OSError):
                ledgers.remember(box, before)
            raise ClockError("; ".join(filter(None, ["clocks are still held", *problems])))
        return _publish(box, Outcome(reading, _unlocked(box, before)), say)


def check(box: Box, *, say: Say = quiet) -> Clocks:
    """One turn of the timer. Raises NotRoot, NotPublished, ClockError."""
    if platform.refusal(platform.identify(box.root)):
        return _refused(box, dry_run=False)
    _insist_on_root(box, "watch")
    with _turn(box, say):
        now = _settled(box, look(box), _recall(box, say))
        if now.held or now.ledger.unlocked_at is not None or not _mendable(now):
            return _publish(box, now, say)
        if wait_s := now.ledger.wait_s(box.uptime()):
            return _publish(box, dataclasses.replace(now, problems=(_enough(now.ledger, wait_s),)), say)
        say("unpinned: " + "; ".join(now.reading.faults))
        ledger = now.ledger.attempted(box.uptime())
        _remember(box, ledger, say)
        now = dataclasses.replace(now, ledger=ledger)
        return _publish(box, _bring(box, now, allow_reboot=False, patience_s=CHECK_PATIENCE_S, say=say), say)


# The way from how the box is to how it should be.


def _settled(box: Box, reading: ClockReading, ledger: Ledger) -> Outcome:
    """What a look means after what was remembered: clocks still held, or lost since, and to whom."""
    ledger = _due(reading, ledger)
    now = Outcome(reading, ledger)
    if ledger.unlocked_at is not None:
        return now
    if now.held:
        return dataclasses.replace(now, ledger=ledger.held(box.uptime(), reading.mode))
    if ledger.held_at is None:
        return now
    who = culprits(box, ledger.held_at, ledger.mode, reading.mode)
    return dataclasses.replace(
        now, ledger=ledger.unpinned(Unpin(round(box.uptime(), 3), reading.faults, who))
    )


def _due(reading: ClockReading, ledger: Ledger) -> Ledger:
    """With the reboot that the best mode takes: also when it is the mode by name, but not yet on the GPU."""
    if reading.complete:
        return dataclasses.replace(ledger, reboot_for="")
    if reading.best_mode and reading.other_tpcs:
        return dataclasses.replace(ledger, reboot_for=reading.mode)
    return ledger


def _mendable(now: Outcome) -> bool:
    """Whether pinning could change anything: against a thermal cap or a due reboot it cannot."""
    best = now.reading.best
    wrong_mode = best is not None and not now.reading.best_mode and now.ledger.reboot_for != best.name
    return wrong_mode or now.reading.loose


def _bring(box: Box, now: Outcome, *, allow_reboot: bool, patience_s: float, say: Say) -> Outcome:
    """Mode, cores, baseline, clocks; then read back."""
    # nvpmodel fails where the GPU's driver is not up.
    if _mode_to_set(now, allow_reboot=allow_reboot) and not vendor.await_gpu(box, patience_s=patience_s):
        patience_s = 0.0
    now = _set_mode(box, now, allow_reboot=allow_reboot, say=say)
    if now.rebooting:
        return now
    problems = [*now.problems, *_cores_on(box, now.reading, say)]
    if not _keep_baseline(box, now.reading, patience_s, say):
        patience_s = 0.0
    say("jetson_clocks")
    problems.append(vendor.pin(box, patience_s=patience_s))
    if readings.railgate(box.root):
        problems += _switch(
            box, readings.railgate_switch(box.root), "0", "the GPU's power cannot be kept on", say
        )
    reading = _read_back(box, now.ledger)
    told = tuple(filter(None, problems))
    after = Outcome(reading, dataclasses.replace(_due(reading, now.ledger), problem="; ".join(told)), told)
    if after.held:
        after = dataclasses.replace(after, ledger=after.ledger.held(box.uptime(), reading.mode, by_us=True))
    return after


def _mode_to_set(now: Outcome, *, allow_reboot: bool) -> Mode | None:
    """The best mode, unless it is set; nvpmodel is asked once in a boot, or when it may reboot."""
    best = now.reading.best
    done = now.reading.complete if allow_reboot else now.reading.best_mode
    if best is None or done or (now.ledger.reboot_for == best.name and not allow_reboot):
        return None
    return best


def _set_mode(box: Box, now: Outcome, *, allow_reboot: bool, say: Say) -> Outcome:
    """The best mode, if it is to be set."""
    best = _mode_to_set(now, allow_reboot=allow_reboot)
    if best is None:
        return now
    say(f"nvpmodel -m {best.id}  ({best.name})")
    if allow_reboot:
        _remember(box, dataclasses.replace(now.ledger, reboot_for=best.name), say)
    change = vendor.set_mode(box, best, allow_reboot=allow_reboot)
    ledger = dataclasses.replace(now.ledger, reboot_for=best.name if change.reboot else "")
    problems = tuple(filter(None, (change.problem, change.problem and indicator(box))))
    return Outcome(look(box), ledger, problems, change.rebooting)


def _cores_on(box: Box, reading: ClockReading, say: Say) -> list[str]:
    """Turn on the cores that the mode has: setting a mode that is set already may ask for a reboot."""
    problems = []
    for number in reading.best.cores if reading.best and reading.best_mode else ():
        switch = readings.core_switch(number)
        if box.root.number(switch) == 0:
            problems += _switch(box, switch, "1", f"cpu{number} cannot be turned on", say)
    return problems


def _switch(box: Box, path: str, value: str, problem: str, say: Say) -> list[str]:
    say(f"echo {value} > {path}")
    try:
        box.root.write(path, value)
    except OSError as error:
        return [f"{problem}: {reason(error)}"]
    return []


def _keep_baseline(box: Box, reading: ClockReading, patience_s: float, say: Say) -> bool:
    """Once ever, in the best mode, and never from a box that has a clock pinned. Only unlock needs it.

    Returns whether it is worth waiting for the GPU still.
    """
    try:
        if not _lacks_baseline(box, reading):
            return True
        if not vendor.await_gpu(box, patience_s=patience_s):
            return False
        say(f"jetson_clocks --store {vendor.BASELINE}")
        if problem := vendor.store_baseline(box):
            say(problem)
    except OSError as error:
        say(f"no baseline was stored, so unlock will use {LEAST}: {reason(error)}")
    return True


def _lacks_baseline(box: Box, reading: ClockReading) -> bool:
    return reading.complete and _free(reading) and not vendor.has_baseline(box)


def _free(reading: ClockReading) -> bool:
    """True if every clock can move."""
    return all(domain.loose for domain in reading.domains.values() if "max" in domain.values)


def _read_back(box: Box, ledger: Ledger) -> ClockReading:
    reading = look(box)
    for pause in READ_BACK_S:
        if Outcome(reading, ledger).held or not reading.loose:
            break
        box.sleep(pause)
        reading = look(box)
    return reading


# What is remembered and published.


def _turn(box: Box, say: Say) -> contextlib.ExitStack:
    """Keeps others out; where that cannot be had, pinning goes before."""
    stack = contextlib.ExitStack()
    try:
        stack.enter_context(ledgers.turn(box))
    except TimeoutError as error:
        raise ClockError(reason(error)) from None
    except OSError as error:
        say(f"cannot keep others from the clocks meanwhile: {reason(error)}")
    return stack


def _recall(box: Box, say: Say) -> Ledger:
    try:
        return ledgers.recall(box)
    except OSError as error:
        say(f"what was remembered of this boot is not used: {reason(error)}")
        return Ledger(box.boot_id)


def _remember(box: Box, ledger: Ledger, say: Say) -> None:
    try:
        ledgers.remember(box, ledger)
    except OSError as error:
        say(f"cannot write {paths.LEDGER}, so re-pins are not counted: {reason(error)}")


def _publish(box: Box, outcome: Outcome, say: Say) -> Clocks:
    """Remember and publish. Raises NotPublished."""
    _remember(box, outcome.ledger, say)
    return _publish_clocks(box, outcome.clocks)


def _publish_clocks(box: Box, clocks: Clocks) -> Clocks:
    try:
        return publish(box, clocks)
    except OSError as error:
        raise NotPublished(clocks, f"{paths.CLOCKS} cannot be written: {reason(error)}") from None


def _refused(box: Box, *, dry_run: bool) -> Clocks:
    clocks = look(box).clocks
    return _publish_clocks(box, clocks) if box.is_root and not dry_run else clocks


def _enough(ledger: Ledger, wait_s: float) -> str:
    cause = "who unpins" if ledger.last_unpin else "why it fails"
    last = f"; the last time: {ledger.problem}" if ledger.problem else ""
    return (
        f"tried {REPINS_PER_HOUR} times within an hour to pin, so not again for {wait_s / 60:.0f} min: "
        f"find out {cause}, then `{LOCK_COMMAND}`{last}"
    )


# What is insisted on, and what is only said.


def _insist_on_root(box: Box, command: str) -> None:
    if not box.is_root:
        raise NotRoot(f"{command} takes root: sudo f5-clock-lock {command}")


def _lacking(box: Box) -> str:
    """Why there is no baseline that could be restored; empty when there is."""
    try:
        return "" if vendor.has_baseline(box) else f"there is no baseline at {vendor.BASELINE}"
    except OSError as error:
        return f"the baseline is not restored: {reason(error)}"


def _unlocked(box: Box, ledger: Ledger) -> Ledger:
    return dataclasses.replace(ledger, unlocked_at=box.uptime(), held_at=None, lost=False)


def _note_unlock(box: Box, ledger: Ledger) -> None:
    """Before clocks are let go: without the note the check would pin them again."""
    try:
        ledgers.remember(box, _unlocked(box, ledger))
    except OSError as error:
        raise ClockError(f"nothing was changed: the unlock cannot be noted: {reason(error)}") from None


def _present(box: Box, reading: ClockReading) -> Outcome:
    """As it is, with what root remembers if that can be read."""
    return Outcome(reading, _due(reading, _recall(box, quiet) if box.is_root else Ledger()))


def _rehearse_lock(box: Box, now: Outcome, *, allow_reboot: bool, say: Say) -> Clocks:
    reading, best = now.reading, now.reading.best
    if best is not None and _mode_to_set(now, allow_reboot=allow_reboot):
        say(f"would run: nvpmodel -m {best.id}  (from {reading.mode or 'unknown'} to {best.name})")
        say(f"if it asks for a reboot: {'YES, the box reboots at once' if allow_reboot else 'no'}")
    for number in best.cores if best and reading.best_mode else ():
        if box.root.number(readings.core_switch(number)) == 0:
            say(f"would write 1 to {readings.core_switch(number)}")
    with contextlib.suppress(OSError):
        if _lacks_baseline(box, reading):
            say(f"would run: jetson_clocks --store {vendor.BASELINE}")
    say("would run: jetson_clocks")
    say(f"would write: {paths.CLOCKS}")
    return now.clocks
