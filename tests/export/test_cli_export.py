"""`python -m export` as a person uses it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.contract import bundle as contract
from appliance.contract.schedule import time_grid
from appliance.engine.replay import replay
from appliance.errors import EngineFault
from export import assemble, progress, workload
from export.cli import main
from export.proof import parity
from tests import lookups
from tests.export import small
from tests.export.small import BuiltBundle, Workshop
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def made(workshop: Workshop) -> BuiltBundle:
    return workshop.make("v1")


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out = capsys.readouterr()
    return code, out.out, out.err


def test_bundle_prints_its_parity_its_licences_and_its_size(
    made: BuiltBundle,
    workshop: Workshop,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    brief_gate: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out, plans = tmp_path / "out", []
    monkeypatch.setattr(workload, "READINGS", parity.READINGS)

    def plan(*arguments: Any, **options: Any) -> progress.Plan:
        plans.append(compute(*arguments, **options))
        return plans[-1]

    compute = workload.plan
    monkeypatch.setattr(workload, "plan", plan)
    with workshop.reusing_traces():
        code, printed, shown = told(capsys, *small.bundle_command(made.files, out))
    assert code == 0
    lines = printed.splitlines()
    assert lines[0].startswith("what ")
    assert sum(line.startswith("sample ") for line in lines) == 4
    assert any(line.startswith("sampling: ") for line in lines)
    assert "licence: Apache-2.0 (weights), unknown (vocoder)" in lines
    assert lines[-1].startswith(f"{out}: ") and " MB, written in " in lines[-1]
    log = re.findall(r"^\d:\d\d:\d\d (.+), (?:about|under) \d+ (?:s|min) left$", shown, re.MULTILINE)
    assert {"evidence", "graphs tracing step_keys_traced", "gate of default", "samples of ort-cpu"} <= {*log}
    gate = [stage for stage in plans[0].stages if stage.kind == "engine"]
    assert [line for line in log if re.match("gate|samples", line)] == [stage.name for stage in gate]
    assert all(0.5 < stage.done / stage.work < 2.0 for stage in gate), gate
    assert contract.read(out).manifest.files == made.bundle.manifest.files


def test_it_runs_as_a_module_without_the_tests_helpers_and_asks_nobody(
    workshop: Workshop, tmp_path: Path
) -> None:
    """The bundle says that it was not measured against upstream's package if that cannot be imported.

    INT8 has the fewest graphs. Where no network of its own can be made, its silence is not watched.
    """
    made = workshop.make("v1", precision="int8")
    (tmp_path / "f5_tts.py").write_text("raise ImportError('kept out of this test')\n")
    out, seen = tmp_path / "out", tmp_path / "seen"
    command = ["-m", "export", *small.bundle_command(made.files, out, "int8")]
    environment = {**lookups.environment(tmp_path), "OMP_NUM_THREADS": "1"}
    if lookups.possible():
        done = lookups.start(seen, command, environment)
        assert done.wait(PATIENCE_S) == 0, seen.with_suffix(".log").read_text()
        assert seen.read_text() == ""
    else:
        subprocess.run([sys.executable, *command], env=environment, check=True)
    alone = contract.read(out)
    assert "not installed here" in alone.manifest.parity["upstream"]
    assert {row["against"] for row in alone.manifest.parity["rows"]} == {"float64", "torch", "exact"}
    given = small.case(71).segment(time_grid(5))
    engines = made.engine(), small.BuiltBundle(made.arch, made.files, alone).engine()
    (one, _), (two, _) = (replay(engine, given) for engine in engines)
    assert np.array_equal(one, two)
    assert alone.manifest.files == made.bundle.manifest.files  # another process, the same bytes


def test_parity_measures_a_bundle_again(
    made: BuiltBundle, capsys: pytest.CaptureFixture[str], brief_gate: None
) -> None:
    code, printed, _ = told(capsys, "parity", str(made.bundle.folder), *made.files.arguments())
    assert code == 0
    assert sum(line.startswith("step ") for line in printed.splitlines()) == 8


def test_parity_against_other_weights_fails(
    made: BuiltBundle, tmp_path: Path, capsys: pytest.CaptureFixture[str], brief_gate: None
) -> None:
    other = small.write_files(tmp_path, small.V1, seed=12)
    code, printed, error = told(capsys, "parity", str(made.bundle.folder), *other.arguments())
    assert code == 1
    assert "step at 77 frames, NFE 1, variant ort-cpu, against float64: " in error
    assert printed.startswith("what ")


def test_parity_without_sources_shows_the_record_and_asks_for_them(
    made: BuiltBundle, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed, error = told(capsys, "parity", str(made.bundle.folder))
    assert code == 1
    assert printed.startswith("measured when it was written:\nwhat ")
    assert "name its sources: --family, --checkpoint, --vocab" in error


def without(arguments: list[str], option: str, value: str) -> list[str]:
    at = arguments.index(option)
    return [*arguments[:at], option, value, *arguments[at + 2 :]]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--family", "F5TTS_v9", "F5TTS_v9: no such family; a training's own is the path of its YAML file"),
        ("--family", "F5TTS_v1_Base", "is not of the given architecture|was trained with"),
        ("--checkpoint", "nothing.safetensors", "nothing.safetensors: no such file"),
        ("--vocoder-path", "nowhere", "nowhere/config.yaml: no such file"),
        ("--vocab", "missing.txt", "missing.txt"),
        ("--max-frames", "0", "--max-frames: must be 256 to 8192, not 0"),
        ("--max-frames", "-5", "--max-frames: must be 256 to 8192, not -5"),
        ("--max-frames", "100", "--max-frames: must be 256 to 8192, not 100"),
        ("--max-frames", "9000", "--max-frames: must be 256 to 8192, not 9000"),
    ],
)
def test_sources_that_cannot_be_used_are_named(
    option: str,
    value: str,
    message: str,
    made: BuiltBundle,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = without(small.bundle_command(made.files, tmp_path / "out"), option, value)
    code, _, error = told(capsys, *arguments)
    assert code == 1
    assert error.startswith("export: ") and error.count("\n") == 1
    assert any(part in error for part in message.split("|"))
    assert not list(tmp_path.iterdir())


def test_max_frames_is_looked_at_before_anything_is_loaded(
    made: BuiltBundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = without(small.bundle_command(made.files, tmp_path / "out"), "--max-frames", "100")
    _, _, error = told(capsys, *without(arguments, "--checkpoint", "nothing.safetensors"))
    assert error.startswith("export: --max-frames")


def test_a_fault_of_the_engine_is_one_line(
    made: BuiltBundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(*_: object) -> parity.Report:
        raise EngineFault("the flow produced numbers that are not finite")

    monkeypatch.setattr(parity, "measure", measure)
    code, _, error = told(capsys, "parity", str(made.bundle.folder), *made.files.arguments())
    assert (code, error.splitlines()[-1]) == (1, "export: the flow produced numbers that are not finite")


def test_terms_and_weights_reach_the_bundle(
    made: BuiltBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[assemble.Sources] = []

    def load(sources: assemble.Sources) -> assemble.Loaded:
        asked.append(sources)
        raise assemble.BundleFailed("far enough")

    monkeypatch.setattr(assemble, "load", load)
    command = small.bundle_command(made.files, tmp_path / "out")
    told(capsys, *command)
    told(capsys, *command, "--vocoder-licence", "MIT", "--weights", "raw")
    plain, chosen = ((s.weights_licence, s.vocoder_licence, s.weights) for s in asked)
    assert (plain, chosen) == (("Apache-2.0", None, "ema"), ("Apache-2.0", "MIT", "raw"))


@pytest.mark.parametrize("command", ["parity", "inspect"])
def test_what_is_no_bundle_is_told_in_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed, error = told(capsys, command, str(tmp_path))
    assert (code, printed) == (1, "")
    assert error == f"export: {tmp_path}: not a bundle, it has no manifest.yaml\n"


def test_a_command_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_code:
        main([])
    assert exit_code.value.code == 2
    assert "COMMAND" in capsys.readouterr().err
