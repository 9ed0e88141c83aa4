"""f5-quiet: mask sleep, boot without a desktop, limit the journal, hold NVIDIA's packages.

Functions that take a Root find what is missing, for the health checks too. `quiet` changes
links and files in /etc and apt's holds, and records the state before for `undo`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import PurePosixPath
from typing import Annotated

from appliance.box import dpkg, paths
from appliance.box.root import Root
from appliance.box.system import Box
from appliance.fields import Between, Ranged

SLEEP = tuple(
    f"{name}.target" for name in ("sleep", "suspend", "hibernate", "hybrid-sleep", "suspend-then-hibernate")
)
TARGET = "multi-user.target"
HIDDEN = re.compile(r"^Hidden\s*=\s*true\s*$", re.MULTILINE)
CAPPED = re.compile(r"^SystemMaxUse\s*=\s*\S", re.MULTILINE)
JOURNAL = """\
# By f5-quiet: earlier boots are kept, and the disk is not filled.
[Journal]
Storage=persistent
SystemMaxUse=500M
"""
PACKAGES = re.compile(r"nvidia-(?:l4t-|jetpack)|(?:python3-)?libnvinfer|tensorrt")
"""Prefixes of packages that an update of JetPack replaces; TensorRT engines then have to be rebuilt."""
FINISH_FIRST = "run first: sudo dpkg --configure -a, then: sudo f5-quiet"
APT_S = 60.0
SCHEMA = 1
Say = Callable[[str], None]
State = dict[str, str] | None
"""{"link": target}, {"text": content}, or None if there is no file."""


@dataclass(frozen=True)
class _Change:
    before: State
    after: State


@dataclass(frozen=True)
class _QuietRecord(Ranged):
    """The fields are the keys of the file."""

    schema: Annotated[int, Between(SCHEMA, SCHEMA)]
    files: dict[str, _Change]
    held: tuple[str, ...]


class QuietError(Exception):
    """One line: what failed, and why."""


def default_target(root: Root) -> str:
    """systemd's default target; empty if none is set."""
    for folder in (paths.UNITS_OF_ROOT, *paths.UNITS_OF_PACKAGES):
        state = _state(root, f"{folder}/default.target")
        if state and "link" in state:
            return PurePosixPath(state["link"]).name
    return ""


def sleeps(root: Root) -> list[str]:
    """Those that are not masked."""
    states = {name: _state(root, f"{paths.UNITS_OF_ROOT}/{name}") for name in SLEEP}
    return [name for name, state in states.items() if state not in ({"link": "/dev/null"}, {"text": ""})]


def shows_indicator(root: Root) -> bool:
    """A desktop starts NVIDIA's indicator."""
    text = root.text(paths.INDICATOR)
    return text is not None and not HIDDEN.search(text)


def is_journal_capped(root: Root) -> bool:
    parts = [f"{folder}/{name}" for folder in paths.JOURNALD for name in root.names(folder)]
    files = [paths.JOURNALD_CONF, *(path for path in parts if path.endswith(".conf"))]
    return any(CAPPED.search(root.text(path) or "") for path in files)


def loose_packages(root: Root) -> tuple[list[str], list[str]]:
    """NVIDIA's that are not held; and those, with states, which dpkg has to finish first."""
    mine = sorted(package for name, package in dpkg.packages(root).items() if PACKAGES.match(name))
    loose = [package.name for package in mine if package.want == "install" and package.is_finished]
    return loose, [f"{package.name} ({package.state})" for package in mine if not package.is_finished]


def quiet(box: Box, *, dry_run: bool, say: Say) -> None:
    """Raises QuietError, OSError."""
    files, (packages, half) = dict(_changes(box.root)), loose_packages(box.root)
    for path, new in files.items():
        say(f"{path}: {_describe(new)}")
    if packages:
        say(f"apt-mark hold {' '.join(packages)}")
    if half:
        say(f"not held, since dpkg has not finished: {', '.join(half)}; {FINISH_FIRST}")
    if dry_run or not (files or packages):
        return
    record = _read_record(box)
    for path, new in files.items():
        record.files.setdefault(path, _Change(_state(box.root, path), new))
    record = replace(record, held=tuple(sorted({*record.held, *packages})))
    _write_record(box, record)
    for path, new in files.items():
        _write_state(box.root, path, new)
    _mark(box, "hold", packages)
    _reload(box, files)


