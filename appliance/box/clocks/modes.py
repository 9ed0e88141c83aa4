"""Power modes of nvpmodel.conf, and the target mode, which this box is to be in. This file parses texts, and
reads no file.

The target is chosen by name: ids differ between modules, and the mode with the highest power has not the
highest id. A site may name a lower mode for its supply or cooling: `device.power_mode` of the daemon's
configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.box import paths
from appliance.box.root import error_text, parse_int
from appliance.box.tools import Completed

BEST = ("MAXN_SUPER", "MAXN")
"""Names of the mode without limits, the preferred one first."""
NOT_SET = "power mode is not set"
"""Message of nvpmodel on JetPack 7, with exit status 0 (public scripts search for it).

The status file then names a mode that was not applied.
"""
MODE_NAME = r"\w[\w-]*|[A-Za-z_][\w.+-]*"
"""Pattern of a power mode's name. YAML reads such a name as a string without quotes."""
MODE_LETTERS = "letters, digits, _, -, + and dots"
POWER_MODE_LINE = (
    "`device:` on a line of its own, and below it, indented, `power_mode: NAME` or `power_mode: null`, "
    f"NAME of {MODE_LETTERS}"
)
UNCAPPED = (2**31 - 1, 2**63 - 1)
"""Numbers that mean "no limit", as -1 does."""
HARMLESS = re.compile(r"NVPM ERROR: Error opening \S+\s*: 13\b")
"""Errors about files that only root may open. The printed mode is right."""

Setting = tuple[str, str]
"""A parameter and its argument, as ("GPU", "MAX_FREQ")."""


@dataclass(frozen=True)
class Mode:
    """A power mode, as nvpmodel's file describes it."""

    id: int
    name: str
    settings: Mapping[Setting, str] = field(default_factory=dict)

    @property
    def cores(self) -> tuple[int, ...]:
        on = [name for (kind, name), value in self.settings.items() if (kind, value) == ("CPU_ONLINE", "1")]
        cores = (re.fullmatch(r"CORE_([0-9]{1,4})", name) for name in on)
        return tuple(sorted(int(core[1]) for core in cores if core))

    @property
    def tpc_mask(self) -> int | None:
        """Mask with a bit for each GPU cluster that is off."""
        return parse_int(self.settings.get(("TPC_POWER_GATING", "TPC_PG_MASK")))

    def limit(self, parameter: str, kind: str = "MAX_FREQ") -> int | None:
        """MAX_FREQ or MIN_FREQ: CPU in kHz, GPU and EMC in Hz; None if there is no limit."""
        return limit_or_none(parse_int(self.settings.get((parameter, kind))))

    def allows(self, other: Mode) -> bool:
        """True if this mode has every core and TPC of the other, and no cap below the other's."""
        caps = [(self.limit(name), other.limit(name)) for name, kind in self.settings if kind == "MAX_FREQ"]
        return (
            set(self.cores) >= set(other.cores)
            and not (self.tpc_mask or 0) & ~(other.tpc_mask or 0)
            and all(own is None or (theirs is not None and own >= theirs) for own, theirs in caps)
        )


@dataclass(frozen=True)
class Conf:
    """Content of nvpmodel.conf."""

    paths: Mapping[Setting, str]
    modes: tuple[Mode, ...]
    default: int | None = None
    """Id of the default mode, for a box in which no mode has been set."""

    def by_name(self, name: str) -> Mode | None:
        return next((mode for mode in self.modes if mode.name == name), None)

    @property
    def names(self) -> str:
        return ", ".join(mode.name for mode in self.modes) or "none"

    def cpu_parameter(self, core: int) -> str:
        """Parameter of the last cluster that begins at or before the core."""
        clusters = {
            int(match[1]): parameter
            for (parameter, argument), path in self.paths.items()
            if argument == "MAX_FREQ" and (match := re.search(r"/cpu/cpu([0-9]{1,4})/", path))
        }
        return max(((first, name) for first, name in clusters.items() if first <= core), default=(0, ""))[1]


@dataclass(frozen=True)
class TargetMode:
    """The power mode that the box should have."""

    mode: Mode | None = None
    by_site: bool = False
    """True if the site named the mode. Its caps are then intended."""
    problem: str = ""
    needs_root: bool = False
    """True if only root can read which mode the site named. The target is then the current mode."""


@dataclass(frozen=True)
class CurrentMode:
    """The power mode that the box has."""

    name: str = ""
    id: int | None = None
    problem: str = ""
    """Reason why the mode is unknown. If `name` is set as well, the name is still right."""
    unset: bool = False
    """True if nvpmodel has applied no mode in this boot."""


@dataclass(frozen=True)
class PowerModes:
    """Power modes of this box: all, the current one and the target."""

    conf: Conf | None = None
    """Content of the file, if it can be used."""
    current: CurrentMode = field(default_factory=CurrentMode)
    target: TargetMode = field(default_factory=TargetMode)


def power_modes(conf: str | Exception, site: str | Exception, query: Completed, status: str) -> PowerModes:
    """Parse the texts of nvpmodel.conf, the site's configuration, nvpmodel and its status file, and choose.

    An exception in place of a text is the error that reading it raised.
    """
    try:
        parsed = parse_conf(_text(conf))
    except (OSError, ValueError) as error:
        why = f"cannot be used: {error_text(error)}. nvpower.service creates it for this module"
        target = TargetMode(problem=f"{paths.NVPMODEL_CONF} {why}")
        return PowerModes(None, current_mode(query, status, None), target)
    current = current_mode(query, status, parsed)
    return PowerModes(parsed, current, target_mode(site, parsed, current.name))


