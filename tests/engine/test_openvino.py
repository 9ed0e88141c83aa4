"""The OpenVINO backend: agreement with ONNX Runtime, shared memory, and its errors."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance import cli
from appliance.config import load as read_config
from appliance.contract import bundle as contract
from appliance.contract.bundle import Bundle, Sampling
from appliance.contract.graphs import signatures
from appliance.engine import openvino
from appliance.engine.cases import FEMALE
from appliance.engine.engine import Synthesizer
from appliance.engine.loading import open_backend
from appliance.engine.openvino import OpenVinoBackend, Precision
from appliance.engine.ort import OrtBackend
from appliance.engine.tensorrt import gate
from appliance.errors import BundleError, EngineFault
from appliance.voices.store import open_store
from tests import daemons
from tests.engine.lanes import SAMPLINGS, moved, relative, run, segment, solo, spoken

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
def has_bf16() -> None:
    core = importlib.import_module("openvino").Core()
    if "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        pytest.skip("this processor has no bfloat16")


@pytest.mark.usefixtures("has_bf16")
@pytest.mark.parametrize(("bf16_s", "label"), [(0.5, "openvino (bf16)"), (1.5, "openvino (f32)")])
def test_the_quicker_arithmetic_is_taken(monkeypatch: pytest.MonkeyPatch, bf16_s: float, label: str) -> None:
    monkeypatch.setattr(openvino, "product_s", {"bf16": bf16_s, "f32": 1.0}.__getitem__)
    assert open_backend("openvino").label == label


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("guidance", [0.0, 2.0])
def test_in_float32_it_speaks_as_onnx_runtime_does(
    make: Make, engine: Synthesizer, sampling: Sampling, guidance: float
) -> None:
    given, f32 = segment(90, guidance=guidance, sampling=sampling), make("f32")
    assert f32.backend == "openvino (f32)"
    assert relative(solo(f32, given), solo(engine, given)) <= EXACT
    assert relative(spoken(f32, given)[1], spoken(engine, given)[1]) <= EXACT
    assert gate.share(engine, engine, given) == 0.0
    assert gate.share(f32, engine, given) <= 1e-3


@pytest.mark.usefixtures("has_bf16")
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_in_bfloat16_only_the_steps_differ_and_not_by_much(
    make: Make, engine: Synthesizer, sampling: Sampling
) -> None:
    given, bf16 = segment(90, sampling=sampling), make("bf16")
    start = len(given.reference_log_mel)
    found, wanted = (spoken(one, given)[0][start:] for one in (bf16, engine))
    assert EXACT < relative(found, wanted) <= LOSSY
    assert relative(bf16.decode(wanted), engine.decode(wanted)) <= EXACT


def test_lanes_of_any_length_take_turns(make: Make, engine: Synthesizer) -> None:
    f32, given = make("f32"), [segment(n, seed=n) for n in (41, 130)]
    ids = [f32.open(one).id for one in given]
    run(f32, ids, 5)
    for lane_id, one in zip(ids, given, strict=True):
        assert relative(moved(f32, lane_id, one), solo(engine, one)) <= EXACT


@pytest.mark.parametrize(
    ("setting", "share", "level", "remedy"),
    [
        ("openvino", None, "PASS", None),
        ("openvino", 0.26, "FAIL", "set engine.backend to ort-cpu"),
        ("ort-cpu", None, "SKIP", None),
    ],
    ids=["the demo voice holds the criterion", "arithmetic that changes more", "nothing to compare"],
)
def test_the_check_of_lossy_arithmetic(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    share: float | None,
    level: str,
    remedy: str | None,
) -> None:
    path = daemons.write_config(tmp_path, daemons.DEMO / "bundle", engine={"backend": setting})
    config, voice = read_config(path), daemons.DEMO / "voices" / FEMALE
    open_store(config.voices, contract.read(config.bundle.path)).create(
        FEMALE, voice.with_suffix(".wav").read_bytes(), voice.with_suffix(".txt").read_text()
    )
    if share is not None:
        monkeypatch.setattr(gate, "share", lambda *engines_and_segment: share)
    cli.main(["check", "--json", "--only", "precision", "--config", str(path)])
    [finding] = json.loads(capsys.readouterr().out)["findings"]
    assert finding["level"] == level, finding
    if remedy:
        assert finding["remedy"] == remedy
    if level == "PASS":
        label = finding["value"].partition(" on ")[2]
        assert label in ("openvino (bf16)", "openvino (f32)")
        assert (finding["figures"]["share"] > 1e-3) == (label == "openvino (bf16)")


def tensors() -> dict[str, Any]:
    """Inputs and the output of `update` for five frames."""
    rng = np.random.default_rng(0)
    names = ("latents", "guided", "unguided", "latents_out")
    given = {name: rng.standard_normal((5, 100), np.float32) for name in names}
    return given | {"weights": np.array([3.0, -2.0], np.float32)}


def test_memory_is_shared_and_tensors_that_do_not_fit_are_an_engine_fault(tiny: Bundle) -> None:
    spec = signatures(tiny.manifest.dimensions)["update"]
    update, given = OpenVinoBackend(1).load("update", tiny.graph("update"), spec, {}), tensors()
    out = given.pop("latents_out")
    bound = update.bind(given, {"latents_out": out})
    for factor in (3.0, 0.5):
        given["weights"][:] = (factor, 1.0)
        bound.run()
        assert out == pytest.approx(given["latents"] + factor * given["guided"] + given["unguided"], abs=1e-5)
    for name, wrong in (("guided", np.zeros((4, 100), np.float32)), ("weights", np.zeros(2, np.float64))):
        with pytest.raises(EngineFault, match=rf"^OpenVINO: update: {name}: ") as caught:
            update.bind(given | {name: wrong}, {"latents_out": out})
        assert "\n" not in str(caught.value)


def test_a_file_that_it_cannot_read_is_a_bundle_error(tiny: Bundle, tmp_path: Path) -> None:
    garbage, spec = tmp_path / "step.onnx", signatures(tiny.manifest.dimensions)["step"]
    garbage.write_bytes(b"not a graph")
    for path in (garbage, tmp_path / "absent.onnx"):
        with pytest.raises(BundleError, match=rf"{path.name}: OpenVINO [\w./-]+ cannot load it") as caught:
            OpenVinoBackend(1).load("step", path, spec, {})
        assert "\n" not in str(caught.value)
