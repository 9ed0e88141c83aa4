"""The OpenVINO backend: agreement with ONNX Runtime, shared memory, and its errors."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from appliance import cli
from appliance.config import load as read_config
from appliance.contract import bundle as contract
from appliance.contract.bundle import Bundle, Sampling
from appliance.contract.graphs import signatures
from appliance.engine import openvino
from appliance.engine.backend import Graph, HostArray
from appliance.engine.cases import FEMALE
from appliance.engine.engine import Synthesizer
from appliance.engine.loading import open_backend
from appliance.engine.openvino import OpenVinoBackend, Precision, product_s
from appliance.engine.ort import OrtBackend
from appliance.engine.tensorrt import gate
from appliance.errors import BundleError, EngineFault
from appliance.request import FloatArray, Segment
from appliance.voices.store import open_store
from tests import daemons
from tests.engine import lanes

pytestmark = pytest.mark.torch  # the environments without torch have no OpenVINO either

EXACT = 1e-5
"""Largest ‖a − b‖ / ‖b‖ of float32 on two runtimes, over a whole sample."""
LOSSY = 5e-2
"""The same for bfloat16 steps."""

Make = Callable[[Precision], Synthesizer]


@pytest.fixture(autouse=True)
def installed() -> None:
    """Skip where OpenVINO is not installed (fail with F5_REQUIRE_UPSTREAM=1)."""
    if importlib.util.find_spec("openvino") is None:
        reason = "openvino is not installed (scripts/requirements/openvino.txt; scripts/test installs it)"
        if os.environ.get("F5_REQUIRE_UPSTREAM") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


@pytest.fixture
def make(tiny: Bundle) -> Iterator[Make]:
    host = OrtBackend(1)
    made: list[Synthesizer] = []

    def make(precision: Precision) -> Synthesizer:
        made.append(Synthesizer(tiny, OpenVinoBackend(1, precision=precision), host=host, lanes=2))
        return made[-1]

    yield make
    for engine in made:
        engine.shutdown()


@pytest.fixture
def bf16(make: Make) -> Synthesizer:
    if not has_bf16():
        pytest.skip("this processor has no bfloat16")
    return make("bf16")


def has_bf16() -> bool:
    core = importlib.import_module("openvino").Core()
    return "BF16" in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@pytest.mark.parametrize(("bf16_s", "label"), [(0.5, "openvino (bf16)"), (1.5, "openvino (f32)")])
def test_the_quicker_arithmetic_is_taken(monkeypatch: pytest.MonkeyPatch, bf16_s: float, label: str) -> None:
    if not has_bf16():
        pytest.skip("this processor has no bfloat16")
    seconds = {"bf16": bf16_s, "f32": 1.0}
    monkeypatch.setattr(openvino, "product_s", seconds.__getitem__)
    assert open_backend("openvino").label == label


def test_a_product_is_timed_in_both_arithmetics() -> None:
    assert all(product_s(precision) > 1e-5 for precision in get_args(Precision))


@pytest.fixture
def update(tiny: Bundle) -> Graph:
    spec = signatures(tiny.manifest.dimensions)["update"]
    return OpenVinoBackend(1).load("update", tiny.graph("update"), spec, {})


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """A configuration with the demo bundle, its voice and this backend."""
    path = daemons.write_config(tmp_path, daemons.DEMO / "bundle", engine={"backend": "openvino"})
    config = read_config(path)
    voice = daemons.DEMO / "voices" / FEMALE
    open_store(config.voices, contract.read(config.bundle.path)).create(
        FEMALE, voice.with_suffix(".wav").read_bytes(), voice.with_suffix(".txt").read_text()
    )
    return path


def checked(config: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[dict[str, Any]]:
    """The findings of `appliance check --only precision`."""
    cli.main(["check", "--json", "--only", "precision", "--config", str(config), *options])
    findings: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["findings"]
    return findings


def tensors(frames: int = 5) -> dict[str, HostArray]:
    rng = np.random.default_rng(0)
    given: dict[str, HostArray] = {
        name: rng.standard_normal((frames, 100), np.float32) for name in ("latents", "guided", "unguided")
    }
    return given | {"weights": np.array([3.0, -2.0], np.float32)}


def spoken(engine: Synthesizer, given: Segment) -> tuple[FloatArray, FloatArray]:
    """The generated log-mel, and the samples."""
    lane = engine.open(given)
    for _ in range(lane.steps_left):
        engine.step([lane.id])
    mel, samples = engine.log_mel(lane.id), engine.finish(lane.id)
    engine.close(lane.id)
    return mel[len(given.reference_log_mel) :], samples


@pytest.mark.parametrize("sampling", get_args(Sampling))
@pytest.mark.parametrize("guidance", [0.0, 2.0])
def test_in_float32_it_speaks_as_onnx_runtime_does(
    make: Make, engine: Synthesizer, sampling: Sampling, guidance: float
) -> None:
    given = dataclasses.replace(lanes.segment(90, guidance=guidance), sampling=sampling)
    for found, wanted in zip(spoken(make("f32"), given), spoken(engine, given), strict=True):
        assert lanes.relative(found, wanted) <= EXACT


@pytest.mark.parametrize("sampling", get_args(Sampling))
def test_in_bfloat16_it_differs_and_not_by_much(
    bf16: Synthesizer, engine: Synthesizer, sampling: Sampling
) -> None:
    given = dataclasses.replace(lanes.segment(90), sampling=sampling)
    found, wanted = spoken(bf16, given)[0], spoken(engine, given)[0]
    assert EXACT < lanes.relative(found, wanted) <= LOSSY


def test_the_demo_voice_holds_the_criterion_for_lossy_arithmetic(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (finding,) = checked(demo, capsys)
    assert finding["level"] == "PASS", finding
    label = finding["value"].partition(" on ")[2]
    assert label in ("openvino (bf16)", "openvino (f32)")
    assert (finding["figures"]["share"] > 1e-3) == (label == "openvino (bf16)")


def test_arithmetic_that_changes_more_fails_the_check(
    demo: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate, "share", lambda *engines_and_segment: 0.26)
    (finding,) = checked(demo, capsys)
    assert (finding["level"], finding["remedy"]) == ("FAIL", "set engine.backend to ort-cpu")


def test_the_check_has_nothing_to_compare_on_onnx_runtime(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (finding,) = checked(demo, capsys, "--set", "engine.backend=ort-cpu")
    assert finding["level"] == "SKIP"


@pytest.mark.parametrize("sampling", get_args(Sampling))
def test_the_share_of_float32_is_nothing(make: Make, engine: Synthesizer, sampling: Sampling) -> None:
    given = dataclasses.replace(lanes.segment(90), sampling=sampling)
    assert gate.share(engine, engine, given) == 0.0
    assert gate.share(make("f32"), engine, given) <= 1e-3


def test_a_daemon_says_on_what_it_speaks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with daemons.running(tmp_path, engine={"backend": "openvino"}) as daemon:
        daemon.add_voice()
        code = cli.main(["check", "--config", str(tmp_path / "config.yaml"), "--only", "synthesis"])
        printed = capsys.readouterr().out
        assert code == 0, printed
        assert re.search(r" on openvino \((bf16|f32)\)$", printed, re.MULTILINE)


def test_lanes_of_any_length_take_turns(make: Make, engine: Synthesizer) -> None:
    engine_f32, given = make("f32"), [lanes.segment(n, seed=n) for n in (41, 130)]
    wanted = [lanes.solo(engine, segment) for segment in given]
    opened = [engine_f32.open(segment).id for segment in given]
    for _ in range(5):
        engine_f32.step(opened)
    for lane, segment, want in zip(opened, given, wanted, strict=True):
        assert lanes.relative(lanes.moved(engine_f32, lane, segment), want) <= EXACT


def test_only_the_steps_are_lossy(bf16: Synthesizer, make: Make, engine: Synthesizer) -> None:
    given = lanes.segment(60)
    mel = given.reference_log_mel
    assert lanes.relative(bf16.decode(mel), engine.decode(mel)) <= EXACT


def test_inputs_and_outputs_share_memory(update: Graph) -> None:
    given, out = tensors(), np.zeros((5, 100), np.float32)
    bound = update.bind(given, {"latents_out": out})
    for factor in (3.0, 0.5):
        given["weights"][:] = (factor, 1.0)
        bound.run()
        wanted = given["latents"] + factor * given["guided"] + given["unguided"]
        assert out == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"guided": None}, "guided"),
        ({"time": np.zeros(1, np.float32)}, "time"),
        ({"guided": np.zeros((4, 100), np.float32)}, "guided"),
        ({"weights": np.zeros((2, 2), np.float32)}, "weights"),
        ({"weights": np.zeros(2, np.float64)}, "float64"),
        ({"latents_out": np.zeros((6, 100), np.float32)}, "latents_out"),
    ],
)
def test_tensors_that_do_not_fit_are_an_engine_fault(
    update: Graph, change: dict[str, HostArray | None], message: str
) -> None:
    given = {**tensors(), "latents_out": np.zeros((5, 100), np.float32), **change}
    arrays = {name: array for name, array in given.items() if array is not None}
    out = {"latents_out": arrays.pop("latents_out")}
    with pytest.raises(EngineFault, match=rf"^OpenVINO: .*{message}") as caught:
        update.bind(arrays, out)
    assert "\n" not in str(caught.value)


def test_a_file_that_it_cannot_read_is_a_bundle_error(tiny: Bundle, tmp_path: Path) -> None:
    garbage, spec = tmp_path / "step.onnx", signatures(tiny.manifest.dimensions)["step"]
    garbage.write_bytes(b"not a graph")
    for path in (garbage, tmp_path / "absent.onnx"):
        with pytest.raises(BundleError, match=rf"{path.name}: OpenVINO [\w./-]+ cannot load it") as caught:
            OpenVinoBackend(1).load("step", path, spec, {})
        assert "\n" not in str(caught.value)


def test_the_engine_says_how_it_computes(make: Make, engine: Synthesizer) -> None:
    assert engine.backend == "ort-cpu"
    assert make("f32").backend == "openvino (f32)"
