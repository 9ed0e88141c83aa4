"""Judges the readings of the clocks, which are the kernel's and never a tool's report. All functions are
pure.

Clocks are pinned if the power mode is the target, with all its cores and TPCs; if online CPUs, GPU and EMC
are each fixed at the maximum that mode and module allow; if the idle states of the cores are forbidden; and
if the GPU's power stays on. No frequency is in the code: a maximum is the hardware's, or the cap of a mode
that the site has named. Any lower limit is a fault.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from appliance.box import paths
from appliance.box.clocks import readings
from appliance.box.clocks.clocks_json import Clocks, State
from appliance.box.clocks.modes import Mode, PowerModes, TargetMode
from appliance.box.clocks.readings import KHZ, ClockReadings, Cpu, Emc, Range
from appliance.box.clocks.reason import Reason
from appliance.box.system import Box

NEEDS_ROOT = "needs root"
SLOWED = 0.8
"""Share of the set frequency below which a core counts as slowed. A measurement is some percent off."""


class Cause(enum.Enum):
    """Kind of a fault, or of the reason why a domain cannot be read."""

    OTHER = enum.auto()
    CAP = enum.auto()
    """Something limits the clock."""
    CONF = enum.auto()
    """nvpmodel.conf belongs to another module."""
    NO_DEBUGFS = enum.auto()
    ROOT = enum.auto()
    """Only root can read the domain."""


@dataclass(frozen=True)
class Domain:
    """A clock, or a count of units."""

    values: Mapping[str, int | None]
    pinned: bool | None
    """True if pinned; None if the domain could not be read."""
    why: str = ""
    """The fault, or the reason why it could not be read."""
    fixable: bool = False
    """True if jetson_clocks can remove the fault. It cannot lift a cap."""
    cause: Cause = Cause.OTHER
    above: bool = False
    """True if the upper limit is above the target mode's."""


@dataclass(frozen=True)
class ClockVerdict:
    """Readings of the clocks, and for each domain whether it is pinned."""

    raw: ClockReadings
    refusal: str = ""
    """Reason why this box is not supported; "" if it is."""
    mode_fault: str = ""
    """Reason why the current mode is not the target; "" if it is."""
    domains: Mapping[str, Domain] = field(default_factory=dict)

    @property
    def mode(self) -> str:
        """Name of the current mode; "" if unknown."""
        return self.raw.modes.current.name

    @property
    def target(self) -> TargetMode:
        return self.raw.modes.target

    @property
    def target_mode(self) -> Mode | None:
        """The target as a mode; None if it is unknown."""
        return self.target.mode

    @property
    def target_name(self) -> str:
        """Name of the target mode; "" if unknown."""
        return self.target_mode.name if self.target_mode else ""

    @property
    def above(self) -> dict[str, Domain]:
        """Domains of clocks that may exceed the limits of the target mode."""
        return {name: domain for name, domain in self.domains.items() if domain.above}

    @property
    def wrong_conf(self) -> bool:
        """True if nvpmodel.conf cannot be used, or is another module's."""
        return self.raw.modes.conf is None or any(d.cause is Cause.CONF for d in self.domains.values())

    @property
    def only_capped(self) -> bool:
        """True if the only fault is that something limits clocks, such as heat."""
        bad = [domain for domain in self.domains.values() if domain.pinned is False]
        capped = all(domain.cause is Cause.CAP and not domain.fixable for domain in bad)
        return not self.mode_fault and bool(bad) and capped

    @property
    def faults(self) -> tuple[str, ...]:
        faults = grouped({name: d.why for name, d in self.domains.items() if d.pinned is False})
        return (self.mode_fault, *faults) if self.mode_fault else faults

    @property
    def unknowns(self) -> tuple[str, ...]:
        return grouped({name: d.why for name, d in self.domains.items() if d.pinned is None})

    @property
    def fixable(self) -> bool:
        """True if a clock can move, or a core of the current mode is off."""
        return any(domain.fixable for domain in self.domains.values())

    @property
    def slowed(self) -> tuple[str, ...]:
        """Cores that run far below the set frequency, by their own counters."""
        measured = {
            f"cpu{core.number}": f"{megahertz(core.measured)} of {megahertz(core.range.current)}"
            for core in self.raw.cpus
            if core.online and core.measured and core.measured < SLOWED * (core.range.current or 0)
        }
        return grouped(measured)

    @property
    def is_free(self) -> bool:
        """True if every clock can move."""
        return all(domain.fixable for domain in self.domains.values() if "max" in domain.values)

    @property
    def in_target_mode(self) -> bool:
        return self.target_mode is not None and self.mode == self.target_mode.name

    @property
    def target_in_effect(self) -> bool:
        """True if the target mode is in effect, on the GPU too, where it may take a reboot."""
        tpc = self.domains.get("tpc")
        return self.in_target_mode and (tpc is None or tpc.pinned is not False)

    @property
    def cores_to_switch(self) -> dict[int, bool]:
        """Cores to turn on or off for the target mode; none while another mode is set."""
        cores = self.target_mode.cores if self.target_mode and self.in_target_mode else ()
        wrong = [core for core in self.raw.cpus if cores and core.online is not (core.number in cores)]
        return {core.number: not core.online for core in wrong}

    @property
    def state(self) -> State:
        """`unknown` if everything that could be read is pinned, but something could not be read."""
        if self.refusal:
            return "unsupported"
        if self.faults:
            return "unpinned"
        return "unknown" if self.unknowns else "pinned"

    @property
    def reason(self) -> Reason:
        others = {"unsupported": Reason.UNSUPPORTED, "unknown": Reason.UNREADABLE, "pinned": Reason.NONE}
        if self.state in others:
            return others[self.state]
        if self.only_capped:
            return Reason.CAPPED
        if self.wrong_conf:
            return Reason.WRONG_CONF
        if self.target_mode is None:
            return Reason.NO_TARGET
        return Reason.WRONG_MODE if self.mode_fault else Reason.LOOSE

    @property
    def clocks(self) -> Clocks:
        domains = {n: {**d.values, "pinned": d.pinned, "why": d.why} for n, d in self.domains.items()}
        parts = (self.refusal,) if self.refusal else self.faults or self.unknowns
        return Clocks.because(self.state, self.reason, parts, mode=self.mode, domains=domains)


