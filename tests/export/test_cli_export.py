"""`python -m export` as a person uses it."""

import dataclasses
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from appliance.contract import bundle as contract
from appliance.contract.sampler import Guidance, Sampler
from appliance.errors import EngineFault
from export import progress, workload
from export.cli import main
from export.parity import comparison, oracles
from tests.harness import network_spy, small, traces
from tests.harness.patience import PATIENCE_S
from tests.harness.rows import rows
from tests.harness.small import BuiltBundle, Workshop

pytestmark = pytest.mark.torch

Told = Callable[..., tuple[int, str, str]]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Exit status, output and errors of a command."""
    return lambda *words: (main(words), *capsys.readouterr())


def test_bundle_prints_its_parity_its_licences_and_its_size(
    made: BuiltBundle, tmp_path: Path, told: Told, brief_gate: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, plans = tmp_path / "out", []
    monkeypatch.setattr(workload, "READINGS", oracles.READINGS)

    def plan(*arguments: Any, **options: Any) -> progress.Plan:
        plans.append(compute(*arguments, **options))
        return plans[-1]

    compute = workload.plan
    monkeypatch.setattr(workload, "plan", plan)
    with traces.reusing():
        code, printed, shown = told(*small.bundle_command(made.files, out))
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
    assert all(0.5 < stage.work_done / stage.work < 2.0 for stage in gate), gate
    assert contract.read(out).manifest.files == made.bundle.manifest.files


@pytest.mark.parametrize("command", ["parity", pytest.param("bundle", marks=pytest.mark.thorough)])
def test_the_module_runs_without_the_tests_and_without_a_network(
    command: str, workshop: Workshop, tmp_path: Path
) -> None:
    """If upstream's package cannot be imported, the command says that it measured nothing against it.

    INT8 has the fewest graphs. The test watches the network only if it can create a network namespace.
    """
    made = workshop.make("v1", precision="int8")
    (tmp_path / "f5_tts.py").write_text("raise ImportError('kept out of this test')\n")
    out, seen = tmp_path / "out", tmp_path / "seen"
    brief = shutil.copytree(made.bundle.folder, tmp_path / "brief")
    manifest = brief / contract.MANIFEST
    manifest.write_text(manifest.read_text().replace(f"max_frames: {small.MAX_FRAMES}", "max_frames: 512"))
    words = {
        "parity": ["parity", str(brief), *made.files.arguments()],
        "bundle": [*small.bundle_command(made.files, out, "int8"), "--accept", "random weights"],
    }
    started = ["-m", "export", *words[command]]
    environment = {**network_spy.environment(tmp_path), "OMP_NUM_THREADS": "1"}
    if network_spy.possible():
        done = network_spy.start(seen, started, environment)
        printed = seen.with_suffix(".log")
        assert done.wait(PATIENCE_S) == 0, printed.read_text()
        assert seen.read_text() == ""
        assert "upstream's DiT was not measured: not installed here" in printed.read_text()
    else:
        subprocess.run([sys.executable, *started], env=environment, check=True)
    if command == "bundle":
        alone = contract.read(out)
        assert "not installed here" in alone.manifest.parity["upstream"]
        assert {row["against"] for row in alone.manifest.parity["rows"]} == {"float64", "torch", "exact"}
        assert alone.manifest.files == made.bundle.manifest.files  # another process writes the same bytes


def test_parity_measures_a_bundle_again(made: BuiltBundle, told: Told, brief_gate: None) -> None:
    code, printed, _ = told("parity", str(made.bundle.folder), *made.files.arguments())
    assert code == 0
    assert sum(line.startswith("step ") for line in printed.splitlines()) == 8


def test_other_weights_fail_parity(made: BuiltBundle, tmp_path: Path, told: Told, brief_gate: None) -> None:
    other = small.write_files(tmp_path, small.V1, seed=12)
    code, printed, error = told("parity", str(made.bundle.folder), *other.arguments())
    assert code == 1 and printed.startswith("what ")
    assert "step at 77 frames, NFE 1, variant ort-cpu, against float64: " in error


def test_parity_without_sources_shows_the_record_and_asks_for_them(made: BuiltBundle, told: Told) -> None:
    code, printed, error = told("parity", str(made.bundle.folder))
    assert code == 1
    assert printed.startswith("measured when it was written:\nwhat ")
    assert "name its sources: --family, --checkpoint, --vocab" in error


REFUSED: list[tuple[Guidance, str, str]] = rows(__file__, "refused_commands.jsonl")
"""The guidance that the weights need, the options that contradict it, and the refusal."""


@pytest.mark.parametrize(("guidance", "options", "message"), REFUSED)
def test_contradictions_are_refused_in_one_line(
    guidance: Guidance, options: str, message: str, workshop: Workshop, tmp_path: Path, told: Told
) -> None:
    files = (workshop.make("v1") if guidance == "two-row" else workshop.sampled(guidance)).files
    more = options.replace("FAMILY", str(files.family)).split()
    code, _, error = told(*small.bundle_command(files, tmp_path / "out"), *more)
    assert code == 1
    assert error.startswith("export: ") and error.count("\n") == 1
    assert any(part in error for part in message.split("|"))
    assert not list(tmp_path.iterdir())


def test_a_familys_sampler_and_a_commands_steps_reach_the_bundle(made: BuiltBundle, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    sampler = {"guidance": "none", "steps": [4], "grid": "sway"}
    other.write_text(yaml.safe_dump({**yaml.safe_load(made.files.family.read_text()), "sampler": sampler}))
    own, few = ["--family", str(other)], Sampler(guidance="none", steps=(4,))
    for more, sampler, grid, guidance in (
        ([], Sampler(), "epss", 2.0),
        (own, few, "uniform", 0.0),
        ([*own, "--steps", "2,8"], dataclasses.replace(few, steps=(2, 8)), "uniform", 0.0),
        (["--steps", "3"], Sampler(steps=(3,)), "epss", 2.0),
    ):
        sources = small.opened_by([*small.bundle_command(made.files, tmp_path / "out"), *more]).sources
        assert sources.sampler == sampler
        assert (sources.defaults.grid, sources.defaults.guidance) == (grid, guidance)


def test_an_engine_fault_is_one_line(made: BuiltBundle, monkeypatch: pytest.MonkeyPatch, told: Told) -> None:
    def measure(*_: object) -> comparison.Report:
        raise EngineFault("the flow produced numbers that are not finite")

    monkeypatch.setattr(comparison, "measure", measure)
    code, _, error = told("parity", str(made.bundle.folder), *made.files.arguments())
    assert (code, error.splitlines()[-1]) == (1, "export: the flow produced numbers that are not finite")


def test_terms_reach_the_bundle(made: BuiltBundle, tmp_path: Path) -> None:
    command = small.bundle_command(made.files, tmp_path / "out")
    for more, vocoder in (([], None), (["--vocoder-licence", "MIT"], "MIT")):
        sources = small.opened_by([*command, *more]).sources
        assert (sources.weights_licence, sources.vocoder_licence) == ("Apache-2.0", vocoder)


@pytest.mark.parametrize("command", ["parity", "inspect"])
def test_no_bundle_is_an_error_of_one_line(command: str, tmp_path: Path, told: Told) -> None:
    code, printed, error = told(command, str(tmp_path))
    assert (code, printed) == (1, "")
    assert error == f"export: {tmp_path}: not a bundle, it has no manifest.yaml\n"


UNPARSED = rows(__file__, "unparsed.jsonl")
"""Command lines and the part of the error that lists the choices; a removed flag's error names the key that
replaces it."""


@pytest.mark.parametrize(("command", "message"), UNPARSED)
def test_a_wrong_command_line_ends_with_the_choices(
    command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_code:
        main(command.split())
    assert exit_code.value.code == 2
    assert re.search(message, capsys.readouterr().err)
