"""JetPack 7 on a tree that owes nothing to the fakes: locks, proves, unlocks; guesses decide nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from appliance.box.checks import Level, run_checks
from appliance.box.clocks import clocks_json
from appliance.box.clocks.acting import BASELINE
from appliance.box.clocks.pinning import check, lock, unlock
from appliance.box.clocks.verdict import take_reading
from appliance.box.show import clock_status
from tests.box import r39
from tests.box.r39 import BWMGR, CPU, GPU, R39


@pytest.fixture
def orin(tmp_path: Path) -> R39:
    """In MAXN, nothing pinned, as after a boot."""
    return R39(folder=tmp_path).build()


def files(orin: R39) -> dict[str, str]:
    return {path: orin.read(path) for path, _, _ in r39.attributes() if path.startswith("/sys")}


def test_every_file_has_a_source_or_is_a_guess() -> None:
    assert {source for _, _, source in r39.attributes()} == {*r39.SOURCES, r39.GUESSED}
    assert len(r39.GUESSES) == 12 + 9


def test_locks_proves_unlocks(orin: R39) -> None:
    before = files(orin)
    assert take_reading(orin.box()).clocks.state == "unpinned"
    assert lock(orin.box()).state == "pinned"
    assert [orin.read(f"{BWMGR}/{kind}_freq") for kind in ("min", "max", "cur")] == ["3199000000"] * 3
    assert orin.read(f"{r39.DEBUGFS}/mrq_rate_locked") == "0", "nobody asks debugfs"
    shown = clock_status.status(orin.box())
    assert (shown.clocks.state, shown.clocks.why, shown.notes) == ("pinned", "", ())
    assert clock_status.status(orin.box(user=1000)).clocks.state == "pinned", "all of it is world-readable"
    assert orin.path(BASELINE).read_text().startswith("persistence: cannot be stored\n")
    assert unlock(orin.box()).why.startswith("unlocked by a technician")
    after = files(orin)
    # What follows the limits, the kernel moves by itself.
    assert {path for path in before if before[path] != after[path] and "cur_freq" not in path} == set()


@pytest.mark.parametrize(("path", "value", "why"), [
    (f"{BWMGR}/min_freq", "204000000", "emc: at 3199 MHz now, but not locked"),
    (f"{BWMGR}/max_freq", "2133000000", "emc: capped at 2133 MHz, below 3199 MHz"),
    (f"{GPU}/min_freq", "306000000", "gpu: free between"),
    (f"{GPU}/device/railgate_enable", "1", "railgate: the GPU may be powered down when idle"),
    (f"{CPU.format(3)}/cpuidle/state1/disable", "0", "idle: 1 of 24 idle states"),
    (f"{CPU.format(7)}/cpufreq/scaling_min_freq", "729600", "cpu7: free between"),
    (f"{CPU.format(7)}/cpufreq/scaling_max_freq", "1190400", "cpu7: "),
])  # fmt: skip
def test_what_is_sourced_decides(orin: R39, path: str, value: str, why: str) -> None:
    lock(orin.box())
    orin.write(path, value)
    clocks = take_reading(orin.box()).clocks
    assert clocks.state == "unpinned" and why in clocks.why


def test_a_gpu_that_jetson_clocks_leaves_to_power_down_is_kept_on(orin: R39) -> None:
    """It is not known whether jetson_clocks does so on JetPack 7; the lock does in any case."""

    class Leaving(R39):
        def pin(self) -> str:
            super().pin()
            self.write(f"{GPU}/device/railgate_enable", 1)
            return ""

    lines: list[str] = []
    assert lock(Leaving(folder=orin.folder).box(), report=lines.append).state == "pinned"
    assert f"echo 0 > {GPU}/device/railgate_enable" in lines


@pytest.mark.parametrize("path", {re.sub(r"cpu\d+", "cpuN", path): path for path in r39.GUESSES}.values())
@pytest.mark.parametrize("locked", [True, False])
def test_what_is_guessed_decides_nothing(orin: R39, path: str, locked: bool) -> None:
    """Empty, garbled, absent: the state stays as it is, or becomes unknown."""
    if locked:
        lock(orin.box())
    before = take_reading(orin.box()).clocks.state
    assert before == ("pinned" if locked else "unpinned")
    for value in ("", "\0", "no number", "-1", None):
        if value is None:
            orin.path(path).unlink()
        else:
            orin.path(path).write_text(value)
        assert take_reading(orin.box()).clocks.state in (before, "unknown"), (path, value)
        assert clock_status.status(orin.box()).clocks.state in (before, "unknown"), (path, value)


def test_a_tpc_mask_that_lies_elsewhere_is_unknown_and_leaves_the_box_alone(orin: R39) -> None:
    for path in (r39.TPC_MASK, "/sys/devices/gpu.0/tpc_pg_mask"):
        orin.path(path).unlink()
    assert lock(orin.box()).state == "unknown"
    calls = len(orin.calls)
    assert check(orin.box()).state == "unknown" and orin.calls[calls:] == ["nvpmodel -q"]
    assert clocks_json.read(orin.box()).why == "tpc: the TPC mask cannot be read"
    [found] = run_checks(orin.box(), only={"clocks"})
    assert found.level is Level.WARN and "not all of it can be looked at" in found.value


def test_the_sites_power_mode_is_what_is_pinned(orin: R39) -> None:
    config = orin.path("/etc/f5-appliance/appliance.yaml")
    config.parent.mkdir()
    config.write_text("device:\n  power_mode: MODE_50W  # the van's supply\n")
    assert take_reading(orin.box()).clocks.why.startswith("power mode is MAXN, not MODE_50W")
    clocks = lock(orin.box())
    assert (clocks.state, clocks.mode, clocks.domains["gpu"]["ceiling"]) == (
        "pinned",
        "MODE_50W",
        816_000_000,
    )
    assert {f.level for f in run_checks(orin.box(), only={"power_mode", "clocks", "caps", "cores"})} == {
        Level.PASS
    }
    orin.write(f"{GPU}/max_freq", "612000000")
    orin.write(f"{GPU}/min_freq", "612000000")
    why = take_reading(orin.box()).clocks.why
    assert "capped at 612 MHz, below 816 MHz, although MODE_50W allows it" in why
    config.write_text("device: {power_mode: MODE_50W}\n")
    assert "has to be written as `device:` on a line of its own" in take_reading(orin.box()).clocks.why
    config.write_text("device:\n  power_mode: MODE_60W\n")
    assert "has no power mode MODE_60W" in take_reading(orin.box()).clocks.why
