"""Checks of platform, power mode and clocks: root's published state, compared with a current reading."""

from __future__ import annotations

from appliance.box import paths
from appliance.box.checks.finding import Finding, Level, skipped
from appliance.box.checks.fitness import gpu_services
from appliance.box.checks.snapshot import Harm, Snapshot, check
from appliance.box.clocks.clocks_json import Clocks
from appliance.box.clocks.decision import LOCK_COMMAND
from appliance.box.clocks.readings import ConfFile
from appliance.box.clocks.reason import Reason
from appliance.box.clocks.suspects import indicator
from appliance.box.clocks.verdict import Cause, ClockVerdict, grouped, megahertz
from appliance.box.platform import Platform

LOCK = f"run: {LOCK_COMMAND}"
REBOOT = f"when the box may be offline for two minutes, run: {LOCK_COMMAND} --allow-reboot"
RESTART_COMMAND = "sudo systemctl restart f5-clocks"
RESTART = f"run: {RESTART_COMMAND}"
TIMER_COMMAND = "sudo systemctl enable --now f5-clocks.service f5-clocks-check.timer"
TIMER = f"run: {TIMER_COMMAND}"
MAKE_CONF = "sudo systemctl restart nvpower nvpmodel && sudo f5-clock-lock lock"
INSTALL_CONFS = "with the internet: sudo apt install --reinstall {nvidia-l4t-nvpmodel}. Then: " + MAKE_CONF
REMAKE_CONF = (
    f"run: sudo rm {paths.NVPMODEL_CONF} && {MAKE_CONF}. nvpower makes NVIDIA's link only if none exists"
)
MAKERS_CONF = f"{paths.NVPMODEL_CONF} is this box's maker's: keep it, and ask the maker for a file that fits"
NAME_MODE = (
    f"choose a mode that it has: below `device:` in {paths.CONFIG} the line `  power_mode: NAME`. "
    "Then: sudo f5-clock-lock lock"
)
READ_MODE = (
    "see why: sudo nvpmodel -q --verbose. Then: sudo systemctl restart nvpmodel && sudo f5-clock-lock lock"
)
MENU = "stop the desktop's power mode menu, which sets modes: sudo pkill -f nvpmodel_indicator. Then "
REBOOT_FAILED = (
    "{first}. If it is not set then, see what opens the GPU before nvpmodel sets the mode: sudo journalctl "
    "-k -b -g nvgpu, and sudo journalctl -b -u nvpmodel. Until that is found, name the present mode for "
    f"`power_mode:` below `device:` in {paths.CONFIG}, and do not reboot for it again"
)
SET_AT_BOOT = "set it at the next boot: echo pmode:{id:04d} | sudo tee /var/lib/nvpmodel/status, then reboot"
MOUNT = (
    "run: sudo mount -t debugfs debugfs /sys/kernel/debug && sudo f5-clock-lock lock. To mount it at each "
    "boot: sudo systemctl unmask sys-kernel-debug.mount"
)
INSTALL_TOOLS = "with the internet: sudo apt install --reinstall {nvidia-l4t-tools}. Then: " + RESTART_COMMAND
HELD_DOWN = (
    "cool the box: clean the fan and the heat sink, give it air. If it is cool, something else holds them "
    f"down: `systemctl --type=service` shows what runs, for instance jtop. Then: {RESTART_COMMAND}"
)
SLOWED = (
    "the module itself slows them: see sudo f5-health --only oc1,oc2,oc3,temperature. Use a stronger power "
    "supply or better cooling, then switch the box off and on"
)
LOG_COMMAND = "sudo journalctl -u f5-clocks-check -u nvpmodel -n 50"
FIND_CAUSE = f"See who unpinned them: {LOG_COMMAND}"
SEND = "look: sudo f5-clock-lock status. If this stays, send the maker a bundle: sudo f5-support-bundle"
COUNTS = ("cores", "tpc")
"""Domains that count units and are no clocks."""
ALLOWED = "at the highest that module and power mode allow"


