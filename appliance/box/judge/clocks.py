"""Platform, power mode and clocks: what root's check published, held against what can be seen now."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.box.clocks.published import Clocks
from appliance.box.clocks.verdict import Sight, grouped, megahertz
from appliance.box.judge.finding import Finding, Level, passed, skipped
from appliance.box.platform import Platform, refusal

LOCK = "run: sudo f5-clock-lock lock"
REBOOT = "when the box may be away for two minutes, run: sudo f5-clock-lock lock --allow-reboot"
RESTART = "run: sudo systemctl restart f5-clocks"
WHO = "`sudo journalctl -u f5-clocks-check -u nvpmodel -n 50` shows who unpinned them"
TIMER = "run: sudo systemctl enable --now f5-clocks.service f5-clocks-check.timer"
HELD_BACK = ("unlocked by a technician", "within an hour")
"""What root's check says when it could pin and does not."""
COUNTS = ("cores", "tpc")
"""Domains that are no clocks."""


def judge_platform(platform: Platform) -> Finding:
    """Module, L4T and JetPack."""
    named = [platform.module or platform.model, platform.release and f"L4T {platform.release[1:]}"]
    named.append(platform.jetpack and f"JetPack {platform.jetpack}")
    value = ", ".join(part for part in named if part) or "unknown"
    figures = {"module": platform.module, "l4t": list(platform.l4t), "jetpack": platform.jetpack}
    if not (wrong := refusal(platform)):
        return passed("platform", value, figures=figures)
    problem, _, supported = wrong.partition("; ")
    remedy = "flash the module with JetPack 6.2 or 7.2, then install its package: sudo apt install ./FILE.deb"
    return Finding("platform", Level.FAIL, f"{value}: {problem}", supported, remedy, figures)


def judge_mode(sight: Sight, published: Clocks) -> Finding:
    """The best mode of this box, by name."""
    limit = sight.best.name if sight.best else "MAXN_SUPER or MAXN"
    figures = {"mode": sight.mode, "best": limit}
    if not sight.mode or sight.best is None:
        value = "; ".join(sight.reasons) or "unknown"
        remedy = (
            "make its file anew and set the mode: sudo systemctl restart nvpower nvpmodel && "
            "sudo f5-clock-lock lock"
        )
        return Finding("power_mode", Level.FAIL, value, limit, remedy, figures)
    if sight.best_mode:
        return Finding("power_mode", Level.PASS, sight.mode, limit, figures=figures)
    remedy = REBOOT if published.state == "reboot_pending" else LOCK
    return Finding("power_mode", Level.WARN, sight.mode, limit, remedy, figures)


def judge_reboot(published: Clocks) -> Finding:
    """Whether the power mode waits for a reboot."""
    if published.state == "unknown":
        return skipped("reboot", published.why)
    if published.state == "reboot_pending":
        value = published.why or "the power mode takes effect after a reboot"
        return Finding("reboot", Level.FAIL, value, "none pending", REBOOT)
    return passed("reboot", "none pending")


def judge_clocks(published: Clocks, sight: Sight, age_s: float) -> Finding:
    """Pinned, and root's check still looks. `age_s`: how long ago that check was, where there was one."""
    limit = "every clock at its module's maximum, and checked"
    figures = {"published": published.state, "seen": sight.state, "repins": published.repins}

    def finding(level: Level, value: str, remedy: str = "") -> Finding:
        return Finding("clocks", level, value, limit, remedy, figures)

    if sight.refusal:
        return skipped("clocks", "the platform is not supported")
    faults = "; ".join(_faults(sight))
    if published.state == "unknown":
        if faults:
            return finding(Level.FAIL, f"{faults}; {published.why}", f"{RESTART}; then {TIMER[5:]}")
        return finding(Level.WARN, f"nothing loose to be seen, but nobody checks: {published.why}", TIMER)
    if published.state == "reboot_pending":
        return finding(Level.WARN, f"as high as the present power mode allows; {published.why}", REBOOT)
    if published.state != "pinned":
        return finding(*_not_pinned(published, sight))
    if faults:
        remedy = f"root's check pins them again within 30 s; if not, {RESTART[5:]}; {WHO}"
        return finding(Level.WARN, f"came loose in the last {age_s:.0f} s: {faults}", remedy)
    return finding(Level.PASS, _told(published, sight, age_s))