def take_reading(box: Box) -> ClockVerdict:
    """Read and judge the clocks. Without root the state is `unknown` at best. Does not raise."""
    clocks = readings.read(box)
    refusal = str(clocks.platform.refusal or "")
    if not clocks.platform.is_jetson:
        return ClockVerdict(clocks, refusal)
    return ClockVerdict(clocks, refusal, _mode_fault(clocks.modes), dict(_domains(clocks, clocks.modes)))


def megahertz(hz: int | None) -> str:
    return "unknown" if hz is None else f"{hz / 1e6:.6g} MHz"


def grouped(faults: Mapping[str, str]) -> tuple[str, ...]:
    """Lines about faults. Domains with the same fault share a line: `cpu0–cpu7: …`."""
    names: dict[str, list[str]] = {}
    for name, why in faults.items():
        names.setdefault(why, []).append(name)
    return tuple(f"{span(same)}: {why}" for why, same in names.items())


def span(names: list[str]) -> str:
    """First and last name, as `cpu0–cpu7`."""
    return "–".join(dict.fromkeys((*names[:1], *names[-1:])))


def _mode_fault(modes: PowerModes) -> str:
    """The difference between the current power mode and the target; "" if there is none."""
    target, current = modes.target, modes.current
    if target.mode is None:
        return "" if target.needs_root else target.problem
    if not current.name:
        return f"power mode is unknown: {current.problem or 'nvpmodel does not report it'}"
    if current.name != target.mode.name:
        return f"power mode is {current.name}, not {target.mode.name}"
    return ""