@check("platform", Harm.SILENCE, 2, lambda now: (now.platform,))
def check_platform(platform: Platform) -> Finding:
    named = [platform.module or platform.model, platform.release and f"L4T {platform.release[1:]}"]
    named.append(platform.jetpack and f"JetPack {platform.jetpack}")
    value = ", ".join(part for part in named if part) or "unknown"
    figures = {"module": platform.module, "l4t": list(platform.l4t), "jetpack": platform.jetpack}
    if not (wrong := platform.refusal):
        return Finding("platform", Level.PASS, value, figures=figures)
    remedy = "flash the module with JetPack 6.2 or 7.2, then install its package: sudo apt install ./FILE.deb"
    if not wrong.by_flashing:
        remedy = "remove the package: sudo apt remove f5-appliance. Use a Jetson AGX Orin instead"
    return Finding("platform", Level.FAIL, f"{value}: {wrong.problem}", wrong.supported, remedy, figures)


def _of_mode(now: Snapshot) -> tuple[ClockVerdict, Clocks, str, Finding]:
    return now.reading, now.published, indicator(now.box), now.finding("boots")


@check("power_mode", Harm.SLOW, 3, _of_mode)
def check_mode(reading: ClockVerdict, published: Clocks, indicator: str, boots: Finding) -> Finding:
    """Compare the power mode with the best mode, or with the configured one.

    `indicator`: the running desktop menu, "" if none.
    """
    limit = reading.target_mode.name if reading.target_mode else "MAXN_SUPER or MAXN"
    figures = {"mode": reading.mode, "best": limit, "by_site": reading.target.by_site}
    menu = MENU if indicator else ""
    again = _reboot_remedy(published, reading) if published.state == "reboot_pending" else f"{menu}{LOCK}"

    def finding(level: Level, value: str, remedy: str = "") -> Finding:
        return Finding("power_mode", level, value, limit, remedy, figures)

    if reading.wrong_conf:
        causes = {name: domain.why for name, domain in reading.domains.items() if domain.cause is Cause.CONF}
        value = "; ".join(filter(None, [reading.mode_fault, *grouped(causes)]))
        return finding(Level.FAIL, value, conf_remedy(reading))
    if reading.target.needs_root:
        if published.state == "pinned" and published.mode == reading.mode:
            return finding(Level.PASS, f"{reading.mode}, as root's check read it")
        return skipped("power_mode", f"{reading.mode or 'unknown'}; only root can read the right one")
    if reading.target_mode is None:
        return finding(Level.FAIL, reading.target.problem, NAME_MODE)
    if reading.raw.modes.current.unset:
        return finding(Level.FAIL, reading.mode_fault, again)
    if not reading.mode:
        return finding(Level.FAIL, reading.mode_fault, f"{menu}{READ_MODE}")
    if above := grouped({name: domain.why for name, domain in reading.above.items()}):
        return finding(
            Level.FAIL, f"{reading.mode} is set, and clocks are above it. {'; '.join(above)}", again
        )
    if reading.in_target_mode and boots.reason is Reason.POWER_LOSSES:
        return finding(Level.WARN, boots.value, boots.remedy)
    if reading.in_target_mode:
        return finding(Level.PASS, reading.mode)
    value = f"{reading.mode} is set, not {limit}"
    return finding(Level.WARN, f"{value}. {indicator}" if indicator else value, again)


def conf_remedy(reading: ClockVerdict) -> str:
    """Remedy that deletes only files that something creates again, and never leads back to the same file."""
    by_kind = {
        ConfFile.ABSENT: f"create it: {MAKE_CONF}. If it is still missing, {INSTALL_CONFS}",
        ConfFile.DANGLING: INSTALL_CONFS,
        ConfFile.FOREIGN: REMAKE_CONF,
    }
    fits = reading.raw.modes.conf is not None and reading.domains["cores"].cause is not Cause.CONF
    return by_kind.get(reading.raw.conf_file, NAME_MODE if fits else MAKERS_CONF)


def _reboot_remedy(published: Clocks, reading: ClockVerdict) -> str:
    target = reading.target_mode
    if published.reason is not Reason.REBOOT_FAILED or target is None:
        return REBOOT
    driver = gpu_services(reading.raw.platform.l4t)
    return REBOOT_FAILED.format(
        first=f"see what opened the GPU: {driver}" if driver else SET_AT_BOOT.format(id=target.id)
    )


