"""Power modes of nvpmodel.conf, and the target, which this box is to be in: parsed and chosen, not read.

The target is chosen by name: ids differ between modules, and the highest power has not the highest id. A site
may name a lower one for its supply or cooling: `device.power_mode` of the daemon's configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.box import paths
from appliance.box.root import error_text, parse_int
from appliance.box.tools import Completed

BEST = ("MAXN_SUPER", "MAXN")
"""The mode without limits, preferred name first."""
NOT_SET = "power mode is not set"
"""JetPack 7, with exit status 0 (public scripts that look for it): the status file then names a mode
that was not applied."""
MODE_NAME = r"\w[\w-]*|[A-Za-z_][\w.+-]*"
"""Pattern of a power mode's name, which YAML reads as a string unquoted."""
MODE_LETTERS = "letters, digits, _, -, + and dots"
POWER_MODE_LINE = (
    "`device:` on a line of its own, and below it, indented, `power_mode: NAME` or `power_mode: null`, "
    f"NAME of {MODE_LETTERS}"
)
UNCAPPED = (2**31 - 1, 2**63 - 1)
""""No limit", beside -1."""
HARMLESS = re.compile(r"NVPM ERROR: Error opening \S+\s*: 13\b")
"""About files that only root may open; the mode that it prints is right."""

Setting = tuple[str, str]
"""A parameter and its argument, e.g. ("GPU", "MAX_FREQ")."""


@dataclass(frozen=True)
class Mode:
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
        """A bit for each GPU cluster that is off."""
        return parse_int(self.settings.get(("TPC_POWER_GATING", "TPC_PG_MASK")))

    def limit(self, parameter: str, kind: str = "MAX_FREQ") -> int | None:
        """MAX_FREQ or MIN_FREQ: CPU in kHz, GPU and EMC in Hz; None where there is no limit."""
        return limit_or_none(parse_int(self.settings.get((parameter, kind))))

    def allows(self, other: Mode) -> bool:
        """It has every core and TPC of the other, and no cap below the other's."""
        caps = [(self.limit(name), other.limit(name)) for name, kind in self.settings if kind == "MAX_FREQ"]
        return (
            set(self.cores) >= set(other.cores)
            and not (self.tpc_mask or 0) & ~(other.tpc_mask or 0)
            and all(own is None or (theirs is not None and own >= theirs) for own, theirs in caps)
        )


@dataclass(frozen=True)
class Conf:
    """nvpmodel.conf."""

    paths: Mapping[Setting, str]
    modes: tuple[Mode, ...]
    default: int | None = None
    """Id; of a box in which none has been set."""

    def by_name(self, name: str) -> Mode | None:
        return next((mode for mode in self.modes if mode.name == name), None)

    @property
    def names(self) -> str:
        return ", ".join(mode.name for mode in self.modes) or "none"

    def cpu_parameter(self, core: int) -> str:
        """Parameter of the last cluster that begins at or before the core."""
        clusters = {
            int(found[1]): parameter
            for (parameter, argument), path in self.paths.items()
            if argument == "MAX_FREQ" and (found := re.search(r"/cpu/cpu([0-9]{1,4})/", path))
        }
        return max(((first, name) for first, name in clusters.items() if first <= core), default=(0, ""))[1]


@dataclass(frozen=True)
class TargetMode:
    mode: Mode | None = None
    by_site: bool = False
    """Its caps are then intended."""
    problem: str = ""
    needs_root: bool = False
    """The mode is then the one that is set."""


@dataclass(frozen=True)
class CurrentMode:
    name: str = ""
    id: int | None = None
    problem: str = ""
    """No reason to doubt a name that is there."""
    unset: bool = False
    """nvpmodel has applied none in this boot."""


@dataclass(frozen=True)
class PowerModes:
    conf: Conf | None = None
    """None when nvpmodel.conf cannot be used."""
    current: CurrentMode = field(default_factory=CurrentMode)
    target: TargetMode = field(default_factory=TargetMode)


