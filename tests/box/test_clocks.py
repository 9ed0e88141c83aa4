"""The judgement of the clocks, on trees of known files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.box.checks.finding import Level
from appliance.box.checks.runner import run_checks
from appliance.box.clocks import clocks_json
from appliance.box.clocks.reason import Reason
from appliance.box.clocks.verdict import take_reading
from appliance.box.paths import NVPMODEL_CONF
from appliance.box.root import Root
from appliance.box.show import clock_status
from appliance.box.system import Box
from appliance.box.tools import Tools
from tests.fakes.jetson.board import Jetson
from tests.harness.boxes import quick

EMC = "/sys/kernel/debug/bpmp/debug/clk/emc"
BWMGR = "/sys/class/devfreq/bwmgr"


@pytest.fixture
def pinned(tmp_path: Path) -> Jetson:
    return pinned_box(tmp_path, "jp6-0005")


def pinned_box(folder: Path, profile: str) -> Jetson:
    jetson = Jetson(folder, profile)
    jetson.set_mode("MAXN")
    jetson.pin()
    return jetson


@pytest.mark.parametrize("profile", ["jp6-0004", "jp7-0005"])
def test_factory_and_pinned(tmp_path: Path, profile: str) -> None:
    jetson = Jetson(tmp_path, profile)
    jetson.pin()
    held = take_reading(quick(jetson)).clocks
    assert (held.state, held.mode) == ("unpinned", "MODE_30W")
    assert "power mode is MODE_30W, not MAXN" in held.why
    assert "capped at 612 MHz" in held.domains["gpu"]["why"]
    jetson.set_mode("MAXN")
    assert take_reading(quick(jetson)).clocks.state == "unpinned"
    jetson.pin()
    clocks = take_reading(quick(jetson)).clocks
    assert (clocks.state, clocks.mode, clocks.why) == ("pinned", "MAXN", "")
    top = jetson.profile.cpu_max_khz * 1000
    assert clocks.domains["cpu3"] == {
        "min": top, "max": top, "current": top, "ceiling": top, "pinned": True, "why": ""
    }  # fmt: skip
    assert clocks.domains["gpu"]["ceiling"] == jetson.profile.gpu_hz[-1]
    assert clocks.domains["emc"]["current"] == jetson.profile.emc_max_hz
    assert [name for name in clocks.domains if name.startswith("cpu")] == [
        f"cpu{number}" for number in range(jetson.profile.cpus)
    ]
    cores = {"value": jetson.profile.cpus, "expected": jetson.profile.cpus, "pinned": True, "why": ""}
    mask = jetson.profile.mode("MAXN").tpc_mask
    assert clocks.domains["cores"] == cores
    assert clocks.domains["tpc"] == {"value": mask, "expected": mask, "pinned": True, "why": ""}


def writes(path: str, *values: str) -> Callable[[Jetson], object]:
    """Write a value to a file; several values go to the files of the limits named in {}."""
    names = ("min", "max") if len(values) > 1 else ("min",)
    return lambda jetson: [
        jetson.write(path.format(name, devfreq=jetson.profile.devfreq), f"{value}\n")
        for name, value in zip(names, values, strict=True)
    ]


def removes(path: str) -> Callable[[Jetson], object]:
    return lambda jetson: jetson.path(path.format(devfreq=jetson.profile.devfreq)).rename(jetson.root / "old")


GPU_CAPPED = writes("{devfreq}/{}_freq", "918000000", "918000000")
CORE = "/sys/devices/system/cpu/cpu{}"


EDITS: list[tuple[Callable[[Jetson], object], str, str, bool]] = [
    (writes(f"{CORE.format(7)}/cpufreq/scaling_{{}}_freq", "729600"), "cpu7",
     "free between 729.6 MHz and 2201.6 MHz", True),
    (writes(f"{CORE.format(5)}/cpufreq/scaling_{{}}_freq", "1190400", "1190400"), "cpu5",
     "capped at 1190.4 MHz, below 2201.6 MHz, although MAXN allows it", False),
    (writes("{devfreq}/{}_freq", "306000000"), "gpu", "free between 306 MHz and 1300.5 MHz", True),
    (GPU_CAPPED, "gpu", "capped at 918 MHz, below 1300.5 MHz, although MAXN allows it", False),
    (removes("{devfreq}"), "gpu", "has no devfreq node", True),
    (removes("{devfreq}/available_frequencies"), "gpu", "the hardware's maximum cannot be read", False),
    (writes(f"{EMC}/mrq_rate_locked", "0"), "emc", "at 3199 MHz now, but not locked", True),
    (writes(f"{EMC}/rate", "2133000000"), "emc", "locked at 2133 MHz, not at 3199 MHz", True),
    (lambda jetson: jetson.write(jetson.profile.emc_cap, "2133000000\n"), "emc",
     "capped at 2133 MHz, below 3199 MHz, although MAXN allows it", True),
    (writes(f"{EMC}/max_rate", "2133000000"), "emc",
     "capped at 2133 MHz, below 3199 MHz, although MAXN allows it", True),
    (removes(EMC), "emc", "emc cannot be read", False),
    (removes(f"{EMC}/rate"), "emc", f"{EMC} cannot be read", False),
    (removes(f"{EMC}/max_rate"), "emc", f"{EMC} cannot be read", False),
    (writes(f"{CORE.format(11)}/online", "0"), "cores", "cpu11 offline, unlike in MAXN", True),
    (writes(f"{CORE.format(3)}/cpuidle/state1/disable", "0"), "idle",
     "1 of 24 idle states of the cores are allowed", True),
    (lambda jetson: jetson.write(jetson.profile.tpc_mask, "240\n"), "tpc", "TPC mask is 240, not 0", False),
    (writes("{devfreq}/device/railgate_enable", "1"), "railgate", "may be powered down when idle", True),
]  # fmt: skip
OF_JETPACK_7 = [row for row in EDITS if row[1] not in ("emc", "tpc")]
"""Edits without memory, which has other files on JetPack 7, and without the TPC mask, which is a guess."""


@pytest.mark.parametrize(("profile", "edit", "domain", "why", "fixable"), [
    *(("jp6-0005", *row) for row in EDITS), *(("jp7-0005", *row) for row in OF_JETPACK_7),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_a_file_edited_behind_our_back(
    tmp_path: Path, profile: str, edit: Callable[[Jetson], object], domain: str, why: str, fixable: bool
) -> None:
    pinned = pinned_box(tmp_path, profile)
    assert take_reading(quick(pinned)).clocks.state == "pinned"
    edit(pinned)
    reading = take_reading(quick(pinned))
    wrong = {name: seen.why for name, seen in reading.domains.items() if seen.pinned is not True}
    assert reading.state == "unpinned"
    assert list(wrong) == [domain] and why in wrong[domain]
    assert f"{domain}: {wrong[domain]}" in reading.clocks.why
    assert reading.fixable is fixable


def test_jetpack_7_locks_memory_by_its_lower_limit(tmp_path: Path) -> None:
    jetson = pinned_box(tmp_path, "jp7-0005")
    boxes = quick(jetson), quick(jetson, user=lambda: 1000)
    assert [take_reading(box).clocks.state for box in boxes] == ["pinned"] * 2, "it is shown to everybody"
    jetson.write(f"{BWMGR}/max_freq", "2133000000\n")
    assert "capped at 2133 MHz, below 3199 MHz" in take_reading(quick(jetson)).clocks.domains["emc"]["why"]
    jetson.path(f"{BWMGR}/max_freq").unlink()
    assert take_reading(quick(jetson)).clocks.domains["emc"]["why"] == "its limits cannot be read"
    jetson.write(f"{BWMGR}/max_freq", "3199000000\n")
    jetson.write(f"{BWMGR}/min_freq", "204000000\n")
    for box in boxes:
        assert "not locked" in take_reading(box).clocks.domains["emc"]["why"]
    # No public capture has a table of JetPack 5's memory clock. If the table is missing, min = max = cur
    # proves a lock.
    for text in ("", None):
        table = jetson.path(f"{BWMGR}/available_frequencies")
        table.write_text(text) if text is not None else table.unlink()
        assert "not locked" in take_reading(quick(jetson)).clocks.domains["emc"]["why"]
        jetson.pin()
        assert take_reading(quick(jetson)).clocks.state == "pinned"
        jetson.write(f"{BWMGR}/min_freq", "204000000\n")


def test_jetpack_7_locks_memory_at_the_cap_of_its_mode(tmp_path: Path) -> None:
    jetson = pinned_box(tmp_path, "jp7-0005")
    jetson.set_mode("MODE_15W")
    assert take_reading(quick(jetson)).domains["emc"].fixable
    jetson.pin()
    emc = take_reading(quick(jetson)).domains["emc"]
    assert (emc.pinned, emc.fixable) == (False, False)
    assert emc.why == "capped at 2133 MHz, below 3199 MHz, in power mode MODE_15W"


def test_memory_and_the_state_are_unknown_without_root(pinned: Jetson) -> None:
    clocks = take_reading(quick(pinned, user=lambda: 1000)).clocks
    assert clocks.domains["emc"] == {"pinned": None, "why": "needs root"}
    assert (clocks.state, clocks.why) == ("unknown", "emc: needs root")
    writes("{devfreq}/{}_freq", "306000000")(pinned)
    assert take_reading(quick(pinned, user=lambda: 1000)).clocks.state == "unpinned"


def test_clocks_are_judged_without_power_modes_as_far_as_possible(pinned: Jetson) -> None:
    pinned.path(NVPMODEL_CONF).unlink()
    clocks = take_reading(quick(pinned)).clocks
    assert clocks.state == "unpinned" and "/etc/nvpmodel.conf cannot be used" in clocks.why
    assert clocks.domains["gpu"]["pinned"] is True


def test_the_ceiling_is_read_and_not_known_beforehand(pinned: Jetson) -> None:
    """Another module's frequencies are in no list of the product."""
    for number in range(12):
        for name in ("scaling_min_freq", "scaling_max_freq", "cpuinfo_max_freq"):
            pinned.write(f"/sys/devices/system/cpu/cpu{number}/cpufreq/{name}", "3141592\n")
    for name in ("min_freq", "max_freq", "available_frequencies"):
        pinned.write(f"{pinned.profile.devfreq}/{name}", "2718281828\n")
    clocks = take_reading(quick(pinned)).clocks
    assert clocks.state == "pinned"
    assert clocks.domains["cpu0"]["ceiling"] == 3_141_592_000


