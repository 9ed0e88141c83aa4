"""The technician's page, systemd/README.md: its commands, and who runs those that need a real dpkg."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).resolve().parents[2] / "systemd/README.md").read_text("utf-8")
PROGRAMS = ("sudo ", "f5-", "systemctl ", "journalctl ", "appliance ", "scripts/", "scp ", "python -m ")
BUILD = "scripts/build-deb --jetpack 6"
INSTALL = "sudo apt install ./f5-appliance_X_jp6_arm64.deb"
UPGRADE = "sudo f5-upgrade ./f5-appliance_Y_jp6_arm64.deb"
KEPT = "sudo f5-upgrade --list"
BACK = "sudo f5-upgrade --back"
REMOVE = "sudo apt remove f5-appliance"
PURGE = "sudo apt purge f5-appliance"
IN_THE_CHROOT = {BUILD, INSTALL, UPGRADE, KEPT, BACK, REMOVE, PURGE}
"""Run by tests/debian, as root of a Debian of its own but for BUILD."""


def in_blocks() -> list[str]:
    """The lines of the page's shell blocks, in order."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


def in_text() -> list[str]:
    """The commands in its tables and sentences."""
    text = re.sub(r"^```.*?^```", "", PAGE, flags=re.DOTALL | re.MULTILINE)
    found = dict.fromkeys(" ".join(words.split()) for words in re.findall(r"`([^`]+)`", text))
    return [words for words in found if words.startswith(PROGRAMS) and " " in words]
