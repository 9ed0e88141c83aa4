"""Checks of the last boots: how they ended, and which backend spoke in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from appliance.box.checks.finding import Finding, Level, passed, skipped
from appliance.box.checks.power import stronger
from appliance.box.checks.snapshot import Harm, Snapshot, check
from appliance.box.clocks.boots import Boot, losses
from appliance.box.clocks.reason import Reason
from appliance.box.paths import BOOTS, DAMAGED_BOOTS

MANY = 3
"""Number of boots in one mode that lost power, from which on the check warns.

For fewer losses, somebody may have pulled the plug.
"""
FORGET = f"send the maker a bundle: sudo f5-support-bundle. Then: sudo rm {DAMAGED_BOOTS}"
RECORD = "see whether the disk is full: sudo f5-health --only disk. Then write it: sudo f5-clock-lock lock"
HEAR = "sudo f5-health --speak --publish"


def _of_boots(now: Snapshot) -> tuple[Any, ...]:
    return now.boots, now.box.boot_id, now.root.exists(DAMAGED_BOOTS), now.lower_mode


@check("boots", Harm.SLOW, 2, _of_boots)
def check_boots(boots: Sequence[Boot] | Exception, boot_id: str, damaged: bool, lower: str) -> Finding:
    """`boots`: the record, or the error that reading it raised.

    `damaged`: an earlier, damaged record exists.
    """
    limit = f"fewer than {MANY} that lose power soon after pinning in one mode"
    figures: dict[str, object] = {}
    reason = Reason.NONE

    def finding(level: Level, value: str, remedy: str = "") -> Finding:
        return Finding("boots", level, value, limit, remedy, figures, reason)

    if isinstance(boots, Exception) or damaged:
        return finding(Level.WARN, "the record of boots was damaged; a new one has begun", FORGET)
    is_recorded = bool(boots) and boots[-1].boot_id == boot_id
    all_boots = boots if is_recorded else (*boots, Boot())
    now, past = all_boots[-1], all_boots[:-1]
    unclean = [boot for boot, after in zip(past, all_boots[1:], strict=True) if boot.lost_power(after)]
    mode = now.asked or (unclean[-1].pinned if unclean else "")
    lost = losses(all_boots, mode)
    figures |= {"boots": len(boots), "unclean": len(unclean), "lost": len(lost)}
    if len(lost) >= MANY:
        minutes = max(boot.held_s for boot in lost) // 60 + 1
        reason = Reason.POWER_LOSSES
        value = f"{len(lost)} of {len(past)} boots lost power within {minutes:.0f} min of pinning in {mode}"
        return finding(Level.WARN, value, f"if nobody switched it off: {stronger(lower)}")
    if not is_recorded and boots:
        return finding(Level.WARN, f"this boot is not recorded: {BOOTS} was not written", RECORD)
    ended = f"{len(unclean)} of {len(past)} earlier boots had no shutdown" if past else "the first boot"
    return finding(Level.PASS, ended)


@check("backend", Harm.SLOW, 10, lambda now: (now.boots, now.box.boot_id))
def check_backend(boots: Sequence[Boot] | Exception, boot_id: str) -> Finding:
    """WARN if this boot passed over a backend that spoke in an earlier boot."""
    if isinstance(boots, Exception) or not boots or boots[-1].boot_id != boot_id or not boots[-1].backend:
        return skipped("backend", f"no speech was tried in this boot. To try it: {HEAR}")
    now = boots[-1]
    before = next((boot for boot in reversed(boots[:-1]) if boot.backend in now.passed_over), None)
    if before is None:
        return passed("backend", now.backend)
    names = {"L4T": "l4t", "TensorRT": "tensorrt", "driver": "driver"}
    changes = [
        f"{name} {then or 'none'} → {today or 'none'}"
        for name, key in names.items()
        if (then := getattr(before, key)) != (today := getattr(now, key))
    ]
    since = f"since then {', '.join(changes)}" if changes else "no version has changed since"
    value = f"it speaks on {now.backend}, but spoke on {before.backend} in an earlier boot: {since}"
    remedy = (
        f"see why: {HEAR}. Undo the change (see the check versions). For TensorRT, with the internet: "
        "sudo apt install --reinstall {python3-libnvinfer}. Then: sudo systemctl restart f5-appliance"
    )
    return Finding("backend", Level.WARN, value, "the backend of earlier boots", remedy)
