"""`jetson_clocks --show` in three formats: lines captured from devices, unchanged."""

from __future__ import annotations

import pytest

from appliance.box.clocks.readings import Range
from appliance.box.show.opinion import Show, parse

JP5 = """\
SOC family:tegra234  Machine:Jetson AGX Orin
Online CPUs: 0-11
cpu0: Online=1 Governor=schedutil MinFreq=729600 MaxFreq=2201600 CurrentFreq=2201600 IdleStates: WFI=1 c7=1 
GPU MinFreq=306000000 MaxFreq=1300500000 CurrentFreq=306000000
EMC MinFreq=204000000 MaxFreq=3199000000 CurrentFreq=2133000000 FreqOverride=0
DLA0_CORE:   Online=1 MinFreq=0 MaxFreq=1600000000 CurrentFreq=1600000000
FAN Dynamic Speed control=active hwmon2_pwm1=55
NV Power Mode: MAXN
"""
JP6 = """\
Online CPUs: 0-7
cpu0:  Online=1 Governor=schedutil MinFreq=1728000 MaxFreq=1728000 CurrentFreq=1728000 IdleStates: WFI=0 c7=0 
cpu10: Online=0 Governor=schedutil MinFreq=729600 MaxFreq=2201600 CurrentFreq=729600 IdleStates: WFI=0 c7=0 
GPU MinFreq=612000000 MaxFreq=612000000 CurrentFreq=612000000
Active GPU TPCs: 4
EMC MinFreq=204000000 MaxFreq=3199000000 CurrentFreq=3199000000 FreqOverride=1
FAN Dynamic Speed Control=nvfancontrol hwmon0_pwm1=48
NV Power Mode: MODE_30W
"""
JP7 = """\
Online CPUs: 0-11, Offline CPUs: 
cpu0:  Governor=schedutil MinFreq=2201600 MaxFreq=2201600 CurrentFreq=2201600 IdleStates: WFI=0 c7=0 
GPU MinFreq=1300500000 MaxFreq=1300500000 CurrentFreq=1300500000
Active GPU TPCs: 8
EMC MinFreq=3199000000 MaxFreq=3199000000 CurrentFreq=3199000000
FAN Dynamic Speed Control=nvfancontrol hwmon2_pwm1=66
FAN Dynamic Speed Control=nvfancontrol hwmon2_pwm1_enable=1
NV Power Mode: MAXN
"""


def test_jetpack_5() -> None:
    show = parse(JP5)
    assert show.mode == "MAXN" and show.cores[0].online
    assert show.cores[0].range == Range(729_600_000, 2_201_600_000, 2_201_600_000)
    assert show.gpu == Range(306_000_000, 1_300_500_000, 306_000_000)
    assert show.emc is not None and show.emc.override is False and not show.emc.pinned


def test_jetpack_6() -> None:
    show = parse(JP6)
    assert show.mode == "MODE_30W" and show.cores[0].online and show.cores[0].range.fixed
    assert not show.cores[10].online and not show.cores[10].range.fixed
    assert show.emc is not None and show.emc.override is True and show.emc.pinned


def test_jetpack_7() -> None:
    show = parse(JP7)
    assert show.mode == "MAXN" and show.cores[0].online and show.cores[0].range.fixed
    assert show.gpu is not None and show.gpu.fixed
    assert show.emc is not None and show.emc.override is None and show.emc.pinned


def test_memory_that_is_at_its_top_by_chance_is_not_pinned() -> None:
    idle = parse(JP6.replace("FreqOverride=1", "FreqOverride=0"))
    assert idle.emc is not None and idle.emc.range.current == idle.emc.range.max and not idle.emc.pinned
    not_raised = parse(JP7.replace("EMC MinFreq=3199000000", "EMC MinFreq=204000000"))
    assert not_raised.emc is not None and not not_raised.emc.pinned


def test_cores_off_in_jetpack_7_are_told_by_the_list() -> None:
    show = parse(JP7.replace("0-11, Offline CPUs: ", "1-3,8, Offline CPUs: 0,4-7"))
    assert not show.cores[0].online
    assert parse(JP7.replace("0-11, Offline CPUs: ", "0-3,8, Offline CPUs: 4-7")).cores[0].online


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Error: Run this script(/usr/bin/jetson_clocks) as a root user",
        "SOC family:tegra234  Machine:Jetson AGX Orin\nError! GPU frequency scaling not supported!",
        "EMC MinFreq=\nGPU MinFreq=x\ncpu0:\nOnline CPUs: none\nFAN Dynamic Speed Control=\n",
    ],
)
def test_what_is_no_show_is_empty(text: str) -> None:
    show = parse(text)
    assert show.mode == ""
    assert show.gpu is None or show.gpu == Range()
    assert parse("") == Show()
