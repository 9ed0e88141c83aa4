"""Every fault that a box can have: the check beside it in the table must turn, with these words."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from appliance.box.checks import jtop
from appliance.box.checks.finding import Finding, exit_code
from appliance.box.checks.runner import CHECKS, run_checks
from appliance.box.checks.snapshot import REGISTERED
from appliance.box.paths import COUNTERS
from appliance.box.show.findings import table
from appliance.box.tools import Completed, Tools
from tests.box.cases import CASES, FAIL, PASS, SKIP, WARN, WITHOUT_ROOT, Case
from tests.box.technician import unknown
from tests.fakes.jetson.board import Jetson
from tests.harness.boxes import answering, quick, well

pytestmark = pytest.mark.once


def look(jetson: Jetson, case: Case) -> Finding:
    box = quick(jetson, **case.box)
    if case.readyz is None or case.check != "daemon":
        [found] = run_checks(box, only={case.check}, readyz="127.0.0.1:1")
    else:
        with answering(*case.readyz) as address:
            [found] = run_checks(box, only={case.check}, readyz=address)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_fault(case: Case, jetson: Jetson) -> None:
    case.arrange(jetson)
    found = look(jetson, case)
    case.expect(found)
    assert len(found.value) < 1000, "whatever others wrote"
    # Whoever is told that something is wrong is told what to do.
    assert bool(found.remedy) == (found.level in (WARN, FAIL)), found
    assert not unknown(found.remedy), "each command is one that a test types, or that changes nothing"


def test_jetpack_5_is_refused_by_name(tmp_path: Path) -> None:
    findings = {f.check: f for f in run_checks(quick(Jetson(tmp_path / "box", "jp5-0005")))}
    assert findings["platform"].level is FAIL
    assert "JetPack 5" in findings["platform"].value
    assert "flash" in findings["platform"].remedy
    small = Jetson(tmp_path / "small", "jp6-0005")
    small.write("/sys/firmware/devicetree/base/compatible", "nvidia,p3768-0000+p3767-0000\0nvidia,tegra234\0")
    [refused] = run_checks(quick(small), only={"platform"})
    assert refused.level is FAIL and "flash" not in refused.remedy, "it would be the same afterwards"
    assert findings["clocks"].level is SKIP
    assert not any("could not be checked" in f.value for f in findings.values())


@pytest.mark.parametrize("profile", ["jp6-0004", "jp7-0005"])
def test_a_pinned_box_is_all_green(profile: str, tmp_path: Path) -> None:
    jetson = well(tmp_path / "box", profile)
    with answering() as address:
        findings = run_checks(quick(jetson), readyz=address)
    assert [f.check for f in findings] == list(CHECKS)
    # jtop is not there, speed was not measured, and nothing spoke.
    assert {f.check for f in findings if f.level is not PASS} == {"jtop", "speed", "backend"}
    assert exit_code(findings) == 0


def test_without_root_a_pinned_box_is_green_too(jetson: Jetson) -> None:
    before = jetson.snapshot()
    with answering() as address:
        findings = run_checks(quick(jetson, **WITHOUT_ROOT), readyz=address)
    assert exit_code(findings) == 0
    assert jetson.snapshot() == before


@pytest.mark.parametrize(("first_line", "owner", "command"), [
    ("#!{python}\n", 0, ["{python}", "-I"]),
    ('#!/bin/sh\n\'\'\'exec\' "{python}" "$0" "$@"\n', 0, ["{python}", "-I"]),
    ("#!{python}\n", 1000, ["setpriv", "--reuid=1000", "--regid=0", "--init-groups", "{python}", "-I"]),
    ("#!/usr/bin/env python3\n", 0, ["python3", "-I"]),
    ("#!/gone/python3\n", 0, ["python3", "-I"]), (None, 0, ["python3", "-I"]),
])  # fmt: skip
def test_jtop_is_asked_through_the_interpreter_of_its_command(
    first_line: str | None, owner: int, command: list[str], jetson: Jetson
) -> None:
    """jtop has an environment of its own; one that a user could have changed is not run as root."""
    python = "/home/ann/.local/share/jtop/bin/python3"
    jetson.write("/run/jtop.sock", "")
    jetson.write(python, "")
    if os.geteuid() and "{python}" in (first_line or ""):
        pytest.skip("not root: an interpreter of root's, or of another user, cannot be made")
    if owner:
        os.chown(jetson.path(python), owner, 0)
    if first_line is not None:
        jetson.write("/usr/local/bin/jtop", first_line.format(python=python) + "import jtop\n")
    asked: list[str] = []

    class Asked(Tools):
        def execute(self, name: str, *arguments: str, timeout_s: float = 30.0, answer: str = "") -> Completed:
            asked.extend([name, *arguments])
            return Completed((name,), 0, '{"version": "7.2.2", "pinned": true, "mode": "MAXN"}\n')

    report = jtop.query(dataclasses.replace(jetson.box(), tools=Asked()))
    assert (report["version"], report["pinned"]) == ("7.2.2", True)
    assert asked[:-2] == [word.format(python=jetson.path(python)) for word in command]


EVERYTHING: dict[str, dict[str, Any]] = {
    "thermal_throttle": {}, "eagain_zones": {}, "over_current_storm": {"oc1": 90, "oc2": 90, "oc3": 900_000},
    "silent_gpu": {}, "unit_down": {}, "clock_1970": {}, "no_devfreq": {"calls": 99},
    **{name: {"folders": ("/", "/run")} for name in ("read_only_root", "disk_full")},
}  # fmt: skip


@pytest.mark.parametrize(("profile", "user"), [("jp5-0005", 0), ("jp7-0004", 0), ("jp6-0005", 1000)])
def test_everything_at_once_is_still_an_answer(profile: str, user: int, tmp_path: Path) -> None:
    jetson = Jetson(tmp_path / "box", profile)
    jetson.fault("unit_down", unit="nvfancontrol.service")
    for name, details in EVERYTHING.items():
        jetson.fault(name, **details)
    findings = run_checks(quick(jetson, user=lambda: user), readyz="not an address")
    assert [f.check for f in findings] == list(CHECKS)
    assert exit_code(findings) == 2
    assert [f for f in findings if "could not be checked" in f.value] == []
    assert table(findings)


@pytest.mark.parametrize("missing", ["sys", "proc", "etc", "bin", "all"])
def test_a_box_with_nothing_in_it_is_still_an_answer(missing: str, jetson: Jetson, tmp_path: Path) -> None:
    for name in ("sys", "proc", "etc") if missing == "all" else (missing,):
        if name == "bin":
            for tool in jetson.bin.iterdir():
                tool.unlink()
        else:
            jetson.path(f"/{name}").rename(tmp_path / f"{name}-gone")
    findings = run_checks(quick(jetson), readyz="127.0.0.1:1")
    assert [f.check for f in findings] == list(CHECKS)
    assert [f for f in findings if "could not be checked" in f.value] == []


def test_a_check_that_breaks_is_a_finding_and_the_others_run(
    jetson: Jetson, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(look: object) -> Finding:
        raise RuntimeError("nobody thought of this")

    monkeypatch.setitem(REGISTERED, "memory", dataclasses.replace(REGISTERED["memory"], run=breaks))
    findings = {f.check: f for f in run_checks(quick(jetson), only={"memory", "disk"})}
    assert findings["memory"].level is FAIL
    assert "a fault in this program" in findings["memory"].value
    assert findings["memory"].figures["error"] == "RuntimeError: nobody thought of this"
    assert findings["disk"].level is PASS


def test_what_is_no_jetson_is_not_looked_at(jetson: Jetson) -> None:
    jetson.path("/proc/device-tree").rename(jetson.path("/proc/elsewhere"))
    with answering() as address:
        findings = run_checks(quick(jetson), readyz=address)
    assert not jetson.path(COUNTERS).exists()
    of_the_box = [f for f in findings if not REGISTERED[f.check].anywhere]
    assert 15 < len(of_the_box) < len(findings)
    assert {(f.level, f.value) for f in of_the_box} == {(SKIP, "not a Jetson")}
    assert exit_code(findings) == 0
