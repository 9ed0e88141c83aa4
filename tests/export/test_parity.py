"""The measurement: its oracles agree with upstream's sampler, and it finds errors."""

import copy
import dataclasses
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

from appliance.contract.bundle import Bundle
from appliance.contract.mel import MelSpec
from appliance.contract.schedule import time_grid
from appliance.contract.tokens import Vocabulary
from appliance.engine.cases import FEMALE, MALE, transcript
from appliance.errors import EngineFault
from export import assemble
from export.inspection import table
from export.parity import comparison, oracles
from export.sources import checkpoint
from export.sources.checkpoint import load_dit
from tests.harness import small
from tests.harness.small import BuiltBundle
from tests.oracle import upstream

pytestmark = pytest.mark.torch

SIZE = len(small.VOCABULARY)
VOCABULARY = Vocabulary(tuple(small.VOCABULARY))


@pytest.fixture(scope="module")
def references(made: BuiltBundle) -> list[oracles.Oracle]:
    upstream.require()
    upstream.dit_class()
    weights = load_dit(made.files.checkpoint, made.arch, SIZE)
    plain = oracles.TorchOracle(checkpoint.build_dit(weights, made.arch, SIZE))
    return [plain, oracles.UpstreamOracle(weights, made.arch, SIZE, small.MELS)]


@pytest.mark.parametrize("nfe", [5, 8])
def test_oracles_sample_as_upstream(references: list[oracles.Oracle], made: BuiltBundle, nfe: int) -> None:
    given = oracles.random_case(90, MelSpec("vocos"), SIZE)
    expected = small.upstream_sample(small.upstream_flow(made.files, made.arch), given, nfe)
    for oracle in references:
        actual = oracle.sample(given, time_grid(nfe))
        assert np.array_equal(actual[:36], given.cond)
        assert comparison.relative_error(actual[36:], expected[36:]) <= 5e-6


def test_upstreams_model_takes_all_weights_or_none(made: BuiltBundle) -> None:
    upstream.require()
    upstream.dit_class()
    weights = dict(load_dit(made.files.checkpoint, made.arch, SIZE))
    fewer = {name: value for name, value in weights.items() if name != "proj_out.bias"}
    for changed in (fewer, {**weights, "proj_out.scale": torch.ones(1)}):
        with pytest.raises(RuntimeError, match=r'(Missing|Unexpected) key\(s\) .*"proj_out\.(bias|scale)"'):
            oracles.UpstreamOracle(changed, made.arch, SIZE, small.MELS)


def test_cases_repeat_and_look_like_log_mels() -> None:
    mel = MelSpec("vocos")
    one, two = (oracles.random_case(128, mel, SIZE) for _ in range(2))
    assert np.array_equal(one.cond, two.cond) and np.array_equal(one.noise, two.noise)
    assert one.cond.shape == (51, 100) and one.noise.shape == (128, 100) and one.ids.shape == (20,)
    assert one.cond.min() >= -11.5 and one.cond.std() > 1.0
    other = oracles.random_case(128, mel, SIZE, seed=1)
    assert not np.array_equal(one.noise, other.noise)
    segment = one.segment(time_grid(5))
    assert (segment.frames, segment.reference_frames, segment.guidance) == (128, 50, 2.0)


def ask(
    makers: list[Callable[[], oracles.Oracle]], vocoder: nn.Module, *, lossy: bool = False
) -> oracles.Expectations:
    sizes: Any = {"step_frames": (41,), "sample_frames": 50, "nfes": (5,)}
    readings = ((FEMALE, 330), (MALE, 330))
    cases = oracles.CaseSet(MelSpec("vocos"), VOCABULARY, small.MAX_FRAMES, readings=readings, **sizes)
    return oracles.expect(makers, lambda: vocoder, cases, lossy=lossy)


@pytest.fixture(scope="module")
def vocos(made: BuiltBundle) -> nn.Module:
    return checkpoint.build_vocoder(*checkpoint.load_vocos(made.files.vocoder_path))


@pytest.fixture(scope="module")
def answers(references: list[oracles.Oracle], vocos: nn.Module) -> oracles.Expectations:
    return ask([lambda: references[0], lambda: references[1]], vocos)


