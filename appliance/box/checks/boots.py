"""The record of the last boots: how they ended, and what spoke in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from appliance.box.checks.clocks import bear_it
from appliance.box.checks.finding import Finding, Level, passed, skipped
from appliance.box.checks.snapshot import Harm, Snapshot, check
from appliance.box.clocks.boots import LOSSES, SOON_S, TRIAL_AFTER, Boot, lifted, losses
from appliance.box.paths import BOOTS, DAMAGED_BOOTS

MORE_THAN_ONE = 2
FORGET = f"send the maker a bundle: sudo f5-support-bundle; then sudo rm {DAMAGED_BOOTS}"
RECORD = "see the check disk; then sudo f5-clock-lock lock writes it"
HEAR = "sudo f5-health --speak --publish"


def _of_boots(now: Snapshot) -> tuple[Any, ...]:
    return now.boots, now.box.boot_id, now.root.exists(DAMAGED_BOOTS), now.lower_mode


@check("boots", Harm.SLOW, 2, _of_boots)
def check_boots(boots: Sequence[Boot] | Exception, boot_id: str, damaged: bool, lower: str) -> Finding:
    """`boots`: the record, or why it cannot be read; `damaged`: an earlier, damaged record exists."""
    limit = f"fewer than {MORE_THAN_ONE} that end soon after pinning, by no shutdown"

    def finding(level: Level, value: str, remedy: str = "") -> Finding:
        return Finding("boots", level, value, limit, remedy, figures)

    figures: dict[str, object] = {}
    if isinstance(boots, Exception) or damaged:
        return finding(Level.WARN, "the record of boots was damaged, and is begun anew", FORGET)
    now = boots[-1] if boots and boots[-1].boot_id == boot_id else None
    past = boots[:-1] if now else boots
    unclean = [boot for boot in past if boot.unclean]
    mode = now.asked if now else unclean[-1].pinned if unclean else ""
    anew = now is not None and (now.tried_again or mode in now.on_trial)
    lost = 0 if anew else losses(past, mode)
    figures |= {"boots": len(boots), "unclean": len(unclean), "lost": lost}
    least = min((boot.held_s for boot in past if boot.unclean and boot.pinned == mode), default=0.0)
    barred = [name for name in (now.asked, now.applied) if name in now.barred] if now else []
    if now and barred:
        value = f"{LOSSES} ended soon after pinning in {barred[0]}, in which clocks are pinned no more"
        return finding(Level.FAIL, f"{value}; {lifted(now)}", bear_it(lower))
    if lost >= MORE_THAN_ONE:
        value = f"{lost} of the last {len(past)} ended within {SOON_S / 3600:.0f} h of pinning in {mode}"
        value += f", one after {least:.0f} s; at {LOSSES} it is pinned no more for {TRIAL_AFTER} boots"
        return finding(Level.WARN, value, f"if nobody switched it off: {bear_it(lower)}")
    if now is None and boots:
        return finding(Level.WARN, f"this boot is not on record: {BOOTS} is not written", RECORD)
    ended = f"{len(unclean)} of {len(past)} before this one ended without a shutdown" if past else "the first"
    if now and mode in now.on_trial:
        ended += f"; {mode} is on trial: a loss of power soon after pinning bars it again"
    return finding(Level.PASS, ended)


@check("backend", Harm.SLOW, 10, lambda now: (now.boots, now.box.boot_id))
def check_backend(boots: Sequence[Boot] | Exception, boot_id: str) -> Finding:
    """WARN if this boot passed over a backend that spoke in an earlier boot."""
    if isinstance(boots, Exception) or not boots or boots[-1].boot_id != boot_id or not boots[-1].backend:
        return skipped("backend", f"nothing was heard in this boot; {HEAR} notes what speaks")
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
    value = f"{now.backend}, and {before.backend} in an earlier boot: {since}"
    remedy = (
        f"{HEAR} says why; put back what changed (see the check versions), or for TensorRT: sudo apt install "
        "--reinstall {python3-libnvinfer}; then sudo systemctl restart f5-appliance"
    )
    return Finding("backend", Level.WARN, value, "the one of the boots before", remedy)
