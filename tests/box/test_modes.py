"""nvpmodel.conf, the status file, and the output of nvpmodel."""

from pathlib import Path

import pytest
import yaml

from appliance.box import paths
from appliance.box.clocks import modes, readings
from appliance.box.tools import Completed
from tests.fakes.jetson.board import Jetson
from tests.fakes.jetson.machine import captured
from tests.harness.boxes import quick
from tests.harness.rows import rows

CAPTURED_QUERY = "NV Power Mode: MAXN\n0\n"
CAPTURED_VERBOSE = """\
NVPM VERB: Config file: /etc/nvpmodel.conf
NVPM VERB: parsing done for /etc/nvpmodel.conf
NVPM VERB: Current mode: NV Power Mode: 25W
1
NVPM VERB: PARAM CPU_ONLINE: ARG CORE_0: PATH /sys/devices/system/cpu/cpu0/online: REAL_VAL: 1 CONF_VAL: 1
NVPM VERB: PARAM TPC_POWER_GATING: ARG TPC_PG_MASK: PATH /sys/devices/platform/gpu.0/tpc_pg_mask: REAL_VAL: 240 CONF_VAL: 240
"""  # noqa: E501
EACCES = "NVPM ERROR: Error opening /sys/kernel/nvpmodel_emc_cap/emc_iso_cap : 13"
EACCES_TOO = "NVPM ERROR: Error opening /sys/devices/platform/gpu.0/tpc_pg_mask: 13"
EBUSY = "NVPM ERROR: Error writing 128 to /sys/devices/platform/gpu.0/tpc_pg_mask: 16"

SUPER = Path(__file__).with_name("super.conf").read_text("utf-8")


@pytest.mark.parametrize(("text", "name", "number"), [
    (CAPTURED_QUERY, "MAXN", 0), (CAPTURED_VERBOSE, "25W", 1),
    (f"NV Fan Mode:quiet\nNV Power Mode: MODE_30W\n2\n{EACCES}\n", "MODE_30W", 2),
    (f"{EACCES}\nNV Power Mode: MAXN\n0", "MAXN", 0), (EACCES, "", None), ("", "", None),
])  # fmt: skip
def test_query(text: str, name: str, number: int | None) -> None:
    assert modes.parse_query(text) == modes.CurrentMode(name, number)


@pytest.mark.parametrize(("text", "number"), [
    ("pmode:0000", 0), ("pmode:0002\n", 2), ("pmode:0003 fmode:quiet", 3), ("fmode:quiet", None), ("", None),
])  # fmt: skip
def test_status_file(text: str, number: int | None) -> None:
    silent = Completed(("nvpmodel",), 0, "", "")
    assert modes.current_mode(silent, text, modes.parse_conf(SUPER)).id == number


def test_a_note_on_missing_root_is_no_complaint() -> None:
    assert modes.nvpmodel_errors(Completed(("nvpmodel",), 0, CAPTURED_QUERY, f"{EACCES}\n{EACCES_TOO}")) == ""
    assert modes.nvpmodel_errors(Completed(("nvpmodel",), 0, EBUSY, EACCES)) == EBUSY


def test_the_best_mode_is_chosen_by_name() -> None:
    conf = modes.parse_conf(SUPER)
    best = modes.target_mode("", conf, "").mode
    assert best is not None
    assert (best.id, best.name, best.cores) == (2, "MAXN_SUPER", (0, 4))
    lesser = modes.target_mode("", modes.parse_conf("< POWER_MODEL ID=0 NAME=15W >"), "")
    assert lesser.mode is None and "no power mode MAXN_SUPER or MAXN; it has 15W" in lesser.problem


@pytest.mark.parametrize("text", rows(__file__, "power_mode_read.jsonl"))
def test_root_reads_the_sites_mode_as_yaml_does(text: str) -> None:
    said = (yaml.safe_load(text) or {}).get("device") or {}
    assert modes.power_mode(text) == (said.get("power_mode") or "")


@pytest.mark.parametrize("text", rows(__file__, "power_mode_refused.jsonl"))
def test_a_setting_in_another_form_than_its_line_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^power_mode .*(on a line of its own|more than once)"):
        modes.power_mode(text)


def test_the_shipped_configuration_is_read(root: Path) -> None:
    shipped = (root / "configs" / "appliance.yaml").read_text()
    assert modes.power_mode(shipped) == ""
    assert modes.power_mode(shipped.replace("power_mode: null", "power_mode: MODE_50W")) == "MODE_50W"