def test_a_sound_bundle_passes_and_says_by_how_much(made: BuiltBundle, answers: oracles.Expectations) -> None:
    report = comparison.measure(made.bundle, answers)
    assert report.failed == []
    graphs = [("modulation", "float64", 0, 0)]
    graphs += [(name, "float64", frames, 0) for name in ("condition", "vocoder") for frames in (41, 332)]
    cases = (("step", 41, 1), ("sample", 50, 5), ("wave", 50, 5))
    random = [(what, name, frames, nfe) for name in ("float64", "upstream") for what, frames, nfe in cases]
    for variant, with_graphs, single in (("default", graphs, ["padded"]), ("ort-cpu", [], [])):
        read = [
            (what, "float64", frames, 1)
            for frames in (solved.case.frames for solved in answers.trajectories)
            for what in ["guided", "guided", "unguided", "guided", "keys", "reply", *single]
        ]
        found = [(r.what, r.against, r.frames, r.nfe) for r in report.rows if r.variant == variant]
        assert found == [*with_graphs, *read, *random]
    assert all(1e-9 < row.error <= (row.bound or 0.0) for row in report.rows)
    assert [(row.what, row.variant) for row in report.samplings] == [
        (sampling, "ort-cpu") for sampling in comparison.CHEAPER[: len(report.samplings)]
    ]
    record = report.record()
    assert (record["upstream"], record["sampling"]) == ("measured", report.sampling)
    assert record["rows"][0]["snr_db"] == pytest.approx(-20 * np.log10(report.rows[0].error), abs=0.06)
    lines = table(report.record()).splitlines()
    assert len(lines) == 1 + len(report.rows) + len(report.samplings)
    head = ["what", "variant", "against", "frames", "NFE", "t", "error", "SNR", "dB", "bound"]
    assert lines[0].split() == head


def test_times_of_the_grid_are_stepped_singly(made: BuiltBundle, answers: oracles.Expectations) -> None:
    graphs = comparison.Graphs(made.bundle, "ort-cpu")
    rows = list(comparison.velocities(graphs, answers.trajectories[0]))
    times = [round(float(t), 4) for t in time_grid(7)[oracles.SOLVED_TIMES[:-1]]]
    assert [row.time for row in rows if row.what == "guided"] == times
    solved = answers.trajectories[0]
    off = dataclasses.replace(
        solved, velocities=[v * (1 + (i == 1) * 1e-4) for i, v in enumerate(solved.velocities)]
    )
    assert [(row.what, row.time) for row in comparison.velocities(graphs, off) if not row.holds] == [
        (what, times[1]) for what in ("guided", "unguided", "keys", "reply")
    ]


@pytest.mark.parametrize("kind", small.WRITERS)
def test_every_vocoder_is_computed_in_float64_too(kind: str, tmp_path: Path) -> None:
    loaded = small.load(small.write_files(tmp_path, small.ARCHS["one_block"], kind))
    *_, expected = assemble.graphs_alone(loaded, small.MAX_FRAMES)
    assert expected.graph == "vocoder" and expected.output.dtype == np.float64
    assert 0 < expected.own < 1e-4


# Every variant's wrong graph is found


def tampered(made: BuiltBundle, folder: Path, file: str, change: Callable[[onnx.GraphProto], None]) -> Bundle:
    """A copy of the bundle with one graph changed."""
    shutil.copytree(made.bundle.folder, folder)
    model = onnx.load(folder / file, load_external_data=False)
    change(model.graph)
    onnx.save(model, folder / file)
    return Bundle(folder, made.bundle.manifest)


def scaled(factor: float) -> Callable[[onnx.GraphProto], None]:
    def change(graph: onnx.GraphProto) -> None:
        maker = next(node for node in graph.node if "velocity" in node.output)
        maker.output[list(maker.output).index("velocity")] = "velocity_before"
        graph.initializer.append(helper.make_tensor("factor", TensorProto.FLOAT, [1], [factor]))
        graph.node.append(helper.make_node("Mul", ["velocity_before", "factor"], ["velocity"]))

    return change


