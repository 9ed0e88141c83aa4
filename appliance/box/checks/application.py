"""The application's own checks, run in another process.

The system's Python has neither gRPC nor ONNX Runtime. The application's Python may be broken, which is a
finding.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from appliance.box import paths
from appliance.box.checks.finding import Finding, Level, from_document
from appliance.box.system import Box

USER = "f5-appliance"
CHECKS = ("daemon", "synthesis", "listening", "config", "bundle", "voices", "engines")
"""Checks of `appliance check`: if one fails, the box is silent. The most frequent fault comes first."""
ANSWER_S = 90.0
MEASURE_S = 300.0
FROM_FOLDER = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from appliance.cli import main; sys.exit(main())"
)


@dataclass(frozen=True)
class Application:
    """Runs the installed application, for checks of its configuration and bundle."""

    python: str
    folder: str
    """Folder to import the application from: the package's, or a checkout."""
    config: str = ""

    def run(
        self, box: Box, *arguments: str, command: tuple[str, ...] = ("check",), timeout_s: float = ANSWER_S
    ) -> list[Finding]:
        """Run a command that prints findings as JSON. Does not raise."""
        config = ("--config", self.config) if self.config else ()
        # Python is isolated (-I): root must not import anything from the current folder.
        whole = (self.python, "-I", "-c", FROM_FOLDER, self.folder, *command, "--json", *arguments, *config)
        if box.is_root and box.root.folder == Path("/") and has_user(box):
            # The command runs as the daemon's user, which then owns the prepared references and the journal.
            whole = ("runuser", "-u", USER, "--", *whole)
        ran = box.tools.execute(*whole, timeout_s=timeout_s)
        try:
            return from_document(json.loads(ran.output))
        except (ValueError, RecursionError):
            why = f"{self.python} does not exist" if ran.missing else ran.summary
        remedy = (
            "go back to the previous package: sudo f5-upgrade --back. Or install this one again: sudo apt "
            "install --reinstall ./FILE.deb. Details: appliance check"
        )
        return [Finding("application", Level.FAIL, f"it cannot be run: {why}", "", remedy)]


def refused(box: Box, text: bytes) -> str:
    """Error of the installed version for a configuration; "" if it accepts the file or does not answer."""
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        Path(file.name).write_bytes(text)
        os.chmod(file.name, 0o644)  # the check runs as the daemon's user
        app = find(box, Path(__file__).resolve().parents[3], config=file.name)
        findings = app.run(box, "--only", "config")
    failed = (f for f in findings if f.check == "config" and f.level is Level.FAIL)
    return next((f.value.removeprefix(f"{file.name}: ") for f in failed), "")


def has_user(box: Box) -> bool:
    return f"\n{USER}:" in "\n" + (box.root.text(paths.USERS) or "")


def find(box: Box, folder: Path, python: str = "", config: str = "") -> Application:
    if not config and box.root.exists(paths.CONFIG):
        config = str(box.root.at(paths.CONFIG))
    return Application(python or sys.executable, str(folder), config)
