"""Why a state of the clocks, or a finding, is what it is: what programs go by; the sentence is for people."""

from __future__ import annotations

import enum


class Reason(str, enum.Enum):
    """Published as `reason` beside the sentence. A word of another release reads as UNKNOWN."""

    NONE = ""
    """Nothing to explain."""
    UNKNOWN = "unknown"
    """Word of another release, or none."""
    UNSUPPORTED = "unsupported"

    # State `unpinned`.
    LOOSE = "loose"
    """A clock can move, or a unit is off."""
    CAPPED = "capped"
    """Something holds clocks down, and that is all."""
    WRONG_MODE = "wrong-mode"
    """The power mode is not the target, or unknown."""
    NO_TARGET = "no-target"
    WRONG_CONF = "wrong-conf"
    """nvpmodel.conf cannot be used, or is another module's."""
    UNLOCKED = "unlocked"
    """By a technician."""
    UNPINNED_AGAIN = "unpinned-again"
    """Root's check has given up for now: somebody unpins."""
    PINNING_FAILS = "pinning-fails"
    """Root's check has given up for now: pinning has no effect."""

    POWER_LOSSES = "power-losses"
    """Several boots ended soon after pinning. Of a state: an earlier version gave up the mode for that."""

    # State `reboot_pending`.
    REBOOT_DUE = "reboot-due"
    REBOOT_FAILED = "reboot-failed"
    """A reboot for the mode was made, and it still wants one."""
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
    """The check ended in an exception."""
    # Reasons of the check l4t, beside REBOOT_DUE.
    DPKG_UNFINISHED = "dpkg-unfinished"
    MIXED_RELEASES = "mixed-releases"

    @classmethod
    def _missing_(cls, value: object) -> Reason:
        return cls.UNKNOWN
