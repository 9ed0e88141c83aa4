"""Support bundle: states, logs and versions in one archive for the maker of the box.

The bundle contains no texts, no voices, no secrets, and nothing that identifies the box: `redact` filters
everything. Findings of the application have levels and numbers only, because its messages name voices. Parts
are independent; one that fails becomes a line in the archive's INDEX.
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
import tarfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from appliance.box import dpkg, paths
from appliance.box.checks import application, slots
from appliance.box.checks.application import Application
from appliance.box.checks.finding import Finding, document
from appliance.box.checks.readiness import merge_application
from appliance.box.checks.runner import run_checks
from appliance.box.clocks import clocks_json
from appliance.box.clocks.verdict import take_reading
from appliance.box.support import redact
from appliance.box.support.redact import READING, WITHHELD, outline, outlined
from appliance.box.system import Box, unit
from appliance.durable import replace_file

TIMED = ("f5-clocks-check", "f5-health", "f5-guard")
JOURNALS = ("f5-appliance", "f5-gateway", "f5-wyoming", "f5-clocks", *TIMED, "nvpmodel")
SERVICES = (*JOURNALS, "nvpower", "nvfancontrol")
UNITS = (*(f"{name}.service" for name in SERVICES), *(f"{name}.timer" for name in TIMED))
LINES = "2000"
TOOL_S, TOOL_LINES = 15.0, 400
THIS_BOOT, BOOT_BEFORE = "0", "-1"
# A zone without letters is the difference to UTC: -03, +0545. systemd 249 prints a dash between the times.
TIME = r"[A-Z][a-z]{2} [\d-]{10} [\d:]{8} (?:[A-Za-z]{2,6}|[+-]\d{2,4})"
BOOT = re.compile(rf"\s*(-?\d+)\s+[0-9a-f]{{32}}\s+({TIME}(?:—|\s+){TIME})\s*")
"""A line of `journalctl --list-boots`: offset, id, times of the first and the last entry."""
OURS_AND_NVIDIAS = re.compile(r"f5-appliance|(?:nvidia|cuda|tensorrt|(?:python3-)?lib(?:nv|cu))")
INSTALLED = ("version", "l4t", "jetpack", "module", "tensorrt", "python")
PLAIN = re.compile(r"[\w.+() -]{0,60}")
"""Matches values that systemd itself words, as states of a unit."""
INSTALLED_VALUE = re.compile(r"[0-9][\w.+~-]{0,60}|p[0-9]{4}-[0-9]{4}")
OF_PACKAGES = ("packages.txt", "installed.json")
"""Parts with names and versions of NVIDIA's packages, each of a known form."""
VERSIONS = (
    "import importlib.metadata as m, sys; sys.path.insert(0, sys.argv[1]); "
    "print('\\n'.join(sorted({f'{d.metadata[\"Name\"]}=={d.version}' for d in m.distributions()})))"
)
BUNDLE_FILE = re.compile(
    r"(?:(?:condition|modulation|step|vocoder)[\w.-]{0,20}\.onnx(?:\.data)?|manifest\.yaml|vocab\.txt)"
)
RELEASE_LINE = re.compile(r"# R\d+ \(release\), [\w:., -]*|# KERNEL_VARIANT: \w*|[A-Z_]+=[\w/.-]*")


@dataclass(frozen=True)
class Part:
    """A file, or the reason why it is missing."""

    name: str
    text: str = ""
    problem: str = ""


