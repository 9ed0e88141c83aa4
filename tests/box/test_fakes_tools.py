"""The fake tools against what real ones printed, token by token."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.box.system import Box
from tests.fakes import conf
from tests.fakes.jetson import PROFILES, SUPPORTED, Jetson
from tests.fakes.patience import first_line

CAPTURED = Path(__file__).resolve().parents[1] / "fakes" / "captured"
EMC = "/sys/kernel/debug/bpmp/debug/clk/emc"
DEVFREQ = "/sys/class/devfreq"

Make = Callable[[str], Jetson]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda profile: Jetson(tmp_path / profile, profile)


def captured(name: str) -> list[str]:
    return (CAPTURED / f"{name}.txt").read_text().splitlines()


def run(box: Box, *command: str, answer: str = "") -> tuple[int, list[str]]:
    """Exit status and the lines of both streams."""
    ran = box.tools.run(*command, answer=answer)
    return ran.code, [line for line in ran.text.split("\n") if line]


def show(box: Box) -> list[str]:
    return run(box, "jetson_clocks", "--show")[1]


def same_sensor(line: str) -> str:
    """A line without what differs from boot to boot and with the warmth of the room."""
    return re.sub(r"hwmon\d+_pwm1(_enable)?=\d+", r"hwmonN_pwm1\1=", line)


# -- the three formats of --show -----------------------------------------------------------------------------


def test_show_on_jetpack_6_pinned_at_30_w_is_the_captured_one(make: Make) -> None:
    jetson = make("jp6-0005")
    jetson.pin()
    lines = list(map(same_sensor, show(jetson.box())))
    assert [line for line in map(same_sensor, captured("show-jp6")) if line not in lines] == []


def test_show_on_jetpack_7_pinned_at_maxn_is_the_captured_one(make: Make) -> None:
    jetson = make("jp7-0005")
    jetson.set_mode("MAXN")
    jetson.pin()
    lines = list(map(same_sensor, show(jetson.box())))
    assert [line for line in map(same_sensor, captured("show-jp7")) if line not in lines] == []


def test_show_on_jetpack_5_unpinned_is_the_captured_one(make: Make) -> None:
    jetson = make("jp5-0005")
    jetson.set_mode("MAXN")
    jetson.write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "2201600\n")
    lines = list(map(same_sensor, show(jetson.box())))
    assert [line for line in map(same_sensor, captured("show-jp5")) if line not in lines] == []
    cores = [line.split(":")[0] for line in lines if re.match(r"cpu\d", line)]
    assert cores[:5] == ["cpu0", "cpu1", "cpu10", "cpu11", "cpu2"]


@pytest.mark.parametrize("profile", PROFILES)
def test_show_has_the_lines_of_its_format_in_order(make: Make, profile: str) -> None:
    jetson = make(profile)
    jetpack = jetson.profile.jetpack
    kinds = [re.split(r"[\d: ]", line)[0] for line in show(jetson.box())]
    tpcs, dla = (["Active"], []) if jetpack > 5 else ([], ["DLA", "DLA"])
    cores = ["cpu"] * jetson.profile.cpus
    fans = ["FAN"] * (2 if jetpack == 7 else 1)
    assert kinds == ["SOC", "Online", *cores, "GPU", *tpcs, "EMC", *dla, *fans, "NV"]


def test_an_idle_emc_on_jetpack_6_looks_locked_but_for_its_flag(make: Make) -> None:
    assert "EMC MinFreq=204000000 MaxFreq=3199000000 CurrentFreq=3199000000 FreqOverride=0" in show(
        make("jp6-0005").box()
    )


# -- jetson_clocks -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", PROFILES)
def test_pinning_writes_the_tree_that_readers_read(make: Make, profile: str) -> None:
    jetson = make(profile)
    jetson.set_mode("MAXN")
    root = jetson.box().root
    assert run(jetson.box(), "jetson_clocks") == (0, [])
    for core in range(jetson.profile.cpus):
        cpufreq = f"/sys/devices/system/cpu/cpu{core}/cpufreq"
        frequencies = [root.number(f"{cpufreq}/scaling_{kind}_freq") for kind in ("min", "max", "cur")]
        assert frequencies == [jetson.profile.cpu_max_khz] * 3
    gpu = f"{DEVFREQ}/{jetson.profile.gpu_name}"
    assert [root.number(f"{gpu}/{kind}_freq") for kind in ("min", "max", "cur")] == [
        jetson.profile.gpu_hz[-1]
    ] * 3
    assert root.text(f"{gpu}/device/of_node/name") == ("ga10b" if jetson.profile.jetpack == 5 else "gpu")
    assert root.number(f"{EMC}/rate") == 3_199_000_000
    locked = root.number(f"{EMC}/mrq_rate_locked"), root.number(f"{EMC}/min_rate")
    assert locked == (int(jetson.profile.jetpack < 7), 204_000_000)
    if jetson.profile.jetpack == 7:
        bwmgr = [root.number(f"{DEVFREQ}/bwmgr/{kind}_freq") for kind in ("min", "max", "cur")]
        assert bwmgr == [3_199_000_000] * 3


def test_without_root_it_refuses_after_the_first_line_of_show(make: Make) -> None:
    jetson = make("jp6-0005")
    before = jetson.snapshot()
    box = jetson.box(user=lambda: 1000)
    refusal = "Error: Run this script(/usr/bin/jetson_clocks) as a root user"
    assert run(box, "jetson_clocks") == (1, [refusal])
    soc = "SOC family:tegra234  Machine:NVIDIA Jetson AGX Orin Developer Kit"
    assert run(box, "jetson_clocks", "--show") == (1, [soc, refusal])
    assert jetson.snapshot() == before


@pytest.mark.parametrize("message", [True, False])
def test_a_gpu_that_is_not_written_ends_with_0(make: Make, message: bool) -> None:
    jetson = make("jp6-0005")
    jetson.fault("silent_gpu", message=message)
    expected = ["Error: Failed to max GPU frequency!"] if message else []
    assert run(jetson.box(), "jetson_clocks") == (0, expected)
    assert jetson.read(f"{DEVFREQ}/17000000.gpu/min_freq") == "306000000"
    assert jetson.read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_min_freq") == "1728000"


def test_usage_ends_with_0_and_changes_nothing(make: Make) -> None:
    jetson = make("jp6-0005")
    before = jetson.snapshot()
    ran = jetson.box().tools.run("jetson_clocks", "--pin")
    assert ran.code == 0
    assert "Unknown option --pin" in ran.output
    assert "--restore [file]" in ran.errors
    assert jetson.snapshot() == before


def test_the_gpu_is_absent_until_it_was_called_for(make: Make) -> None:
    jetson = make("jp7-0005")
    jetson.fault("no_devfreq", calls=2)
    box = jetson.box()
    # The link is there, as a broken one: there is no clock to read.
    assert not box.root.exists(f"{DEVFREQ}/17000000.gpu/min_freq")
    for _ in range(2):
        assert run(box, "jetson_clocks") == (1, ["Error! GPU frequency scaling not supported!"])
    assert run(box, "jetson_clocks") == (0, [])
    assert box.root.number(f"{DEVFREQ}/17000000.gpu/min_freq") == 612_000_000


def test_store_asks_before_it_overwrites_and_restore_brings_all_back(make: Make) -> None:
    jetson = make("jp7-0004")
    box = jetson.box()
    file = "/var/lib/nvpmodel/baseline.conf"
    unpinned = jetson.snapshot()
    assert run(box, "jetson_clocks", "--store", file) == (0, [f"Storing system configuration in {file}"])
    stored = jetson.read(file)
    assert "/sys/devices/system/cpu/cpu0/cpufreq/scaling_min_freq:729600" in stored.splitlines()
    assert run(box, "jetson_clocks") == (0, [])
    question = f"File {file} already exists. Can I overwrite it? Y/N: "
    assert run(box, "jetson_clocks", "--store", file) == (
        1,
        [f"{question}Error: file {file} already exists!"],
    )
    assert jetson.read(file) == stored
    assert run(box, "jetson_clocks", "--restore", file)[0] == 0
    assert {path: what for path, what in jetson.snapshot().items() if not path.endswith(file[1:])} == unpinned
    run(box, "jetson_clocks")
    assert run(box, "jetson_clocks", "--store", file, answer="Y\n")[0] == 0
    assert jetson.read(file) != stored


def test_restore_without_a_file(make: Make) -> None:
    box = make("jp6-0005").box()
    assert run(box, "jetson_clocks", "--restore", "/x") == (1, ["Error: /x file not found !"])


def test_a_store_that_the_disk_refuses_ends_with_0_and_leaves_no_file(make: Make) -> None:
    jetson = make("jp6-0005")
    jetson.fault("disk_full")
    code, lines = run(jetson.box(), "jetson_clocks", "--store", "/var/lib/nvpmodel/baseline.conf")
    assert code == 0
    assert "No space left on device" in lines[-1]
    assert not jetson.path("/var/lib/nvpmodel/baseline.conf").exists()


def test_the_fan_at_full_speed_stops_its_daemon(make: Make) -> None:
    jetson = make("jp6-0005")
    run(jetson.box(), "jetson_clocks", "--fan")
    hwmon = jetson.machine.hwmon("pwmfan").rsplit("/", 1)[1]
    assert f"FAN Dynamic Speed Control=disabled {hwmon}_pwm1=255" in show(jetson.box())
    assert run(jetson.box(), "systemctl", "is-active", "nvfancontrol.service") == (3, ["inactive"])


# -- nvpmodel ------------------------------------------------------------------------------------------------


def test_query_is_the_captured_one(make: Make) -> None:
    jetson = make("jp6-0005")
    jetson.set_mode("MAXN")
    assert run(jetson.box(), "nvpmodel", "-q") == (0, captured("nvpmodel-q"))


def test_query_may_have_lines_more(make: Make) -> None:
    old = make("jp5-0005")
    assert run(old.box(), "nvpmodel", "-q")[1] == ["NV Fan Mode:quiet", "NV Power Mode: MODE_30W", "2"]
    code, lines = run(old.box(user=lambda: 1000), "nvpmodel", "-q")
    assert code == 0
    assert lines[-1] == "NVPM ERROR: Error opening /sys/kernel/nvpmodel_emc_cap/emc_iso_cap : 13"


def test_verbose_query_has_the_captured_lines_with_this_box_s_values(make: Make) -> None:
    code, lines = run(make("jp6-0005").box(), "nvpmodel", "-q", "--verbose")
    assert code == 0

    def shapes(printed: list[str]) -> list[str]:
        return [re.sub(r"(_VAL:|Mode:) \w+|^\d+$", r"\1", line) for line in printed]

    assert [shape for shape in shapes(captured("nvpmodel-q-verbose")) if shape not in shapes(lines)] == []
    assert any("GPU_POWER_CONTROL_ENABLE" in line and "REAL_VAL: auto CONF_VAL: on" in line for line in lines)


@pytest.mark.parametrize(("profile", "uncapped"), [("jp6-0005", 2**63 - 1), ("jp5-0005", 2**31 - 1)])
def test_without_a_cap_verbose_shows_the_greatest_number(make: Make, profile: str, uncapped: int) -> None:
    jetson = make(profile)
    jetson.set_mode("MAXN")
    lines = run(jetson.box(), "nvpmodel", "-q", "--verbose")[1]
    gpu = next(line for line in lines if "PARAM GPU: ARG MAX_FREQ" in line)
    assert gpu.endswith(f"REAL_VAL: 1300500000 CONF_VAL: {uncapped}")


def test_parsing_lists_the_modes(make: Make) -> None:
    lines = run(make("jp6-0004").box(), "nvpmodel", "-p", "--verbose")[1]
    assert lines[2:] == [
        "NVPM VERB: POWER_MODEL: ID=0 NAME=MAXN",
        "NVPM VERB: POWER_MODEL: ID=1 NAME=MODE_15W",
        "NVPM VERB: POWER_MODEL: ID=2 NAME=MODE_30W",
        "NVPM VERB: POWER_MODEL: ID=3 NAME=MODE_40W",
        "NVPM VERB: PM_CONFIG: DEFAULT=MODE_30W(2)",
    ]


@pytest.mark.parametrize("profile", SUPPORTED)
def test_the_first_maxn_wants_a_reboot(make: Make, profile: str) -> None:
    jetson = make(profile)
    before = jetson.snapshot()
    code, lines = run(jetson.box(), "nvpmodel", "-m", "0")
    assert code != 0
    assert [line.strip() for line in lines] == [*captured("nvpmodel-prompt"), "NVPM ERROR: bad input!"]
    code, lines = run(jetson.box(), "nvpmodel", "-m", "0", answer="no\n")
    assert code != 0
    assert lines[-1] == "NVPM ERROR: optMask is 1, no request for power mode"
    assert jetson.snapshot() == before
    assert jetson.reboots == 0
    assert run(jetson.box(), "nvpmodel", "-m", "0", answer="YES\n")[0] == 0
    assert jetson.reboots == 1
    jetson.boot()
    assert jetson.mode == "MAXN"
    masked = {8: 0, 7: 128}[7 if jetson.profile.module == "p3701-0004" else 8]
    assert jetson.read(jetson.profile.tpc_mask) == str(masked)


def test_a_mode_with_the_same_tpcs_is_set_at_once_and_unpins(make: Make) -> None:
    jetson = make("jp6-0005")
    jetson.set_mode("MAXN")
    jetson.pin()
    assert run(jetson.box(), "nvpmodel", "-m", "3") == (0, [])
    assert jetson.read(f"{DEVFREQ}/17000000.gpu/max_freq") == "816000000"
    assert jetson.read(f"{DEVFREQ}/17000000.gpu/min_freq") == "306000000"
    assert jetson.read(f"{EMC}/mrq_rate_locked") == "0"


def test_a_prompt_for_the_present_mode_goes_with_a_confirmed_reboot(make: Make) -> None:
    jetson = make("jp7-0005")
    jetson.fault("reboot_prompt")
    jetson.boot()
    assert run(jetson.box(), "nvpmodel", "-m", "2")[0] != 0
    assert run(jetson.box(), "nvpmodel", "-m", "2", answer="YES\n")[0] == 0
    jetson.boot()
    assert run(jetson.box(), "nvpmodel", "-m", "2") == (0, [])


def test_errors_of_setting_a_mode(make: Make) -> None:
    jetson = make("jp6-0004")
    box = jetson.box()
    assert run(box, "nvpmodel", "-m", "9") == (255, ["NVPM ERROR: request for bad power mode 9"])
    jetson.fault("ebusy")
    mask = "/sys/devices/platform/gpu.0/tpc_pg_mask"
    expected = [f"NVPM ERROR: Error writing 128 to {mask}: 16", "NVPM ERROR: failed to set power mode!"]
    assert run(box, "nvpmodel", "-m", "0") == (255, expected)
    jetson.heal("ebusy")
    jetson.fault("no_devfreq")
    frequencies = "/sys/devices/platform/17000000.gpu/devfreq_dev/available_frequencies"
    assert run(box, "nvpmodel", "-m", "0") == (255, [f"NVPM ERROR: Error opening {frequencies}: 2"])


def test_a_conf_of_another_module_fails_on_cores_that_are_not_there(make: Make) -> None:
    small, large = make("jp6-0004"), make("jp6-0000")
    small.write("/etc/nvpmodel.conf", large.path("/etc/nvpmodel.conf").read_text())
    small.write(small.profile.tpc_mask, "0\n")
    code, lines = run(small.box(), "nvpmodel", "-m", "0")
    assert code == 255
    assert lines == ["NVPM ERROR: Error opening /sys/devices/system/cpu/cpu8/online: 2"]


@pytest.mark.parametrize("profile", PROFILES)
def test_the_conf_is_reached_by_an_absolute_link_and_ends_with_the_default(make: Make, profile: str) -> None:
    jetson = make(profile)
    link = jetson.root / "etc" / "nvpmodel.conf"
    assert str(link.readlink()) == f"/etc/nvpmodel/{jetson.profile.conf}"
    text = jetson.box().root.read("/etc/nvpmodel.conf")
    assert text.splitlines()[-1] == "< PM_CONFIG DEFAULT=2 >"
    names = re.findall(r"^< POWER_MODEL ID=(\d+) NAME=(\w+) >$", text, re.MULTILINE)
    assert [(int(number), name) for number, name in names] == [
        (mode.id, mode.name) for mode in jetson.profile.modes
    ]
    assert {block.name for block in conf.read(text).blocks.values()} == {name for _, name in names}


# -- tegrastats ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["jp5", "jp7"])
def test_tegrastats_has_the_tokens_of_the_captured_line(make: Make, name: str) -> None:
    jetson = make(f"{name}-0005")
    line = first_line(jetson.box().tools, "tegrastats", "--interval", "20")
    pattern = "".join(
        r"[\w ]+?" if part == "..." else re.escape(part)
        for part in re.split(r"(\.\.\.)", shape(captured(f"tegrastats-{name}")[0]))
    )
    assert re.fullmatch(pattern, shape(line)), f"{shape(line)}\n{pattern}"


def shape(line: str) -> str:
    """A line with N for each number, and one entry for all cores."""
    return re.sub(r"-?\d+(\.\d+)?", "N", re.sub(r"CPU \[.*?\]", "CPU [N]", line))