def undo(box: Box, *, dry_run: bool, say: Say) -> None:
    """Restore the recorded state, except what was changed since. Raises QuietError, OSError."""
    record = _read_record(box)
    files = {}
    for path, change in record.files.items():
        if _state(box.root, path) == change.after:
            files[path] = change.before
            say(f"{path}: {_describe(change.before)}")
        elif _state(box.root, path) != change.before:
            say(f"{path}: left as it is, since somebody has changed it")
    known = dpkg.packages(box.root)
    held = tuple(name for name in record.held if name in known and known[name].want == "hold")
    if held:
        say(f"apt-mark unhold {' '.join(held)}")
    if dry_run:
        return
    for path, before in files.items():
        _write_state(box.root, path, before)
    _reload(box, files)
    if held:
        _write_record(box, _QuietRecord(SCHEMA, {}, held))
        _mark(box, "unhold", held)
    box.root.unresolved(paths.QUIET).unlink(missing_ok=True)


def _changes(root: Root) -> Iterator[tuple[str, State]]:
    for name in sleeps(root):
        yield f"{paths.UNITS_OF_ROOT}/{name}", {"link": "/dev/null"}
    if default_target(root) not in ("", TARGET):
        yield f"{paths.UNITS_OF_ROOT}/default.target", {"link": f"{paths.UNITS_OF_PACKAGES[0]}/{TARGET}"}
    if shows_indicator(root):
        yield paths.INDICATOR, {"text": f"{root.read(paths.INDICATOR)}\nHidden=true\n"}
    if not is_journal_capped(root):
        yield f"{paths.JOURNALD[0]}/f5-quiet.conf", {"text": JOURNAL}


def _describe(state: State) -> str:
    if state is None:
        return "removed"
    return f"a link to {state['link']}" if "link" in state else f"{len(state['text'])} characters"


def _state(root: Root, path: str) -> State:
    place = root.unresolved(path)
    try:
        return {"link": os.readlink(place)} if place.is_symlink() else {"text": place.read_text("utf-8")}
    except (OSError, ValueError):
        return None


def _write_state(root: Root, path: str, state: State) -> None:
    place = root.unresolved(path)
    if state is None or "link" in state or place.is_symlink():
        place.unlink(missing_ok=True)
    if state is not None and "text" in state:
        root.replace(path, state["text"])
    elif state is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(state["link"])
    elif path.startswith(paths.JOURNALD[0]):
        with contextlib.suppress(OSError):  # others keep files in it
            place.parent.rmdir()


def _mark(box: Box, verb: str, packages: Sequence[str]) -> None:
    if packages:
        ran = box.tools.execute("apt-mark", verb, *packages, timeout_s=APT_S)
        if ran.code:
            # dpkg keeps its lock while it removes this package.
            again = f"run `sudo apt-mark {verb} {' '.join(packages)}` when no apt or dpkg is at work"
            raise QuietError(f"{ran.summary}: {again}")


def _reload(box: Box, files: Mapping[str, State]) -> None:
    box.tools.execute("systemctl", "daemon-reload")
    if any(path.startswith(paths.JOURNALD[0]) for path in files):
        box.tools.execute("systemctl", "try-restart", "systemd-journald.service")


def _write_record(box: Box, record: _QuietRecord) -> None:
    box.root.replace(paths.QUIET, json.dumps(asdict(record), indent=1) + "\n", mode=0o600)


def _read_record(box: Box) -> _QuietRecord:
    """Raises QuietError, OSError."""
    if not box.root.is_private(paths.QUIET):
        return _QuietRecord(SCHEMA, {}, ())
    try:
        return box.root.load(paths.QUIET, _QuietRecord)
    except ValueError as error:
        raise QuietError(f"{paths.QUIET} is damaged: move it away") from error
