"""Names of folders and files on the box; nothing else in the installer spells them."""

from __future__ import annotations

from dataclasses import dataclass

USER = "f5-appliance"
OPT = "/opt/f5-appliance"
RELEASES = f"{OPT}/releases"
CURRENT = f"{OPT}/current"
PREVIOUS = f"{OPT}/previous"
UNPROVEN = f"{OPT}/unproven"
"""There while the release in place has not proven itself; a link to the one to go back to."""
ETC = "/etc/f5-appliance"
CONFIG = f"{ETC}/appliance.yaml"
DATA = "/var/lib/f5-appliance"
BUNDLE = f"{DATA}/bundle"
CACHE = "/var/cache/f5-appliance"
RUN = "/run/f5-appliance"
BASELINES = (f"{DATA}/journal/baseline.json", f"{DATA}/baseline.json")
"""How fast the box once spoke; the second as releases up to 0.7 kept it."""

UNITS = "/etc/systemd/system"
SYSUSERS = "/etc/sysusers.d/f5-appliance.conf"
TMPFILES = "/etc/tmpfiles.d/f5-appliance.conf"
WRAPPER = "/usr/local/bin/appliance"
SBIN = "/usr/local/sbin"

SERVICE = "f5-appliance.service"
GATEWAY = "f5-gateway.service"
CLOCKS = "f5-clocks.service"
RECORD = "installed.json"
UNIT_ENDINGS = (".service", ".timer", ".target", ".socket", ".path")

COMMANDS = {
    "f5-clock-lock": "clock-lock",
    "f5-health": "health",
    "f5-support-bundle": "support-bundle",
    "f5-switch": "switch",
    "f5-uninstall": "uninstall",
}
"""A technician's command → the script of the current release that it is."""

# Isolated: neither the folder in which a person stands nor packages in their home may take the place of ours.
WRAPPER_TEXT = f"""#!/bin/sh
exec {CURRENT}/venv/bin/python -I -m appliance "$@"
"""


@dataclass(frozen=True)
class Folder:
    """A folder, who owns it, and who may do what in it."""

    path: str
    mode: int = 0o755
    owner: str = "root"
    group: str = "root"


FOLDERS = (
    Folder(OPT),
    Folder(RELEASES),
    Folder(ETC),
    Folder(DATA),
    Folder(BUNDLE),
    Folder(f"{DATA}/clocks", 0o700),
    Folder(f"{DATA}/journal", 0o755, USER, USER),
    Folder(f"{DATA}/voices", 0o750, USER, USER),
    Folder(CACHE, 0o750, USER, USER),
)
"""Parents before children. /run/f5-appliance is tmpfiles.d's, at every boot."""
