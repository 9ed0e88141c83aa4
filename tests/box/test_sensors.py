"""Sensors on every profile, with unpowered parts and changing numbers."""

from pathlib import Path

import pytest

from appliance.box.root import Root
from appliance.box.sensors import hwmon as sensors
from appliance.box.sensors.hwmon import Fan
from tests.fakes.jetson.board import Jetson

ALWAYS = {"cpu", "soc0", "soc1", "soc2", "tj", "tboard", "tdiode"}


# The names of the sensors depend on the JetPack, not on the module.
@pytest.fixture(params=["jp5-0005", "jp6-0004", "jp7-0000"])
def jetson(request: pytest.FixtureRequest, tmp_path: Path) -> Jetson:
    return Jetson(tmp_path, request.param)


def zones(jetson: Jetson) -> set[str]:
    return ALWAYS if jetson.profile.jetpack == 5 else ALWAYS | {"gpu"}


def test_zones_have_one_name_on_all_releases(jetson: Jetson) -> None:
    degrees = sensors.temperatures(jetson.box().root)
    assert set(degrees) == zones(jetson)
    assert degrees["cpu"] == 48.593
    assert degrees["tboard"] == 36.0


def test_invalid_temperatures_are_dropped(jetson: Jetson) -> None:
    folders = [*jetson.path("/sys/class/thermal").glob("thermal_zone*")]
    unpowered = [folder for folder in folders if (folder / "type").read_text().lower().startswith("cv")]
    for text in ("-256000", "0", "", "no number"):
        for folder in unpowered:
            (folder / "temp").write_text(f"{text}\n")
        assert set(sensors.temperatures(jetson.box().root)) == zones(jetson), text


def test_unpowered_zones_answer_eagain_and_are_dropped(jetson: Jetson) -> None:
    jetson.fault("eagain_zones", zones=("cv0", "cv1", "cv2", "gpu", "tj"))
    root = jetson.box().root
    assert set(sensors.temperatures(root)) == ALWAYS - {"tj"}
    # Zone tj is missing: the hottest zone replaces it.
    assert sensors.junction(root) == 48.593


def test_the_junction_is_the_zone_of_that_name(jetson: Jetson) -> None:
    jetson.fault("thermal_throttle", degrees=97.25)
    assert sensors.junction(jetson.box().root) == 97.25
    for folder in jetson.path("/sys/class/thermal").glob("thermal_zone*"):
        if (folder / "type").read_text().lower().startswith("tboard"):
            (folder / "temp").write_text("105000\n")
    assert sensors.junction(jetson.box().root) == 97.25


def test_rails_have_labels_and_the_total_counts_one_monitor(jetson: Jetson) -> None:
    root = jetson.box().root
    assert sensors.rails(root) == pytest.approx(
        {"VDD_GPU_SOC": 2396.184, "VDD_CPU_CV": 805.76, "VIN_SYS_5V0": 4034.272, "VDDQ_VDD2_1V8AO": 301.92}
    )
    assert sensors.total_power(root) == pytest.approx(2396.184 + 805.76 + 4034.272)


def test_sensors_are_found_by_name_though_their_numbers_move(jetson: Jetson) -> None:
    before = jetson.machine.hwmon("soctherm_oc"), sensors.rails(jetson.box().root)
    jetson.boot()
    assert jetson.machine.hwmon("soctherm_oc") != before[0]
    jetson.fault("over_current_storm", oc1=1, oc2=2, oc3=3000)
    root = jetson.box().root
    assert sensors.rails(root) == before[1]
    assert sensors.over_current(root) == {"oc1": 1, "oc2": 2, "oc3": 3000}
    assert sensors.fan(root) == Fan(66, 1740)


def test_parts_slowed_by_heat_are_named(jetson: Jetson) -> None:
    root = jetson.box().root
    assert sensors.cooling(root) == {}, "the fan turns, and cools: that is no throttling"
    jetson.fault("thermal_throttle", degrees=87.0, cap_khz=0)
    assert (sensors.junction(root), sensors.cooling(root)) == (87.0, {}), "a hot surface is an alarm alone"
    jetson.fault("thermal_throttle")
    active = sensors.cooling(root) or {}
    assert active["cpufreq-cpu0"] == active[f"devfreq-{jetson.profile.gpu_name}"] == 3
    assert not any("fan" in kind or "surface" in kind for kind in active)


def test_a_stopped_fan_differs_from_a_fan_without_tachometer(jetson: Jetson) -> None:
    speeds = [p for name in ("rpm", "fan1_input") for p in jetson.path("/sys/class/hwmon").glob(f"*/{name}")]
    jetson.write(f"{jetson.machine.hwmon('pwmfan')}/pwm1", "0\n")
    for path in speeds:
        path.write_text("0\n")
    assert sensors.fan(jetson.box().root) == Fan(0, 0)
    for path in speeds:
        path.unlink()
    assert sensors.fan(jetson.box().root) == Fan(0, None)


def test_a_machine_without_any_of_it(tmp_path: Path) -> None:
    root = Root(tmp_path)
    assert sensors.temperatures(root) == {}
    assert sensors.junction(root) is None
    assert sensors.rails(root) == {}
    assert sensors.total_power(root) is None
    assert sensors.over_current(root) == {}
    assert sensors.cooling(root) is None
    assert sensors.fan(root) is None
