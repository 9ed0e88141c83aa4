"""Are the clocks pinned? Judged from what the kernel says now, never from what a tool has reported.

Pinned is: the power mode that this box is to be in, all its cores and TPCs, and every clock that counts –
each CPU that is online, GPU, EMC – held at the most that mode and module allow, cores that may not sleep,
and a GPU that keeps its power. No frequency is written here: the maximum is the hardware's, or the cap of a
mode that the site has named. Any other limit below it is a reason by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from appliance.box import paths, platform
from appliance.box.clocks import modes, readings
from appliance.box.clocks.modes import Conf, Mode, Wanted
from appliance.box.clocks.published import Clocks, State
from appliance.box.clocks.readings import Cpu, Emc, Range
from appliance.box.platform import Platform
from appliance.box.root import reason
from appliance.box.system import Box

NEEDS_ROOT = "needs root"


@dataclass(frozen=True)
class Domain:
    """A clock, or a count of units, and the judgement of it."""

    values: Mapping[str, Any]
    pinned: bool | None
    """None: could not be looked at."""
    why: str = ""
    """What is wrong with it, or why it is not known."""
    loose: bool = False
    """Whether jetson_clocks could mend it: what is only capped it could not."""
    cause: Literal["", "cap", "conf"] = ""
    """Something holds it down; nvpmodel.conf is that of another module."""

    @property
    def published(self) -> dict[str, Any]:
        return {**self.values, "pinned": self.pinned, "why": self.why}


@dataclass(frozen=True)
class ClockReading:
    """All that was seen in one look at the box."""

    platform: Platform
    refusal: str
    """Why this box is not supported; empty when it is."""
    conf: Conf | None = None
    wanted: Wanted = field(default_factory=Wanted)
    mode: str = ""
    """Name of the mode that is set; empty when unknown."""
    reasons: tuple[str, ...] = ()
    """What is wrong beside the domains."""
    domains: Mapping[str, Domain] = field(default_factory=dict)

    @property
    def best(self) -> Mode | None:
        """The mode that this box is to be in."""
        return self.wanted.mode

    @property
    def wrong_conf(self) -> bool:
        """True if nvpmodel.conf cannot be used, or is that of another module."""
        return self.conf is None or any(domain.cause == "conf" for domain in self.domains.values())

    @property
    def only_capped(self) -> bool:
        """True if all is well but for clocks that are held down, e.g. by heat."""
        faults = [domain for domain in self.domains.values() if domain.pinned is False]
        return not self.reasons and bool(faults) and all(d.cause == "cap" and not d.loose for d in faults)

    @property
    def faults(self) -> tuple[str, ...]:
        """Everything that speaks against `pinned`."""
        return (
            *self.reasons,
            *grouped({name: d.why for name, d in self.domains.items() if d.pinned is False}),
        )

    @property
    def unknowns(self) -> tuple[str, ...]:
        """What could not be looked at."""
        return grouped({name: d.why for name, d in self.domains.items() if d.pinned is None})

    @property
    def loose(self) -> bool:
        """Whether a clock can move, or a core is off: what pinning would mend in the mode that is set."""
        return any(domain.loose for domain in self.domains.values())

    @property
    def best_mode(self) -> bool:
        """True if the wanted mode is set."""
        return self.best is not None and self.mode == self.best.name

    @property
    def complete(self) -> bool:
        """True if that mode is set and has taken effect on the GPU, which may take a reboot."""
        tpc = self.domains.get("tpc")
        return self.best_mode and (tpc is None or tpc.pinned is not False)

    @property
    def other_tpcs(self) -> bool:
        """True if the GPU has other TPCs than that mode: only a reboot changes that."""
        tpc = self.domains.get("tpc")
        return tpc is not None and tpc.values["value"] not in (None, tpc.values["expected"])

    @property
    def state(self) -> State:
        """`unknown` is everything that could be seen pinned, and something that could not."""
        if self.refusal:
            return "unsupported"
        if self.faults:
            return "unpinned"
        return "unknown" if self.unknowns else "pinned"

    @property
    def why(self) -> str:
        return self.refusal or "; ".join(self.faults or self.unknowns)

    @property
    def clocks(self) -> Clocks:
        """State in the published form."""
        domains = {name: domain.published for name, domain in self.domains.items()}
        return Clocks(self.state, mode=self.mode, domains=domains, why=self.why)


def survey(box: Box) -> Clocks:
    """The state as of now: pinned, unpinned, unsupported; without root at best unknown. Does not raise."""
    return look(box).clocks


def look(box: Box) -> ClockReading:
    """Read and judge everything. Does not raise."""
    machine = platform.identify(box.root)
    refusal = platform.refusal(machine)
    if not machine.is_jetson:
        return ClockReading(machine, refusal)
    conf, problem = _conf(box)
    now = modes.current(box, conf)
    wanted = modes.wanted(box.root, conf, now.name) if conf else Wanted(problem=problem)
    domains = dict(_domains(box, conf, wanted, now.name))
    return ClockReading(machine, refusal, conf, wanted, now.name, tuple(_mode_reasons(wanted, now)), domains)


def megahertz(hz: int | None) -> str:
    """For people."""
    return "unknown" if hz is None else f"{hz / 1e6:.6g} MHz"


def grouped(whys: Mapping[str, str]) -> tuple[str, ...]:
    """One line for all domains with the same fault: `cpu0–cpu7: …`."""
    names: dict[str, list[str]] = {}
    for name, why in whys.items():
        names.setdefault(why, []).append(name)
    return tuple(f"{span(same)}: {why}" for why, same in names.items())


def span(names: list[str]) -> str:
    """The first and the last of several, which come in order."""
    return names[0] if len(names) == 1 else f"{names[0]}–{names[-1]}"


def _conf(box: Box) -> tuple[Conf | None, str]:
    try:
        return modes.read_conf(box.root), ""
    except (OSError, ValueError) as error:
        return (
            None,
            f"{paths.NVPMODEL_CONF} cannot be used ({reason(error)}); "
            "nvpower.service makes it for this module",
        )


def _mode_reasons(wanted: Wanted, now: modes.Current) -> Iterator[str]:
    if wanted.mode is None:
        if not wanted.needs_root:
            yield wanted.problem
    elif not now.name:
        yield f"power mode is unknown: {now.problem or 'nvpmodel does not say'}"
    elif now.name != wanted.mode.name:
        yield f"power mode is {now.name}, not {wanted.mode.name}"


def _domains(box: Box, conf: Conf | None, wanted: Wanted, mode: str) -> Iterator[tuple[str, Domain]]:
    root, best = box.root, wanted.mode
    if wanted.needs_root:
        yield "mode", Domain({}, None, NEEDS_ROOT)
    allowed = Allowed(conf, wanted, mode)
    cores = readings.cpus(root)
    for core in cores:
        if core.online:
            yield f"cpu{core.number}", _clock(core.range, allowed, *allowed.cpu(core))
    gpu = readings.gpu(root)
    if gpu is None:
        yield "gpu", Domain({}, False, "has no devfreq node: the GPU's driver is not up", loose=True)
    else:
        yield "gpu", _clock(gpu, allowed, *allowed.other("GPU", gpu))
    if (railgate := readings.railgate(root)) is not None:
        yield "railgate", _railgate(railgate)
    yield "emc", _emc(readings.emc(root), allowed, readings.emc_absent(root), is_root=box.is_root)
    yield "cores", _cores(cores, best, mode)
    if idle := [
        states for core in cores if core.online and (states := readings.idle_states(root, core.number))
    ]:
        yield "idle", _idle(idle)
    if best is not None and best.tpc_mask is not None:
        yield "tpc", _tpc(readings.tpc_mask(root, conf), best.tpc_mask, is_root=box.is_root)


@dataclass(frozen=True)
class Allowed:
    """Limits of the clocks: those of the wanted mode, and those of the hardware."""

    conf: Conf | None
    wanted: Wanted
    mode: str

    @property
    def best(self) -> Mode | None:
        return self.wanted.mode

    def cpu(self, core: Cpu) -> tuple[int | None, int | None]:
        """Ceiling and hardware's maximum of a core, in Hz."""
        parameter = self.conf.cpu_parameter(core.number) if self.conf else ""
        cap = self.best.cap(parameter) if self.best and parameter else None
        return _lower(core.range.top, cap * readings.KHZ if cap else None), core.range.top

    def other(self, parameter: str, clock: Range) -> tuple[int | None, int | None]:
        """The same of the GPU and of EMC."""
        cap = self.best.cap(parameter) if self.best else None
        return _lower(clock.top, cap), clock.top

    @property
    def who(self) -> str:
        """What to suspect when the kernel's limit is below the ceiling."""
        if self.best is not None and self.mode == self.best.name:
            return f"although {self.mode} allows it: a thermal cap, or somebody's"
        return f"in power mode {self.mode or 'unknown'}"


