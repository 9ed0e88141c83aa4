"""A reading of the clocks, judged against root's record of this boot."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from appliance.box.clocks.clocks_json import Clocks
from appliance.box.clocks.modes import Mode
from appliance.box.clocks.pin_record import PinRecord
from appliance.box.clocks.verdict import ClockReading

UNLOCKED = "unlocked by a technician"
LOCK_COMMAND = "sudo f5-clock-lock lock"


@dataclass(frozen=True)
class Assessment:
    reading: ClockReading
    record: PinRecord
    problems: tuple[str, ...] = ()
    """Errors of pinning, before the reading."""
    rebooting: bool = False

    @property
    def reboot_pending(self) -> bool:
        """True if the target mode waits for a reboot."""
        return bool(self.record.reboot_for) and not self.reading.target_in_effect

    @property
    def pinned(self) -> bool:
        """True if clocks are pinned, as far as possible before a due reboot."""
        return self.reading.state == "pinned" or (self.reboot_pending and not self.reading.fixable)

    @property
    def fixable(self) -> bool:
        """True if pinning could change anything: it cannot lift a thermal cap."""
        return self.reading.fixable or self.mode_to_set(allow_reboot=False) is not None

    def mode_to_set(self, *, allow_reboot: bool) -> Mode | None:
        """Return the target mode if it is to be set: once in a boot, or when nvpmodel may reboot."""
        target = self.reading.target_mode
        done = self.reading.target_in_effect if allow_reboot else self.reading.in_target_mode
        if target is None or done or (self.record.reboot_for == target.name and not allow_reboot):
            return None
        return target

    @property
    def clocks(self) -> Clocks:
        clocks, record = self.reading.clocks, self.record
        state, why = clocks.state, "; ".join([clocks.why, *self.problems]) if clocks.why else ""
        if state == "unpinned" and record.unlocked_at is not None:
            why = f"{UNLOCKED}; `{LOCK_COMMAND}` pins again; {why}"
        elif state == "unpinned" and self.reboot_pending and self.rebooting:
            state, why = "reboot_pending", f"rebooting into power mode {record.reboot_for}"
        elif state == "unpinned" and self.reboot_pending:
            reboot = f"`{LOCK_COMMAND} --allow-reboot` reboots at once"
            state, why = "reboot_pending", f"power mode {record.reboot_for} takes a reboot: {reboot}; {why}"
        return dataclasses.replace(
            clocks, state=state, why=why, repins=record.repins, last_unpin=record.last_unpin
        )


def assess(reading: ClockReading, record: PinRecord, problems: tuple[str, ...] = ()) -> Assessment:
    """Judge a reading; notes in the record whether it shows a reboot to be due."""
    if reading.target_in_effect:
        record = dataclasses.replace(record, reboot_for="")
    elif reading.in_target_mode and reading.tpcs_differ:
        # The mode is set by name, but not yet on the GPU.
        record = dataclasses.replace(record, reboot_for=reading.mode)
    return Assessment(reading, record, problems)
