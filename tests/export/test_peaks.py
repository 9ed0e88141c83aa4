"""Peaks in float16, against upstream's DiT that runs in half precision."""

import math

import pytest
import torch

from appliance.contract import bundle as contract
from appliance.contract.mel import MelSpec
from appliance.contract.schedule import time_grid
from export import assemble
from export.model.dit import DiT
from export.model.vocos import Vocos
from export.parity import LARGEST_HALF, peaks
from export.parity.comparison import Report
from export.parity.oracles import Peak, TorchOracle, random_case
from tests.export.random_checkpoint import redraw
from tests.harness.small import MELS, V1, VOCOS, upstream_dit

pytestmark = pytest.mark.torch

VOCABULARY = 30


def model_with(factor: float, name: str = "") -> DiT:
    model = DiT(V1, VOCABULARY, MELS).eval()
    redraw(model, 3)
    with torch.no_grad():
        for parameter, value in model.named_parameters():
            if name and parameter.startswith(name):
                value.mul_(factor)
    return model


def measured(model: DiT) -> list[Peak]:
    decode = Vocos(VOCOS).eval()
    redraw(decode, 4)
    case = random_case(60, MelSpec("vocos"), VOCABULARY)
    solved = TorchOracle(model).trajectory(case, time_grid(5))
    return peaks.measure(model, decode, [solved], random_case(24, MelSpec("vocos"), VOCABULARY))


@pytest.mark.parametrize("where", [
    "transformer_blocks.1.ff.ff.2",
    "transformer_blocks.0.attn scores",
    "input_embed.proj",
    "text_embed.text_blocks.0.pwconv2",
])  # fmt: skip
def test_overflows_in_half_precision_are_named(where: str) -> None:
    name = where.replace(" scores", ".to_")
    calm = measured(model_with(1.0))
    assert all(peak.holds for peak in calm)
    assert {peak.graph for peak in calm} == {"step", "condition", "vocoder"}
    usual = max(peak.value for peak in calm if peak.where == where)
    # A score is a product of two such values.
    factor = 40.0 * LARGEST_HALF / usual
    model = model_with(math.sqrt(factor) if "scores" in where else factor, name)
    loud = {peak.where: peak for peak in measured(model)}
    assert not loud[where].is_finite
    graph = "condition" if name.startswith("text") else "step"
    assert str(loud[where]).startswith(f"float16: {where} of {graph} reaches ")
    # Upstream's model in half precision overflows too.
    other = upstream_dit(V1, VOCABULARY, model.state_dict())
    case = random_case(60, MelSpec("vocos"), VOCABULARY)
    cond = torch.zeros(1, case.frames, MELS)
    cond[0, : len(case.cond)] = torch.from_numpy(case.cond)
    noise, ids = torch.from_numpy(case.noise)[None], torch.from_numpy(case.ids).long()[None]
    with torch.inference_mode():
        half = other.half()(noise.half(), cond.half(), ids, torch.tensor(0.3).half())
    assert not half.isfinite().all()


def judged(value: float, accept: str = "") -> contract.Manifest:
    report = Report("fp16", peaks=(Peak("step", "ff", value), Peak("vocoder", "embed", 3.0)))
    manifest = contract.read(assemble.Path("tests/tiny/bundle"), verify=False).manifest
    return assemble.Gate(accept=accept).judge(manifest, report)


def test_a_peak_within_four_times_of_the_end_is_accepted_with_a_reason_alone() -> None:
    assert judged(16_000.0).parity["peaks"][0] == {"graph": "step", "where": "ff", "value": 16_000.0}
    with pytest.raises(assemble.BundleFailed, match=r"ff of step reaches 2e\+04"):
        judged(20_000.0)
    assert judged(20_000.0, "loud on purpose").parity["accepted_by"] == "loud on purpose"
    for beyond in (70_000.0, math.inf):
        with pytest.raises(assemble.BundleFailed, match="ff of step"):
            judged(beyond, "at any cost")