def collect(box: Box, app: Application) -> list[Part]:
    """Collect every part. Does not raise."""
    scrub = redact.scrubber(box)
    texts: Mapping[str, Callable[[], str]] = {
        "health.json": lambda: _health(box, app),
        "clocks.json": lambda: _json(_clocks(box.root.record(paths.CLOCKS))),
        "clock-status.json": lambda: _json(_clocks(clocks_json.document(take_reading(box).clocks))),
        "nvpmodel.txt": lambda: _tool(box, "nvpmodel", "-q", "--verbose"),
        "nvbootctrl.txt": lambda: _tool(box, *slots.ASK),
        "jetson_clocks.txt": lambda: _tool(box, "jetson_clocks", "--show"),
        "nv_tegra_release.txt": lambda: _release(box),
        "units.json": lambda: _units(box),
        **{f"journal-{name}.txt": _journal_of(box, name, THIS_BOOT) for name in JOURNALS},
        "kernel.txt": lambda: redact.kernel(_journal(box, THIS_BOOT, "-k")),
        # After a crash, the reason is in the previous boot's journal.
        **{f"previous-boot/journal-{name}.txt": _journal_of(box, name, BOOT_BEFORE) for name in JOURNALS},
        "previous-boot/kernel.txt": lambda: redact.kernel(_journal(box, BOOT_BEFORE, "-k")),
        "boots.txt": lambda: _boots(box),
        "packages.txt": lambda: _packages(box),
        "versions.txt": lambda: _versions(box, app),
        "installed.json": lambda: _installed(box),
        "configuration.yaml": lambda: redact.configuration(box.root.read(paths.CONFIG)),
        "contents.json": lambda: _contents(box),
    }
    # A user may have the name of a package, and a version may look like an address.
    return [_part(name, text, str if name in OF_PACKAGES else scrub) for name, text in texts.items()]


def _part(name: str, text: Callable[[], str], scrub: Callable[[str], str]) -> Part:
    """A part of the archive; an exception becomes its problem."""
    try:
        return Part(name, scrub(text()))
    except PartUnavailable as error:
        return Part(name, problem=scrub(str(error)))
    except OSError as error:
        return Part(name, problem=error.strerror or outline(str(error)))
    except Exception as error:
        return Part(name, problem=f"{type(error).__name__}: {outline(str(error))}")


def index(parts: Iterable[Part]) -> str:
    """A line for each part."""
    rows = ((part.problem and f": {part.problem}", part) for part in parts)
    return "".join(
        f"{'MISSING' if why else len(part.text.encode()):>7}  {part.name}{why}\n" for why, part in rows
    )


def write(out: Path, parts: Collection[Part], wall_s: float) -> None:
    """Write the archive atomically. Only its owner can read it. Raises OSError."""
    files = {"INDEX": index(parts), **{part.name: part.text for part in parts if not part.problem}}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in files.items():
            content = text.encode()
            info = tarfile.TarInfo(f"f5-support/{name}")
            info.size, info.mtime, info.mode = len(content), int(wall_s), 0o644
            archive.addfile(info, io.BytesIO(content))
    replace_file(out, buffer.getvalue(), 0o600)


def default_name(wall_s: float) -> str:
    """Name of the archive, which does not identify the box."""
    return time.strftime("f5-support-%Y%m%d-%H%M%S.tar.gz", time.gmtime(wall_s))


class PartUnavailable(Exception):
    """A part that cannot be collected. The message has no data of the box."""


# The parts, in the order of the archive.


def _health(box: Box, app: Application) -> str:
    names = ",".join(name for name in application.CHECKS if name != "synthesis")
    of_application = map(_numbers, app.run(box, "--quick", "--no-speak", "--only", names))
    findings = document(merge_application(run_checks(box), of_application))
    for finding in findings["findings"]:
        finding.update(value=outline(finding["value"]), remedy="", figures=outlined(finding["figures"]))
    return _json(findings)


def _numbers(finding: Finding) -> Finding:
    """Finding of the application without names and texts in its figures."""
    figures = {name: value for name, value in finding.figures.items() if isinstance(value, (int, float))}
    return dataclasses.replace(finding, figures=figures)


def _clocks(document: Mapping[str, Any]) -> dict[str, Any]:
    """Document with outlines in place of texts, except the name of the power mode."""
    return {**outlined(document), "mode": document["mode"]}


