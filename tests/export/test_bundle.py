"""The spine: official files → `python -m export bundle` → `appliance replay` equals upstream's packages."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance import cli as device
from appliance.contract import bundle as contract
from appliance.engine.replay import replay
from export import bundle, parity
from export.cli import main
from export.families import family
from export.model.vocos import VocosConfig
from export.random_checkpoint import write_random_vocos
from tests.export import small
from tests.export.small import Made, Workshop

pytestmark = pytest.mark.torch

STEP, SAMPLE, WAVE = 5e-6, 5e-5, 1e-5
"""Bounds on ‖a − b‖ / ‖b‖: one velocity, generated frames of a whole sample, samples of the vocoder."""
NFES = (5, 7, 8, 16, 32)


@pytest.fixture(scope="module", params=small.TRACED)
def made(request: pytest.FixtureRequest, workshop: Workshop) -> Made:
    return workshop.make(request.param)


@pytest.fixture(scope="module")
def flow(made: Made) -> Any:
    return small.upstream_flow(made.files, made.arch)


def replayed(made: Made, given: parity.Case, nfe: int, folder: Path) -> tuple[Any, Any]:
    """`mel` and `wave` of the device's command."""
    small.write_case(folder / "case.npz", given)
    arguments = [str(made.bundle.folder), str(folder / "case.npz"), "--nfe", str(nfe)]
    assert device.main(["replay", *arguments, "--out", str(folder / "out.npz")]) == 0
    with np.load(folder / "out.npz") as out:
        assert set(out.files) == {"mel", "wave"}
        return out["mel"], out["wave"]


@pytest.mark.parametrize("nfe", NFES)
def test_a_whole_sample_equals_upstreams(made: Made, flow: Any, nfe: int, tmp_path: Path) -> None:
    given = small.case(113)
    mel, wave = replayed(made, given, nfe, tmp_path)
    wanted = small.upstream_sample(flow, given, nfe)
    start = len(given.cond)
    assert np.array_equal(mel[:start], given.cond)
    assert small.relative(mel[start:], wanted[start:]) <= SAMPLE
    way = (wanted - given.noise)[start:]  # without the noise, which both share
    assert np.abs(way).mean() > 0.05
    assert small.relative((mel - given.noise)[start:], way) <= SAMPLE
    assert wave.shape == (112 * 256,)
    assert small.relative(wave, small.upstream_wave(made.files, mel)) <= WAVE


@pytest.mark.parametrize(
    "given",
    [
        small.case(60),
        small.case(271, guidance=0.7),
        small.case(9, tokens=9, reference=1),
        small.case(40, tokens=77, reference=38),  # more tokens than frames, one frame to generate
    ],
    ids=lambda given: str(given.frames),
)
def test_one_step_equals_upstreams_at_any_length(made: Made, flow: Any, given: parity.Case) -> None:
    for time in (0.0, 0.0012, 0.61):
        mel, _ = replay(made.engine(), given.segment(np.array([time, time + 1.0])))
        wanted = small.upstream_velocity(flow, given, time)
        start = len(given.cond)
        assert small.relative((mel - given.noise)[start:], wanted[start:]) <= STEP


def test_without_guidance_only_the_conditional_row_counts(workshop: Workshop) -> None:
    made = workshop.make("v1")
    given = small.case(97, guidance=0.0)
    flow = small.upstream_flow(made.files, made.arch)
    mel, _ = replay(made.engine(), given.segment(np.array([0.2, 1.2])))
    wanted = small.upstream_velocity(flow, given, 0.2)
    assert small.relative((mel - given.noise)[32:], wanted[32:]) <= STEP
    guided = small.upstream_velocity(flow, dataclasses.replace(given, guidance=2.0), 0.2)
    assert small.relative(guided[32:], wanted[32:]) > 1e-2  # guidance does matter to this case


