"""State and next step, from a verdict and root's record of this boot. All functions are pure."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from appliance.box.clocks.boots import Boot
from appliance.box.clocks.clocks_json import Clocks
from appliance.box.clocks.modes import Mode
from appliance.box.clocks.reason import Reason
from appliance.box.clocks.verdict import ClockVerdict

UNLOCKED = "unlocked by a technician"
LOCK_COMMAND = "sudo f5-clock-lock lock"
HOUR_S = 3600.0
REPINS_PER_HOUR = 6
ROUNDED_S = 0.001
"""Precision of the times of an unpin."""


@dataclass(frozen=True)
class Assessment:
    """The verdict on the clocks, together with this boot's record: what to do, and what to report."""

    reading: ClockVerdict
    record: Boot
    problems: tuple[str, ...] = ()
    """Errors of pinning, before the reading."""
    rebooting: bool = False
    given_up: Reason = Reason.NONE
    """Reason why root's check does not pin for now; NONE if it does."""

    @property
    def reboot_pending(self) -> bool:
        return bool(self.record.reboot_for) and not self.reading.target_in_effect

    @property
    def pinned(self) -> bool:
        """True if everything is pinned that can be pinned before a due reboot."""
        return self.reading.state == "pinned" or (self.reboot_pending and not self.reading.fixable)

    @property
    def fixable(self) -> bool:
        """True if pinning would change something. It cannot lift a thermal cap."""
        return self.reading.fixable or self.mode_to_set(allow_reboot=False) is not None

    @property
    def unpinned(self) -> bool:
        """True if the clocks were pinned at the last reading and no longer are."""
        record = self.record
        return record.unlocked_at is None and record.held_at is not None and not self.pinned

    def mode_to_set(self, *, allow_reboot: bool) -> Mode | None:
        """The target mode, if it is to be set: once in a boot, or if nvpmodel may reboot the box."""
        target = self.reading.target_mode
        in_effect = self.reading.target_in_effect if allow_reboot else self.reading.in_target_mode
        if target is None or in_effect:
            return None
        return None if self.record.reboot_for == target.name and not allow_reboot else target

    @property
    def clocks(self) -> Clocks:
        """The clocks' state for `status`, by the verdict and this boot's record, with reasons."""
        base, record = self.reading.clocks, self.record
        state, reason, parts = base.state, base.reason, base.parts + (self.problems if base.why else ())
        if state == "unpinned" and record.unlocked_at is not None:
            reason, parts = Reason.UNLOCKED, (UNLOCKED, f"`{LOCK_COMMAND}` pins again", *parts)
        elif state == "unpinned" and self.reboot_pending and self.rebooting:
            state, reason = "reboot_pending", Reason.REBOOTING
            parts = (f"rebooting into power mode {record.reboot_for}",)
        elif state == "unpinned" and self.reboot_pending and record.reboot_failed:
            state, reason = "reboot_pending", Reason.REBOOT_FAILED
            parts = (f"power mode {record.reboot_for} needs a reboot, and a reboot did not set it", *parts)
        elif state == "unpinned" and self.reboot_pending:
            state, reason = "reboot_pending", Reason.REBOOT_DUE
            reboot = f"`{LOCK_COMMAND} --allow-reboot` reboots at once"
            parts = (f"power mode {record.reboot_for} needs a reboot: {reboot}", *parts)
        elif state == "unpinned" and self.given_up:
            reason, parts = self.given_up, (*self.problems, *base.parts)
        history = {"repins": record.repins, "last_unpin": record.last_unpin}
        return Clocks.because(state, reason, parts, mode=base.mode, domains=base.domains, **history)


def assess(reading: ClockVerdict, record: Boot, problems: tuple[str, ...] = ()) -> Assessment:
    """Combine a verdict with the record. Notes the target mode, the current mode, and whether a reboot is
    due.
    """
    record = dataclasses.replace(record, asked=reading.target_name, applied=reading.mode, ended=False)
    if reading.in_target_mode:
        # nvpmodel may report the mode although it is not yet on the GPU.
        record = dataclasses.replace(record, reboot_for="" if reading.target_in_effect else reading.mode)
    return Assessment(reading, record, problems)


def noted(now: Assessment, at: float, *, by_us: bool = False) -> Assessment:
    """Record that clocks are pinned. `by_us`: after an unpin this counts as a re-pin."""
    if not now.pinned:
        return now
    before, mode = now.record, now.reading.mode
    repins = before.repins + int(before.lost and by_us)
    record = with_pin(before, mode, at)
    record = dataclasses.replace(record, held_at=at, lost=False, repins=repins, problem="")
    return dataclasses.replace(now, record=record)


def with_pin(record: Boot, mode: str, at: float) -> Boot:
    """Record that clocks are pinned in `mode`, or about to be."""
    first = record.pinned_at if record.pinned == mode else None
    return dataclasses.replace(record, pinned=mode, pinned_at=at if first is None else first)


def decide(now: Assessment, at: float) -> tuple[bool, Assessment]:
    """Return whether root's check is to pin now, and the state before it does. `at`: seconds since boot."""
    record = now.record
    if now.reading.refusal or now.pinned or record.unlocked_at is not None or not now.fixable:
        return False, now
    recent = tuple(before for before in record.attempts if 0 <= at - before < HOUR_S)
    if len(recent) < REPINS_PER_HOUR:
        return True, dataclasses.replace(now, record=dataclasses.replace(record, attempts=(*recent, at)))
    wait_s = HOUR_S - (at - recent[-REPINS_PER_HOUR])
    # If an attempt worked, the clocks were pinned after it, and a later unpin is recorded.
    last_unpin = record.last_unpin.at if record.last_unpin else 0.0
    again = last_unpin > record.attempts[-1] + ROUNDED_S
    reason = Reason.UNPINNED_AGAIN if again else Reason.PINNING_FAILS
    cause = "something keeps unpinning the clocks" if again else f"pinning failed {REPINS_PER_HOUR} times"
    problem = f"{cause}: the check waits {wait_s / 60:.0f} min. To pin now: {LOCK_COMMAND}"
    last = (f"the last failure: {record.problem}",) if record.problem else ()
    return False, dataclasses.replace(now, problems=(problem, *last), given_up=reason)
