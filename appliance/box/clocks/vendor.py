"""NVIDIA's tools: set a power mode, pin, store and restore. An exit status of 0 proves nothing: read back."""

from __future__ import annotations

import re
from dataclasses import dataclass

from appliance.box import paths
from appliance.box.clocks import readings
from appliance.box.clocks.modes import Mode, nvpmodel_errors
from appliance.box.private import is_private_file, private_folder
from appliance.box.system import Box
from appliance.box.tools import Completed

BASELINE = f"{paths.BASELINE_FOLDER}/baseline.conf"
"""The clocks before they were first pinned, as jetson_clocks --store writes them."""
MODE_S = 60.0
CLOCKS_S = 60.0
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 8.0
GPU_IS_LATE = ("GPU frequency scaling not supported!", "No GPU found!", "Unknown GPU")
"""Messages before the GPU's driver is up."""


@dataclass(frozen=True)
class ModeChange:
    reboot: bool = False
    rebooting: bool = False
    problem: str = ""


def set_mode(box: Box, mode: Mode, *, allow_reboot: bool) -> ModeChange:
    """Set a power mode; `allow_reboot` answers nvpmodel's question with yes."""
    completed = box.tools.run(
        "nvpmodel", "-m", str(mode.id), timeout_s=MODE_S, answer="YES\n" if allow_reboot else ""
    )
    if "Reboot required" not in completed.text:
        failed = nvpmodel_errors(completed) or (completed.summary if completed.code else "")
        return ModeChange(problem=f"power mode {mode.name} was not set: {failed}" if failed else "")
    if not allow_reboot:
        return ModeChange(reboot=True)
    if "rebooting" in completed.text.lower():
        return ModeChange(reboot=True, rebooting=True)
    reboot = box.tools.run("systemctl", "reboot")
    if reboot.code:
        return ModeChange(reboot=True, problem=f"the reboot did not begin: {reboot.summary}")
    return ModeChange(reboot=True, rebooting=True)


def await_gpu(box: Box, *, patience_s: float) -> bool:
    """Wait until the GPU's driver is up, for jetson_clocks too; False if it does not come."""
    return not _gpu_is_late(box, _run_once_gpu_is_up(box, patience_s, "--show"))


def pin(box: Box, *, patience_s: float) -> str:
    """Pin every clock once the GPU's driver is up. Returns the error lines of jetson_clocks."""
    return _jetson_clocks_errors(_run_once_gpu_is_up(box, patience_s))


def has_baseline(box: Box) -> bool:
    """True if there is a complete one. Raises PermissionError when others than root may have written it."""
    return is_private_file(box.root, BASELINE) and _is_complete(box)


def store_baseline(box: Box) -> str:
    """Store the clocks, which must not be pinned. Returns what went wrong, if anything. Raises OSError."""
    place = private_folder(box.root, paths.BASELINE_FOLDER) / "baseline.conf"
    # jetson_clocks asks before it overwrites, and a file that is there is incomplete.
    place.unlink(missing_ok=True)
    completed = _jetson_clocks(box, "--store", BASELINE)
    if place.exists():
        place.chmod(0o600)
        if _is_complete(box):
            return ""
        place.unlink()
    return f"no baseline was stored: {_jetson_clocks_errors(completed) or completed.summary}"


def restore_baseline(box: Box) -> str:
    """Returns the error lines of jetson_clocks."""
    return _jetson_clocks_errors(_jetson_clocks(box, "--restore", BASELINE))


def _is_complete(box: Box) -> bool:
    """True if it has every core's and the GPU's lower limit: a full disk or a power cut leaves less.

    Lines that are not `path:value` prove nothing: L4T 39 stores some of its own.
    """
    text = box.root.text(BASELINE) or ""
    stored = {path for path, _ in re.findall(r"^(/\S+_freq):(\d+)\s*$", text, re.MULTILINE)}
    cores = {readings.core_floor(core.number) for core in readings.cpus(box.root)}
    return cores <= stored and any(path.endswith("/min_freq") for path in stored)


def _run_once_gpu_is_up(box: Box, patience_s: float, *arguments: str) -> Completed:
    """Repeat jetson_clocks while the GPU's driver is not up, with growing pauses, up to `patience_s`."""
    completed = _jetson_clocks(box, *arguments)
    pause = FIRST_WAIT_S
    while patience_s > 0 and not completed.missing and _gpu_is_late(box, completed):
        pause = min(pause, patience_s)
        box.sleep(pause)
        patience_s -= pause
        pause = min(2 * pause, LONGEST_WAIT_S)
        completed = _jetson_clocks(box, *arguments)
    return completed


def _jetson_clocks(box: Box, *arguments: str) -> Completed:
    return box.tools.run("jetson_clocks", *arguments, timeout_s=CLOCKS_S)


def _gpu_is_late(box: Box, completed: Completed) -> bool:
    return any(message in completed.text for message in GPU_IS_LATE) or readings.gpu(box.root) is None


def _jetson_clocks_errors(completed: Completed) -> str:
    """Join its error lines, of which some come with an exit status of 0."""
    lines = [line.strip() for line in completed.text.splitlines() if re.match(r"\s*Error\b", line)]
    return "; ".join(f"jetson_clocks: {line}" for line in lines) or (
        completed.summary if completed.code else ""
    )