def power_modes(conf: str | Exception, site: str | Exception, asked: Completed, status: str) -> PowerModes:
    """Parse the texts of nvpmodel.conf, the site's configuration, nvpmodel and its status file, and choose.

    An exception in place of a text: why it cannot be read.
    """
    try:
        parsed = parse_conf(_text(conf))
    except (OSError, ValueError) as error:
        why = f"cannot be used: {error_text(error)}. nvpower.service makes it for this module"
        target = TargetMode(problem=f"{paths.NVPMODEL_CONF} {why}")
        return PowerModes(None, current_mode(asked, status, None), target)
    current = current_mode(asked, status, parsed)
    return PowerModes(parsed, current, target_mode(site, parsed, current.name))


def _text(read: str | Exception) -> str:
    if isinstance(read, Exception):
        raise read
    return read


def parse_conf(text: str) -> Conf:
    """Raises ValueError when it holds no power mode."""
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
    """The site's, else the best known, or the present one if it allows as much: it may be newer."""
    try:
        name = power_mode(_text(site))
    except FileNotFoundError:
        name = ""
    except PermissionError:
        return TargetMode(conf.by_name(current), by_site=True, needs_root=True)
    except (OSError, ValueError) as error:
        problem = f"{paths.CONFIG} names no power mode that can be read. {error_text(error)}"
        return TargetMode(problem=problem)
    best = next((mode for known in ((name,) if name else BEST) if (mode := conf.by_name(known))), None)
    if best is None:
        wanted = f"{name} (device.power_mode)" if name else " or ".join(BEST)
        return TargetMode(problem=f"{paths.NVPMODEL_CONF} has no power mode {wanted}; it has {conf.names}")
    other = conf.by_name(current)
    is_better = other is not None and not name and other.name not in BEST and other.allows(best)
    return TargetMode(other if is_better else best, by_site=bool(name))


def power_mode(text: str) -> str:
    """Parse `device.power_mode` of the daemon's configuration; "" for the best mode.

    Root's commands have no YAML parser: the one form of POWER_MODE_LINE is read, and any other raises
    ValueError instead of being overlooked. `appliance check` compares the result with YAML's.
    """
    section, found = "", []
    for raw in text.splitlines():
        line = re.sub(r"(^|\s)#.*", "", raw).rstrip()
        if head := re.match(r"[^\s-].*", line):
            section = head[0]
        if re.search(r"\bpower_mode['\"]?\s*:", line):
            value = re.fullmatch(rf"\s+power_mode:(?:\s+(['\"]?)({MODE_NAME}|~)\1)?", line)
            if section != "device:" or value is None:
                raise ValueError(f"power_mode has to be written as {POWER_MODE_LINE}")
            found.append(value[2] or "null")
    if len(found) > 1:
        raise ValueError("power_mode stands there more than once")
    return "" if not found or found[0] in ("null", "~") else found[0]


def current_mode(asked: Completed, status: str, conf: Conf | None) -> CurrentMode:
    """Take the answer of `nvpmodel -q`, else the mode of its status file, e.g. `pmode:0000`.

    The default of nvpmodel.conf counts only where nvpmodel is not installed: a hanging or garbled nvpmodel
    does not mean the default mode.
    """
    answer, errors = parse_query(asked.text), nvpmodel_errors(asked)
    if answer.name:
        return CurrentMode(answer.name, answer.id, errors)
    if NOT_SET in asked.text:
        return CurrentMode(problem="nvpmodel has set none in this boot", unset=True)
    written = re.search(r"\bpmode:([0-9]{1,9})\b", status)
    number = int(written[1]) if written else None
    if number is None and conf is not None and asked.missing:
        number = conf.default
    name = next((mode.name for mode in (conf.modes if conf else ()) if mode.id == number), "")
    return CurrentMode(name, number, errors or asked.summary)


def parse_query(text: str) -> CurrentMode:
    """A line with the name, and the id alone on a later line."""
    found = re.search(r"^(?:NVPM VERB: Current mode: )?NV Power Mode:[ \t]*(\S+)", text, re.MULTILINE)
    if not found:
        return CurrentMode()
    number = re.search(r"^\s*([0-9]{1,9})\s*$", text[found.end() :], re.MULTILINE)
    return CurrentMode(found[1], int(number[1]) if number else None)


def nvpmodel_errors(completed: Completed) -> str:
    """Without those that only say that we are not root."""
    lines = (line.strip() for line in completed.text.splitlines())
    return "; ".join(line for line in lines if "NVPM ERROR" in line and not HARMLESS.search(line))


def limit_or_none(value: int | None) -> int | None:
    return None if value is None or value <= 0 or value in UNCAPPED else value
