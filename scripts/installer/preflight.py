"""What is refused before anything is touched, each with what to do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from appliance.box.platform import refusal
from scripts.installer import bundles, wheels
from scripts.installer.actions import Failure
from scripts.installer.layout import OPT
from scripts.installer.releases import Wanted
from scripts.installer.target import Target

PYTHONS = ("3.10", "3.11", "3.12")
SYSTEM_PYTHON = {36: "3.10", 39: "3.12"}
"""L4T major → the Python for which its TensorRT binding is made."""
ONLINE_BYTES = 1_500_000_000
UNPACKED = 5
"""An environment takes this many times its wheels, bytecode included."""
SPARE_BYTES = 500_000_000
RUNNING = "/run/systemd/system"


def refusals(target: Target, wanted: Wanted, bundle: Path | None, force_platform: bool) -> Iterator[Failure]:
    """Everything that stands in the way."""
    yield from _rights(target)
    if (wrong := refusal(wanted.platform)) and not force_platform:
        yield Failure(wrong, "to install all the same, add --force-platform")
    yield from _systemd(target)
    yield from _python(wanted)
    if bundle is not None and not (bundle / bundles.MANIFEST).is_file():
        yield Failure(
            f"{bundle} is no bundle: it has no {bundles.MANIFEST}", "pass the folder that the export wrote"
        )


def _rights(target: Target) -> Iterator[Failure]:
    if not target.staged and not target.box.is_root:
        yield Failure("this must run as root", "run it with sudo")


def _systemd(target: Target) -> Iterator[Failure]:
    tools = target.box.tools
    for program in ("systemctl", "systemd-sysusers", "systemd-tmpfiles"):
        if tools.find(program) is None:
            yield Failure(f"{program} is not installed", "install systemd: apt-get install systemd")
    if not target.staged and not target.box.root.exists(RUNNING):
        yield Failure(
            "systemd does not run here", "boot the box with systemd, or prepare a tree with --root DIR"
        )


def _python(wanted: Wanted) -> Iterator[Failure]:
    python = wanted.python
    if not python.version:
        yield Failure(
            f"{python.path} does not run", "install python3: apt-get install python3, or pass --python PATH"
        )
    elif python.version not in PYTHONS:
        yield Failure(
            f"{python.path} is Python {python.version}; supported are {', '.join(PYTHONS)}",
            "pass one of these with --python PATH",
        )
    elif wanted.wheels and (
        wrong := wheels.suits(wanted.wheels, python.version, python.machine, wanted.source)
    ):
        yield Failure(wrong, "run scripts/make-offline-bundle of this checkout for this box")


def too_little_space(target: Target, wanted: Wanted, bundle: Path | None) -> Failure | None:
    """Whether a new release and bundle do not fit."""
    folder = target.at(OPT)
    while not folder.exists():
        folder = folder.parent
    disk = target.box.statvfs(folder)
    need = ONLINE_BYTES if wanted.wheels is None else UNPACKED * wanted.wheels.size_bytes + SPARE_BYTES
    need += bundles.size_bytes(bundle) if bundle else 0
    free = disk.f_bavail * disk.f_frsize
    if free >= need:
        return None
    return Failure(
        f"{OPT} has {free / 1e9:.1f} GB free and this needs {need / 1e9:.1f} GB",
        "free space (apt-get clean, journalctl --vacuum-size=100M, old files) and run this again",
    )


def warnings(target: Target, wanted: Wanted) -> Iterator[str]:
    """What is no obstacle now and may be one later."""
    expected = SYSTEM_PYTHON.get(wanted.platform.l4t[0]) if wanted.platform.l4t else None
    if expected and wanted.python.version != expected:
        yield (
            f"Python {wanted.python.version} is not the {expected} of this JetPack: "
            "its TensorRT binding cannot be used from it"
        )