def test_a_frame_of_silence_or_two_are_decoded(workshop: Workshop) -> None:
    made = workshop.make("v1")
    engine = made.engine()
    mel = small.case(7).noise - 4.0
    for frames in (2, 3, 7):
        found = engine.decode(mel[:frames])
        assert small.relative(found, small.upstream_wave(made.files, mel[:frames])) <= WAVE
    assert engine.decode(mel[:1]).shape == (0,)


def test_bigvgan_speaks_as_its_own_package(workshop: Workshop, tmp_path: Path) -> None:
    made = workshop.make("v1", "bigvgan")
    given = small.case(101)
    mel, wave = replayed(made, given, 5, tmp_path)
    flow = small.upstream_flow(made.files, made.arch)
    assert small.relative(mel[33:], small.upstream_sample(flow, given, 5)[33:]) <= SAMPLE
    wanted = small.upstream_wave(made.files, mel)
    assert wave.shape == (101 * 256,)
    assert 1e-4 < np.abs(wanted).mean() < 0.9  # neither silent nor clamped
    assert small.relative(wave, wanted) <= WAVE


# What is written, and what is not


def test_a_bundle_says_what_it_is(workshop: Workshop) -> None:
    made = workshop.make("v0")
    manifest = made.bundle.manifest
    assert (manifest.format, manifest.family, manifest.precision) == ("1.0", "small", "fp32")
    assert manifest.arch == made.arch
    assert manifest.vocoder == contract.Vocoder("vocos", "center")
    assert (manifest.vocab_size, manifest.max_frames) == (len(small.VOCABULARY), small.MAX_FRAMES)
    assert manifest.licence.weights == "Apache-2.0"
    assert manifest.batch_invariant
    assert set(manifest.variants) == {"default"}
    assert made.bundle.vocab.read_text("utf-8").splitlines() == small.VOCABULARY
    names = {path.name for path in made.bundle.folder.iterdir()}
    assert names == {*manifest.files, contract.MANIFEST}
    oracles = {row["against"] for row in manifest.parity["rows"]}
    assert {"torch", "upstream"} == oracles
    assert all(row["error"] <= row["bound"] for row in manifest.parity["rows"])


def test_a_vocabulary_with_crlf_and_no_last_newline_is_written_plainly(
    workshop: Workshop, tmp_path: Path
) -> None:
    files = small.write_files(tmp_path, small.V1)
    files.vocab.write_bytes("\r\n".join(small.VOCABULARY).encode())
    loaded = load(files)
    with workshop.reusing_traces():
        made = bundle.build(
            loaded, "fp32", tmp_path / "out", lambda _: parity.Report("fp32"), max_frames=small.MAX_FRAMES
        )
    assert made.vocab.read_bytes() == "".join(f"{token}\n" for token in small.VOCABULARY).encode()


def load(files: small.Files) -> bundle.Loaded:
    return bundle.load(
        bundle.Sources(family(str(files.family)), files.checkpoint, files.vocab, "vocos", files.vocoder_path)
    )


def report(*, broken: bool) -> parity.Report:
    error = float("nan") if broken else 0.0
    return parity.Report("fp32", [parity.Row("sample", "torch", 128, 7, error, 5e-5)])


def test_a_bundle_beyond_its_bounds_is_not_written(workshop: Workshop, tmp_path: Path) -> None:
    files = small.write_files(tmp_path / "weights", small.V1)
    out = tmp_path / "out"
    with (
        workshop.reusing_traces(),
        pytest.raises(bundle.BundleFailed, match=r"no bundle was written.*sample at 128 frames, NFE 7"),
    ):
        bundle.build(load(files), "fp32", out, lambda _: report(broken=True), max_frames=small.MAX_FRAMES)
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


