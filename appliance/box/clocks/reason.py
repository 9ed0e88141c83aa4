"""Reasons for a state of the clocks, or for a finding: words for programs. The sentences are for people."""

from __future__ import annotations

import enum


class Reason(str, enum.Enum):
    """Word that is published as `reason`. A word of another release reads as UNKNOWN."""

    NONE = ""
    """Nothing to explain."""
    UNKNOWN = "unknown"
    """The word of another release, or no word."""
    UNSUPPORTED = "unsupported"

    # State `unpinned`.
    LOOSE = "loose"
    """A clock can move, or a unit is off."""
    CAPPED = "capped"
    """A limit lowers clocks, and there is no other fault."""
    WRONG_MODE = "wrong-mode"
    """The power mode is not the target, or is unknown."""
    NO_TARGET = "no-target"
    WRONG_CONF = "wrong-conf"
    """nvpmodel.conf cannot be used, or is another module's."""
    UNLOCKED = "unlocked"
    """A technician unlocked the clocks."""
    UNPINNED_AGAIN = "unpinned-again"
    """Root's check has given up for now, because somebody keeps unpinning."""
    PINNING_FAILS = "pinning-fails"
    """Root's check has given up for now, because pinning has no effect."""

    POWER_LOSSES = "power-losses"
    """Several boots ended soon after pinning. The check `boots` alone has this reason."""

    # State `reboot_pending`.
    REBOOT_DUE = "reboot-due"
    REBOOT_FAILED = "reboot-failed"
    """The box was rebooted for the mode, which still wants a reboot."""
    REBOOTING = "rebooting"

    # State `unknown`.
    UNREADABLE = "unreadable"
    """Root's check could not read everything."""
    ABSENT = "absent"
    """There is no published state."""
    DAMAGED = "damaged"
    OTHER_BOOT = "other-boot"
    STALE = "stale"

    # Findings.
    CRASHED = "crashed"
    """The check raised an exception."""
    # Reasons of the check l4t, which also has REBOOT_DUE.
    DPKG_UNFINISHED = "dpkg-unfinished"
    MIXED_RELEASES = "mixed-releases"

    @classmethod
    def _missing_(cls, value: object) -> Reason:
        return cls.UNKNOWN