def _domains(clocks: ClockReadings, modes: PowerModes) -> Iterator[tuple[str, Domain]]:
    """Judge each clock domain: (name, Domain) for cores, GPU, memory and their switches."""
    mode, limits = modes.target.mode, Limits(modes.target, modes.current.name)
    hidden = Domain({}, None, NEEDS_ROOT, cause=Cause.ROOT)
    if modes.target.needs_root:
        yield "mode", hidden
    online = [core for core in clocks.cpus if core.online]
    for core in online:
        parameter = modes.conf.cpu_parameter(core.number) if modes.conf else ""
        yield f"cpu{core.number}", _clock(core.range, limits, parameter, KHZ)
    if clocks.gpu is None:
        yield "gpu", Domain({}, False, "has no devfreq node: the GPU's driver is not up", fixable=True)
    else:
        yield "gpu", _clock(clocks.gpu, limits, "GPU")
    if clocks.railgate is not None:
        fault = "the GPU may be powered down when idle (railgate_enable is 1)"
        yield "railgate", _counted(clocks.railgate, 0, fault)
    if clocks.emc is not None:
        yield "emc", _emc(clocks.emc, limits)
    elif not clocks.is_root:
        yield "emc", hidden
    elif clocks.has_debugfs:
        yield "emc", Domain({}, False, f"{paths.EMC} cannot be read")
    else:
        why = f"debugfs is not mounted at {paths.DEBUGFS}"
        yield "emc", Domain({}, False, why, cause=Cause.NO_DEBUGFS)
    yield "cores", _cores(clocks.cpus, mode, modes.current.name)
    if states := [state for core in online for state in core.idle]:
        yield "idle", _idle(states)
    if mode is not None and mode.tpc_mask is not None:
        yield "tpc", _tpc(clocks, mode.tpc_mask)


@dataclass(frozen=True)
class Limits:
    """Highest frequencies that the target mode allows, in Hz."""

    target: TargetMode
    current: str

    def cap(self, parameter: str, unit: int = 1) -> int | None:
        """Cap of the mode; None if it has none."""
        cap = self.target.mode.limit(parameter) if self.target.mode else None
        return cap * unit if cap else None

    def ceiling(self, parameter: str, clock: Range, unit: int = 1) -> int | None:
        """Highest frequency that mode and hardware allow; None if the hardware's maximum is unknown."""
        cap = self.cap(parameter, unit)
        return clock.top if clock.top is None or cap is None else min(clock.top, clock.within(cap))

    @property
    def target_name(self) -> str:
        return self.target.mode.name if self.target.mode else "the power mode"

    @property
    def suspicion(self) -> str:
        """Clause about the cause of a limit below the ceiling."""
        if self.target.mode is not None and self.current == self.target.mode.name:
            return f"although {self.current} allows it: a thermal cap, or another program's"
        return f"in power mode {self.current or 'unknown'}"

    def conf_fault(self, ceiling: int | None, hardware: int | None, cap: int | None) -> str:
        """Fault of nvpmodel.conf: a cap that the hardware does not reach, or any cap in the mode without
        limits.

        A mode that the site has named may have caps.
        """
        if hardware and cap and cap > readings.FAR_ABOVE * hardware:
            is_it = f"is {paths.NVPMODEL_CONF} the file for this module and its firmware?"
            return f"ends at {megahertz(hardware)}, below the {megahertz(cap)} of {self.target_name}: {is_it}"
        if ceiling is None or hardware is None or ceiling == hardware or self.target.by_site:
            return ""
        caps = f"caps it at {megahertz(ceiling)}, below the hardware's {megahertz(hardware)}"
        return f"the best power mode {caps}. Is {paths.NVPMODEL_CONF} the file for this module?"


def _clock(clock: Range, limits: Limits, parameter: str, unit: int = 1) -> Domain:
    """Judge a CPU or the GPU: both limits must be at the ceiling."""
    ceiling = limits.ceiling(parameter, clock, unit)
    values = {"min": clock.min, "max": clock.max, "current": clock.current, "ceiling": ceiling}
    conf_fault = limits.conf_fault(ceiling, clock.top, limits.cap(parameter, unit))
    capped = clock.max is not None and ceiling is not None and clock.within(clock.max) < ceiling
    above = clock.max is not None and ceiling is not None and clock.within(clock.max) > ceiling
    if clock.min is None or clock.max is None:
        why = "its limits cannot be read"
    elif ceiling is None:
        why = "the hardware's maximum cannot be read"
    elif capped:
        free = "" if clock.fixed else f", and free down to {megahertz(clock.min)}"
        why = f"capped at {megahertz(clock.max)}, below {megahertz(ceiling)}, {limits.suspicion}{free}"
    elif above and not conf_fault:
        verb = "held at" if clock.fixed else "allowed up to"
        why = f"{verb} {megahertz(clock.max)}, above the {megahertz(ceiling)} of {limits.target_name}"
    elif not clock.fixed:
        why = f"free between {megahertz(clock.min)} and {megahertz(clock.max)}"
    else:
        why = conf_fault
    cause = Cause.CONF if conf_fault else Cause.CAP if capped else Cause.OTHER
    return Domain(values, not why, why, above or not clock.fixed, cause, above)


