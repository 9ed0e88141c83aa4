"""f5-quiet: masks sleep, boots without a desktop, limits the journal, holds NVIDIA's packages.

Functions with a Root as argument find what is missing; the health checks use them too. `quiet` changes links
and files in /etc and apt's holds, and records the previous state for `undo`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from appliance.box import apt, dpkg, paths
from appliance.box.root import Root
from appliance.box.system import Box
from appliance.box.tools import Tools
from appliance.durable import replace_file

SLEEP = ("sleep", "suspend", "hibernate", "hybrid-sleep", "suspend-then-hibernate")
TARGET = "multi-user.target"
HIDDEN = re.compile(r"^Hidden\s*=\s*true\s*$", re.MULTILINE)
CAPPED = re.compile(r"^SystemMaxUse\s*=\s*\S", re.MULTILINE)
JOURNAL_CONF = f"{paths.JOURNALD[0]}/f5-quiet.conf"
JOURNAL = "[Journal]\nStorage=persistent\nSystemMaxUse=500M\n"
"""Content of JOURNAL_CONF: earlier boots stay in the journal, but it does not fill the disk."""
Say = Callable[[str], None]
State = dict[str, str] | None
"""{"link": target}, {"text": content}, or None if there is no file."""


@dataclass(frozen=True)
class _Change:
    before: State
    after: State


@dataclass(frozen=True)
class _QuietRecord:
    """Record of the changes. The fields are the keys of the file."""

    files: dict[str, _Change]
    held: tuple[str, ...]
    schema: int = 1


def default_target(root: Root) -> str:
    """systemd's default target; "" if none is set."""
    folders = (paths.UNITS_OF_ROOT, *paths.UNITS_OF_PACKAGES)
    states = (_state(root, f"{folder}/default.target") or {} for folder in folders)
    return next((os.path.basename(state["link"]) for state in states if "link" in state), "")


def sleeps(root: Root) -> list[str]:
    """Sleep targets that are not masked."""
    states = {f"{name}.target": _state(root, f"{paths.UNITS_OF_ROOT}/{name}.target") for name in SLEEP}
    return [name for name, state in states.items() if state not in ({"link": "/dev/null"}, {"text": ""})]


def shows_indicator(root: Root) -> bool:
    """True if a desktop starts NVIDIA's indicator."""
    return not HIDDEN.search(root.text(paths.INDICATOR) or "Hidden=true")


def is_journal_capped(root: Root) -> bool:
    parts = [f"{folder}/{name}" for folder in paths.JOURNALD for name in root.names(folder)]
    files = [paths.JOURNALD_CONF, *(path for path in parts if path.endswith(".conf"))]
    return any(CAPPED.search(root.text(path) or "") for path in files)


def quiet(box: Box, *, dry_run: bool, say: Say) -> None:
    """Apply every setting that is missing. Raises AptError, OSError."""
    files, (packages, half) = dict(_wanted(box.root)), dpkg.loose(box.root)
    _announce(files, "hold", packages, say)
    if half:
        say(f"not held, because dpkg has not finished: {', '.join(half)}; {dpkg.FINISH_FIRST}")
    if dry_run or not (files or packages):
        return
    earlier = _read_record(box)
    changes = earlier.files | {path: _Change(_state(box.root, path), new) for path, new in files.items()}
    record = _QuietRecord(changes | earlier.files, tuple(sorted({*earlier.held, *packages})))
    with apt.locked(box, say) as tools:
        box.root.replace(paths.QUIET, json.dumps(asdict(record), indent=1) + "\n", mode=0o600)
        _change(box, files, tools, "hold", packages)


def undo(box: Box, *, dry_run: bool, say: Say) -> None:
    """Restore the recorded state, except settings that somebody has changed since.

    Raises AptError, OSError.
    """
    record, packages = _read_record(box), dpkg.packages(box.root)
    now = {path: _state(box.root, path) for path in record.files}
    files = {path: change.before for path, change in record.files.items() if now[path] == change.after}
    names = [name for name in record.held if name in packages and packages[name].want == "hold"]
    _announce(files, "unhold", names, say)
    for path, change in record.files.items():
        if now[path] not in (change.before, change.after):
            say(f"{path}: left unchanged, because somebody has edited it")
    if not dry_run:
        with apt.locked(box, say) as tools:
            _change(box, files, tools, "unhold", names)
        box.root.unresolved(paths.QUIET).unlink(missing_ok=True)


def _wanted(root: Root) -> Iterator[tuple[str, State]]:
    """The files to write, with their content, as (path, state)."""
    for name in sleeps(root):
        yield f"{paths.UNITS_OF_ROOT}/{name}", {"link": "/dev/null"}
    if default_target(root) not in ("", TARGET):
        yield f"{paths.UNITS_OF_ROOT}/default.target", {"link": f"{paths.UNITS_OF_PACKAGES[0]}/{TARGET}"}
    if shows_indicator(root):
        yield paths.INDICATOR, {"text": f"{root.read(paths.INDICATOR)}\nHidden=true\n"}
    if not is_journal_capped(root):
        yield JOURNAL_CONF, {"text": JOURNAL}


def _announce(files: Mapping[str, State], verb: str, packages: Sequence[str], say: Say) -> None:
    for path, state in files.items():
        link = f"a link to {state['link']}" if state and "link" in state else "rewritten"
        say(f"{path}: {link if state else 'removed'}")
    if packages:
        say(f"apt-mark {verb} {' '.join(packages)}")


def _change(box: Box, files: Mapping[str, State], tools: Tools, verb: str, packages: Sequence[str]) -> None:
    """Put files into their states, then hold or release packages."""
    for path, state in files.items():
        place = box.root.unresolved(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        if state is None:
            place.unlink()
        elif "text" in state:
            replace_file(place, state["text"].encode(), 0o644)
        else:
            new = place.with_name(f".{place.name}.f5-quiet")
            new.unlink(missing_ok=True)
            new.symlink_to(state["link"])
            new.replace(place)
    box.tools.execute("systemctl", "daemon-reload")
    box.tools.execute("systemctl", "try-restart", "systemd-journald.service")
    apt.mark(tools, verb, packages)


def _state(root: Root, path: str) -> State:
    place = root.unresolved(path)
    try:
        return {"link": os.readlink(place)} if place.is_symlink() else {"text": place.read_text("utf-8")}
    except (OSError, ValueError):
        return None


def _read_record(box: Box) -> _QuietRecord:
    """Read the record. Raises OSError."""
    try:
        exists = box.root.is_private(paths.QUIET)
        return box.root.load(paths.QUIET, _QuietRecord) if exists else _QuietRecord({}, ())
    except ValueError as error:
        raise OSError(f"{paths.QUIET} is damaged: move it away") from error
