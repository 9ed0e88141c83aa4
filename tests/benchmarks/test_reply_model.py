"""A reply's modelled time and padding, against figures that were computed apart from this code."""

from __future__ import annotations

import dataclasses

import pytest

from appliance.contract import bundle as bundles
from appliance.contract.bundle import Arch, Bundle
from tests.benchmarks import reply_model
from tests.benchmarks.devices import BASE, DEVICES
from tests.benchmarks.graph_work import Work
from tests.benchmarks.reply_model import ReplyModel
from tests.daemons import BUNDLE

pytestmark = pytest.mark.once

FRAMES_PER_S = 93.75
NFE = 7
MAXN = DEVICES["agx-orin-64"]["MAXN"]
V1_BASE = Arch(dim=1024, depth=22, heads=16, ff_mult=2, text_dim=512, conv_layers=4)
NOTHING = (0.0, 0.0, 0.0)


def model(monkeypatch: pytest.MonkeyPatch, precision: str = "fp16") -> ReplyModel:
    """v1_Base on an Orin, by its formula; the vocoder is Vocos of 13.5 million weights."""

    def count(bundle: Bundle, graph: str) -> Work:
        linear = {"step": BASE.frame, "condition": 20e6, "vocoder": 29e6}[graph]
        attention = BASE.pair if graph == "step" else 0.0
        flops = {"linear": (0.0, linear, 0.0), "attention": (0.0, 0.0, attention), "convolution": NOTHING}
        return Work(flops | {"rest": NOTHING}, 13e6)

    monkeypatch.setattr(reply_model, "count", count)
    bundle = bundles.read(BUNDLE, verify=False)
    manifest = dataclasses.replace(bundle.manifest, arch=V1_BASE, precision=precision)  # type: ignore[arg-type]
    return ReplyModel(dataclasses.replace(bundle, manifest=manifest), MAXN)


@pytest.mark.parametrize(("precision", "sampling", "step_ms", "rtf"), [
    ("fp16", "exact", 65.0, 0.056), ("fp16", "short", 54.0, 0.046),
    ("fp16", "short-kv", (2 * 54 + 5 * 41) / 7, 0.038),
    ("int8-qdq", "exact", 53.0, 0.046),
    ("int8-qdq", "short-kv", (2 * 44 + 5 * 33) / 7, 0.032),
])  # fmt: skip
def test_the_goals_case_is_as_was_modelled_by_hand(
    monkeypatch: pytest.MonkeyPatch, precision: str, sampling: bundles.Sampling, step_ms: float, rtf: float
) -> None:
    """8.37 s after 5 s at 7 steps."""
    reply = model(monkeypatch, precision).reply(sampling, 785, 469, NFE)
    assert reply.steps_s / NFE * 1e3 == pytest.approx(step_ms, rel=0.1)
    assert reply.total_s / 8.37 == pytest.approx(rtf, rel=0.1)
    if sampling == "short-kv":
        assert reply.first_audio_s <= 0.1


@pytest.mark.parametrize("sampling", ["exact", "short", "short-kv"])
@pytest.mark.parametrize("reference_s", [3.0, 5.0, 8.0, 12.0])
@pytest.mark.parametrize("reply_s", [1.0, 1.5, 3.0, 4.0, 5.12, 8.37, 17.0])
def test_padding_costs_little(
    monkeypatch: pytest.MonkeyPatch, sampling: bundles.Sampling, reference_s: float, reply_s: float
) -> None:
    frames, reference = (round(s * FRAMES_PER_S) for s in (reply_s, reference_s))
    found = model(monkeypatch).reply(sampling, frames, reference, NFE).padding
    assert 1.0 <= found <= (1.1 if reply_s >= 8.0 else 1.35)
