"""Acts on the clocks with NVIDIA's tools and the kernel's files that they leave out, then reads the result
back.

An exit status of 0 proves nothing, and a step that fails does not stop the steps after it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator

from appliance.box import paths
from appliance.box.clocks import readings
from appliance.box.clocks.boots import Report, no_report, try_save
from appliance.box.clocks.decision import Assessment, assess, noted, with_pin
from appliance.box.clocks.modes import Mode, nvpmodel_errors
from appliance.box.clocks.readings import KHZ, ClockReadings
from appliance.box.clocks.suspects import indicator
from appliance.box.clocks.verdict import ClockVerdict, take_reading
from appliance.box.root import error_text
from appliance.box.system import Box
from appliance.box.tools import Completed

BASELINE = f"{paths.BASELINE_FOLDER}/baseline.conf"
"""The clocks before they were first pinned, in the format of jetson_clocks --store."""
TOOL_S = 60.0
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 8.0
VERIFY_PAUSES_S = (0.25, 0.5, 1.0)
"""Pauses before readings: pinning may take effect with a delay."""
MINIMA = f"the lowest limit of each clock in {paths.NVPMODEL_CONF}, or the hardware's"
GPU_IS_LATE = ("GPU frequency scaling not supported!", "No GPU found!", "Unknown GPU")
"""Messages of NVIDIA's tools if the GPU's driver is not up yet."""


# Pin.


def pin(box: Box, before: Assessment, *, allow_reboot: bool, patience_s: float, report: Report) -> Assessment:
    """Set the target mode if it is due, pin every clock, and verify.

    `patience_s`: longest wait for the GPU's driver. The record is saved before a reboot and before pinning.
    """
    now, mode = before, before.mode_to_set(allow_reboot=allow_reboot)
    if mode is not None:
        # nvpmodel fails if the GPU's driver is not up.
        if not _await_gpu(box, patience_s):
            patience_s = 0.0
        report(f"nvpmodel -m {mode.id}  ({mode.name})")
        if allow_reboot:
            # The box may be gone before nvpmodel returns.
            gone = dataclasses.replace(now.record, reboot_for=mode.name, rebooting_for=mode.name)
            try_save(box, gone, report)
        reboot, rebooting, problem = _set_mode(box, mode, allow_reboot=allow_reboot)
        due, begun = (mode.name if so else "" for so in (reboot, rebooting))
        problems = filter(None, (problem, problem and indicator(box)))
        record = dataclasses.replace(now.record, reboot_for=due, rebooting_for=begun)
        now = Assessment(take_reading(box), record, tuple(problems), rebooting)
        if now.rebooting:
            return now
    # The power may be gone before jetson_clocks returns.
    try_save(box, with_pin(now.record, now.reading.mode, box.uptime()), report)
    failures = (*now.problems, *filter(None, _pin_clocks(box, now.reading, patience_s, report)))
    reading = _verify(box)
    after = assess(reading, dataclasses.replace(now.record, problem="; ".join(failures)), failures)
    return noted(after, box.uptime(), by_us=True)


def _pin_clocks(box: Box, reading: ClockVerdict, patience_s: float, report: Report) -> Iterator[str]:
    """Pin every clock. Yields a line for each failure."""
    # Setting the mode again would turn on cores and lower limits, but may ask for a reboot.
    for number, on in reading.cores_to_switch.items():
        switch, value = readings.core_switch(number), str(int(on))
        yield _switch(box, switch, value, f"cpu{number} was not switched", report)
    if reading.above:
        for path, limit in _lower_limits(reading):
            yield _switch(box, path, str(limit), f"{path} stays above the power mode", report)
        reading = take_reading(box)
    if reading.above:
        yield f"clocks are not pinned: pinning would hold them above {reading.target_name}"
        return
    if not _store_baseline(box, reading, patience_s, report):
        patience_s = 0.0
    report("jetson_clocks")
    yield _errors(_run_once_gpu_is_up(box, patience_s))
    # jetson_clocks may not change this switch, and the GPU may have come up only now.
    if (folder := readings.gpu_folder(box.root)) and box.root.number(readings.railgate_switch(folder)):
        switch = readings.railgate_switch(folder)
        yield _switch(box, switch, "0", "the GPU's power cannot be kept on", report)


def _lower_limits(reading: ClockVerdict) -> Iterator[tuple[str, int]]:
    """Yields files and values that lower limits to the target mode's."""
    conf = reading.raw.modes.conf
    for name, domain in reading.above.items():
        top = domain.values["ceiling"] or 0
        # The lower limit comes first: the upper one must not fall below it.
        if name.startswith("cpu"):
            yield from ((readings.core_limit(int(name[3:]), kind), top // KHZ) for kind in ("min", "max"))
        elif name == "gpu":
            yield from ((f"{reading.raw.gpu_folder}/{kind}_freq", top) for kind in ("min", "max"))
        elif conf and (own := conf.paths.get(("EMC", "MAX_FREQ"))):
            yield own, top


def _verify(box: Box) -> ClockVerdict:
    reading = take_reading(box)
    for pause_s in VERIFY_PAUSES_S:
        if reading.fixable:
            box.sleep(pause_s)
            reading = take_reading(box)
    return reading


def plan(box: Box, now: Assessment, *, allow_reboot: bool) -> Iterator[str]:
    """Yields the steps that `pin` would take, and takes none."""
    mode = now.mode_to_set(allow_reboot=allow_reboot)
    if mode is not None:
        yield f"would run: nvpmodel -m {mode.id}  (from {now.reading.mode or 'unknown'} to {mode.name})"
        yield f"if it asks for a reboot: {'YES, the box reboots at once' if allow_reboot else 'no'}"
    for number, on in now.reading.cores_to_switch.items():
        yield f"would write {int(on)} to {readings.core_switch(number)}"
    for path, value in _lower_limits(now.reading) if mode is None else ():
        yield f"would write {value} to {path}"
    with contextlib.suppress(OSError):
        if _lacks_baseline(box, now.reading):
            yield f"would run: jetson_clocks --store {BASELINE}"
    yield "would run: jetson_clocks"
    yield f"would write: {paths.CLOCKS}"


def _switch(box: Box, path: str, value: str, problem: str, report: Report) -> str:
    report(f"echo {value} > {path}")
    try:
        box.root.write(path, value)
    except OSError as error:
        return f"{problem}: {error_text(error)}"
    return ""


def _set_mode(box: Box, mode: Mode, *, allow_reboot: bool) -> tuple[bool, bool, str]:
    """Set a power mode. `allow_reboot` answers nvpmodel's question with yes.

    Returns whether a reboot is due, whether it has begun, and the error.
    """
    answer = "YES\n" if allow_reboot else ""
    completed = box.tools.execute("nvpmodel", "-m", str(mode.id), timeout_s=TOOL_S, answer=answer)
    if "Reboot required" not in completed.text:
        failed = nvpmodel_errors(completed) or (completed.summary if completed.code else "")
        return False, False, f"power mode {mode.name} was not set: {failed}" if failed else ""
    if not allow_reboot or "rebooting" in completed.text.lower():
        return True, allow_reboot, ""
    reboot = box.tools.execute("systemctl", "reboot")
    return True, not reboot.code, f"the reboot did not begin: {reboot.summary}" if reboot.code else ""


def _await_gpu(box: Box, patience_s: float) -> bool:
    """Wait for the GPU's driver.

    Returns False if it does not come up; then jetson_clocks cannot pin the GPU either.
    """
    return not _gpu_is_late(box, _run_once_gpu_is_up(box, patience_s, "--show"))


# Release.


def release(box: Box, report: Report) -> tuple[ClockVerdict, tuple[str, ...]]:
    """Restore the baseline. Clocks that stay pinned, or have no baseline, go to their minima.

    Returns the reading afterwards, and the errors.
    """
    problems = [no_baseline(box) or _errors(_jetson_clocks(box, "--restore", BASELINE))]
    reading = take_reading(box)
    if not reading.is_free:
        report("; ".join(filter(None, [*problems, f"so {MINIMA} was written"])))
        least = _minima(box, reading.raw)
        problems += [_switch(box, path, str(value), path, no_report) for path, value in least]
        reading = take_reading(box)
    return reading, tuple(filter(None, problems))


def _minima(box: Box, clocks: ClockReadings) -> Iterator[tuple[str, int]]:
    """Files and values that undo pinning: the mode's MIN_FREQ, else the hardware's, in the file's unit."""
    root, conf = box.root, clocks.modes.conf
    mode = conf.by_name(clocks.modes.current.name) if conf else None
    for core in clocks.cpus:
        parameter = conf.cpu_parameter(core.number) if conf else ""
        hardware = root.number(f"{paths.CPUS}/cpu{core.number}/cpufreq/cpuinfo_min_freq")
        if (low := (mode.limit(parameter, "MIN_FREQ") if mode else None) or hardware) is not None:
            yield readings.core_limit(core.number), low
        yield from ((path, 0) for path in readings.idle_switches(root, core.number))
    for folder, parameter in ((clocks.gpu_folder, "GPU"), (paths.BWMGR, "EMC")):
        hardware = (
            min(readings.frequencies(root, f"{folder}/available_frequencies"), default=None)
            if folder
            else None
        )
        if folder and (low := (mode.limit(parameter, "MIN_FREQ") if mode else None) or hardware):
            yield f"{folder}/min_freq", low
    if clocks.railgate is not None:
        yield readings.railgate_switch(clocks.gpu_folder), 1
    if not root.names(paths.BWMGR) and root.exists(paths.EMC_LOCK):
        yield paths.EMC_LOCK, 0


# The baseline.


def no_baseline(box: Box) -> str:
    try:
        return "" if _has_baseline(box) else f"there is no baseline at {BASELINE}"
    except OSError as error:
        return f"the baseline is not restored: {error_text(error)}"


def _store_baseline(box: Box, reading: ClockVerdict, patience_s: float, report: Report) -> bool:
    """Store the unpinned clocks for `release`: once in the life of the box, in the target mode, never while
    pinned.

    Returns False if the GPU did not come up within `patience_s`.
    """
    try:
        if not _lacks_baseline(box, reading):
            return True
        if not _await_gpu(box, patience_s):
            return False
        report(f"jetson_clocks --store {BASELINE}")
        place = box.root.private_folder(paths.BASELINE_FOLDER) / "baseline.conf"
        # jetson_clocks asks before it overwrites a file, and an existing file here is incomplete.
        place.unlink(missing_ok=True)
        completed = _jetson_clocks(box, "--store", BASELINE)
        if place.exists():
            place.chmod(0o600)
        if not _is_complete(box):
            place.unlink(missing_ok=True)
            report(f"no baseline was stored: {_errors(completed) or completed.summary}")
    except OSError as error:
        report(f"no baseline was stored, so unlock will use {MINIMA}: {error_text(error)}")
    return True


def _lacks_baseline(box: Box, reading: ClockVerdict) -> bool:
    return reading.target_in_effect and reading.is_free and not _has_baseline(box)


def _has_baseline(box: Box) -> bool:
    """True if there is a baseline. Raises PermissionError if users other than root may have written it."""
    return box.root.is_private(BASELINE) and _is_complete(box)


def _is_complete(box: Box) -> bool:
    """True if the file has the lower limits of every core and of the GPU. After a full disk or a power cut it
    has fewer.

    Lines that are not `path:value` prove nothing: L4T 39 stores some of its own.
    """
    text = box.root.text(BASELINE) or ""
    stored = {path for path, _ in re.findall(r"^(/\S+_freq):(\d+)\s*$", text, re.MULTILINE)}
    cores = {readings.core_limit(core.number) for core in readings.cpus(box.root)}
    return cores <= stored and any(path.endswith("/min_freq") for path in stored)


# jetson_clocks.


def _run_once_gpu_is_up(box: Box, patience_s: float, *arguments: str) -> Completed:
    """Run jetson_clocks; repeat it with growing pauses, up to `patience_s`, until the GPU's driver is up."""
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
    return box.tools.execute("jetson_clocks", *arguments, timeout_s=TOOL_S)


def _gpu_is_late(box: Box, completed: Completed) -> bool:
    return any(message in completed.text for message in GPU_IS_LATE) or not readings.gpu_folder(box.root)


def _errors(completed: Completed) -> str:
    """Errors in a tool's output, which may have an exit status of 0."""
    lines = [line.strip() for line in completed.text.splitlines() if re.match(r"\s*Error\b", line)]
    errors = "; ".join(f"jetson_clocks: {line}" for line in lines)
    return errors or (completed.summary if completed.code else "")
