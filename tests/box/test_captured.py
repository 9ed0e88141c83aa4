"""The fake tools print what real ones were captured printing, token by token."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.box.tools import Tools
from tests.box.boxes import quick
from tests.fakes.jetson import Jetson

pytestmark = pytest.mark.once

CAPTURED = Path(__file__).resolve().parents[1] / "fakes" / "captured"
Make = Callable[[str], Jetson]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return lambda profile: Jetson(tmp_path / profile, profile)


def captured(name: str) -> list[str]:
    return (CAPTURED / f"{name}.txt").read_text().splitlines()


def run(jetson: Jetson, *command: str, answer: str = "") -> tuple[int, list[str]]:
    """Exit status and the lines of both streams."""
    ran = quick(jetson).tools.execute(*command, answer=answer)
    return ran.code, [line for line in ran.text.split("\n") if line]


def same_sensor(line: str) -> str:
    """A line without what differs from boot to boot and with the warmth of the room."""
    return re.sub(r"hwmon\d+_pwm1(_enable)?=\d+", r"hwmonN_pwm1\1=", line)


@pytest.mark.parametrize(("jetpack", "mode", "pinned"), [
    ("jp6", "MODE_30W", True), ("jp7", "MAXN", True), ("jp5", "MAXN", False),
])  # fmt: skip
def test_show_is_the_captured_one(make: Make, jetpack: str, mode: str, pinned: bool) -> None:
    jetson = make(f"{jetpack}-0005")
    jetson.set_mode(mode)
    if pinned:
        jetson.pin()
    else:
        jetson.write("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "2201600\n")
    lines = [same_sensor(line) for line in run(jetson, "jetson_clocks", "--show")[1]]
    assert {same_sensor(line) for line in captured(f"show-{jetpack}")} <= {*lines}
    cores = [line.split(":")[0] for line in lines if re.match(r"cpu\d", line)]
    assert cores[2:5] == (["cpu10", "cpu11", "cpu2"] if jetpack == "jp5" else ["cpu2", "cpu3", "cpu4"])


def test_query_is_the_captured_one(make: Make) -> None:
    jetson = make("jp6-0005")
    jetson.set_mode("MAXN")
    assert run(jetson, "nvpmodel", "-q") == (0, captured("nvpmodel-q"))


def test_verbose_query_has_the_captured_lines_with_this_box_s_values(make: Make) -> None:
    code, lines = run(make("jp6-0005"), "nvpmodel", "-q", "--verbose")
    assert code == 0

    def shapes(printed: list[str]) -> list[str]:
        return [re.sub(r"(_VAL:|Mode:) \w+|^\d+$", r"\1", line) for line in printed]

    assert [shape for shape in shapes(captured("nvpmodel-q-verbose")) if shape not in shapes(lines)] == []
    assert any("GPU_POWER_CONTROL_ENABLE" in line and "REAL_VAL: auto CONF_VAL: on" in line for line in lines)


@pytest.mark.parametrize("profile", ["jp6-0004", "jp7-0005"])
def test_the_first_maxn_wants_a_reboot(make: Make, profile: str) -> None:
    jetson = make(profile)
    before = jetson.snapshot()
    code, lines = run(jetson, "nvpmodel", "-m", "0")
    assert code != 0
    assert [line.strip() for line in lines] == [*captured("nvpmodel-prompt"), "NVPM ERROR: bad input!"]
    code, lines = run(jetson, "nvpmodel", "-m", "0", answer="no\n")
    assert code != 0
    assert lines[-1] == "NVPM ERROR: optMask is 1, no request for power mode"
    assert jetson.snapshot() == before
    assert jetson.reboots == 0
    assert run(jetson, "nvpmodel", "-m", "0", answer="YES\n")[0] == 0
    assert jetson.reboots == 1
    jetson.boot()
    assert jetson.mode == "MAXN"
    masked = {8: 0, 7: 128}[7 if jetson.profile.module == "p3701-0004" else 8]
    assert jetson.read(jetson.profile.tpc_mask) == str(masked)


@pytest.mark.parametrize("name", ["jp5", "jp7"])
def test_tegrastats_has_the_tokens_of_the_captured_line(make: Make, name: str) -> None:
    jetson = make(f"{name}-0005")
    line = first_line(jetson.box().tools, "tegrastats", "--interval", "20")
    pattern = "".join(
        r"[\w ]+?" if part == "..." else re.escape(part)
        for part in re.split(r"(\.\.\.)", shape(captured(f"tegrastats-{name}")[0]))
    )
    assert re.fullmatch(pattern, shape(line)), f"{shape(line)}\n{pattern}"


def first_line(tools: Tools, *command: str) -> str:
    """First line of a program that never ends by itself; a busy machine gets more time."""
    for patience_s in (0.8, 5.0, 25.0):
        if lines := tools.execute(*command, timeout_s=patience_s).output.splitlines():
            return lines[0]
    raise AssertionError(f"{command[0]} printed nothing")


def shape(line: str) -> str:
    """A line with N for each number, and one entry for all cores."""
    return re.sub(r"-?\d+(\.\d+)?", "N", re.sub(r"CPU \[.*?\]", "CPU [N]", line))
