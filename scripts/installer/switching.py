"""From one release to another: put in place, proven, and put back when it does not prove itself."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass

from scripts.installer import bundles
from scripts.installer.actions import Failure, Tell, told
from scripts.installer.layout import CURRENT, GATEWAY, PREVIOUS, SERVICE, UNPROVEN
from scripts.installer.releases import damage, known, linked, names, record
from scripts.installer.system import (
    of_release,
    put_in_place,
    remember,
    startable,
    systemctl,
)
from scripts.installer.target import Content, Target, put, remove

PATIENCE_S = 900.0
"""How long a daemon may take until it is ready: engines are built at the first start."""
HEALTH_S = 120.0
CHECKS = "daemon,restarts"
"""What of health a release answers for; a hot box or a full disk is not its doing."""
NONE = "none"
"""What the mark of an unproven release names when there was none before."""
LOOK = f"see `journalctl -u {SERVICE}` and `f5-health`"

Gate = Callable[[Target], str]
"""Starts the release in place and says why it is not well; empty when it is."""


@dataclass(frozen=True)
class Start:
    """Starts the daemon anew, waits until it is ready, and asks health about it."""

    patience_s: float = PATIENCE_S
    checks: str = CHECKS

    def __call__(self, target: Target) -> str:
        tools = target.box.tools
        # A release that failed five times must not keep the next one from being started.
        tools.run("systemctl", "reset-failed", SERVICE)
        # The service says itself when it is ready, and systemctl waits for that.
        ran = tools.run("systemctl", "restart", SERVICE, timeout_s=self.patience_s)
        if ran.timed_out:
            return f"the daemon was not ready after {self.patience_s:.0f} s"
        if ran.code:
            return f"the daemon did not start: {ran.told}"
        ran = tools.run("systemctl", "is-active", SERVICE)
        return f"the daemon is {ran.output.strip()}" if ran.code else self._unwell(target)

    def _unwell(self, target: Target) -> str:
        health = str(target.box.root.at(f"{CURRENT}/scripts/health"))
        ran = target.box.tools.run(health, "--json", "--only", self.checks, timeout_s=HEALTH_S)
        try:
            findings = json.loads(ran.output)["findings"]
            failed = [f"{found['check']}: {found['value']}" for found in findings if found["level"] == "FAIL"]
        except (ValueError, KeyError, TypeError):
            return f"health did not answer: {ran.told}"
        return "; ".join(failed)


def switch(target: Target, name: str, tell: Tell, gate: Gate | None, *, bundle: bool = False) -> None:
    """Have a release run, with `bundle` the waiting bundle too. Without a gate nothing is started.

    What does not prove itself is put back, and the release before runs on. Raises Failure that says so.
    """
    known(target, name)
    old = linked(target, UNPROVEN if gate and unproven(target) else CURRENT)
    before = linked(target, PREVIOUS)
    swapped = False
    try:
        if gate:
            put(target, UNPROVEN, Content(link=f"releases/{old or NONE}"))
        if old and old != name:
            remember(target, old)
        if bundle:
            bundles.swap(target)
            swapped = True
        put_in_place(target, name)
        problem = gate(target) if gate else ""
    except (Failure, OSError) as error:
        problem = told(error) if isinstance(error, OSError) else error.what
    except BaseException:
        _back(target, old, before, swapped, gate)
        raise
    if problem:
        raise Failure(*_gone_back(target, name, problem, _back(target, old, before, swapped, gate), old))
    if bundle:
        bundles.settle(target)
    if gate:
        remove(target.at(UNPROVEN))
        _restart_others(target, name)
    tell(f"{name} runs" if gate else f"{name} runs from the next start")


def unproven(target: Target) -> bool:
    """Whether the release in place was started and has not proven itself: a power cut came between."""
    return target.at(UNPROVEN).is_symlink()


def _back(target: Target, old: str, before: str, swapped: bool, gate: Gate | None) -> str:
    """Put back what was there; why that is not well either, empty when it is or nothing was there."""
    try:
        if swapped:
            bundles.swap(target)
            bundles.settle(target)
        if before and before != old:
            put(target, PREVIOUS, Content(link=f"releases/{before}"))
        else:
            remove(target.at(PREVIOUS))
        if not old:
            return ""
        put_in_place(target, old)
        remove(target.at(UNPROVEN))
        return gate(target) if gate else ""
    except Failure as failure:
        return failure.what
    except OSError as error:
        return told(error)


def _gone_back(target: Target, name: str, problem: str, again: str, old: str) -> tuple[str, str]:
    what = f"{name} is not well ({problem})"
    if not old:
        return f"{what}, and there is no earlier release to go back to", LOOK
    runs = "it is as it was" if old == name else f"{old} is back in place"
    if again:
        return f"{what}; {runs}, and is not well either ({again}): the cause may lie outside of both", LOOK
    return f"{what}; {runs} and runs", f"{LOOK}, correct that, and try again"


def _restart_others(target: Target, name: str) -> None:
    """Timers, whose new settings count from now on, and the gateway. A failure is health's to report."""
    with contextlib.suppress(Failure):
        systemctl(
            target,
            "restart",
            *(
                unit
                for unit in startable(of_release(target, name))
                if unit.endswith(".timer") or unit == GATEWAY
            ),
        )


def back(target: Target, tell: Tell, gate: Gate | None) -> None:
    """To the release before this one. Raises Failure."""
    name = linked(target, PREVIOUS)
    if not name:
        raise Failure("there is no release before this one", "see f5-switch list")
    switch(target, name, tell, gate)


def listing(target: Target) -> list[str]:
    """One line for each release."""
    current, previous = linked(target), linked(target, PREVIOUS)
    lines = []
    for name in names(target):
        installed = record(target, name)
        marks = [word for word, marked in (("current", current), ("previous", previous)) if name == marked]
        if wrong := damage(target, name):
            marks.append(f"damaged: {wrong}")
        made = f"Python {installed.python}" if installed else ""
        lines.append(f"{'*' if name == current else ' '} {name:<24} {made:<12} {', '.join(marks)}".rstrip())
    return lines or ["nothing is installed"]