def judge_caps(sight: Sight, emc_cap_hz: int | None) -> Finding:
    """Limits below the hardware's maximum; `emc_cap_hz`: None when there is none, or it cannot be seen."""
    capped = grouped(dict(_capped(sight, emc_cap_hz)))
    limit = "no limit below the hardware's maximum"
    if not capped:
        return passed("caps", "none", limit)
    remedy = (
        "if the check temperature is not PASS, cool the box; else something holds them down: "
        "`systemctl --type=service` shows what runs (jtop?); then sudo systemctl restart f5-clocks"
    )
    if not sight.best_mode:
        remedy = f"the power mode {sight.mode} allows no more; {LOCK}"
    return Finding("caps", Level.WARN, "; ".join(capped), limit, remedy)


def judge_cores(sight: Sight, published: Clocks) -> Finding:
    """CPU cores, and the GPU's clusters (TPC)."""
    domains = {name: sight.domains[name] for name in COUNTS if name in sight.domains}
    figures = {name: dict(domain.values) for name, domain in domains.items()}
    limit = "as many as the best power mode has"
    faults = grouped({name: domain.why for name, domain in domains.items() if domain.pinned is False})
    if faults:
        pending = published.state == "reboot_pending" or domains["cores"].pinned is not False
        remedy = f"{LOCK}; a change of the GPU's clusters needs a reboot: --allow-reboot"
        return Finding("cores", Level.WARN, "; ".join(faults), limit, REBOOT if pending else remedy, figures)
    if not domains.get("cores") or not domains["cores"].values.get("expected"):
        return skipped("cores", "no cores can be read")
    unseen = [f"{name} {domain.why}" for name, domain in domains.items() if domain.pinned is None]
    value = ", ".join([f"{domains['cores'].values['value']} cores", *(unseen or ["all GPU clusters"])])
    return Finding("cores", Level.PASS, value, limit, figures=figures)


def _faults(sight: Sight) -> tuple[str, ...]:
    """What is wrong with clocks; cores and mode have checks of their own, and are told if nothing else is."""
    loose = {n: d.why for n, d in sight.domains.items() if d.pinned is False and n not in COUNTS}
    return grouped(loose) or sight.faults


def _not_pinned(published: Clocks, sight: Sight) -> tuple[Level, str, str]:
    """Root's check has found them loose, and they stayed so."""
    if not sight.faults:
        return Level.WARN, "pinned again; root's check has yet to see it", "wait 30 s and look again"
    if any(words in published.why for words in HELD_BACK):
        return Level.WARN, published.why, f"{LOCK}; {WHO}"
    return Level.FAIL, f"pinning failed: {published.why}", f"{RESTART}; {WHO}"


def _told(published: Clocks, sight: Sight, age_s: float) -> str:
    parts = [f"pinned in {sight.mode}"]
    gpu = sight.domains.get("gpu")
    if gpu is not None and gpu.values.get("max"):
        parts.append(f"GPU {megahertz(gpu.values['max'])}")
    if sight.unknowns:
        names = ", ".join(name for name, domain in sight.domains.items() if domain.pinned is None)
        parts.append(f"{names} as root's check saw it {age_s:.0f} s ago")
    if published.repins:
        parts.append(f"pinned again {published.repins} times since boot")
    return ", ".join(parts)


def _capped(sight: Sight, emc_cap_hz: int | None) -> Iterator[tuple[str, str]]:
    for name, domain in sight.domains.items():
        ceiling = domain.values.get("ceiling")
        reach = emc_cap_hz if name == "emc" else domain.values.get("max")
        if ceiling and reach and reach < ceiling:
            yield name, f"at most {megahertz(reach)} of {megahertz(ceiling)}"
