"""JetPack 7 on a tree whose files name their sources: files with a source decide, guessed files decide
nothing."""

from pathlib import Path

import pytest

from appliance.box.checks.finding import Level
from appliance.box.checks.runner import run_checks
from appliance.box.clocks import clocks_json
from appliance.box.clocks.pinning import check, lock, unlock
from appliance.box.clocks.verdict import take_reading
from appliance.box.paths import CONFIG
from appliance.box.show import clock_status
from tests.fakes.jetson.board import Clock, Jetson
from tests.fakes.jetson.faults import FaultyRoot
from tests.fakes.jetson.sources import BWMGR, EMC, FILES, GPU, GUESSED, SOURCES, TPC_MASK
from tests.harness.boxes import lay, quick

pytestmark = [pytest.mark.slow, pytest.mark.once]
GUESSES = [path for path, source in FILES.items() if source == GUESSED]


@pytest.fixture
def orin(tmp_path: Path) -> Jetson:
    """An Orin in MAXN with nothing pinned, as after a boot."""
    jetson = Jetson(tmp_path, "jp7-0005")
    jetson.set_mode("MAXN")
    return jetson


def files(orin: Jetson) -> dict[str, str]:
    paths = [path.format(core) for path in FILES for core in range(12 if "{}" in path else 1)]
    return {path: orin.read(path) for path in paths}


def test_every_judged_file_has_a_source_or_is_a_guess(orin: Jetson, monkeypatch: pytest.MonkeyPatch) -> None:
    read, real = set[str](), FaultyRoot.read
    monkeypatch.setattr(FaultyRoot, "read", lambda self, path: read.add(path) or real(self, path))
    take_reading(quick(orin))
    judged = {str(orin.path(path).resolve()) for path in read if "freq" in path.rpartition("/")[2]}
    known = {str(orin.path(path).resolve()) for path in files(orin)}
    assert {*FILES.values()} == {*SOURCES, GUESSED}
    assert len(judged) > 50 and judged <= known, judged - known


def test_locks_proves_unlocks(orin: Jetson) -> None:
    before, box = files(orin), quick(orin, **Clock().arguments)
    assert take_reading(box).clocks.state == "unpinned"
    assert lock(box).state == "pinned"
    assert [orin.read(f"{BWMGR}/{kind}_freq") for kind in ("min", "max", "cur")] == ["3199000000"] * 3
    assert orin.read(f"{EMC}/mrq_rate_locked") == "0", "nobody asks debugfs"
    shown = clock_status.status(box)
    assert (shown.clocks.state, shown.clocks.why, shown.notes) == ("pinned", "", ())
    anybody = quick(orin, user=lambda: 1000)
    assert clock_status.status(anybody).clocks.state == "pinned", "all of it is world-readable"
    assert unlock(box).why.startswith("unlocked by a technician")
    assert files(orin) == before


def test_the_lock_keeps_a_gpu_on_that_jetson_clocks_lets_sleep(orin: Jetson) -> None:
    """No source says if jetson_clocks does so on JetPack 7; the lock keeps the GPU on in any case."""
    railgate = f"{GPU}/device/railgate_enable"
    lay(orin, "jetson_clocks", f'$real "$@"\n[ "$1" ] || echo 1 > {orin.path(railgate)}')
    lines: list[str] = []
    assert lock(quick(orin), report=lines.append).state == "pinned"
    assert any(line.startswith("echo 0 > ") and line.endswith("/railgate_enable") for line in lines), lines


@pytest.mark.parametrize("path", GUESSES)
@pytest.mark.parametrize("locked", [True, False])
def test_guessed_files_decide_nothing(orin: Jetson, path: str, locked: bool) -> None:
    """A guessed file may be empty, garbled or absent: the state does not change, or becomes unknown."""
    if locked:
        lock(quick(orin))
    (orin.bin / "nvpmodel").write_text("#!/bin/sh\necho NV Power Mode: MAXN; echo 0\n")  # reads no file
    before = "pinned" if locked else "unpinned"
    assert take_reading(quick(orin)).clocks.state == before
    for value in ("", "\0", "no number", "-1", None):
        orin.path(path).unlink() if value is None else orin.path(path).write_text(value)
        for clocks in (take_reading(quick(orin)).clocks, clock_status.status(quick(orin)).clocks):
            assert clocks.state in (before, "unknown"), (path, value)


def test_a_tpc_mask_that_lies_elsewhere_is_unknown_and_leaves_the_box_alone(orin: Jetson) -> None:
    orin.path(TPC_MASK).unlink()
    assert lock(quick(orin)).state == "unknown"
    orin.unit("f5-clocks.service", ActiveState="active")
    check(quick(orin))  # asks systemd once if it would note a shutdown
    calls = len(orin.calls())
    assert check(quick(orin)).state == "unknown" and orin.calls()[calls:] == ["nvpmodel -q"]
    assert clocks_json.read(quick(orin)).why == "tpc: the TPC mask cannot be read"
    [found] = run_checks(quick(orin), only={"clocks"})
    assert found.level is Level.WARN and "cannot read everything" in found.value


def test_the_configured_power_mode_is_pinned(orin: Jetson) -> None:
    orin.write(CONFIG, "device:\n  power_mode: MODE_50W  # the van's supply\n")
    assert take_reading(quick(orin)).clocks.why.startswith("power mode is MAXN, not MODE_50W")
    clocks = lock(quick(orin))
    assert (clocks.state, clocks.mode) == ("pinned", "MODE_50W")
    assert [clocks.domains[name]["ceiling"] for name in ("gpu", "cpu0")] == [816_000_000, 1_497_600_000]
    found = run_checks(quick(orin), only={"power_mode", "clocks", "caps", "cores", "reboot"})
    assert {finding.level for finding in found} == {Level.PASS}
    for kind in ("max", "min"):
        orin.write(f"{GPU}/{kind}_freq", "612000000")
    why = take_reading(quick(orin)).clocks.why
    assert "capped at 612 MHz, below 816 MHz, although MODE_50W allows it" in why
