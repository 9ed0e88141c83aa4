"""State of a systemd unit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from appliance.box.system import Box

PROPERTIES = (
    "LoadState",
    "UnitFileState",
    "ActiveState",
    "SubState",
    "Result",
    "ExecMainStatus",
    "NRestarts",
)
ASK_S = 10.0


@dataclass(frozen=True)
class Unit:
    """Properties of a unit as `systemctl show` prints them; unknown ones are empty."""

    name: str
    properties: Mapping[str, str]

    @property
    def installed(self) -> bool:
        """True if systemd has found its file."""
        return self.properties.get("LoadState", "loaded") == "loaded"

    @property
    def active(self) -> str:
        """active, activating, inactive, failed, …"""
        return self.properties.get("ActiveState", "")

    @property
    def result(self) -> str:
        """Result of the last run: success, exit-code, watchdog, start-limit-hit, …"""
        return self.properties.get("Result", "")

    @property
    def exit_status(self) -> int:
        """Exit status of the main process."""
        return _number(self.properties.get("ExecMainStatus", ""))

    @property
    def restarts(self) -> int:
        """Automatic restarts since the last manual start."""
        return _number(self.properties.get("NRestarts", ""))

    @property
    def summary(self) -> str:
        words = self.active or "unknown"
        sub = self.properties.get("SubState", "")
        words += f" ({sub})" if sub and sub != self.active else ""
        words += f", {self.result}" if self.result not in ("", "success") else ""
        return words + (f", exit status {self.exit_status}" if self.exit_status else "")


def unit(box: Box, name: str) -> Unit | None:
    """Return a unit's state; None without systemd, or if it does not know the state."""
    ran = box.tools.run("systemctl", "show", "-p", ",".join(PROPERTIES), name, timeout_s=ASK_S)
    pairs = (line.partition("=") for line in ran.output.splitlines())
    properties = {key: value.strip() for key, equals, value in pairs if equals and key in PROPERTIES}
    return Unit(name, properties) if ran.code == 0 and properties.get("ActiveState") else None


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 19 else 0
