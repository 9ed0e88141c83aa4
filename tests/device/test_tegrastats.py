"""Lines of tegrastats: those that real devices printed, unchanged, and those of the fakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.device.tegrastats import Clocked, Core, parse
from tests.fakes.jetson import PROFILES, Jetson
from tests.fakes.patience import first_line

CAPTURED = Path(__file__).resolve().parents[1] / "fakes" / "captured"


def captured(name: str) -> str:
    return (CAPTURED / f"tegrastats-{name}.txt").read_text()


def test_a_line_of_jetpack_5() -> None:
    line = parse(captured("jp5"))
    assert line.time == "04-24-2023 00:01:24"
    assert (line.ram_used_mb, line.ram_total_mb) == (1282, 62795)
    assert (line.largest_free_blocks, line.largest_free_block_kb) == (15152, 4096)
    assert (line.swap_used_mb, line.swap_total_mb) == (0, 31398)
    # The capture leaves out the other cores with three dots.
    assert line.cores == (Core(0, 729), Core(0, 729))
    assert line.emc == Clocked(0, (2133,))
    assert line.gpu == Clocked(0, (0,))
    assert line.engines == {"VIC": 729, "APE": 174}
    assert line.temperatures == {
        "cpu": 42.593,
        "tboard": 32.0,
        "soc2": 39.343,
        "tdiode": 33.25,
        "soc0": 39.375,
        "tj": 42.593,
        "soc1": 40.468,
    }
    assert line.power == {
        "VDD_GPU_SOC": 2399,
        "VDD_CPU_CV": 400,
        "VIN_SYS_5V0": 4032,
        "VDDQ_VDD2_1V8AO": 301,
    }


def test_jetpack_5_of_2025_has_two_clusters_in_brackets() -> None:
    old = captured("jp5").replace("GR3D_FREQ 0%@0 GR3D2_FREQ 0%@0", "GR3D_FREQ 0%@[0,0]")
    assert parse(old).gpu == Clocked(0, (0, 0))


def test_a_line_of_jetpack_7() -> None:
    line = parse(captured("jp7"))
    assert (line.ram_used_mb, line.ram_total_mb) == (20642, 62817)
    assert (line.largest_free_blocks, line.largest_free_block_kb) == (1, 2048)
    assert line.swap_used_mb is None
    assert line.swap_total_mb is None
    assert line.cores == (Core(23, 2201),)
    assert line.emc == Clocked(3, (3199,))
    assert line.gpu == Clocked(12, (1300, 1300))
    assert line.engines == {"NVENC0": None, "NVDLA1": None, "PVA0": None, "APE": 174}
    assert line.temperatures == {"cpu": 52.968, "soc2": 48.406, "soc0": 49.531, "gpu": 47.625}
    assert line.power == {"VDD_GPU_SOC": 5139, "VDD_CPU_CV": 3268, "VIN_SYS_5V0": 5500}


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("GR3D_FREQ 10%", Clocked(10)),
        ("GR3D_FREQ 10%@1300", Clocked(10, (1300,))),
        ("GR3D_FREQ 99%@[1300,1299]", Clocked(99, (1300, 1299))),
        ("GR3D_FREQ @[1300]", Clocked(None, (1300,))),
        ("", Clocked()),
    ],
)
def test_every_way_of_telling_the_gpu(token: str, expected: Clocked) -> None:
    assert parse(f"RAM 1/2MB (lfb 3x4MB) {token} APE 174").gpu == expected


def test_cores_that_are_off_keep_their_place() -> None:
    assert parse("RAM 1/2MB (lfb 3x4MB) CPU [1%@729,off,100%@2201]").cores == (
        Core(1, 729),
        None,
        Core(100, 2201),
    )


def test_an_accelerator_that_runs_and_power_now_and_on_average() -> None:
    line = parse("RAM 1/2MB (lfb 9x512kB) NVDLA0_FREQ @1600 VIC_FREQ off NC 0mW/0mW VDD_IN 5000mW/4000mW")
    assert line.largest_free_block_kb == 512
    assert line.engines == {"NVDLA0": 1600, "VIC": None}
    assert line.power == {"VDD_IN": 5000}
    assert line.power_average == {"VDD_IN": 4000}


def test_the_order_of_tokens_does_not_matter() -> None:
    head, ram, rest = captured("jp5").strip().partition("RAM 1282/62795MB (lfb 15152x4MB) ")
    assert parse(f"{head}{rest} {ram}") == parse(captured("jp5"))


@pytest.mark.parametrize("line", ["", "Please run as root", "RAM"])
def test_what_is_no_line_is_refused_with_its_beginning(line: str) -> None:
    with pytest.raises(ValueError, match="not a line of tegrastats"):
        parse(line)


@pytest.mark.parametrize("profile", PROFILES)
def test_a_line_of_the_fake_tells_what_its_tree_holds(tmp_path: Path, profile: str) -> None:
    jetson = Jetson(tmp_path, profile)
    jetson.set_mode("MODE_30W")
    jetson.pin()
    jetson.fault("eagain_zones")
    line = parse(first_line(jetson.box().tools, "tegrastats", "--interval", "50"))
    assert line.cores == (Core(0, 1728),) * 8 + (None,) * (jetson.profile.cpus - 8)
    assert set(line.gpu.mhz) == {612}
    assert line.emc == Clocked(0, (3199,))
    assert line.temperatures["cpu"] == 48.593
    assert "cv0" not in line.temperatures
    assert line.power["VDD_GPU_SOC"] == 2396
    assert line.ram_total_mb == jetson.profile.memory_mb
