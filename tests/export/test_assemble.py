"""The main path: official files → `python -m export bundle` → `appliance replay` equals upstream's
packages."""

import dataclasses
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.torch import load_file, save_file

from appliance import cli as device
from appliance.contract import bundle as contract
from appliance.contract.mel import Kind
from appliance.durable import publish
from export import assemble
from export.cli import main
from export.families import family
from export.parity import comparison
from export.sources.checkpoint import CheckpointError
from tests.engine.lanes import relative
from tests.harness import small, traces
from tests.harness.rows import rows
from tests.harness.small import Workshop

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("vocoder", ["vocos", "bigvgan"])
def test_the_devices_command_speaks_as_upstream(vocoder: str, workshop: Workshop, tmp_path: Path) -> None:
    made, given = workshop.make("v1", vocoder), small.case(113, mels=small.MELS_OF[vocoder])
    arrays = {"cond": given.cond[None], "ids": given.ids[None].astype(np.int64), "noise": given.noise}
    np.savez(tmp_path / "case.npz", n_frames=given.frames, guidance=np.float32(given.guidance), **arrays)
    arguments = [str(made.bundle.folder), str(tmp_path / "case.npz"), "--nfe", "5"]
    assert device.main(["replay", *arguments, "--out", str(tmp_path / "out.npz")]) == 0
    with np.load(tmp_path / "out.npz") as out:
        assert set(out.files) == {"mel", "wave"}
        mel, wave = out["mel"], out["wave"]
    expected = small.upstream_sample(small.upstream_flow(made.files, made.arch), given, 5)
    assert relative(mel[len(given.cond) :], expected[len(given.cond) :]) <= 5e-5
    assert wave.shape == ((113 - (vocoder == "vocos")) * 256,)
    assert relative(wave, small.upstream_wave(made.files, mel)) <= 1e-5


# Contents of a bundle, and bundles that are not written


def test_a_bundle_describes_itself(workshop: Workshop) -> None:
    made = workshop.make("v0")
    manifest = made.bundle.manifest
    assert (manifest.format, manifest.family, manifest.precision) == ("1.8", "small", "fp32")
    assert manifest.arch == made.arch
    assert manifest.vocoder == contract.Vocoder("vocos", "center")
    assert (manifest.vocab_size, manifest.max_frames) == (len(small.VOCABULARY), small.MAX_FRAMES)
    assert manifest.licence.weights == "Apache-2.0"
    assert (manifest.text, manifest.weights) == (contract.Text(case="lower"), "average")
    assert made.bundle.vocab.read_text("utf-8").splitlines() == small.VOCABULARY
    names = {path.name for path in made.bundle.folder.iterdir()}
    assert names == {*manifest.files, contract.MANIFEST}
    rows = manifest.parity["rows"]
    assert {(row["against"], row["variant"]) for row in rows} == {
        ("exact", "ort-cpu"),
        *(("float64", variant) for variant in ("default", "ort-cpu", "ort-cuda")),
        *(("upstream", variant) for variant in ("default", "ort-cpu")),
    }
    assert max(row["frames"] for row in rows) >= 2000
    assert all(row["error"] <= row["bound"] for row in rows if row["against"] != "exact")
    assert manifest.defaults.sampling == manifest.parity["sampling"]
    assert not {"accepted_by", "failed"} & set(manifest.parity)


def test_a_table_of_durations_needs_tokens_of_the_vocabulary(tmp_path: Path) -> None:
    files = small.write_files(tmp_path, small.ARCHS["upsampling"])
    raw = yaml.safe_load(files.family.read_text("utf-8"))
    raw["model"] |= {"duration": "tokens", "durations": {" ": [2.5, 3.5, 1.0], "hao3": [6.0, 9.0, 1.0]}}
    files.family.write_text(yaml.safe_dump(raw, allow_unicode=True), "utf-8")
    loaded = small.load(files)
    assert loaded.text.duration == "tokens"
    assert loaded.text.durations == {" ": (2.5, 3.5, 1.0), "hao3": (6.0, 9.0, 1.0)}
    other = dataclasses.replace(loaded.sources, vocab=tmp_path / "other.txt")
    (tmp_path / "other.txt").write_text(files.vocab.read_text("utf-8").replace("hao3", "hao4"), "utf-8")
    with pytest.raises(
        assemble.BundleFailed, match=r"small: model\.durations: 'hao3' is not in .*other\.txt"
    ):
        assemble.load(other)


def test_a_vocabulary_with_crlf_and_no_last_newline_is_written_plainly(tmp_path: Path) -> None:
    files = small.write_files(tmp_path, small.V1)
    files.vocab.write_bytes("\r\n".join(small.VOCABULARY).encode())
    with traces.reusing():
        made = small.unmeasured(small.load(files), tmp_path / "out")
    assert made.vocab.read_bytes() == "".join(f"{token}\n" for token in small.VOCABULARY).encode()


