"""One file for the maker: states, logs, versions.

No texts, no voices, no secrets, nothing that names the box. What goes in has passed `redact`; what comes from
the application is reduced to levels and figures, since its messages name voices. Every part is made on its
own; one that fails is a line in the archive's INDEX.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.box import paths, services
from appliance.box.clocks import verdict
from appliance.box.judge import reset, visit
from appliance.box.judge.application import Application
from appliance.box.judge.daemon import with_applications
from appliance.box.judge.examine import examine
from appliance.box.judge.finding import Finding, document
from appliance.box.support import redact
from appliance.box.support.redact import outline
from appliance.box.system import Box
from appliance.durable import replace_file

UNITS = (
    "f5-appliance.service",
    "f5-gateway.service",
    "f5-clocks.service",
    "f5-clocks-check.service",
    "f5-clocks-check.timer",
    "f5-health.service",
    "f5-health.timer",
    "f5-guard.service",
    "f5-guard.timer",
    "nvpmodel.service",
    "nvpower.service",
    "nvfancontrol.service",
)
JOURNALS = ("f5-appliance", "f5-gateway", "f5-clocks", "f5-clocks-check", "f5-health", "f5-guard", "nvpmodel")
LINES = "2000"
TOOL_S = 15.0
THIS_BOOT, BOOT_BEFORE = "0", "-1"
BOOT = re.compile(
    r"\s*(-?\d+) [0-9a-f]{32} ([A-Z][a-z]{2} [\d-]{10} [\d:]{8} [A-Z]{2,5}\W[A-Za-z\d: -]{15,40})\s*"
)
"""A line of `journalctl --list-boots`: how long ago, id, first and last entry."""
OURS_AND_NVIDIAS = re.compile(r"f5-appliance|(?:nvidia|cuda|tensorrt|(?:python3-)?lib(?:nv|cu))")
INSTALLED = ("version", "l4t", "jetpack", "module", "tensorrt", "python")
PLAIN = re.compile(r"[\w.+() -]{0,60}")
VERSIONS = (
    "import importlib.metadata as m, sys; sys.path.insert(0, sys.argv[1]); "
    "print('\\n'.join(sorted({f'{d.metadata[\"Name\"]}=={d.version}' for d in m.distributions()})))"
)
SHOWN_BY_TOOLS = {
    "nvpmodel": re.compile(r"NVPM (?:VERB|WARN|ERROR|INFO)\b.*|NV (?:Power|Fan) Mode:.*|\d+"),
    "jetson_clocks": re.compile(
        r"(?:SOC family|Online CPUs|cpu\d+|GPU|Active GPU TPCs|EMC|DLA\d|PVA\d|CVNAS|FAN|Fan"
        r"|NV Power Mode|Error)\b.*"
    ),
    "tegrastats": re.compile(r"(?:\d\d-\d\d-\d{4} \d\d:\d\d:\d\d )?RAM [\w/%@,.:\[\]() +-]*"),
}


@dataclass(frozen=True)
class Part:
    """One file of the archive, or why it is not there."""

    name: str
    text: str = ""
    problem: str = ""


def collect(box: Box, app: Application) -> list[Part]:
    """Everything. Does not raise."""
    scrub = redact.scrubber(box)
    makers: Mapping[str, Callable[[], str]] = {
        "health.json": lambda: _health(box, app),
        "clocks.json": lambda: _published(box),
        "clock-status.json": lambda: _json(dataclasses.asdict(verdict.take_reading(box).clocks)),
        "nvpmodel.txt": lambda: _tool(box, "nvpmodel", "-q", "--verbose"),
        "jetson_clocks.txt": lambda: _tool(box, "jetson_clocks", "--show"),
        "tegrastats.txt": lambda: _tool(box, "tegrastats", "--interval", "200", most=1, timeout_s=1.5),
        "nv_tegra_release.txt": lambda: _release(box),
        "units.json": lambda: _json({name: _unit(box, name) for name in UNITS}),
        **{f"journal-{name}.txt": _journal_of(box, name, THIS_BOOT) for name in JOURNALS},
        "kernel.txt": lambda: redact.kernel(_journal(box, THIS_BOOT, "-k")),
        # How a boot ended is in the one before.
        **{f"previous-boot/journal-{name}.txt": _journal_of(box, name, BOOT_BEFORE) for name in JOURNALS},
        "previous-boot/kernel.txt": lambda: redact.kernel(_journal(box, BOOT_BEFORE, "-k")),
        "boots.txt": lambda: _boots(box),
        "packages.txt": lambda: _packages(box),
        "versions.txt": lambda: _versions(box, app),
        "installed.json": lambda: _installed(box),
        "configuration.yaml": lambda: redact.configuration(box.root.read(paths.CONFIG)),
        "contents.json": lambda: _json({"voices": _voices(box), "bundle": _bundle(box)}),
    }
    return [_made(name, make, scrub) for name, make in makers.items()]


def index(parts: Iterable[Part]) -> str:
    """What is inside, a line each, and what is not and why."""
    lines = [
        f"MISSING  {part.name}: {part.problem}"
        if part.problem
        else f"{len(part.text.encode()):>7}  {part.name}"
        for part in parts
    ]
    return "\n".join(lines) + "\n"


def write(out: Path, parts: Iterable[Part], wall_s: float) -> None:
    """The archive, whole or not at all, for its owner only. Raises OSError."""
    listed = list(parts)
    files = {"INDEX": index(listed), **{part.name: part.text for part in listed if not part.problem}}
    replace_file(out, _archive(files, int(wall_s)), 0o600)


def default_name(wall_s: float) -> str:
    """Names no box: the maker's letter says which it is."""
    return time.strftime("f5-support-%Y%m%d-%H%M%S.tar.gz", time.gmtime(wall_s))


