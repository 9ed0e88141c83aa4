"""Every fault that a box can have: the check named in the table reports it in the words of the table."""

import dataclasses
from pathlib import Path

import pytest

from appliance.box.checks.finding import Finding, exit_code
from appliance.box.checks.runner import CHECKS, run_checks
from appliance.box.checks.snapshot import REGISTERED
from appliance.box.paths import COUNTERS
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
    # A finding that reports a fault has a remedy.
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
    # No run has measured the speed or spoken.
    assert {f.check for f in findings if f.level is not PASS} == {"speed", "backend"}
    assert exit_code(findings) == 0


def test_a_pinned_box_is_green_without_root_too(jetson: Jetson) -> None:
    before = jetson.snapshot()
    with answering() as address:
        findings = run_checks(quick(jetson, **WITHOUT_ROOT), readyz=address)
    assert exit_code(findings) == 0
    assert jetson.snapshot() == before


@pytest.mark.parametrize("missing", ["sys", "proc", "etc", "bin", "all"])
def test_a_box_with_nothing_in_it_is_still_an_answer(missing: str, jetson: Jetson, tmp_path: Path) -> None:
    for name in ("sys", "proc", "etc") if missing == "all" else (missing,):
        if name == "bin":
            for tool in jetson.bin.iterdir():
                tool.unlink()
        else:
            jetson.path(f"/{name}").rename(tmp_path / f"{name}-gone")
    findings = run_checks(quick(jetson), readyz="127.0.0.1:1")
    assert [f.check for f in findings] == list(CHECKS) and exit_code(findings) == 2
    assert [f for f in findings if "could not be checked" in f.value] == []


def test_a_broken_check_is_a_finding_and_others_run(jetson: Jetson, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(look: object) -> Finding:
        raise RuntimeError("nobody thought of this")

    monkeypatch.setitem(REGISTERED, "memory", dataclasses.replace(REGISTERED["memory"], run=breaks))
    findings = {f.check: f for f in run_checks(quick(jetson), only={"memory", "disk"})}
    assert findings["memory"].level is FAIL
    assert "defect in this program" in findings["memory"].value
    assert findings["memory"].figures["error"] == "RuntimeError: nobody thought of this"
    assert findings["disk"].level is PASS


def test_a_machine_that_is_no_jetson_is_not_examined(jetson: Jetson) -> None:
    jetson.path("/proc/device-tree").rename(jetson.path("/proc/elsewhere"))
    with answering() as address:
        findings = run_checks(quick(jetson), readyz=address)
    assert not jetson.path(COUNTERS).exists()
    of_the_box = [f for f in findings if not REGISTERED[f.check].anywhere]
    assert 15 < len(of_the_box) < len(findings)
    assert {(f.level, f.value) for f in of_the_box} == {(SKIP, "not a Jetson")}
    assert exit_code(findings) == 0
