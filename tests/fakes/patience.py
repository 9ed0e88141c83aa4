"""Programs that never end by themselves, on a machine that may be busy."""

from __future__ import annotations

from appliance.box.tools import Tools


def first_line(tools: Tools, *command: str) -> str:
    """Of a program that never ends by itself; a busy machine gets more time for it."""
    for patience_s in (0.8, 5.0, 25.0):
        if lines := tools.run(*command, timeout_s=patience_s).output.splitlines():
            return lines[0]
    raise AssertionError(f"{command[0]} printed nothing")