def test_caps_and_masks() -> None:
    conf = modes.parse_conf(SUPER)
    weak = conf.by_name("15W")
    assert weak is not None and weak.cores == (0,) and weak.tpc_mask == 0xF8
    assert weak.limit("CPU_A78_0") == 1_113_600
    assert [weak.limit(name) for name in ("GPU", "EMC", "CPU_A78_1")] == [None, None, None]
    assert [conf.cpu_parameter(core) for core in (0, 3, 4, 7)] == ["CPU_A78_0"] * 2 + ["CPU_A78_1"] * 2
    assert conf.default == 1


@pytest.mark.parametrize(("text", "message"), [
    ("", "POWER_MODEL"), ("# nothing\n", "POWER_MODEL"), ("< POWER_MODEL NAME=MAXN >\n", "ID"),
    ("< PARAM TYPE=FILE NAME=CPU_ONLINE >\nCORE_0 /x\n", "POWER_MODEL"),
])  # fmt: skip
def test_a_file_without_modes_or_their_ids_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        modes.parse_conf(text)


@pytest.mark.parametrize("profile", ["jp5-0005", "jp7-0004"])
def test_a_profile_is_read_as_it_was_written(tmp_path: Path, profile: str) -> None:
    jetson = Jetson(tmp_path, profile)
    conf = modes.parse_conf(jetson.read(paths.NVPMODEL_CONF))
    best = modes.target_mode("", conf, "MODE_30W").mode
    assert best is not None and best.name == "MAXN"
    for written in jetson.profile.modes:
        mode = conf.by_name(written.name)
        assert mode is not None and mode.id == written.id
        assert mode.cores == tuple(range(written.cpus))
        assert mode.tpc_mask == written.tpc_mask
        assert mode.limit("GPU") == (written.gpu_hz if written.gpu_hz > 0 else None)
    assert readings.read(quick(jetson)).modes.current == modes.CurrentMode("MODE_30W", 2)
    as_anybody = readings.read(quick(jetson, user=lambda: 1000)).modes.current
    assert (as_anybody.name, as_anybody.problem) == ("MODE_30W", "")


def test_the_status_file_replaces_a_missing_answer_of_nvpmodel(tmp_path: Path) -> None:
    jetson = Jetson(tmp_path, "jp7-0004")
    (jetson.bin / "nvpmodel").write_text("#!/bin/sh\necho 'NVPM ERROR: bad config'; exit 255\n")
    jetson.write(paths.NVPMODEL_STATUS, "pmode:0003")
    error = "NVPM ERROR: bad config"
    assert readings.read(jetson.box()).modes.current == modes.CurrentMode("MODE_40W", 3, error)
    jetson.path(paths.NVPMODEL_STATUS).unlink()
    assert readings.read(jetson.box()).modes.current == modes.CurrentMode("", None, error)
    (jetson.bin / "nvpmodel").unlink()
    assert readings.read(jetson.box()).modes.current.name == "MODE_30W", "not installed: the default"


def ran(jetson: Jetson, *arguments: str, answer: str = "") -> tuple[int, list[str]]:
    """Exit status and the lines of both streams."""
    found = quick(jetson).tools.execute("nvpmodel", *arguments, answer=answer)
    return found.code, [line.strip() for line in found.text.split("\n") if line]


@pytest.mark.once
def test_query_is_the_captured_one(tmp_path: Path) -> None:
    jetson = Jetson(tmp_path, "jp6-0005")
    jetson.set_mode("MAXN")
    assert ran(jetson, "-q") == (0, captured("nvpmodel-q"))


@pytest.mark.once
@pytest.mark.parametrize("profile", ["jp6-0004", "jp7-0005"])
def test_the_first_maxn_wants_a_reboot(tmp_path: Path, profile: str) -> None:
    jetson = Jetson(tmp_path, profile)
    before = jetson.snapshot()
    prompt = [line.strip() for line in captured("nvpmodel-prompt")]
    assert ran(jetson, "-m", "0") == (255, [*prompt, "NVPM ERROR: bad input!"])
    refused = "NVPM ERROR: optMask is 1, no request for power mode"
    assert ran(jetson, "-m", "0", answer="no\n") == (255, [*prompt, refused])
    assert (jetson.snapshot(), jetson.reboots) == (before, 0)
    assert ran(jetson, "-m", "0", answer="YES\n")[0] == 0
    assert jetson.reboots == 1
    jetson.boot()
    assert jetson.mode == "MAXN"
    assert jetson.read(jetson.profile.tpc_mask) == ("128" if profile == "jp6-0004" else "0")
