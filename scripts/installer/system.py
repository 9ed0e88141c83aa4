"""Units, drop-ins, links and the configuration: what a release wants outside of its own folder."""

from __future__ import annotations

import configparser
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from scripts.installer.actions import Failure
from scripts.installer.layout import (
    COMMANDS,
    CONFIG,
    CURRENT,
    PREVIOUS,
    RELEASES,
    SBIN,
    SYSUSERS,
    TMPFILES,
    UNITS,
    USER,
    WRAPPER,
    WRAPPER_TEXT,
)
from scripts.installer.releases import linked, names, record
from scripts.installer.source import is_unit
from scripts.installer.target import Content, Target, holds, put, remove, remove_if_empty

DEFAULT = "configs/appliance.yaml"
CONFIG_NEW = f"{CONFIG}.new"
SYSTEMCTL_S = 60.0


def files(folder: Path, parts: Iterable[str]) -> dict[str, Content]:
    """What is to be on the box, by path, from those parts of a release or a checkout. Raises OSError."""
    found = {WRAPPER: Content(WRAPPER_TEXT.encode(), mode=0o755)}
    for command, script in COMMANDS.items():
        found[f"{SBIN}/{command}"] = Content(link=f"{CURRENT}/scripts/{script}")
    for part in parts:
        if place := _place(PurePosixPath(part)):
            found[place] = Content((folder / part).read_bytes())
    return found


def _place(part: PurePosixPath) -> str:
    """Where a file of the systemd folder belongs; empty when it stays in the release."""
    if part.parts[0] != "systemd":
        return ""
    inside = str(part.relative_to("systemd"))
    if inside == "f5-appliance.sysusers.conf":
        return SYSUSERS
    if inside == "f5-appliance.tmpfiles.conf":
        return TMPFILES
    drop_in = len(part.parts) == 3 and part.parts[1].endswith(".d") and part.suffix == ".conf"
    return f"{UNITS}/{inside}" if drop_in or (len(part.parts) == 2 and is_unit(part.name)) else ""


def of_release(target: Target, name: str) -> dict[str, Content]:
    """What a release wants on the box. Raises Failure, OSError."""
    installed = record(target, name)
    if installed is None:
        raise Failure(f"release {name} has no usable record", "install it again from its checkout")
    return files(target.at(f"{RELEASES}/{name}"), installed.files)


def wanted_by(unit: Content) -> list[str]:
    """The targets that start a unit, as its [Install] says."""
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(unit.data.decode())
    return parser.get("Install", "WantedBy", fallback="").split()


def units(contents: Iterable[str]) -> list[str]:
    """Names of the units among the paths."""
    return sorted(Path(path).name for path in contents if path.startswith(UNITS) and is_unit(path))


def startable(contents: Mapping[str, Content]) -> list[str]:
    """Units that are switched on: those with an [Install]."""
    return [name for name in units(contents) if wanted_by(contents[f"{UNITS}/{name}"])]


def in_place(target: Target, name: str) -> bool:
    """Whether a release is the one that runs, with all that it wants on the box."""
    contents = of_release(target, name)
    return (
        linked(target) == name
        and all(holds(target, path, content) for path, content in contents.items())
        and not _disabled(target, contents)
        and all(holds(target, path, content) for path, content in _config(target, name).items())
    )


def put_in_place(target: Target, name: str) -> None:
    """Make a release the one that runs at the next start: files, the link, which units are on.

    Starts and stops nothing. Raises Failure, OSError; calling it with another release puts that one in place.
    """
    contents = of_release(target, name)
    config = _config(target, name)
    old = linked(target)
    before = record(target, old)
    for path, content in {**contents, **config}.items():
        put(target, path, content)
    put(target, CURRENT, Content(link=f"releases/{name}"))
    _remove_stale(target, set(before.system if before else ()) - set(contents))
    if CONFIG_NEW not in config:
        remove(target.at(CONFIG_NEW))
    reload(target)
    if off := _disabled(target, contents):
        systemctl(target, "enable", *off)


def remember(target: Target, name: str) -> None:
    """Name the release to go back to. Raises OSError."""
    put(target, PREVIOUS, Content(link=f"releases/{name}"))


def _disabled(target: Target, contents: Mapping[str, Content]) -> list[str]:
    return [
        unit
        for unit in startable(contents)
        for wanting in wanted_by(contents[f"{UNITS}/{unit}"])
        if not target.at(f"{UNITS}/{wanting}.wants/{unit}").is_symlink()
    ]


def _remove_stale(target: Target, paths: Iterable[str]) -> None:
    """Files of the release before that this one does not have."""
    gone = sorted(paths)
    if stale := units(gone):
        systemctl(target, "disable", *stale)
    for path in gone:
        remove_file(target, path)


def remove_file(target: Target, path: str) -> None:
    """Remove a file of ours, and a drop-in's folder when it was the last. Raises OSError."""
    place = target.at(path)
    remove(place)
    if place.parent.name.endswith(".d") and str(PurePosixPath(path).parent).startswith(UNITS):
        remove_if_empty(place.parent)


# The configuration: it follows the release until a technician changes it.


def _config(target: Target, name: str) -> dict[str, Content]:
    """The configuration that a release wants: its own default where nobody has changed it, else beside it."""
    default = Content((target.at(f"{RELEASES}/{name}") / DEFAULT).read_bytes(), mode=0o640, group=USER)
    present = _bytes(target.at(CONFIG))
    if present is None or present in _defaults(target):
        return {CONFIG: default}
    return {CONFIG_NEW: default}


def _defaults(target: Target) -> list[bytes | None]:
    """The default of every installed release: one that came with a release may be refused by another."""
    return [data for name in names(target) if (data := _bytes(target.at(f"{RELEASES}/{name}/{DEFAULT}")))]


def _bytes(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


# systemctl, which in a staged tree makes links and starts nothing.


def systemctl(target: Target, verb: str, *names: str) -> None:
    """Run it. Raises Failure."""
    root = (f"--root={target.box.root.folder}",) if target.staged else ()
    ran = target.box.tools.run("systemctl", *root, verb, *names, timeout_s=SYSTEMCTL_S)
    if ran.code:
        raise Failure(f"systemctl {verb} {' '.join(names)}: {ran.told}", "see `journalctl -b -u systemd`")


def reload(target: Target) -> None:
    """Have systemd read the units again. Raises Failure."""
    if not target.staged:
        systemctl(target, "daemon-reload")