def test_nothing_is_left_of_an_export_that_stops(workshop: Workshop, tmp_path: Path) -> None:
    files = small.write_files(tmp_path / "weights", small.V1)
    stale = tmp_path / "out.partial" / "step.onnx"
    stale.parent.mkdir()
    stale.write_text("of an export that was killed")

    def interrupted(_: contract.Bundle) -> parity.Report:
        assert not stale.read_bytes().startswith(b"of an export")
        raise KeyboardInterrupt

    with workshop.reusing_traces(), pytest.raises(KeyboardInterrupt):
        bundle.build(load(files), "fp32", tmp_path / "out", interrupted, max_frames=small.MAX_FRAMES)
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


def test_weights_that_do_not_fit_the_graph_break_the_bounds(workshop: Workshop, tmp_path: Path) -> None:
    """The gate itself, unhelped: graphs of v0 measured as v1, whose tensors look the same."""
    files = small.write_files(tmp_path, small.V1)
    loaded = load(files)
    report = parity.measure(workshop.make("v0").bundle, bundle.expectations(loaded))
    failed = {line.split(" at ")[0] for line in report.failed}
    assert {"step", "sample"} <= failed


@pytest.mark.parametrize(
    ("winner", "default"), [("softmax_fp16", "step.onnx"), ("softmax_fp32", "step_softmax_fp32.onnx")]
)
def test_fp16_falls_back_to_the_softmax_in_float32(
    winner: str, default: str, workshop: Workshop, tmp_path: Path
) -> None:
    files = small.write_files(tmp_path / "weights", small.V1)
    measured = []

    def measure(trial: contract.Bundle) -> parity.Report:
        measured.append(trial.graph("step").name)
        return report(broken=trial.graph("step") != trial.graph("step", winner))

    with workshop.reusing_traces():
        made = bundle.build(load(files), "fp16", tmp_path / "out", measure, max_frames=small.MAX_FRAMES)
    assert measured == ["step.onnx", "step_softmax_fp32.onnx"][: 1 + (winner == "softmax_fp32")]
    assert made.graph("step").name == default
    assert set(made.manifest.variants) == {"default", "softmax_fp16", "softmax_fp32", "ort-cpu"}
    assert made.manifest.parity["rows"][0]["error"] == 0.0  # the report of the one that passed
    contract.verify_files(made)


def test_when_no_candidate_passes_the_error_names_each(workshop: Workshop, tmp_path: Path) -> None:
    files = small.write_files(tmp_path / "weights", small.V1)
    with workshop.reusing_traces(), pytest.raises(bundle.BundleFailed, match=r"softmax_fp16.*softmax_fp32"):
        bundle.build(
            load(files), "fp16", tmp_path / "out", lambda _: report(broken=True), max_frames=small.MAX_FRAMES
        )
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


def test_a_folder_that_exists_is_left_alone(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    made = workshop.make("v1")
    before = {path: path.stat().st_mtime_ns for path in made.bundle.folder.iterdir()}
    assert main(small.bundle_command(made.files, made.bundle.folder)) == 1
    assert "exists; name a new folder" in capsys.readouterr().err
    assert before == {path: path.stat().st_mtime_ns for path in made.bundle.folder.iterdir()}


def test_a_vocoder_for_other_mels_is_refused(
    workshop: Workshop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = dataclasses.replace(workshop.make("v1").files, vocoder="bigvgan")
    assert main(small.bundle_command(files, tmp_path / "out")) == 1
    assert "its file says mel_spec_type: vocos, which bigvgan cannot read" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_vocoder_of_another_geometry_is_refused(workshop: Workshop, tmp_path: Path) -> None:
    made = workshop.make("v1")
    config = VocosConfig(
        mels=80, dim=32, intermediate_dim=32, layers=1, n_fft=1024, hop=256, padding="center"
    )
    other = write_random_vocos(tmp_path / "vocos", config)
    sources = bundle.Sources(
        family(str(made.files.family)), made.files.checkpoint, made.files.vocab, "vocos", other
    )
    with pytest.raises(
        bundle.BundleFailed, match="reads 80 mels every 256 samples, small makes 100 every 256"
    ):
        bundle.load(sources)
