"""Release clocks without a baseline and NVIDIA's tools: lower limits go to the power mode's MIN_FREQ, or the
hardware's minimum where the mode names none."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.box import paths
from appliance.box.clocks import readings
from appliance.box.clocks.modes import Conf, Mode
from appliance.box.root import Root, error_text


def write_minima(root: Root, conf: Conf | None, mode: Mode | None) -> tuple[str, ...]:
    """Undo every lower limit, idle state and switch that pinning has set; returns what failed."""
    problems = []
    for path, value in _minima(root, conf, mode):
        try:
            root.write(path, str(value))
        except OSError as error:
            problems.append(f"{path}: {error_text(error)}")
    return tuple(problems)


def _minima(root: Root, conf: Conf | None, mode: Mode | None) -> Iterator[tuple[str, int]]:
    """Yield each file and its value, in the file's unit."""
    for core in readings.cpus(root):
        parameter = conf.cpu_parameter(core.number) if conf else ""
        hardware = root.number(f"{paths.CPUS}/cpu{core.number}/cpufreq/cpuinfo_min_freq")
        if (low := (mode.floor(parameter) if mode else None) or hardware) is not None:
            yield readings.core_floor(core.number), low
        yield from ((path, 0) for path in readings.idle_switches(root, core.number))
    gpu = readings.gpu_folder(root)
    for folder, parameter in ((gpu, "GPU"), (paths.BWMGR, "EMC")):
        hardware = min(readings.frequency_table(root, folder), default=None) if folder else None
        if folder and (low := (mode.floor(parameter) if mode else None) or hardware):
            yield f"{folder}/min_freq", low
    if readings.railgate(root) is not None:
        yield readings.railgate_switch(root), 1
    if not root.names(paths.BWMGR) and root.exists(paths.EMC_LOCK):
        yield paths.EMC_LOCK, 0
