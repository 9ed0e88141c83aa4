"""The application's own checks, asked of it in a process of its own.

The system's Python has neither gRPC nor ONNX Runtime; the application's may be broken, and that is a finding.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from appliance.box import paths
from appliance.box.judge.finding import Finding, Level, from_document
from appliance.box.system import Box
from appliance.box.tools import Completed

USER = "f5-appliance"
ANSWER_S = 90.0
MEASURE_S = 300.0
FROM_FOLDER = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from appliance.cli import main; sys.exit(main())"
)


@dataclass(frozen=True)
class Application:
    """How to run it."""

    python: str
    folder: str
    """Folder to import it from: the package's, or a checkout."""
    config: str = ""

    @property
    def command(self) -> tuple[str, ...]:
        """Isolated: as root, the current folder is no place to import from."""
        return (self.python, "-I", "-c", FROM_FOLDER, self.folder)

    def ask(
        self, box: Box, *arguments: str, command: tuple[str, ...] = ("check",), timeout_s: float = ANSWER_S
    ) -> list[Finding]:
        """`appliance check`, or another command that gives findings, with these arguments. Does not raise."""
        config = ("--config", self.config) if self.config else ()
        whole = (*self.command, *command, "--json", *arguments, *config)
        if box.is_root and box.root.folder == Path("/") and _has_user(box):
            # What it writes, prepared references and the journal, is then the daemon's and not root's.
            whole = ("runuser", "-u", USER, "--", *whole)
        ran = box.tools.run(*whole, timeout_s=timeout_s)
        try:
            return from_document(json.loads(ran.output))
        except (ValueError, RecursionError):
            return [_unusable(self.python, ran)]


def find(box: Box, folder: Path, python: str = "", config: str = "") -> Application:
    """The application beside this script, in the package's folder or a checkout, with some Python."""
    default = paths.CONFIG if box.root.exists(paths.CONFIG) else ""
    config = config or (str(box.root.at(default)) if default else "")
    return Application(python or "python3", str(folder), config)


def speaking(yes: bool) -> Sequence[str]:
    """Whether to do a real synthesis."""
    return () if yes else ("--no-speak",)


def _has_user(box: Box) -> bool:
    return f"\n{USER}:" in "\n" + (box.root.text(paths.USERS) or "")


def _unusable(python: str, ran: Completed) -> Finding:
    remedy = (
        "go back to the package before with `sudo f5-upgrade --back`, or install this one again: "
        "sudo apt install --reinstall ./FILE.deb; `appliance check` shows more"
    )
    value = ran.summary if not ran.missing else f"{python} is not there"
    return Finding("application", Level.FAIL, f"it cannot be run: {value}", "", remedy)
