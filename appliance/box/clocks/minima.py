"""Let clocks go without a baseline: lower limits as the power mode that is set has them in nvpmodel.conf.

Where that file names none, the hardware's least is taken. It needs no tool of NVIDIA's.
"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.box import paths
from appliance.box.clocks import readings
from appliance.box.clocks.modes import Conf, Mode
from appliance.box.root import Root, reason


def let_go(root: Root, conf: Conf | None, mode: Mode | None) -> tuple[str, ...]:
    """Write every lower limit, idle state and switch that pinning has set; what could not be written."""
    problems = []
    for path, value in _least(root, conf, mode):
        try:
            root.write(path, str(value))
        except OSError as error:
            problems.append(f"{path}: {reason(error)}")
    return tuple(problems)


def _least(root: Root, conf: Conf | None, mode: Mode | None) -> Iterator[tuple[str, int]]:
    """Each file and what is to be written to it, in the file's own unit."""
    for core in readings.cpus(root):
        parameter = conf.cpu_parameter(core.number) if conf else ""
        hardware = root.number(f"{paths.CPUS}/cpu{core.number}/cpufreq/cpuinfo_min_freq")
        if (low := (mode.floor(parameter) if mode else None) or hardware) is not None:
            yield readings.core_floor(core.number), low
        yield from ((path, 0) for path in readings.idle_switches(root, core.number))
    gpu = readings.gpu_folder(root)
    for folder, parameter in ((gpu, "GPU"), (paths.BWMGR, "EMC")):
        if folder and (low := (mode.floor(parameter) if mode else None) or readings.least(root, folder)):
            yield f"{folder}/min_freq", low
    if readings.railgate(root) is not None:
        yield readings.railgate_switch(root), 1
    if not root.names(paths.BWMGR) and root.exists(paths.EMC_LOCK):
        yield paths.EMC_LOCK, 0