def _tool(box: Box, name: str, *arguments: str) -> str:
    """Outlines of a program's output."""
    ran = box.tools.execute(name, *arguments, timeout_s=TOOL_S)
    if ran.missing:
        raise PartUnavailable(ran.summary)
    lines = [outline(line, READING) for line in ran.text.splitlines()]
    shown = [line for line in lines if line not in ("", WITHHELD)][:TOOL_LINES]
    if not shown:
        raise PartUnavailable(f"{name} ended with {ran.code} and printed nothing that may be shown")
    return "\n".join(shown) + "\n"


def _release(box: Box) -> str:
    lines = box.root.read(paths.RELEASE).splitlines()
    return "\n".join(line for line in lines if RELEASE_LINE.fullmatch(line)) + "\n"


def _units(box: Box) -> str:
    shown = {}
    for name in UNITS:
        one = unit(box, name)
        properties = one.properties if one else {"problem": "systemd reports nothing"}
        shown[name] = {key: value for key, value in properties.items() if PLAIN.fullmatch(value)}
        shown[name]["StatusText"] = outline(properties.get("StatusText", ""))
    return _json(shown)


def _journal_of(box: Box, unit: str, boot: str) -> Callable[[], str]:
    return lambda: redact.journal(_journal(box, boot, "-u", unit))


def _journal(box: Box, boot: str, *arguments: str) -> str:
    options = ("--no-pager", "-q", "-b", boot, "-n", LINES, "-o", "short-monotonic", *arguments)
    ran = box.tools.execute("journalctl", *options, timeout_s=TOOL_S)
    if ran.code:
        before = "; the journal may lack the previous boot" if boot == BOOT_BEFORE else ""
        raise PartUnavailable(f"journalctl ended with {ran.code}{before}")
    return ran.output


def _boots(box: Box) -> str:
    """Reset reason, and the times of each boot without its id."""
    ran = box.tools.execute("journalctl", "--no-pager", "-q", "--list-boots", timeout_s=TOOL_S)
    matches = (BOOT.fullmatch(line) for line in ran.output.splitlines())
    lines = [f"{line[1]} {line[2]}" for line in matches if line]
    reset = re.fullmatch(r"[A-Z0-9_]{1,20}", box.reset_source)
    return "\n".join([f"reset: {reset[0] if reset else 'unknown'}", *lines]) + "\n"


def _packages(box: Box) -> str:
    """Our packages and NVIDIA's, with version and dpkg's state."""
    shown = [one for one in dpkg.packages(box.root).values() if OURS_AND_NVIDIAS.match(one.name)]
    if not shown:
        raise PartUnavailable("there is none")
    return "\n".join(f"{one.name} {one.version} {one.want} {one.flag} {one.state}" for one in shown) + "\n"


def _versions(box: Box, app: Application) -> str:
    ran = box.tools.execute(app.python, "-I", "-c", VERSIONS, app.folder, timeout_s=TOOL_S)
    if ran.code:
        raise PartUnavailable(f"Python ended with {ran.code}")
    lines = (line for line in ran.output.splitlines() if re.fullmatch(r"[\w.-]+==[\w.+!-]+", line))
    return "\n".join(lines) + "\n"


def _installed(box: Box) -> str:
    raw = box.root.record(paths.INSTALLED)
    return _json({key: raw[key] for key in INSTALLED if INSTALLED_VALUE.fullmatch(str(raw.get(key)))})


def _contents(box: Box) -> str:
    """Numbers and sizes of the voices' files, and files of the model."""
    voices: dict[str, Any] = {"problem": "needs root"}
    if box.is_root:
        files = [path for path in box.root.at(paths.VOICES).rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        voices = {"count": len(box.root.names(paths.VOICES)), "files": len(files), "bytes": size}
    folder, names = box.root.at(paths.BUNDLE), box.root.names(paths.BUNDLE)
    shown = {name: (folder / name).stat().st_size for name in names if BUNDLE_FILE.fullmatch(name)}
    return _json({"voices": voices, "bundle": {"files": shown, "others": len(names) - len(shown)}})


def _json(value: object) -> str:
    return json.dumps(value, indent=1) + "\n"