def test_a_laptop_is_unsupported_and_no_tool_is_run(tmp_path: Path) -> None:
    class Watched(Tools):
        def execute(self, name: str, *arguments: str, timeout_s: float = 30.0, answer: str = "") -> Any:
            raise AssertionError(name)

    box = Box(Root(tmp_path), Watched())
    clocks = take_reading(box).clocks
    assert clocks.state == "unsupported" and "not a Jetson" in clocks.why and not clocks.domains
    text = clock_status.table(clock_status.status(box))
    assert text.startswith("state      unsupported\n           not a Jetson")
    assert "machine    not a Jetson" in text


def test_jetpack_5_is_read_and_refused_by_name(tmp_path: Path) -> None:
    jetson = pinned_box(tmp_path, "jp5-0005")
    clocks = take_reading(quick(jetson)).clocks
    assert clocks.state == "unsupported" and "JetPack 5" in clocks.why
    assert all(domain["pinned"] for domain in clocks.domains.values()), clocks.domains


def test_a_tree_with_next_to_nothing_in_it_is_judged_all_the_same(tmp_path: Path) -> None:
    for path, text in (
        ("proc/device-tree/compatible", "nvidia,tegra234\0"),
        ("etc/nv_tegra_release", "# R36 (release), REVISION: 4.3, GCID: 1"),
        ("sys/devices/system/cpu/cpu0/cpufreq/scaling_min_freq", "garbage"),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    clocks = take_reading(Box(Root(tmp_path), Tools((tmp_path,)), user=lambda: 0)).clocks
    assert clocks.state == "unpinned"
    assert clocks.domains["cpu0"]["why"] == "its limits cannot be read"
    assert clocks.domains["gpu"]["pinned"] is False


def test_an_idle_switch_that_cannot_be_read_hides_whether_cores_may_sleep(pinned: Jetson) -> None:
    removes(f"{CORE.format(3)}/cpuidle/state1/disable")(pinned)
    clocks = take_reading(quick(pinned)).clocks
    assert (clocks.state, clocks.reason) == ("unknown", Reason.UNREADABLE)
    assert clocks.why == "idle: 1 of 24 switches of idle states cannot be read"
    writes(f"{CORE.format(3)}/cpuidle/state0/disable", "0")(pinned)
    assert take_reading(quick(pinned)).clocks.why == "idle: 1 of 24 idle states of the cores are allowed"


def test_cores_that_run_slower_than_set_are_a_warning_with_the_kernels_line(pinned: Jetson) -> None:
    """The kernel of an AGX Thor repeats this line each second (NVIDIA forum 361188)."""
    clocks_json.publish(quick(pinned), take_reading(quick(pinned)).clocks)
    line = "cpufreq: cpu5,cur:649000,set:2201600,delta:1552600,set ndiv:344"
    for number, khz in ((4, "1990000"), (5, "649000"), (6, "649000")):
        writes(f"{CORE.format(number)}/cpufreq/cpuinfo_cur_freq", khz)(pinned)
    pinned.journal(line)
    pinned.journal("usb 1-2: new device")
    [found] = run_checks(quick(pinned), only={"clocks"})
    assert found.level is Level.WARN and found.value == (
        f"cores run slower than they are set: cpu5–cpu6: 649 MHz of 2201.6 MHz. {line}"
    )


@pytest.mark.parametrize("by_site", [False, True])
def test_a_clock_that_ends_below_its_modes_cap_is_not_pinned(pinned: Jetson, by_site: bool) -> None:
    """A GPU whose table ends at 918 MHz for want of firmware (balena-jetson-orin 605)."""
    mode = "MODE_50W" if by_site else "MAXN"
    pinned.write("/etc/f5-appliance/appliance.yaml", f"device:\n  power_mode: {mode}\n" if by_site else "")
    text = pinned.read(NVPMODEL_CONF)
    for cap in ("816000000", "-1"):
        text = text.replace(f"GPU MAX_FREQ {cap}", "GPU MAX_FREQ 1020000000")
    pinned.write(NVPMODEL_CONF, text)
    pinned.write(f"{pinned.profile.devfreq}/available_frequencies", "306000000 918000000\n")
    pinned.set_mode(mode)
    pinned.pin()
    reading = take_reading(quick(pinned))
    assert (reading.state, reading.reason) == ("unpinned", Reason.WRONG_CONF)
    assert f"gpu: ends at 918 MHz, below the 1020 MHz of {mode}" in reading.clocks.why