def _emc(emc: Emc, limits: Limits) -> Domain:
    """Judge the memory clock: capped, not locked, or allowed above the maximum of the mode."""
    clock = emc.range
    cap, ceiling = limits.cap("EMC"), limits.ceiling("EMC", clock)
    highest = min((clock.within(limit) for limit in (emc.cap, clock.max) if limit), default=None)
    values = {"min": clock.min, "max": highest, "current": clock.current, "ceiling": ceiling}
    conf_fault = limits.conf_fault(ceiling, clock.top, cap)
    reach = ceiling if ceiling is None or highest is None else min(ceiling, highest)
    # If the lower limit is the highest reachable frequency, the clock cannot move, whatever the hardware's
    # maximum.
    locked = emc.locked or clock.fixed or (reach is not None and clock.min == reach)
    # The firmware's maximum is no cap of the mode, because the firmware may raise it again.
    above = cap is not None and emc.cap is not None and ceiling is not None and emc.cap > cap
    if ceiling is None:
        why = "the hardware's maximum cannot be read"
    elif clock.max is None:
        why = "its limits cannot be read"
    elif above and not conf_fault:
        why = f"allowed up to {megahertz(emc.cap)}, above the {megahertz(ceiling)} of {limits.target_name}"
    elif reach != ceiling:
        free = "" if locked else ", and not locked"
        why = f"capped at {megahertz(reach)}, below {megahertz(ceiling)}, {limits.suspicion}{free}"
    elif not locked:
        why = f"at {megahertz(clock.current)} now, but not locked"
    elif clock.current != ceiling:
        why = f"locked at {megahertz(clock.current)}, not at {megahertz(ceiling)}"
    else:
        why = conf_fault
    cause = Cause.CONF if conf_fault else Cause.CAP if reach != ceiling else Cause.OTHER
    fixable = above or not locked or clock.current != reach
    return Domain(values, not why, why, fixable, cause, above)


def _cores(cores: tuple[Cpu, ...], mode: Mode | None, current: str) -> Domain:
    """Compare the online cores with the mode. Without a mode, all must be online."""
    expected = (mode.cores if mode else ()) or tuple(core.number for core in cores)
    online = {core.number for core in cores if core.online}
    values = {"value": len(online.intersection(expected)), "expected": len(expected)}
    absent = sorted(set(expected) - {core.number for core in cores})
    off = sorted(set(expected) - online - set(absent))
    extra = sorted(online - set(expected))
    why, wrong = "", span([f"cpu{number}" for number in absent or off or extra])
    if absent:
        why = f"this module lacks {wrong} of {paths.NVPMODEL_CONF}: the file is for another module"
    elif off or extra:
        why = f"{wrong} {'offline' if off else 'online'}, unlike in {mode.name if mode else 'a whole module'}"
    # A lower mode turns them off on purpose, so only the mode is at fault.
    fixable = bool(off or extra) and mode is not None and current == mode.name
    return Domain(values, not why, why, fixable, Cause.CONF if absent else Cause.OTHER)


def _idle(states: list[bool | None]) -> Domain:
    unknown, values = states.count(None), {"value": states.count(True), "expected": len(states)}
    if unknown and False not in states:
        return Domain(values, None, f"{unknown} of {len(states)} switches of idle states cannot be read")
    fault = f"{states.count(False)} of {len(states)} idle states of the cores are allowed"
    return _counted(states.count(True), len(states), fault)


def _counted(value: int, expected: int, fault: str) -> Domain:
    """Judge a count that must equal `expected`: of forbidden idle states, or of the GPU's power switch.
    Waking a core or the GPU delays the first calls after a pause.
    """
    why = "" if value == expected else fault
    return Domain({"value": value, "expected": expected}, not why, why, fixable=bool(why))


def _tpc(clocks: ClockReadings, expected: int) -> Domain:
    """Compare the mask of GPU clusters with the mode's."""
    mask = clocks.tpc_mask
    values = {"value": mask, "expected": expected}
    if mask is None and not clocks.is_root:
        return Domain(values, None, NEEDS_ROOT, cause=Cause.ROOT)
    if mask is None:
        # On JetPack 7 even root cannot read it: its file there is not known.
        return Domain(values, None, "the TPC mask cannot be read")
    why = "" if mask == expected else f"TPC mask is {mask}, not {expected} (only a reboot changes it)"
    return Domain(values, not why, why)