def _archive(files: Mapping[str, str], mtime: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            content = text.encode()
            info = tarfile.TarInfo(f"f5-support/{name}")
            info.size, info.mtime, info.mode = len(content), mtime, 0o644
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _made(name: str, make: Callable[[], str], scrub: redact.Scrubber) -> Part:
    try:
        return Part(name, scrub(make()))
    except FileNotFoundError:
        return Part(name, problem="there is none")
    except PermissionError:
        return Part(name, problem="needs root")
    except Unavailable as error:
        return Part(name, problem=scrub(str(error)))
    except Exception as error:
        return Part(name, problem=f"{type(error).__name__}: {outline(str(error))}")


class Unavailable(Exception):
    """A part that cannot be had; the message is ours and harmless."""


# The parts.


def _health(box: Box, app: Application) -> str:
    of_the_box = [_of_the_box(finding) for finding in examine(box)]
    names = [name for name in visit.OF_THE_APPLICATION if name != "synthesis"]
    told = app.ask(box, "--quick", "--no-speak", "--only", ",".join(names))
    of_the_application = [_of_the_application(finding) for finding in told]
    return _json(document(with_applications(of_the_box, of_the_application)))


def _of_the_box(finding: Finding) -> Finding:
    """Its words are ours, but for what other programs told."""
    if finding.check in ("jtop", "speed") or finding.value.startswith("could not be checked"):
        return dataclasses.replace(finding, value=outline(finding.value), figures={})
    return finding


def _of_the_application(finding: Finding) -> Finding:
    figures = {name: value for name, value in finding.figures.items() if isinstance(value, (int, float))}
    return dataclasses.replace(finding, value=outline(finding.value), remedy="", figures=figures)


def _published(box: Box) -> str:
    document = dict(box.root.record(paths.CLOCKS))
    if isinstance(last := document.get("last_unpin"), dict):
        last["who"] = [outline(str(who)) for who in last.get("who", [])]
    return _json(document)


def _tool(box: Box, name: str, *arguments: str, most: int = 400, timeout_s: float = TOOL_S) -> str:
    """The lines of a tool's output that are of a known kind."""
    ran = box.tools.run(name, *arguments, timeout_s=timeout_s)
    if ran.missing:
        raise Unavailable(ran.summary)
    lines = [line.strip() for line in ran.text.splitlines()]
    shown = [line for line in lines if SHOWN_BY_TOOLS[name].fullmatch(line)][:most]
    if not shown:
        raise Unavailable(f"{name} ended with {ran.code} and said nothing that is known")
    return "\n".join(shown) + "\n"


def _release(box: Box) -> str:
    lines = box.root.read(paths.RELEASE).splitlines()
    known = re.compile(r"# R\d+ \(release\), [\w:., -]*|# KERNEL_VARIANT: \w*|[A-Z_]+=[\w/.-]*")
    return "\n".join(line for line in lines if known.fullmatch(line)) + "\n"


def _unit(box: Box, name: str) -> dict[str, str]:
    unit = services.unit(box, name)
    if unit is None:
        return {"problem": "systemd does not tell"}
    return {key: value for key, value in unit.properties.items() if PLAIN.fullmatch(value)}


def _journal_of(box: Box, unit: str, boot: str) -> Callable[[], str]:
    return lambda: redact.journal(_journal(box, boot, "-u", unit))


def _journal(box: Box, boot: str, *arguments: str) -> str:
    ran = box.tools.run(
        "journalctl",
        "--no-pager",
        "-q",
        "-b",
        boot,
        "-n",
        LINES,
        "-o",
        "short-monotonic",
        *arguments,
        timeout_s=TOOL_S,
    )
    if ran.code == 1 and boot == BOOT_BEFORE:
        raise Unavailable("the boot before is not in the journal")
    if ran.code:
        raise Unavailable(f"journalctl ended with {ran.code}" if not ran.missing else ran.summary)
    return ran.output


def _boots(box: Box) -> str:
    """Return the reset reason, and start and end of each boot, without its id."""
    ran = box.tools.run("journalctl", "--no-pager", "-q", "--list-boots", timeout_s=TOOL_S)
    found = (BOOT.fullmatch(line) for line in ran.output.splitlines())
    lines = [f"{line[1]} {line[2]}" for line in found if line] or ["the journal tells no boots"]
    source = reset.name(box.root)
    known = source if re.fullmatch(r"[A-Z0-9_]{1,20}", source) else "not known"
    return "\n".join([f"reset: {known}", *lines]) + "\n"


def _packages(box: Box) -> str:
    """NVIDIA's and ours, with dpkg's state."""
    found = re.findall(
        r"^Package: (\S+)\n(?:.+\n)*?Status: (.+)\n(?:.+\n)*?Version: (\S+)$",
        box.root.read(paths.PACKAGES),
        re.M,
    )
    lines = [f"{name} {version} {state}" for name, state, version in found if OURS_AND_NVIDIAS.match(name)]
    return "\n".join(lines) + "\n"


def _versions(box: Box, app: Application) -> str:
    ran = box.tools.run(app.python, "-I", "-c", VERSIONS, app.folder, timeout_s=TOOL_S)
    if ran.code:
        raise Unavailable(f"Python ended with {ran.code}" if not ran.missing else "its Python is not there")
    lines = (line for line in ran.output.splitlines() if re.fullmatch(r"[\w.-]+==[\w.+!-]+", line))
    return "\n".join(lines) + "\n"


def _installed(box: Box) -> str:
    raw = box.root.record(paths.INSTALLED)
    return _json({key: raw[key] for key in INSTALLED if key in raw and _is_plain(raw[key])})


def _is_plain(value: object) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(PLAIN.fullmatch(str(one)) for one in values)


def _voices(box: Box) -> dict[str, Any]:
    if not box.is_root:
        return {"problem": "needs root"}
    sizes = redact.sizes(box.root.at(paths.VOICES))
    return {"count": len(box.root.names(paths.VOICES)), "files": len(sizes), "bytes": sum(sizes)}


def _bundle(box: Box) -> dict[str, Any]:
    known = re.compile(
        r"(?:(?:condition|modulation|step|vocoder)[\w.-]{0,20}\.onnx(?:\.data)?|manifest\.yaml|vocab\.txt)"
    )
    folder = box.root.at(paths.BUNDLE)
    files = {name: folder / name for name in box.root.names(paths.BUNDLE)}
    shown = {name: path.stat().st_size for name, path in files.items() if known.fullmatch(name)}
    return {"files": shown, "others": len(files) - len(shown)}


def _json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"
