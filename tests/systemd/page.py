"""The technician's page: its commands, the opening of a box, and the tests that run what needs a real
dpkg."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "systemd/README.md").read_text("utf-8")
OPEN = (ROOT / "appliance/rpc/README.md").read_text("utf-8").partition("## From the streaming PC")[2]
"""Section on opening a box to the network."""
PROGRAMS = ("sudo ", "f5-", "systemctl ", "journalctl ", "appliance ", "scripts/", "scp ", "python -m ")
BUILD = "scripts/build-deb --jetpack 6"
INSTALL = "sudo apt install ./f5-appliance_X_jp6_arm64.deb"
UPGRADE = "sudo f5-upgrade ./f5-appliance_Y_jp6_arm64.deb"
KEPT = "sudo f5-upgrade --list"
BACK = "sudo f5-upgrade --back"
REMOVE = "sudo apt remove f5-appliance"
PURGE = "sudo apt purge f5-appliance"
IN_THE_CHROOT = {BUILD, INSTALL, UPGRADE, KEPT, BACK, REMOVE, PURGE}
"""Commands that tests/debian runs, as root of a separate Debian; BUILD runs outside it."""


def in_blocks() -> list[str]:
    """The lines of the page's shell blocks, in order."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


def opening() -> tuple[str, str]:
    """Commands by which root opens a box to the network, and the lines of its configuration."""
    certificate, token, restart = re.findall(r"^```sh\n(.*?)^```", OPEN, re.DOTALL | re.MULTILINE)[:3]
    [settings] = re.findall(r"^```yaml\n(.*?)^```", OPEN, re.DOTALL | re.MULTILINE)
    restart = restart.partition("sudo ufw")[0]  # this box has no firewall
    return "".join((certificate, token, restart)).replace("sudo ", ""), settings


def in_text() -> list[str]:
    """The commands in the page's tables and sentences."""
    text = re.sub(r"^```.*?^```", "", PAGE, flags=re.DOTALL | re.MULTILINE)
    found = dict.fromkeys(" ".join(words.split()) for words in re.findall(r"`([^`]+)`", text))
    return [words for words in found if words.startswith(PROGRAMS) and " " in words]
