"""Counted work against onnx's shape inference and the architecture's formula, and plans, predictions and
modelled replies against figures computed apart from this code."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest

from appliance.contract import bundle as bundles
from appliance.contract.bundle import Arch, Bundle
from tests.benchmarks import graph_work, limit, reply_model
from tests.benchmarks.__main__ import main
from tests.benchmarks.devices import BASE, DEVICES
from tests.benchmarks.graph_work import Work
from tests.benchmarks.reply_model import ReplyModel
from tests.benchmarks.simulator import DEMO
from tests.daemons import BUNDLE

pytestmark = pytest.mark.once

TINY = bundles.read(BUNDLE, verify=False)
SIZES = {"R": 1, "N": 200, "P": 0, "C": 30, "S": 8, "K": 1}


def counted_by_onnx(path: Path, graph: str, frames: int) -> float:
    """Operations of MatMul, Gemm and Conv, from shapes that the onnx package infers."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load(path)
    for value in model.graph.input:
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_value = {**SIZES, "N": frames}[axis.dim_param]
    del model.graph.value_info[:]
    for value in model.graph.output:
        for axis in value.type.tensor_type.shape.dim:
            axis.Clear()
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    shapes = {one.name: tuple(one.dims) for one in model.graph.initializer}
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        shapes[value.name] = tuple(axis.dim_value for axis in value.type.tensor_type.shape.dim)
    total = 0
    for node in model.graph.node:
        if node.op_type in ("MatMul", "Gemm"):
            total += 2 * math.prod(shapes[node.input[0]]) * shapes[node.output[0]][-1]
        elif node.op_type == "Conv":
            total += 2 * math.prod(shapes[node.output[0]]) * math.prod(shapes[node.input[1]][1:])
    return total


@pytest.mark.torch
@pytest.mark.parametrize("graph", ["modulation", "condition", "vocoder"])
def test_work_is_what_onnx_counts(graph: str) -> None:
    """At a length at which nothing was counted."""
    path = TINY.graph(graph, TINY.variant_for("ort-cpu"))
    expected = counted_by_onnx(path, graph, 200)
    assert sum(graph_work.count(TINY, graph).at(200).values()) == pytest.approx(expected, rel=1e-6)


def formula(manifest: bundles.Manifest, frames: int) -> dict[str, float]:
    """One row of a step, from the architecture: projections, blocks, position convolutions, attention."""
    arch, mels = manifest.arch, manifest.mel.mels
    dim, inner = arch.dim, arch.heads * arch.dim_head
    block = 2 * dim * 3 * inner + 2 * inner * dim + 2 * 2 * dim * dim * arch.ff_mult
    return {
        "linear": frames * (2 * mels * dim + arch.depth * block + 2 * dim * mels),
        "attention": arch.depth * 4 * frames**2 * inner,
        "convolution": frames * 2 * (2 * dim * (dim // 16) * 31),
    }


@pytest.mark.parametrize("folder", [BUNDLE, DEMO / "bundle"])
def test_a_step_is_what_its_architecture_says(folder: Path) -> None:
    bundle = bundles.read(folder, verify=False)
    found = graph_work.count(bundle, "step").at(500)
    for name, expected in formula(bundle.manifest, 500).items():
        # The last convolution computes some frames of context more.
        assert found[name] == pytest.approx(expected, rel=0.07 if name == "convolution" else 0.01), name
    assert found["rest"] == 0.0


def test_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["limit", str(DEMO / "bundle"), "--device", "agx-orin-64"]
    assert main([*options, "--json"]) == 0
    maxn = json.loads(capsys.readouterr().out)
    assert maxn["floor_s"] == pytest.approx(sum(max(g["compute_s"], g["memory_s"]) for g in maxn["graphs"]))
    seconds = [one["s"] for one in maxn["times"]]
    assert maxn["floor_s"] < min(seconds)
    assert main([*options, "--mode", "30W"]) == 0
    shown = capsys.readouterr().out
    assert "bound by compute" in shown and "agx-orin-64 at 30W: public figures" in shown
    assert main([*options, "--mode", "40W"]) == 1
    assert "has the modes MAXN, 50W, 30W, 15W, not 40W" in capsys.readouterr().err
    assert main([*options, "--audio", "900"]) == 1
    assert "at most 24.6 s" in capsys.readouterr().err


def test_limits_of_this_machine_hang_together(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limit, "MEASURED", 2)
    monkeypatch.setattr(limit, "VECTOR_MB", 8)
    command = ["limit", str(BUNDLE), "--audio", "1.5", "--reference", "1"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    whole = sum(row["s"] for row in found["graphs"])
    for row in found["graphs"]:
        assert row["if_free"] == pytest.approx(whole / (whole - row["s"]))
    assert sum(part["share"] for part in found["step"]) == pytest.approx(1.0)
    assert {row["frames"] for row in found["predictions"]} <= set(limit.PREDICTED_AT)
    assert all(row["predicted_s"] > 0 < row["measured_s"] for row in found["predictions"])


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
