"""`scripts/health` as a technician and a timer run it."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from appliance.box import health as health_run
from appliance.box import paths
from appliance.box.checks.runner import BY_HARM, CHECKS
from tests.fakes.jetson.board import Jetson
from tests.harness.boxes import answering, process, quick, run_script
from tests.harness.daemons import BUNDLE, ROOT, Shared, finished, free_port, write_config
from tests.systemd.page import PAGE

pytestmark = [pytest.mark.slow, pytest.mark.once]

SCRIPT = ROOT / "scripts" / "health"
KEYS = {"check", "level", "value", "threshold", "remedy", "figures", "reason"}
Printed = pytest.CaptureFixture[str]


def health(
    jetson: Jetson, *options: str, python: str = "/nowhere/python"
) -> subprocess.CompletedProcess[str]:
    return process(jetson, "health", "--python", python, *options)


def findings(ran: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    document = json.loads(ran.stdout)
    assert document["exit"] == ran.returncode
    return {finding["check"]: finding for finding in document["findings"]}


def test_a_factory_box_in_a_table(tmp_path: Path) -> None:
    ran = health(Jetson(tmp_path / "box", "jp7-0005"))
    assert ran.returncode == 2
    assert ran.stderr == ""
    lines = ran.stdout.splitlines()
    assert any(line.startswith("WARN  power_mode") and "MODE_30W" in line for line in lines)
    assert "      → run: sudo f5-clock-lock lock" in lines
    assert "\x1b" not in ran.stdout


def test_json_has_its_schema_and_every_check_once(tmp_path: Path) -> None:
    ran = health(Jetson(tmp_path / "box", "jp6-0004"), "--json", "--speak")
    document = json.loads(ran.stdout)
    assert (document["schema"], document["level"], document["exit"]) == (1, "FAIL", 2)
    assert [set(finding) for finding in document["findings"]] == [KEYS] * len(document["findings"])
    assert [finding["check"] for finding in document["findings"]] == [*CHECKS, "application"]


def test_an_application_that_cannot_run_is_a_finding(tmp_path: Path) -> None:
    jetson = Jetson(tmp_path / "box", "jp6-0005")
    found = findings(health(jetson, "--json", "--only", "bundle"))
    assert found["application"]["level"] == "FAIL"
    assert "/nowhere/python does not exist" in found["application"]["value"]
    assert "sudo f5-upgrade --back" in found["application"]["remedy"]
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'ModuleNotFoundError: No module named grpc' >&2\nexit 1\n")
    broken.chmod(0o755)
    found = findings(health(jetson, "--json", "--only", "bundle", python=str(broken)))
    assert "No module named grpc" in found["application"]["value"]


def test_some_checks(jetson: Jetson) -> None:
    ran = health(jetson, "--json", "--only", "clocks, temperature")
    assert list(findings(ran)) == ["clocks", "temperature"]
    assert ran.returncode == 0
    wrong = health(jetson, "--only", "clocks,weather")
    assert wrong.returncode == 2
    assert "no check is called weather; there are daemon" in wrong.stderr


def test_health_lists_only_faults_and_the_worst_first(jetson: Jetson) -> None:
    jetson.fault("clock_1970")
    jetson.fault("thermal_throttle", degrees=86.0, cap_khz=0)
    jetson.path(paths.GPU_NODE).unlink()
    names = "time,clocks,temperature,gpu_node,fan,bundle"
    found = findings(ran := health(jetson, "--json", "--wrong", "--only", names))
    assert list(found) == ["application", "gpu_node", "temperature", "time"] and ran.returncode == 2
    lines = health(jetson, "--wrong", "--only", names).stdout.splitlines()
    assert [line.split()[1] for line in lines if line[:4] in ("FAIL", "WARN")] == list(found)
    well_done = health(jetson, "--wrong", "--only", "clocks,fan")
    assert (well_done.returncode, well_done.stdout.count("\n")) == (0, 1)
    assert "no faults: 2 checks" in well_done.stdout


def test_the_page_is_in_the_order_of_what_hurts() -> None:
    rows = re.findall(
        r"^\| (?:WARN or FAIL|FAIL or WARN|WARN|FAIL) ([a-z0-9_]+(?:, [a-z0-9_]+)*)[ ,]", PAGE, re.MULTILINE
    )
    named = [name for row in rows for name in row.split(", ")]
    assert len(named) > 20 and named == sorted(named, key=BY_HARM.index) and BY_HARM[7] == "engines"


def test_the_page_quotes_what_the_programs_print() -> None:
    seen = re.findall(r"^\| (.*?) \|", PAGE.partition("## Symptoms")[2].partition("\n## ")[0], re.MULTILINE)
    quoted = {*re.findall(r'"([^"]+)"', " ".join(seen)), *re.findall(r"prints `([^`]+)`", PAGE)}
    product = "".join(path.read_text("utf-8") for path in (SCRIPT, *(ROOT / "appliance").rglob("*.py")))
    of_others = {"status=65", "Configuration file"}
    assert len(quoted) > 15 and {words for words in quoted if words not in product} == of_others


def test_root_publishes_for_all_to_read(jetson: Jetson, capsys: Printed) -> None:
    run_script("health", quick(jetson), "--publish", "--json", "--only", "disk,lfb")
    document = json.loads(jetson.read(paths.HEALTH))
    assert document["findings"] == json.loads(capsys.readouterr().out)["findings"]
    assert document["boot_id"] == jetson.box().boot_id
    assert jetson.path(paths.HEALTH).stat().st_mode & 0o777 == 0o644


def test_the_journal_gets_a_line_when_a_check_comes_out_otherwise(jetson: Jetson, capsys: Printed) -> None:
    """f5-health.service writes only stderr to the journal."""

    def told() -> str:
        run_script("health", quick(jetson), "--publish", "--json", "--only", "temperature,lfb")
        return capsys.readouterr().err

    assert told() == ""
    jetson.fault("thermal_throttle", degrees=86.0, cap_khz=0)
    assert told().startswith("f5-health: WARN temperature, was PASS: ")
    assert told() == ""
    jetson.heal("thermal_throttle")
    assert told().startswith("f5-health: PASS temperature, was WARN: ")


@pytest.mark.parametrize("option", ["--publish", "--set-baseline"])
def test_others_cannot_publish(option: str, jetson: Jetson, capsys: Printed) -> None:
    assert run_script("health", quick(jetson, user=lambda: 1000), "--only", "disk", option) == 2
    assert "run it with sudo" in capsys.readouterr().err
    assert not jetson.path(paths.HEALTH).exists()


def test_a_full_run_folder_is_reported(jetson: Jetson, capsys: Printed) -> None:
    jetson.fault("disk_full", folders=("/run",))
    assert run_script("health", quick(jetson), "--only", "lfb", "--publish") == 2
    assert capsys.readouterr().err == "f5-health: /run/f5-appliance/health.json: No space left on device\n"


def test_the_unforeseen_is_broken_and_no_warning(monkeypatch: pytest.MonkeyPatch, capsys: Printed) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise RuntimeError("of two\nlines")

    monkeypatch.setattr(health_run, "run_health", fail)
    monkeypatch.setattr(sys, "argv", ["health"])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("signal.signal", lambda *arguments: None)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert re.fullmatch(
        r"f5-health: defect at test_script.py:\d+; send a bundle: sudo f5-support-bundle\n", told
    )


def test_the_script_runs_on_the_systems_python(jetson: Jetson, tmp_path: Path) -> None:
    """The script runs from the checkout: executable, isolated, with the standard library alone."""
    python = Path("/usr/bin/python3")
    if not python.exists():
        pytest.skip("no /usr/bin/python3")
    if finished(python, "-c", "import sys; print(sys.version_info >= (3, 10))").stdout != "True\n":
        pytest.skip("/usr/bin/python3 is older than 3.10")
    ran = finished(SCRIPT, "--json", "--only", "clocks,disk", cwd=tmp_path, **jetson.environment)
    assert ran.stderr == ""
    assert findings(ran)["clocks"]["level"] == "PASS"


def test_a_box_that_is_well_speaks_and_is_guarded(shared_box: Shared, jetson: Jetson) -> None:
    """Everything together, with a real daemon, but no GPU; then a baseline, then the guard's judgement."""
    metrics = shared_box.config["server"]["metrics"]
    config = ["--config", str(shared_box.folder / "config.yaml"), "--readyz", metrics]
    options = [*config, "--json", "--speak"]
    found = findings(health(jetson, *options, python=sys.executable))
    others = {name for name, finding in found.items() if finding["level"] != "PASS"}
    of_root = {"backend"} if os.geteuid() else set()  # root's run records the backend
    assert others == {"speed", "engines", "synthesis", "daemon"} | of_root
    for name in ("daemon", "synthesis"):  # the daemon check needs no speech
        assert " on ort-cpu, which is the CPU; tensorrt passed over: " in found[name]["value"]
    assert found["synthesis"]["figures"]["audio_s"] > 0.2
    assert found["bundle"]["figures"]["family"] in BUNDLE.joinpath("manifest.yaml").read_text()

    if os.geteuid():
        return  # only root sets a baseline
    set_ran = health(jetson, *config, "--json", "--set-baseline", python=sys.executable)
    [made] = findings(set_ran).values()
    assert (set_ran.returncode, made["level"]) == (0, "PASS"), made
    assert "baseline of" in made["value"] and "/R36.4.3/MAXN" in made["value"]

    jetson.unpin()
    [loose] = findings(health(jetson, *config, "--json", "--guard", python=sys.executable)).values()
    # A busy machine is either not slower, which proves nothing, or slower with a cause.
    assert "clocks" in loose["value"] and loose["level"] != "PASS"
    refused = health(jetson, *config, "--json", "--guard", "--set-baseline", python=sys.executable)
    [no_baseline] = findings(refused).values()
    assert (refused.returncode, "no baseline set" in no_baseline["value"]) == (2, True)
    # Later runs report the last measurement.
    last = findings(health(jetson, "--json", "--only", "speed"))["speed"]
    assert last["value"].startswith(no_baseline["value"])


def test_a_daemon_without_metrics_is_healthy(shared_box: Shared, jetson: Jetson, tmp_path: Path) -> None:
    """A daemon without metrics has no /readyz. An answer of /readyz that contradicts gRPC's wins."""
    nobody = f"127.0.0.1:{free_port()}"
    server = {**shared_box.config["server"], "metrics": ""}
    config = write_config(tmp_path, server=server)
    options = ["--config", str(config), "--readyz", nobody, "--json", "--only", "daemon"]
    ran = health(jetson, *options, python=sys.executable)
    assert (findings(ran)["daemon"]["level"], ran.returncode) == ("PASS", 0)
    with answering(503, 503) as address:
        ran = health(jetson, *options, "--readyz", address, python=sys.executable)
    found = findings(ran)["daemon"]
    assert (found["level"], "engine hangs" in found["value"]) == ("FAIL", True)
    write_config(tmp_path, server={"metrics": ""})  # no daemon runs at this address
    ran = health(jetson, *options, python=sys.executable)
    assert (findings(ran)["daemon"]["level"], ran.returncode) == ("FAIL", 2)