@check("reboot", Harm.SLOW, 1, lambda now: (now.published, now.reading))
def check_reboot(published: Clocks, reading: ClockVerdict) -> Finding:
    if published.state == "unknown":
        return skipped("reboot", published.why)
    due = published.state == "reboot_pending"
    state = "did not help" if published.reason is Reason.REBOOT_FAILED else "is due"
    value = f"a reboot for the power mode {state}. {published.why}" if due else "none pending"
    remedy = _reboot_remedy(published, reading)
    return Finding("reboot", Level.of(warn=False, fail=due), value, "none pending", remedy)


def _of_clocks(now: Snapshot) -> tuple[Clocks, ClockVerdict, float, bool, str]:
    has_tool = now.root.exists(paths.JETSON_CLOCKS) and now.box.tools.find("jetson_clocks") is not None
    age_s = max(now.box.uptime() - now.published.checked_at, 0.0)
    return now.published, now.reading, age_s, has_tool, kernel_on_clocks(now)


def kernel_on_clocks(now: Snapshot) -> str:
    """Last line of the kernel's log about cores slower than their set frequency; "" if none are."""
    if not now.reading.slowed:
        return ""
    ran = now.box.tools.execute("journalctl", "--no-pager", "-q", "-k", "-b", "-n", "500", "-o", "cat")
    return next((line for line in reversed(ran.output.splitlines()) if line.startswith("cpufreq: cpu")), "")


@check("clocks", Harm.SLOW, 4, _of_clocks)
def check_clocks(
    published: Clocks,
    reading: ClockVerdict,
    age_s: float,
    has_tool: bool = True,
    kernel: str = "",
) -> Finding:
    """Check that clocks are pinned and that root's check still runs.

    `age_s`: age of the published state. `has_tool`: jetson_clocks is installed; without it no unit of ours
    runs. `kernel`: line of the kernel's log about cores that are slower than set.
    """
    limit = f"every clock {ALLOWED}, and checked"
    figures = {"published": published.state, "seen": reading.state, "repins": published.repins}

    def finding(level: Level, value: str, remedy: str = "") -> Finding:
        return Finding("clocks", level, value, limit, remedy, figures, published.reason)

    if reading.refusal:
        return skipped("clocks", "the platform is not supported")
    faults = "; ".join(_faults(reading))
    if not has_tool:
        return finding(
            Level.FAIL, "jetson_clocks is not installed, so nothing pins the clocks", INSTALL_TOOLS
        )
    if reading.domains["emc"].cause is Cause.NO_DEBUGFS:
        return finding(Level.FAIL, reading.domains["emc"].why, MOUNT)
    if published.state == "unknown" and published.reason is Reason.UNREADABLE:
        return finding(Level.WARN, f"root's check cannot read everything. {published.why}", SEND)
    if published.state == "unknown" and faults:
        value = f"clocks are not pinned, and the check does not run. {faults}; {published.why}"
        return finding(Level.FAIL, value, f"{RESTART}. Then: {TIMER_COMMAND}")
    if published.state == "unknown":
        return finding(Level.WARN, f"clocks look pinned, but the check does not run. {published.why}", TIMER)
    if published.state == "reboot_pending":
        value = f"clocks are as high as the present power mode allows. {published.why}"
        return finding(Level.WARN, value, _reboot_remedy(published, reading))
    if published.state != "pinned" and not reading.faults:
        value = "clocks are pinned again; root's check has not run since"
        return finding(Level.WARN, value, "wait 30 s, then look again: sudo f5-health")
    if published.reason is Reason.UNLOCKED:
        return finding(Level.WARN, f"clocks are not pinned. {published.why}", LOCK)
    if published.reason is Reason.UNPINNED_AGAIN:
        return finding(Level.WARN, published.why, f"find it: {LOG_COMMAND}. Stop it. Then {LOCK}")
    if published.state != "pinned" and reading.reason is Reason.CAPPED:
        return finding(Level.WARN, f"clocks are held down. {published.why}", HELD_DOWN)
    if published.state != "pinned" and reading.reason in (Reason.NO_TARGET, Reason.WRONG_CONF):
        no_target = reading.reason is Reason.NO_TARGET
        return finding(Level.FAIL, published.why, NAME_MODE if no_target else conf_remedy(reading))
    if published.state != "pinned":
        remedy = f"{RESTART}. If that fails too, see why: {LOG_COMMAND}"
        return finding(Level.FAIL, f"clocks are not pinned: pinning failed. {published.why}", remedy)
    if faults and reading.only_capped:
        return finding(Level.WARN, f"clocks have been held down for {age_s:.0f} s. {faults}", HELD_DOWN)
    if faults:
        remedy = f"wait 30 s: root's check pins them again. If not: {RESTART_COMMAND}. {FIND_CAUSE}"
        return finding(Level.WARN, f"clocks came loose in the last {age_s:.0f} s. {faults}", remedy)
    if reading.slowed:
        value = f"cores run slower than they are set: {', '.join(reading.slowed)}"
        return finding(Level.WARN, f"{value}. {kernel}" if kernel else value, SLOWED)
    return finding(Level.PASS, _pinned_summary(published, reading, age_s))