def _clock(clock: Range, allowed: Allowed, ceiling: int | None, hardware: int | None) -> Domain:
    values = {"min": clock.min, "max": clock.max, "current": clock.current, "ceiling": ceiling}
    capped = clock.max is not None and ceiling is not None and clock.max < ceiling
    why = _range_fault(clock, allowed, ceiling) or _conf_fault(allowed, ceiling, hardware)
    return Domain(values, not why, why, not clock.held, _cause(capped, allowed, ceiling, hardware))


def _cause(
    capped: bool, allowed: Allowed, ceiling: int | None, hardware: int | None
) -> Literal["", "cap", "conf"]:
    return "conf" if _conf_fault(allowed, ceiling, hardware) else "cap" if capped else ""


def _range_fault(clock: Range, allowed: Allowed, ceiling: int | None) -> str:
    if clock.min is None or clock.max is None:
        return "its limits cannot be read"
    if ceiling is None:
        return "the hardware's maximum cannot be read"
    if clock.max < ceiling:
        free = "" if clock.held else f", and free down to {megahertz(clock.min)}"
        return f"capped at {megahertz(clock.max)}, below {megahertz(ceiling)}, {allowed.who}{free}"
    if not clock.held:
        return f"free between {megahertz(clock.min)} and {megahertz(clock.max)}"
    if clock.max > ceiling:
        return f"held at {megahertz(clock.max)}, above the {megahertz(ceiling)} of the power mode"
    return ""


