"""Power modes: what nvpmodel.conf offers on this box, which of them it is to be in, and which is set.

A mode is chosen by its name. Ids mean other things on other modules, and the highest power has not the
highest id. The site may name a lesser one that its supply and cooling allow: `device.power_mode` of the
daemon's configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from appliance.box import paths
from appliance.box.root import Root, reason
from appliance.box.system import Box
from appliance.box.tools import Completed

BEST = ("MAXN_SUPER", "MAXN")
"""Names of the mode without limits, the better one first."""
INDICATOR = "nvpmodel_ind"
"""The process of the desktop's power mode menu, nvpmodel_indicator: the kernel cuts names at 15."""
POWER_MODE_LINE = (
    "`device:` on a line of its own, and below it, indented, `power_mode: NAME` or `power_mode: null`"
)
UNCAPPED = (2**31 - 1, 2**63 - 1)
"""What stands for no limit, beside -1: it is written as the largest whole number of its size."""
QUERY_S = 10.0
HARMLESS = re.compile(r"NVPM ERROR: Error opening \S+\s*: 13\b")
"""What `nvpmodel -q` says of files that only root may open; the mode it prints is right all the same."""

Setting = tuple[str, str]
"""A parameter and its argument, e.g. ("GPU", "MAX_FREQ")."""


@dataclass(frozen=True)
class Mode:
    """One POWER_MODEL of the file."""

    id: int
    name: str
    settings: Mapping[Setting, str] = field(default_factory=dict)

    @property
    def cores(self) -> tuple[int, ...]:
        """Numbers of the cores that are online in this mode."""
        cores = [
            int(argument.rpartition("_")[2])
            for (parameter, argument), value in self.settings.items()
            if parameter == "CPU_ONLINE" and re.fullmatch(r"CORE_[0-9]{1,4}", argument) and value == "1"
        ]
        return tuple(sorted(cores))

    @property
    def tpc_mask(self) -> int | None:
        """A bit for each GPU processing cluster that is off; None when the mode does not say."""
        return whole(self.settings.get(("TPC_POWER_GATING", "TPC_PG_MASK")))

    def cap(self, parameter: str) -> int | None:
        """MAX_FREQ of a parameter in the kernel's unit (CPU kHz, GPU and EMC Hz); None when uncapped."""
        return limit(whole(self.settings.get((parameter, "MAX_FREQ"))))

    def floor(self, parameter: str) -> int | None:
        """MIN_FREQ, in the same unit; None when the mode names none."""
        return limit(whole(self.settings.get((parameter, "MIN_FREQ"))))

    def allows(self, other: Mode) -> bool:
        """Return whether it has every core and TPC of another mode, and no cap below the other's."""
        caps = [(self.cap(name), other.cap(name)) for name, kind in self.settings if kind == "MAX_FREQ"]
        return (
            set(self.cores) >= set(other.cores)
            and not (self.tpc_mask or 0) & ~(other.tpc_mask or 0)
            and all(cap is None or (least is not None and cap >= least) for cap, least in caps)
        )


@dataclass(frozen=True)
class Conf:
    """nvpmodel.conf: the attributes that it sets, and the modes."""

    paths: Mapping[Setting, str]
    modes: tuple[Mode, ...]
    default: int | None = None
    """Id of the mode of a box that was never told otherwise."""

    def by_id(self, number: int) -> Mode | None:
        return next((mode for mode in self.modes if mode.id == number), None)

    def by_name(self, name: str) -> Mode | None:
        return next((mode for mode in self.modes if mode.name == name), None)

    @property
    def names(self) -> str:
        """For a message."""
        return ", ".join(mode.name for mode in self.modes) or "none"

    def cpu_parameter(self, core: int) -> str:
        """The parameter that limits a core: that of the last cluster which does not begin after it."""
        clusters = {
            int(found[1]): parameter
            for (parameter, argument), path in self.paths.items()
            if argument == "MAX_FREQ" and (found := re.search(r"/cpu/cpu([0-9]{1,4})/", path))
        }
        return max(((first, name) for first, name in clusters.items() if first <= core), default=(0, ""))[1]


@dataclass(frozen=True)
class Wanted:
    """The mode that this box is to be in."""

    mode: Mode | None = None
    """None: nobody can say."""
    by_site: bool = False
    """True if the configuration names it: its caps are then intended."""
    problem: str = ""
    """Why there is no mode."""
    needs_root: bool = False
    """True if only root can read the configuration; the mode is then the one that is set."""


@dataclass(frozen=True)
class Current:
    """The mode that is set, as far as it could be found out."""

    name: str = ""
    id: int | None = None
    problem: str = ""
    """What `nvpmodel -q` had to say besides; not a reason to doubt a name that is there."""


def parse_conf(text: str) -> Conf:
    """The vendor's file. Raises ValueError when it holds no power mode."""
    paths: dict[Setting, str] = {}
    modes: list[tuple[int, str, dict[Setting, str]]] = []
    default = None
    parameter = ""
    for line in (raw.strip() for raw in text.splitlines()):
        if head := re.match(r"<\s*(\w+)\s+(.*?)\s*>", line):
            values = dict(re.findall(r"(\w+)=(\S+)", head[2]))
            parameter = values.get("NAME", "") if head[1] == "PARAM" else ""
            if head[1] == "POWER_MODEL":
                modes.append((*_heading(values), {}))
            elif head[1] == "PM_CONFIG":
                default = whole(values.get("DEFAULT"))
        elif not line or line.startswith("#"):
            continue
        elif parameter and len(words := line.split()) == 2:
            paths[parameter, words[0]] = words[1]
        elif modes and len(words := line.split()) == 3:
            modes[-1][2][words[0], words[1]] = words[2]
    if not modes:
        raise ValueError("it holds no line `< POWER_MODEL ID=… NAME=… >`")
    return Conf(paths, tuple(Mode(*mode) for mode in modes), default)


