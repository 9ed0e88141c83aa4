"""A bundle of format 1.0 becomes one of the present format that computes the same."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from appliance.contract import bundle as contract
from appliance.contract.schedule import time_grid
from appliance.engine.engine import Synthesizer
from appliance.engine.ort import OrtBackend
from appliance.engine.replay import replay
from appliance.errors import BundleError
from export import graphs, parity
from export.bundle import BundleFailed
from export.cases import Case
from export.cli import main
from export.convert import convert
from export.recover import step_weights
from tests.export import old_format, small
from tests.export.small import Workshop

pytestmark = pytest.mark.torch

FRAMES = 143


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return old_format.write(tmp_path_factory.mktemp("old"))


@pytest.fixture(scope="module")
def converted(workshop: Workshop, old: Path, tmp_path_factory: pytest.TempPathFactory) -> contract.Bundle:
    out = tmp_path_factory.mktemp("new") / "bundle"
    with workshop.reusing_traces():
        assert main(["convert", str(old), "--out", str(out)]) == 0
    return contract.read(out)


@pytest.fixture
def given() -> Case:
    case = small.case(FRAMES)
    return dataclasses.replace(case, ids=case.ids % 27)


def test_the_engine_samples_as_the_old_step_graph(converted: contract.Bundle, old: Path, given: Case) -> None:
    times = time_grid(5)
    engine = Synthesizer(converted, OrtBackend(1), lanes=1)
    mel, wave = replay(engine, given.segment(times))
    wanted = old_format.euler(old, given, times)
    start = len(given.cond)
    assert np.abs((wanted - given.noise)[start:]).mean() > 0.05
    assert small.relative((mel - given.noise)[start:], (wanted - given.noise)[start:]) <= 5e-5
    assert wave.shape == (old_format.HOP * (FRAMES - 1),)


def test_every_variant_is_compared_and_the_old_measurement_is_kept(
    converted: contract.Bundle, old: Path
) -> None:
    manifest = converted.manifest
    assert (manifest.format, manifest.precision) == (contract.FORMAT, "fp16")
    variants = {"default", "ort-cpu", contract.FLOAT32}
    assert set(manifest.variants) == variants | {contract.FUSED, contract.FLOAT32_SUMS}
    rows = manifest.parity["rows"]
    compared = {row["variant"]: row["error"] for row in rows if row["against"] == "format 1.0"}
    assert set(compared) == variants
    assert 0.0 < max(compared.values()) <= 1e-5
    measured = {(row["what"], row["variant"]) for row in rows if row["against"] == "exact"}
    assert measured == {(s, v) for s in ("short", "short-kv") for v in variants}
    assert manifest.defaults.sampling == manifest.parity["sampling"]
    assert manifest.parity["converted"]["format"] == "1.0"
    assert {row["what"] for row in manifest.parity["converted"]["rows"]} >= {"step", "sample"}


@pytest.mark.parametrize(
    ("name", "arch", "step"),
    [
        ("fp16", old_format.PLAIN, "step_float32.onnx"),
        ("fp32", old_format.PLAIN, "step.onnx"),
        ("fp32-options", old_format.OPTIONS, "step.onnx"),
    ],
)
def test_recovered_weights_give_the_old_velocity(
    name: str, arch: contract.Arch, step: str, tmp_path: Path
) -> None:
    folder = old_format.unpack(tmp_path) / name
    weights = step_weights(folder / "step.onnx", arch)
    model = graphs.Step(weights, arch, old_format.MELS, 256, torch.float32)
    rng = np.random.default_rng(1)
    latents = rng.standard_normal((1, FRAMES, old_format.MELS), dtype=np.float32)
    condition = rng.standard_normal((2, FRAMES, arch.dim), dtype=np.float32)
    if name == "fp16":
        condition = condition.astype(np.float16).astype(np.float32)
    table = 0.3 * rng.standard_normal((1, 6 * arch.depth + 2, arch.dim), dtype=np.float32)
    index, lengths = np.zeros(1, np.int32), np.array([FRAMES], np.int32)
    with torch.no_grad():
        rows = [
            model(*map(torch.from_numpy, (latents, row[None], table, index, lengths))).numpy()
            for row in condition
        ]
    (moved,) = old_format.run(
        folder / step,
        {
            "latents": latents,
            "condition": condition[None].astype(np.float16 if name == "fp16" else np.float32),
            "mod_table": table,
            "step_index": index,
            "dt": np.ones(1, np.float32),
            "combine": np.array([[3.0, -2.0]], np.float32),
            "lengths": lengths,
        },
    )
    assert small.relative(3.0 * rows[0] - 2.0 * rows[1], moved - latents) <= 1e-5


@pytest.mark.parametrize(
    ("file", "variant"), [("step_keys.onnx", "default"), ("step_keys_float32.onnx", "ort-cpu")]
)
def test_a_graph_that_differs_is_seen(
    file: str, variant: str, workshop: Workshop, old: Path, tmp_path: Path
) -> None:
    def spoil(trial: contract.Bundle) -> parity.Report:
        """Measures nothing; the graph is compared afterwards."""
        model = onnx.load(trial.folder / file, load_external_data=False)
        (maker,) = (node for node in model.graph.node if "velocity" in node.output)
        maker.output[list(maker.output).index("velocity")] = "before"
        model.graph.initializer.append(helper.make_tensor("factor", TensorProto.FLOAT, [1], [1.01]))
        model.graph.node.append(helper.make_node("Mul", ["before", "factor"], ["velocity"]))
        onnx.save(model, trial.folder / file)
        return parity.Report("fp16")

    with workshop.reusing_traces(), pytest.raises(BundleFailed) as error:
        convert(old, tmp_path / "out", spoil)
    assert str(error.value).count("against format 1.0") == 1
    assert f"variant {variant}, against format 1.0" in str(error.value)


def test_the_reader_names_the_command(old: Path) -> None:
    with pytest.raises(
        BundleError, match=r"format 1\.0 is older than .*python -m export convert .* --out NEW"
    ):
        contract.read(old)


def test_int8_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = old_format.write(tmp_path / "old", "int8")
    assert main(["convert", str(folder), "--out", str(tmp_path / "out")]) == 1
    error = capsys.readouterr().err
    assert "an int8 bundle cannot be converted; export it again" in error and error.count("\n") == 1


def test_an_older_export_of_the_present_format_gets_todays_step_graphs(
    workshop: Workshop, converted: contract.Bundle, tmp_path: Path
) -> None:
    """The report against the weights is kept once; files that are not step graphs are copied."""
    with workshop.reusing_traces():
        assert main(["convert", str(converted.folder), "--out", str(tmp_path / "out")]) == 0
    again = contract.read(tmp_path / "out").manifest
    assert again.files == converted.manifest.files
    errors = {row["variant"]: row["error"] for row in again.parity["rows"] if row["against"] == "format 1.1"}
    assert errors == dict.fromkeys(errors, 0.0) and len(errors) == 3
    assert again.parity["converted"] == converted.manifest.parity["converted"]