def _conf_fault(allowed: Allowed, ceiling: int | None, hardware: int | None) -> str:
    """A cap below the hardware's maximum in a mode that stands for no limits; the site's own is meant."""
    if ceiling is None or hardware is None or ceiling == hardware or allowed.wanted.by_site:
        return ""
    return (
        f"the best power mode caps it at {megahertz(ceiling)}, below the hardware's {megahertz(hardware)}: "
        f"is {paths.NVPMODEL_CONF} the one for this module?"
    )


def _emc(emc: Emc | None, allowed: Allowed, absent: str, *, is_root: bool) -> Domain:
    if emc is None:
        if not is_root:
            return Domain({}, None, NEEDS_ROOT)
        return Domain({}, False, absent)
    ceiling, hardware = allowed.other("EMC", emc.range)
    reach = _lower(ceiling, emc.cap)
    # A lower limit raised to what is within reach leaves nothing free below it, whatever the hardware's top.
    locked = emc.locked or emc.range.held or (reach is not None and emc.range.min == reach)
    rate = emc.range.current
    values = {"min": emc.range.min, "max": emc.range.max, "current": rate, "ceiling": ceiling}
    why = _emc_fault(rate, locked, reach, ceiling, allowed) or _conf_fault(allowed, ceiling, hardware)
    cause = _cause(reach != ceiling, allowed, ceiling, hardware)
    return Domain(values, not why, why, not locked or rate != reach, cause)


def _emc_fault(
    rate: int | None, locked: bool, reach: int | None, ceiling: int | None, allowed: Allowed
) -> str:
    if ceiling is None:
        return "the hardware's maximum cannot be read"
    if reach != ceiling:
        free = "" if locked else ", and not locked"
        return f"capped at {megahertz(reach)}, below {megahertz(ceiling)}, {allowed.who}{free}"
    if not locked:
        return f"at {megahertz(rate)} now, but not locked"
    return "" if rate == ceiling else f"locked at {megahertz(rate)}, not at {megahertz(ceiling)}"


def _cores(cores: tuple[Cpu, ...], best: Mode | None, mode: str) -> Domain:
    expected = (best.cores if best else ()) or tuple(core.number for core in cores)
    online = {core.number for core in cores if core.online}
    values = {"value": len(online.intersection(expected)), "expected": len(expected)}
    absent = sorted(set(expected) - {core.number for core in cores})
    off = sorted(set(expected) - online - set(absent))
    why = ""
    if absent:
        why = f"{_cpus(absent)} of {paths.NVPMODEL_CONF} do not exist: it is not the one for this module"
    elif off:
        why = f"{_cpus(off)} offline, which {best.name if best else 'this box'} has"
    # A lesser mode has them off on purpose: there only the mode is at fault.
    loose = bool(off) and best is not None and mode == best.name
    return Domain(values, not why, why, loose, "conf" if absent else "")


def _idle(states: Sequence[tuple[int, int]]) -> Domain:
    """Idle states, which jetson_clocks forbids: waking up from one delays a burst."""
    forbidden, known = (sum(counts) for counts in zip(*states, strict=True))
    why = "" if forbidden == known else f"{known - forbidden} of {known} idle states of the cores are allowed"
    return Domain({"value": forbidden, "expected": known}, not why, why, loose=bool(why))


def _railgate(enabled: int) -> Domain:
    """The power of an idle GPU, which jetson_clocks keeps on: waking it up delays a burst."""
    why = "the GPU may be powered down when idle (railgate_enable is 1)" if enabled else ""
    return Domain({"value": enabled, "expected": 0}, not why, why, loose=bool(why))


def _tpc(mask: int | None, expected: int, *, is_root: bool) -> Domain:
    values = {"value": mask, "expected": expected}
    if mask is None:
        # Unknown for root too: where its file lies on JetPack 7 nobody has shown.
        return Domain(values, None, "the TPC mask cannot be read" if is_root else NEEDS_ROOT)
    why = "" if mask == expected else f"TPC mask is {mask}, not {expected} (it changes only by a reboot)"
    return Domain(values, not why, why)


def _cpus(numbers: Iterable[int]) -> str:
    return span([f"cpu{number}" for number in numbers])


def _lower(top: int | None, cap: int | None) -> int | None:
    """The lower of two limits: a cap may be absent, but without the hardware's nothing is known."""
    return top if top is None or cap is None else min(top, cap)