def _text(result: str | Exception) -> str:
    if isinstance(result, Exception):
        raise result
    return result


def parse_conf(text: str) -> Conf:
    """Parse nvpmodel.conf. Raises ValueError if it has no power mode."""
    paths: dict[Setting, str] = {}
    modes: list[tuple[int, str, dict[Setting, str]]] = []
    default = None
    parameter = ""
    for line in (raw.strip() for raw in text.splitlines()):
        if head := re.match(r"<\s*(\w+)\s+(.*?)\s*>", line):
            values = dict(re.findall(r"(\w+)=(\S+)", head[2]))
            parameter = values.get("NAME", "") if head[1] == "PARAM" else ""
            if head[1] == "POWER_MODEL":
                number, name = parse_int(values.get("ID")), values.get("NAME")
                if number is None or number < 0 or not name:
                    raise ValueError("a power mode has no ID or no NAME")
                modes.append((number, name, {}))
            elif head[1] == "PM_CONFIG":
                default = parse_int(values.get("DEFAULT"))
        elif line.startswith("#"):
            continue
        elif parameter and len(words := line.split()) == 2:
            paths[parameter, words[0]] = words[1]
        elif modes and len(words := line.split()) == 3:
            modes[-1][2][words[0], words[1]] = words[2]
    if not modes:
        raise ValueError("it holds no line `< POWER_MODEL ID=… NAME=… >`")
    return Conf(paths, tuple(Mode(*mode) for mode in modes), default)


def target_mode(site: str | Exception, conf: Conf, current: str) -> TargetMode:
    """Mode that the configuration names, or else the best known mode.

    Without a configured mode, the current mode stays if its limits are as high: a newer JetPack may have it
    under a name that is unknown here. `site`: text of the configuration, or the error of reading it.
    """
    try:
        name = power_mode(_text(site))
    except FileNotFoundError:
        name = ""
    except PermissionError:
        return TargetMode(conf.by_name(current), by_site=True, needs_root=True)
    except (OSError, ValueError) as error:
        problem = f"{paths.CONFIG} names no power mode that can be read. {error_text(error)}"
        return TargetMode(problem=problem)
    best = next((mode for label in ((name,) if name else BEST) if (mode := conf.by_name(label))), None)
    if best is None:
        names = f"{name} (device.power_mode)" if name else " or ".join(BEST)
        return TargetMode(problem=f"{paths.NVPMODEL_CONF} has no power mode {names}; it has {conf.names}")
    other = conf.by_name(current)
    is_better = other is not None and not name and other.name not in BEST and other.allows(best)
    return TargetMode(other if is_better else best, by_site=bool(name))


def power_mode(text: str) -> str:
    """Parse `device.power_mode` of the daemon's configuration; "" stands for the best mode.

    Root's commands have no YAML parser. They read the one form of POWER_MODE_LINE; any other form raises
    ValueError, so that no setting is overlooked. `appliance check` compares the result with YAML's.
    """
    section, values = "", []
    for raw in text.splitlines():
        line = re.sub(r"(^|\s)#.*", "", raw).rstrip()
        if head := re.match(r"[^\s-].*", line):
            section = head[0]
        if re.search(r"\bpower_mode['\"]?\s*:", line):
            value = re.fullmatch(rf"\s+power_mode:(?:\s+(['\"]?)({MODE_NAME}|~)\1)?", line)
            if section != "device:" or value is None:
                raise ValueError(f"power_mode must be written as {POWER_MODE_LINE}")
            values.append(value[2] or "null")
    if len(values) > 1:
        raise ValueError("power_mode appears more than once")
    return "" if not values or values[0] in ("null", "~") else values[0]


def current_mode(query: Completed, status: str, conf: Conf | None) -> CurrentMode:
    """Current mode: the answer of `nvpmodel -q`, else the mode of its status file, as `pmode:0000`.

    The default of nvpmodel.conf counts only if nvpmodel is not installed: a hanging or garbled nvpmodel does
    not mean the default mode.
    """
    answer, errors = parse_query(query.text), nvpmodel_errors(query)
    if answer.name:
        return CurrentMode(answer.name, answer.id, errors)
    if NOT_SET in query.text:
        return CurrentMode(problem="nvpmodel has set no mode in this boot", unset=True)
    match = re.search(r"\bpmode:([0-9]{1,9})\b", status)
    number = int(match[1]) if match else None
    if number is None and conf is not None and query.missing:
        number = conf.default
    name = next((mode.name for mode in (conf.modes if conf else ()) if mode.id == number), "")
    return CurrentMode(name, number, errors or query.summary)


def parse_query(text: str) -> CurrentMode:
    """Parse a line with the name, and a later line with the id alone."""
    match = re.search(r"^(?:NVPM VERB: Current mode: )?NV Power Mode:[ \t]*(\S+)", text, re.MULTILINE)
    if not match:
        return CurrentMode()
    number = re.search(r"^\s*([0-9]{1,9})\s*$", text[match.end() :], re.MULTILINE)
    return CurrentMode(match[1], int(number[1]) if number else None)


def nvpmodel_errors(completed: Completed) -> str:
    """Errors of nvpmodel, except those that only result from not being root."""
    lines = (line.strip() for line in completed.text.splitlines())
    return "; ".join(line for line in lines if "NVPM ERROR" in line and not HARMLESS.search(line))


def limit_or_none(value: int | None) -> int | None:
    return None if value is None or value <= 0 or value in UNCAPPED else value
