"""Checks of sleep, desktop, journal and held packages, which f5-quiet sets."""

from __future__ import annotations

from appliance.box import dpkg, quiet
from appliance.box.checks.finding import Finding, Level, passed, skipped
from appliance.box.checks.snapshot import Harm, check
from appliance.box.root import Root

REMEDY = "run: sudo f5-quiet. --dry-run shows its changes, --undo reverts them"


@check("sleep", Harm.LATER, 13, lambda now: (now.root,))
def check_sleep(root: Root) -> Finding:
    awake = "sleep and suspend are masked"
    if loose := quiet.sleeps(root):
        return Finding(
            "sleep", Level.WARN, f"the box may fall asleep: not masked: {', '.join(loose)}", awake, REMEDY
        )
    return passed("sleep", "masked", awake)


@check("desktop", Harm.UPKEEP, 3, lambda now: (now.root,))
def check_desktop(root: Root) -> Finding:
    """WARN for a desktop: it takes memory and GPU time, and its indicator changes power modes."""
    target = quiet.default_target(root)
    if not target:
        return skipped("desktop", "no default.target can be read")
    wrong = [f"boots into {target}"] if target != quiet.TARGET else []
    wrong += ["nvpmodel_indicator starts with a desktop"] if quiet.shows_indicator(root) else []
    limit = f"boots into {quiet.TARGET}; no nvpmodel_indicator"
    remedy = "run: sudo f5-quiet. It takes effect at the next boot. Now: sudo systemctl stop display-manager"
    value = "; ".join(wrong) or f"boots into {target}"
    return Finding("desktop", Level.of(warn=bool(wrong)), value, limit, remedy)


@check("journal", Harm.UPKEEP, 2, lambda now: (now.root,))
def check_journal(root: Root) -> Finding:
    """WARN without a limit: journald then takes a tenth of the disk."""
    level = Level.of(warn=not quiet.is_journal_capped(root))
    value = "capped" if level is Level.PASS else "no SystemMaxUse: the journal may take a tenth of the disk"
    return Finding("journal", level, value, "SystemMaxUse of journald is set", REMEDY)


@check("packages", Harm.UPKEEP, 1, lambda now: (now.root,))
def check_packages(root: Root) -> Finding:
    """WARN without holds: an upgrade of TensorRT invalidates every engine, and after an upgrade of L4T the
    box may not boot.
    """
    limit = "NVIDIA's packages are held"
    loose, half = dpkg.loose(root)
    if half:
        value = f"not held, because dpkg has not finished: {', '.join(half)}"
        return Finding("packages", Level.WARN, value, limit, dpkg.FINISH_FIRST, {"loose": len(half)})
    if not loose:
        return passed("packages", "held", limit, {"loose": 0})
    names = ", ".join(loose[:3]) + (f" and {len(loose) - 3} more" if len(loose) > 3 else "")
    return Finding(
        "packages",
        Level.WARN,
        f"an upgrade may replace packages that are not held: {names}",
        limit,
        REMEDY,
        {"loose": len(loose)},
    )
