"""The way back: all that an installation made, by the records of its releases; with purge the data too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from scripts.installer.actions import Action, Failure, Tell, perform
from scripts.installer.layout import (
    CACHE,
    CONFIG,
    CURRENT,
    DATA,
    ETC,
    OPT,
    PREVIOUS,
    RELEASES,
    RUN,
    SYSUSERS,
    TMPFILES,
    UNITS,
    UNPROVEN,
    USER,
)
from scripts.installer.releases import linked, names, record
from scripts.installer.system import CONFIG_NEW, reload, remove_file, systemctl, units
from scripts.installer.target import Target, remove, remove_if_empty

LOGINS = ("/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow")
SHORT_S = 120.0


def uninstall(target: Target, tell: Tell, *, purge: bool = False, dry_run: bool = False) -> int:
    """Remove it; the exit status. Without `purge` the data and the configuration stay. Does not raise."""
    try:
        if not target.staged and not target.box.is_root:
            raise Failure("this must run as root", "run it with sudo")
        count = perform(_steps(target, tell, purge), tell, dry_run=dry_run)
    except Failure as failure:
        tell(f"error: {failure.what}; {failure.remedy}")
        return 1
    if not count:
        tell("nothing is installed")
    elif not purge and not dry_run and target.at(DATA).exists():
        tell(f"kept: {DATA}, {ETC} and the user {USER}; remove them too with --purge")
    return 0


def _steps(target: Target, tell: Tell, purge: bool) -> Iterator[Action]:
    system = _system(target)
    ours = [path for path in system if purge or path != SYSUSERS]
    yield _stop(target, tell, system)
    yield Action(
        "files",
        "remove units, links and programs",
        lambda: not any(_there(target, path) for path in ours),
        lambda: _remove_system(target, ours),
    )
    gone = [CURRENT, PREVIOUS, UNPROVEN, RELEASES, CONFIG_NEW, CACHE, RUN]
    # The user stays with what it owns: another that gets its number would own the voices.
    yield from (_removal(target, path) for path in (*gone, *((DATA, CONFIG, SYSUSERS) if purge else ())))
    yield from (_removal_if_empty(target, path) for path in (OPT, *((ETC,) if purge else ())))
    if purge:
        yield Action(
            "user", f"remove the user {USER}", lambda: not target.has_user(USER), lambda: _remove_user(target)
        )


def _system(target: Target) -> list[str]:
    """Paths outside of the releases that any of them put on the box."""
    records = (record(target, name) for name in names(target))
    return sorted(
        {TMPFILES, SYSUSERS, *(path for installed in records if installed for path in installed.system)}
    )


def _there(target: Target, path: str) -> bool:
    place = target.at(path)
    return place.is_symlink() or place.exists()


def _stop(target: Target, tell: Tell, system: list[str]) -> Action:
    present = [unit for unit in units(system) if _there(target, f"{UNITS}/{unit}")]

    def stop() -> None:
        if not target.staged:
            if linked(target):
                _unlock(target, tell)
            systemctl(target, "stop", *present)
        systemctl(target, "disable", *present)

    return Action("services", f"stop and switch off {', '.join(present)}", lambda: not present, stop)


def _unlock(target: Target, tell: Tell) -> None:
    """Give the clocks back as they were before the first pin; else they stay pinned until the next boot."""
    ran = target.box.tools.run(
        str(target.box.root.at(f"{CURRENT}/scripts/clock-lock")), "unlock", timeout_s=SHORT_S
    )
    if ran.code:
        tell(f"clocks: {ran.told}; they are as they were after the next boot")


def _remove_system(target: Target, paths: list[str]) -> None:
    for path in paths:
        remove_file(target, path)
    reload(target)


def _removal(target: Target, path: str) -> Action:
    return Action(
        "folders", f"remove {path}", lambda: not _there(target, path), lambda: remove(target.at(path))
    )


def _removal_if_empty(target: Target, path: str) -> Action:
    def done() -> bool:
        place = target.at(path)
        return not place.is_dir() or any(place.iterdir())

    return Action("folders", f"remove {path}", done, lambda: remove_if_empty(target.at(path)))


def _remove_user(target: Target) -> None:
    if target.box.root.folder == Path("/"):
        ran = target.box.tools.run("userdel", USER)
        if ran.code:
            raise Failure(ran.told, f"end what runs as {USER}, then: userdel {USER}")
        return
    for path in LOGINS:
        place = target.at(path)
        if place.is_file():
            # Rewritten in place: the file keeps its owner and mode.
            place.write_text("".join(_without(line) for line in place.read_text().splitlines(keepends=True)))


def _without(line: str) -> str:
    """A line of a login file without our user, as its subject and as a member."""
    fields = line.rstrip("\n").split(":")
    if fields[0] == USER:
        return ""
    fields[-1] = ",".join(member for member in fields[-1].split(",") if member != USER)
    return ":".join(fields) + "\n"