WEIGHT = "ema_model.transformer.input_embed.proj.weight"


def test_a_graph_that_overflows_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], brief_gate: None
) -> None:
    """A single weight exceeds float16. --accept does not help, because the bundle could not synthesise."""
    files = small.write_files(tmp_path / "weights", small.V1)
    weights = load_file(files.checkpoint)
    weights[WEIGHT][0, 100] *= 3e7  # of the reference's mel: the condition graph reads it
    save_file(weights, files.checkpoint)
    command = small.bundle_command(files, tmp_path / "out", "fp16")
    with traces.reusing():
        assert main([*command, "--accept", "to hear it"]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("export:")]
    assert len(lines) == 1
    told = "export: no bundle was written, because parity bounds are broken: float16: input_embed"
    assert lines[0].startswith(told) and "of step reaches" in lines[0]
    assert lines[0].count(";") <= assemble.NAMED_FAILURES
    assert [path.name for path in tmp_path.iterdir()] == ["weights"]


@pytest.fixture
def written(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy the graphs of an existing bundle: the test is about the gate or the place of a bundle alone."""
    source = workshop.make("v1").bundle

    def copy(writer: assemble.BundleWriter, _: object) -> assemble.Variants:
        for name in source.manifest.files:
            shutil.copy(source.folder / name, writer.folder)
        return source.manifest.variants

    monkeypatch.setattr(assemble.BundleWriter, "write", copy)


@pytest.mark.parametrize(("beyond", "told"), [
    ("vocoder", ["vocoder at 77 frames", "--precision fp16"]), ("short", ["short at ", "allowed 1.0e-03"]),
])  # fmt: skip
def test_a_bundle_beyond_its_bounds_or_those_of_a_named_sampling_is_written_only_with_a_reason(
    beyond: str,
    told: list[str],
    workshop: Workshop,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    brief_gate: None,
    written: None,
) -> None:
    out = tmp_path / "out"
    command = small.bundle_command(workshop.make("v1").files, out)
    if beyond == "short":
        command += ["--sampling", "short"]
        monkeypatch.setattr(comparison, "SAMPLING_BOUND", 1e-3)
    else:
        monkeypatch.setitem(comparison.BOUNDS["fp32"], "vocoder", 1e-12)
        monkeypatch.setattr(comparison, "OWN_ERRORS", 0.0)
    assert main(command) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("export: no bundle was written") and "short-kv at" not in error
    assert [text for text in told if text not in error] == []
    assert not list(tmp_path.iterdir())
    assert main([*command, "--accept", "old processor"]) == 0
    manifest = contract.read(out).manifest
    assert manifest.parity["accepted_by"] == "old processor"
    assert {line.split(" at ")[0] for line in manifest.parity["failed"]} == {beyond}
    if beyond == "short":
        assert (manifest.defaults.sampling, manifest.parity["sampling"]) == ("short", "exact")
    capsys.readouterr()
    assert main(["inspect", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "accepted by: old processor" in printed and f"beyond its bound: {told[0]}" in printed


def test_the_bundle_samples_as_the_measurement_allows(workshop: Workshop, brief_gate: None) -> None:
    made = workshop.make("v1")
    measured = comparison.measure_samplings(made.bundle)
    for bound, sampling, defaults in (
        (100.0, "auto", "short-kv"),
        (100.0, "short", "short"),
        (1e-3, "auto", "exact"),
        (1e-3, "exact", "exact"),
    ):
        rows = [dataclasses.replace(row, bound=bound) for row in measured.samplings]
        report = dataclasses.replace(measured, samplings=rows)
        manifest = assemble.Gate(sampling).judge(made.bundle.manifest, report)  # type: ignore[arg-type]
        assert manifest.defaults.sampling == defaults
        assert manifest.parity["sampling"] == report.sampling


@pytest.mark.parametrize("appears", ["another bundle", "a folder", "nothing"])
def test_a_folder_that_appears_during_the_work_stays_and_a_stop_leaves_nothing(
    appears: str, written: None, tmp_path: Path
) -> None:
    files, out = small.write_files(tmp_path / "weights", small.V1), tmp_path / "out"

    def build(measure: assemble.Measure) -> contract.Bundle:
        return assemble.build(small.load(files), small.OPTIONS, out, measure)

    def meanwhile(trial: contract.Bundle) -> comparison.Report:
        assert trial.folder.parent.name.startswith(".out.")
        if appears == "nothing":
            raise KeyboardInterrupt
        build(lambda _: comparison.Report("fp32")) if appears == "another bundle" else out.mkdir()
        assert trial.graph("step").is_file()
        return comparison.Report("fp32")

    stopped = KeyboardInterrupt if appears == "nothing" else assemble.BundleFailed
    with pytest.raises(stopped, match=None if appears == "nothing" else "out exists; name a new"):
        build(meanwhile)
    left = {"weights"} if appears == "nothing" else {"weights", "out"}
    assert {path.name for path in tmp_path.iterdir()} == left
    if appears == "another bundle":
        contract.read(out)
        assert out.stat().st_mode & 0o777 == files.vocoder_path.stat().st_mode & 0o777
    elif appears == "a folder":
        assert not list(out.iterdir())


def test_all_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, place = tmp_path / "scratch" / "made", tmp_path / "place"
    (made / "deep").mkdir(parents=True)
    (made / "deep" / "weights.data").write_bytes(b"0" * 100)
    events: list[str] = []

    def named(inode: int) -> str:
        found = (path for path in (tmp_path, *tmp_path.rglob("*")) if path.stat().st_ino == inode)
        return next(found).relative_to(tmp_path).as_posix()

    monkeypatch.setattr(os, "fsync", lambda handle: events.append(named(os.fstat(handle).st_ino)))
    rename = os.replace
    monkeypatch.setattr(os, "replace", lambda *paths: (events.append("rename"), rename(*paths)))
    publish(made, place)
    assert events == ["scratch/made", "scratch/made/deep", "scratch/made/deep/weights.data", "rename", "."]
    assert (place / "deep" / "weights.data").read_bytes() == b"0" * 100
    with pytest.raises(OSError):
        publish(tmp_path / "scratch", place)


def test_weights_of_another_graph_break_bounds(workshop: Workshop, tmp_path: Path, brief_gate: None) -> None:
    """The gate alone must find it: graphs of v0 are measured as v1, whose tensors look the same."""
    files = small.write_files(tmp_path, small.V1)
    loaded = small.load(files)
    report = comparison.measure(workshop.make("v0").bundle, assemble.expectations(loaded, small.OPTIONS))
    failed = {line.split(" at ")[0] for line in report.failed}
    assert {"step", "sample", "guided", "padded", "reply"} <= failed


def test_an_existing_folder_stays(workshop: Workshop, capsys: pytest.CaptureFixture[str]) -> None:
    made = workshop.make("v1")
    before = {path: path.stat().st_mtime_ns for path in made.bundle.folder.iterdir()}
    assert main(small.bundle_command(made.files, made.bundle.folder)) == 1
    assert "exists; name a new folder" in capsys.readouterr().err
    assert before == {path: path.stat().st_mtime_ns for path in made.bundle.folder.iterdir()}


def test_the_manifest_has_language_and_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = small.write_files(tmp_path, small.V1)
    stated = dataclasses.replace(small.sources(files), languages=("de", "en"), tokenizer="char")
    loaded = assemble.load(stated)
    assert loaded.text == contract.Text(("de", "en"), "char", "lower")
    assert loaded.vocabulary.tokenizer == "char"
    assert "languages" not in capsys.readouterr().err
    unstated = dataclasses.replace(small.sources(files), languages=None)
    assert assemble.load(unstated).text == contract.Text(case="lower")
    assert "languages: unknown" in capsys.readouterr().err


def test_equal_lines_of_a_vocabulary_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = small.write_files(tmp_path, small.V1)
    twice = [*small.VOCABULARY[:5], "b", *small.VOCABULARY[5:]]
    files.vocab.write_text("".join(f"{token}\n" for token in twice), "utf-8")
    assert small.load(files).vocabulary.size == len(small.VOCABULARY)
    assert "'b' is on lines 3, 6; as upstream, 'hao3' has no sound" in capsys.readouterr().err
    files.vocab.write_text("".join(f"{token}\n" for token in (*small.VOCABULARY[:-1], "b")), "utf-8")
    with pytest.raises(CheckpointError, match=r"trained with 33 .* has 32; .*: 'b' is on lines 3, 33"):
        small.load(files)


@pytest.mark.parametrize(("vocoder", "change", "message"), rows(__file__, "geometries.jsonl"))
def test_a_vocoder_of_another_geometry_is_refused(
    vocoder: Kind, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    files = small.write_files(tmp_path, small.V1, vocoder)
    other = small.write_vocoder(tmp_path / "other", vocoder, **change)
    sources = assemble.Sources(family(str(files.family)), files.checkpoint, files.vocab, vocoder, other)
    with pytest.raises(assemble.BundleFailed, match=f"cannot read what small makes: {message}"):
        assemble.load(sources)