def _heading(values: Mapping[str, str]) -> tuple[int, str]:
    number, name = whole(values.get("ID")), values.get("NAME")
    if number is None or number < 0 or not name:
        raise ValueError("a power mode has no ID or no NAME")
    return number, name


def read_conf(root: Root) -> Conf:
    """This box's file. Raises OSError and ValueError."""
    return parse_conf(root.read(paths.NVPMODEL_CONF))


def wanted(root: Root, conf: Conf, now: str) -> Wanted:
    """The mode that the site's configuration names, else the one without limits. Does not raise.

    A mode `now` of another name that allows all that the best known one does is left: it may be a newer one.
    """
    try:
        name = power_mode(root.read(paths.CONFIG))
    except FileNotFoundError:
        name = ""
    except PermissionError:
        return Wanted(
            conf.by_name(now), by_site=True, problem="its configuration needs root", needs_root=True
        )
    except (OSError, ValueError) as error:
        return Wanted(problem=f"which power mode it is to be in is unknown: {paths.CONFIG}: {reason(error)}")
    if name:
        if mode := conf.by_name(name):
            return Wanted(mode, by_site=True)
        problem = f"no power mode {name}, which device.power_mode of {paths.CONFIG} asks for"
        return Wanted(problem=f"{paths.NVPMODEL_CONF} has {problem}; it has {conf.names}")
    best = next((mode for known in BEST if (mode := conf.by_name(known))), None)
    if best is None:
        problem = f"{paths.NVPMODEL_CONF} has no power mode {' or '.join(BEST)}; it has {conf.names}"
        return Wanted(problem=problem)
    other = conf.by_name(now)
    return Wanted(other if other and other.name not in BEST and other.allows(best) else best)


def power_mode(text: str) -> str:
    """`device.power_mode` of the daemon's configuration; "" for the best. Root's commands have no YAML.

    So it is read by line, in the one form of POWER_MODE_LINE; in any other it is an error and not overlooked.
    Raises ValueError. The daemon compares it with what YAML says.
    """
    section, found = "", []
    for raw in text.splitlines():
        line = re.sub(r"(^|\s)#.*", "", raw).rstrip()
        if head := re.match(r"[^\s-].*", line):
            section = head[0]
        if re.search(r"\bpower_mode['\"]?\s*:", line):
            value = re.fullmatch(r"\s+power_mode:(?:\s+(['\"]?)(\w+|~)\1)?", line)
            if section != "device:" or value is None:
                raise ValueError(f"power_mode has to be written as {POWER_MODE_LINE}")
            found.append(value[2] or "null")
    if len(found) > 1:
        raise ValueError("power_mode stands there more than once")
    return "" if not found or found[0] in ("null", "~") else found[0]


def current(box: Box, conf: Conf | None) -> Current:
    """The mode that is set: from nvpmodel, else from its status file. Does not raise.

    The default of nvpmodel.conf counts only where nvpmodel is not installed: one that hangs, or prints
    something else, has not said that the mode is the default.
    """
    ran = box.tools.run("nvpmodel", "-q", timeout_s=QUERY_S)
    told = parse_query(ran.text)
    errors = complaints(ran)
    if told.name:
        return Current(told.name, told.id, errors)
    number = parse_status(box.root.text(paths.NVPMODEL_STATUS) or "")
    if number is None and conf is not None and ran.missing:
        number = conf.default
    mode = conf.by_id(number) if conf is not None and number is not None else None
    return Current(mode.name if mode else "", number, errors or ran.summary)


def parse_query(text: str) -> Current:
    """What `nvpmodel -q` prints: a line with the name, and the id alone on a later line."""
    found = re.search(r"^(?:NVPM VERB: Current mode: )?NV Power Mode:[ \t]*(\S+)", text, re.MULTILINE)
    if not found:
        return Current()
    number = re.search(r"^\s*([0-9]{1,9})\s*$", text[found.end() :], re.MULTILINE)
    return Current(found[1], int(number[1]) if number else None)


def parse_status(text: str) -> int | None:
    """The status file, e.g. `pmode:0000` → 0."""
    found = re.search(r"\bpmode:([0-9]{1,9})\b", text)
    return int(found[1]) if found else None


def complaints(ran: Completed) -> str:
    """What nvpmodel called an error, but for what only says that we are not root."""
    lines = (line.strip() for line in ran.text.splitlines())
    return "; ".join(line for line in lines if "NVPM ERROR" in line and not HARMLESS.search(line))


def whole(text: str | None) -> int | None:
    """A whole number, decimal or hexadecimal; None when it is none."""
    found = re.fullmatch(r"(-?[0-9]{1,19})|(0x[0-9a-fA-F]{1,16})", (text or "").strip())
    if not found:
        return None
    return int(found[1]) if found[1] else int(found[2], 16)


def limit(value: int | None) -> int | None:
    """A cap; None when the number stands for none."""
    return None if value is None or value <= 0 or value in UNCAPPED else value
