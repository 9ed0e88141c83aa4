"""What systemd knows of a unit."""

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
    """A unit's properties, as `systemctl show` prints them; one that systemd does not print is empty."""

    name: str
    properties: Mapping[str, str]

    @property
    def installed(self) -> bool:
        """Whether there is a file for it."""
        return self.properties.get("LoadState", "loaded") == "loaded"

    @property
    def active(self) -> str:
        """active, activating, inactive, failed, …"""
        return self.properties.get("ActiveState", "")

    @property
    def result(self) -> str:
        """How its last run ended: success, exit-code, watchdog, start-limit-hit, …"""
        return self.properties.get("Result", "")

    @property
    def exit_status(self) -> int:
        """Of its main process."""
        return _number(self.properties.get("ExecMainStatus", ""))

    @property
    def restarts(self) -> int:
        """How often systemd has started it again by itself since somebody last started it."""
        return _number(self.properties.get("NRestarts", ""))

    @property
    def summary(self) -> str:
        """In a few words."""
        words = self.active or "unknown"
        sub = self.properties.get("SubState", "")
        words += f" ({sub})" if sub and sub != self.active else ""
        words += f", {self.result}" if self.result not in ("", "success") else ""
        return words + (f", exit status {self.exit_status}" if self.exit_status else "")


def unit(box: Box, name: str) -> Unit | None:
    """None when there is no systemd to ask, or it does not know the unit's state."""
    ran = box.tools.run("systemctl", "show", "-p", ",".join(PROPERTIES), name, timeout_s=ASK_S)
    pairs = (line.partition("=") for line in ran.output.splitlines())
    properties = {key: value.strip() for key, equals, value in pairs if equals and key in PROPERTIES}
    return Unit(name, properties) if ran.code == 0 and properties.get("ActiveState") else None


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 19 else 0