def without_masks(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name == "lengths":
                node.input[place] = "whole"
    graph.initializer.append(helper.make_tensor("more", TensorProto.INT32, [1], [1000]))
    graph.node.insert(0, helper.make_node("Add", ["lengths", "more"], ["whole"]))


@pytest.mark.parametrize(("file", "change", "variant", "wrong"), [
    ("step.onnx", scaled(1.0001), "default", {"padded"}),
    ("step.onnx", without_masks, "default", {"padded"}),
    ("step_reply.onnx", scaled(1.0001), "default", {"reply"}),
    ("step_reply_cpu.onnx", scaled(1.0001), "ort-cpu", {"reply"}),
    ("step_keys_cpu.onnx", scaled(1.001), "ort-cpu", {"guided", "unguided", "keys", "step", "sample"}),
])  # fmt: skip
def test_a_wrong_graph_fails_in_its_variants(
    file: str,
    change: Callable[[onnx.GraphProto], None],
    variant: str,
    wrong: set[str],
    made: BuiltBundle,
    answers: oracles.Expectations,
    tmp_path: Path,
) -> None:
    report = comparison.measure(tampered(made, tmp_path / "bundle", file, change), answers)
    failed = {(row.what, row.variant) for row in report.rows if not row.holds}
    assert failed == {(what, variant) for what in wrong}


@pytest.mark.parametrize("file", ["step_keys.onnx", "step_reply_cpu.onnx"])
def test_a_graph_that_is_not_finite_fails_every_row_that_it_makes(
    file: str, made: BuiltBundle, answers: oracles.Expectations, tmp_path: Path
) -> None:
    report = comparison.measure(tampered(made, tmp_path / "bundle", file, scaled(math.nan)), answers)
    broken = {(row.what, row.variant) for row in report.broken}
    assert broken >= (
        {("reply", "ort-cpu"), ("short-kv", "ort-cpu")}
        if "reply" in file
        else {(what, "default") for what in ("guided", "keys", "step", "sample", "wave")}
    )
    assert all(row.error == math.inf for row in report.broken)
    assert report.failed and report.sampling == "exact"


class Off:
    """An oracle whose answers have a relative error."""

    name = "off"

    def __init__(self, oracle: oracles.Oracle, share: float) -> None:
        self._oracle, self._share = oracle, share

    def sample(self, case: oracles.Case, times: Any) -> Any:
        out = self._oracle.sample(case, times)
        out[len(case.cond) :] *= np.float32(1.0 + self._share)
        return out


@pytest.mark.parametrize("share", [2e-4, float("nan")])
def test_an_error_beyond_its_bound_fails_and_so_does_a_nan(
    made: BuiltBundle, references: list[oracles.Oracle], vocos: nn.Module, share: float
) -> None:
    report = comparison.measure(made.bundle, ask([lambda: Off(references[0], share)], vocos))
    assert {line.split(" at ")[0] for line in report.failed} >= {"step", "sample"}
    assert "sample at 50 frames, NFE 5, variant ort-cpu, against off: " in " ".join(report.failed)
    assert "allowed 5.0e-05" in " ".join(report.failed)


def test_a_wrong_vocoder_fails(made: BuiltBundle, references: list[oracles.Oracle], vocos: nn.Module) -> None:
    louder = copy.deepcopy(vocos)
    with torch.no_grad():
        louder.head.out.bias[:513] += 1e-2
    report = comparison.measure(made.bundle, ask([lambda: references[0]], louder))
    assert {line.split(" at ")[0] for line in report.failed} == {"vocoder", "wave"}


def test_a_package_that_is_not_installed_is_noted_as_absent(
    made: BuiltBundle, references: list[oracles.Oracle], vocos: nn.Module
) -> None:
    def absent() -> oracles.Oracle:
        raise ImportError("No module named 'f5_tts'")

    report = comparison.measure(made.bundle, ask([lambda: references[0], absent], vocos))
    assert report.failed == [] and {row.against for row in report.rows} == {"float64"}
    reason = "not installed here (No module named 'f5_tts')"
    assert report.record()["upstream"] == reason
    assert table(report.record()).endswith(f"upstream's DiT was not measured: {reason}")


@pytest.mark.parametrize("failure", [KeyError("f5_tts.model"), RuntimeError("half installed")])
def test_a_package_that_fails_while_it_is_imported_is_absent(
    failure: Exception, made: BuiltBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str, *rest: Any) -> Any:
        if name.startswith("f5_tts"):
            raise failure
        return imported(name, *rest)

    imported = __import__
    monkeypatch.setattr("builtins.__import__", broken)
    with pytest.raises(ImportError, match=r"f5_tts\.model|half installed"):
        oracles.UpstreamOracle({}, made.arch, SIZE, small.MELS)


def test_errors_are_relative_and_shapes_must_agree() -> None:
    a = np.array([3.0, 4.0], np.float32)
    assert comparison.relative_error(a * np.float32(1.5), a) == 0.5
    assert comparison.relative_error(a, a) == 0.0
    for other in (a[:1], a * np.float32("nan"), a * np.float32("inf")):
        assert comparison.relative_error(other, a) == math.inf
    assert comparison.relative_error(np.zeros_like(a), np.zeros_like(a)) == 0.0
    row = comparison.Row("step", "default", "torch", 1, 1, 0.01, 1.0)
    assert row.snr_db == pytest.approx(40.0)
    for unbounded in (row, dataclasses.replace(row, bound=None)):
        assert comparison.Report("fp32", [unbounded]).failed == []
        assert comparison.Report("fp32", [dataclasses.replace(unbounded, error=math.inf)]).failed
        assert comparison.Report("fp32", [dataclasses.replace(unbounded, error=math.nan)]).failed


# Lossy precisions


@pytest.fixture(scope="module")
def lossy(references: list[oracles.Oracle], vocos: nn.Module) -> oracles.Expectations:
    return ask([lambda: references[0]], vocos, lossy=True)


def test_int8_may_cost_a_share_of_the_error_of_few_steps(
    int8: BuiltBundle, lossy: oracles.Expectations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(comparison.BOUNDS["int8"], "heard", 0.0)
    monkeypatch.setitem(comparison.BOUNDS["int8"], "wave mel", 0.5)
    report = comparison.measure(int8.bundle, lossy)
    assert report.failed == []
    rows = {row.what: row for row in report.rows}
    kinds = ("modulation", "condition", "vocoder", "guided", "unguided", "keys", "reply", "mel", "wave mel")
    assert {*rows} == {*kinds}
    for what, bound in (("mel", 0.35), ("wave mel", 0.5)):
        assert 0.001 < rows[what].error <= rows[what].bound == bound  # type: ignore[operator]
        assert rows[what].snr_db is None
    assert rows["guided"].bound is None and rows["guided"].error > 1e-3
    (line,) = [line for line in table(report.record()).splitlines() if line.startswith("mel ")]
    assert line.split()[-2:] == ["–", "3.5e-01"]
    assert table(report.record()).splitlines()[6].endswith("–")


def test_int8_fails_by_its_mel_and_by_its_waveform(
    int8: BuiltBundle, lossy: oracles.Expectations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bundle passes if its distance from float is no larger than the bound that listeners could not
    hear."""
    assert lossy.coarse is not None
    monkeypatch.setitem(comparison.BOUNDS["int8"], "wave mel", 0.5)
    found = comparison.measure(int8.bundle, lossy)
    ratio = {row.what: row.error for row in found.rows if row.what in comparison.RATIOS}
    for what, field in (("mel", "mel_distance"), ("wave mel", "wave_mel_distance")):
        # The same errors relative to steps that cost less.
        nearer = getattr(lossy.coarse, field) * ratio[what] / 0.6
        coarse = dataclasses.replace(lossy.coarse, **{field: nearer})
        error = 0.6 * nearer
        for heard, failed in ((0.9 * error, [what]), (1.1 * error, [])):
            monkeypatch.setitem(comparison.BOUNDS["int8"], "heard", heard)
            report = comparison.measure(int8.bundle, dataclasses.replace(lossy, coarse=coarse))
            assert [line.split(" at ")[0] for line in report.failed] == failed


# Samplings


def test_the_cheapest_sampling_within_all_bounds_is_chosen() -> None:
    def report(**errors: float) -> comparison.Report:
        rows = [
            comparison.Row(what.replace("_", "-"), variant, "exact", 500, 7, error, 1.5)
            for what, error in errors.items()
            for variant in ("ort-cpu", "default")
        ]
        return comparison.Report("fp32", samplings=rows)

    assert comparison.Report("fp32").sampling == "exact"
    assert report(short_kv=1.4, short=1.3).sampling == "short-kv"
    assert report(short_kv=1.6, short=1.3).sampling == "short"
    assert report(short_kv=1.6, short=1.6).sampling == "exact"
    one_variant = report(short_kv=1.4, short=1.3)
    one_variant.samplings[0] = dataclasses.replace(one_variant.samplings[0], error=1.6)
    assert one_variant.sampling == "short"
    assert one_variant.failed == [] and report(short_kv=9.0, short=9.0).failed == []
    assert "short-kv at 500 frames" in report(short_kv=math.inf, short=1.0).failed[0]


@pytest.mark.parametrize(("bound", "tried"), [(1.65, 1), (0.5, 2), (0.3, 1)])
def test_samplings_are_tried_until_one_holds_or_is_hopeless(
    bound: float, tried: int, made: BuiltBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The distance of `exact` from `exact` has the ratio one."""
    monkeypatch.setattr(comparison, "SAMPLING_BOUND", bound)
    report = comparison.measure_samplings(made.bundle, samplings=("exact", "exact"), first=True)
    assert [row.error for row in report.samplings] == tried * [pytest.approx(1.0, rel=1e-4)]


def test_a_fault_while_sampling_is_a_row(made: BuiltBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def faulty(*_: object) -> Any:
        raise EngineFault("no memory")

    monkeypatch.setattr(comparison, "replay", faulty)
    report = comparison.measure_samplings(made.bundle)
    assert [row.error for row in report.samplings] == [math.inf] * 3
    assert len(report.failed) == 3 and report.sampling == "exact"


# Cases from files


@pytest.mark.parametrize(("voice", "frames"), oracles.READINGS)
def test_a_voice_reads_as_much_text_as_fills_its_frames(voice: str, frames: int) -> None:
    case = oracles.read_case(voice, frames, MelSpec("vocos"), VOCABULARY, 4096)
    assert frames <= case.frames < frames + 8
    assert 270 < len(case.cond) < 330 and case.cond.max() > 0 > case.cond.min()
    given = len(transcript(voice))
    spoken = len(case.ids) - given
    rule = len(case.cond) - 1 + (len(case.cond) - 1) * spoken / given
    assert case.frames == pytest.approx(rule, abs=1)
    text = "".join(small.VOCABULARY[i] for i in case.ids)
    assert text.startswith(" e are live every  onday at seven  so say hello   he ferry leaves")
    noise = oracles.read_case(voice, frames, MelSpec("vocos"), VOCABULARY, 4096).noise
    assert np.array_equal(case.noise, noise)


def test_the_longest_case_passes_two_thousand_frames_where_the_bundle_does() -> None:
    for max_frames, longest in ((4096, 2003), (2048, 2003), (1024, 1024), (256, 256)):
        everyday, long = oracles.CaseSet(MelSpec("vocos"), VOCABULARY, max_frames).read()
        assert long.frames in range(longest, longest + 8)
        assert long.frames <= max_frames and everyday.frames <= max_frames * 7 // 8
        for case in (everyday, long):
            assert len(case.cond) <= case.frames // 2 + 1 or case.frames > 500
            assert len(case.ids) < case.frames and len(case.noise) == case.frames


def test_a_trajectory_is_the_oracles_own_sample(references: list[oracles.Oracle]) -> None:
    oracle, given, times = references[0], oracles.random_case(90, MelSpec("vocos"), SIZE), time_grid(7)
    assert isinstance(oracle, oracles.TorchOracle)
    solved = oracle.trajectory(given, times)
    assert comparison.relative_error(solved.mel, oracle.sample(given, times)) <= 1e-6
    assert np.array_equal(solved.latents[0], given.noise)
    guided, unguided = solved.velocities[0]
    moved = given.noise + np.float32(times[1]) * (3.0 * guided - 2.0 * unguided)
    assert comparison.relative_error(solved.latents[1], moved) <= 1e-6