@check("caps", Harm.SLOW, 6, lambda now: (now.reading,))
def check_caps(reading: ClockVerdict) -> Finding:
    """Check for limits below the hardware's maximum."""
    caps = {}
    for name, domain in reading.domains.items():
        ceiling = domain.values.get("ceiling")
        cap = domain.values.get("max")
        if ceiling and cap and cap < ceiling:
            caps[name] = f"at most {megahertz(cap)} of {megahertz(ceiling)}"
    mode = reading.mode or "that is set"
    remedy = HELD_DOWN if reading.in_target_mode else f"{LOCK}. The power mode {mode} allows no more"
    value = "; ".join(grouped(caps)) or "none"
    return Finding("caps", Level.of(warn=bool(caps)), value, f"every limit {ALLOWED}", remedy)


@check("cores", Harm.SLOW, 5, lambda now: (now.reading, now.published))
def check_cores(reading: ClockVerdict, published: Clocks) -> Finding:
    """Compare the online cores and GPU clusters with the power mode."""
    domains = {name: reading.domains[name] for name in COUNTS if name in reading.domains}
    figures = {name: dict(domain.values) for name, domain in domains.items()}
    limit = "as many as the wanted power mode has"
    faults = grouped({name: domain.why for name, domain in domains.items() if domain.pinned is False})
    if any(domain.cause is Cause.CONF for domain in domains.values()):
        return Finding("cores", Level.WARN, "; ".join(faults), limit, conf_remedy(reading), figures)
    if faults:
        pending = published.state == "reboot_pending" or domains["cores"].pinned is not False
        remedy = f"{LOCK}. A change of the GPU's clusters needs a reboot: --allow-reboot"
        remedy = _reboot_remedy(published, reading) if pending else remedy
        return Finding("cores", Level.WARN, "; ".join(faults), limit, remedy, figures)
    if not domains.get("cores") or not domains["cores"].values.get("expected"):
        return skipped("cores", "no cores can be read")
    unseen = [f"{name} {domain.why}" for name, domain in domains.items() if domain.pinned is None]
    value = ", ".join([f"{domains['cores'].values['value']} cores", *(unseen or ["all GPU clusters"])])
    return Finding("cores", Level.PASS, value, limit, figures=figures)


def _faults(reading: ClockVerdict) -> tuple[str, ...]:
    """Faults of clocks. Faults of cores and mode have their own checks, so they count only if alone."""
    loose = {n: d.why for n, d in reading.domains.items() if d.pinned is False and n not in COUNTS}
    return grouped(loose) or reading.faults


def _pinned_summary(published: Clocks, reading: ClockVerdict, age_s: float) -> str:
    parts = [f"pinned in {reading.mode}"]
    if reading.unknowns:
        names = ", ".join(name for name, domain in reading.domains.items() if domain.pinned is None)
        parts.append(f"{names} as root's check read it {age_s:.0f} s ago")
    if published.repins:
        parts.append(f"pinned again {published.repins} times since boot")
    return ", ".join(parts)
