"""FP16 and INT8: what stays float32, what does not, and how far each is from upstream."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from appliance.engine.condition import Conditioner
from appliance.engine.ort import OrtBackend
from appliance.engine.replay import replay
from appliance.engine.synthesizer import Synthesizer
from appliance.errors import BundleError
from export import precision
from export.parity import BOUNDS
from tests.engine import lanes
from tests.export import small
from tests.export.small import Made, Workshop

pytestmark = pytest.mark.torch

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16


@pytest.fixture(scope="module")
def fp16(workshop: Workshop) -> Made:
    return workshop.make("v1", precision="fp16")


@pytest.fixture(scope="module")
def int8(workshop: Workshop) -> Made:
    return workshop.make("v1", precision="int8")


class Typed:
    """A graph with the element type of every value."""

    def __init__(self, path: Path) -> None:
        model = onnx.load(path)
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
        self.nodes = list(inferred.node)
        self.types = {
            value.name: value.type.tensor_type.elem_type
            for value in (*inferred.input, *inferred.output, *inferred.value_info)
        }
        self.weights = {tensor.name: tensor.data_type for tensor in inferred.initializer}
        self.types |= self.weights

    def of(self, *operators: str) -> list[onnx.NodeProto]:
        return [node for node in self.nodes if node.op_type in operators]

    def inputs(self, *operators: str) -> Counter[int]:
        """Element types of the first inputs of these operators."""
        return Counter(self.types[node.input[0]] for node in self.of(*operators))

    def readers(self, value: str) -> Iterator[onnx.NodeProto]:
        """The nodes that compute with a value, past those that only cut or reshape it."""
        for node in self.nodes:
            if value not in node.input:
                continue
            if node.op_type in ("Slice", "Split", "Unsqueeze", "Squeeze", "Reshape", "Expand", "Gather"):
                for out in node.output:
                    yield from self.readers(out)
            elif node.op_type != "Shape":
                yield node


@pytest.fixture(scope="module", params=["softmax_fp16", "softmax_fp32"])
def step(request: pytest.FixtureRequest, fp16: Made) -> tuple[str, Typed]:
    return request.param, Typed(fp16.bundle.graph("step", request.param))


def test_the_step_keeps_latents_update_and_norms_in_float32(step: tuple[str, Typed]) -> None:
    graph = step[1]
    assert graph.types["latents"] == graph.types["latents_out"] == FLOAT
    assert graph.types["mod_table"] == graph.types["combine"] == graph.types["dt"] == FLOAT
    assert set(graph.inputs("LayerNormalization")) == {FLOAT}
    assert len(graph.of("LayerNormalization")) == 2 * small.V1.depth + 1
    update = next(node for node in graph.nodes if "latents_out" in node.output)
    assert update.op_type == "Add" and {graph.types[name] for name in update.input} == {FLOAT}
    for name in ("dt", "combine"):
        assert {(n.op_type, graph.types[n.output[0]]) for n in graph.readers(name)} == {("Mul", FLOAT)}
    assert set(graph.inputs("Exp")) == {FLOAT}  # Mish's


def test_rotary_tables_and_products_are_float32(step: tuple[str, Typed]) -> None:
    graph = step[1]
    for table in ("cos", "sin"):
        assert graph.types[table] == FLOAT
        products = list(graph.readers(table))
        assert len(products) == 2 * 2 * small.V1.depth  # two halves of q and of k in each block
        assert {(n.op_type, graph.types[n.output[0]]) for n in products} == {("Mul", FLOAT)}


def test_modulation_rows_act_in_float32_but_for_the_gates(step: tuple[str, Typed]) -> None:
    graph = step[1]
    uses = Counter((n.op_type, graph.types[n.output[0]]) for n in graph.readers("mod_table"))
    gates = 2 * small.V1.depth
    assert uses == {("Add", FLOAT): 2 * gates + 2, ("Cast", HALF): gates}


def test_products_are_float16_and_so_is_the_softmax_of_the_first_variant(step: tuple[str, Typed]) -> None:
    variant, graph = step
    products = graph.of("MatMul")
    assert len(products) == 8 * small.V1.depth + 2
    assert {graph.types[name] for node in products for name in node.input} == {HALF}
    assert set(graph.inputs("Conv")) == {HALF}
    assert graph.inputs("Softmax") == {HALF if variant == "softmax_fp16" else FLOAT: small.V1.depth}


def test_variants_share_one_file_of_weights(fp16: Made) -> None:
    assert sorted(path.name for path in fp16.bundle.folder.glob("step*")) == [
        "step.onnx",
        "step.onnx.data",
        "step_float32.onnx",
        "step_softmax_fp32.onnx",
    ]
    assert fp16.bundle.graph("condition", "softmax_fp16") == fp16.bundle.graph("condition", "softmax_fp32")


@pytest.mark.parametrize("name", ["condition", "step", "vocoder"])
def test_on_a_cpu_only_weights_and_signature_are_float16(name: str, fp16: Made) -> None:
    narrow, wide = (Typed(fp16.bundle.graph(name, variant)) for variant in ("default", "ort-cpu"))
    assert HALF in narrow.types.values()
    signature = {"condition", "log_mel", "latents", "latents_out", "samples"} & set(narrow.types)
    assert {key: wide.types[key] for key in signature} == {key: narrow.types[key] for key in signature}
    assert wide.weights == narrow.weights
    halves = {key for key, kind in wide.types.items() if kind == HALF}
    assert halves == ({key for key, kind in wide.weights.items() if kind == HALF} | {"condition"}) & set(
        wide.types
    )
    assert all(node.op_type == "Cast" for node in wide.nodes if halves & {*node.input, *node.output})
    computed = [node.op_type for node in wide.nodes if node.op_type != "Cast"]
    assert computed == [node.op_type for node in narrow.nodes if node.op_type != "Cast"]


def test_a_cpu_runs_its_own_variant_where_there_is_one(fp16: Made, int8: Made) -> None:
    assert fp16.bundle.variant_for("ort-cpu") == "ort-cpu"
    assert fp16.bundle.variant_for("tensorrt") == int8.bundle.variant_for("ort-cpu") == "default"
    given = small.case(60).segment(lanes.time_grid(5))
    own, narrow, unsaid = (replay(fp16.engine(variant=v), given)[0] for v in ("ort-cpu", "default", None))
    np.testing.assert_array_equal(unsaid, own)
    assert 1e-6 < small.relative(narrow, own) < BOUNDS["fp16"]["sample"]


def test_the_condition_sums_its_responses_in_float32(fp16: Made) -> None:
    graph = Typed(fp16.bundle.graph("condition"))
    assert set(graph.inputs("LayerNormalization", "ReduceSum", "ReduceMean", "Sqrt", "Div")) == {FLOAT}
    assert {graph.types[f"blocks.0.{name}"] for name in ("gamma", "beta", "norm_weight")} == {FLOAT}
    assert {graph.types[name] for node in graph.of("MatMul") for name in node.input} == {HALF}
    assert graph.types["condition"] == HALF


def test_the_vocoders_head_is_float32_and_its_backbone_float16(fp16: Made) -> None:
    graph = Typed(fp16.bundle.graph("vocoder"))
    assert set(graph.inputs("Exp", "Cos", "Sin", "LayerNormalization", "Div")) == {FLOAT}
    kinds = {
        next(name for name in node.input if name in graph.weights): graph.types[node.output[0]]
        for node in graph.of("MatMul")
    }
    assert {name for name, kind in kinds.items() if kind == FLOAT} == {"head.weight", "inverse_stft.basis"}
    assert {kind for name, kind in kinds.items() if name.startswith("blocks.")} == {HALF}
    assert set(graph.inputs("Conv")) == {HALF}


def test_modulation_is_computed_in_float32_from_weights_in_float16(fp16: Made) -> None:
    graph = Typed(fp16.bundle.graph("modulation"))
    assert {graph.types[name] for node in graph.of("Gemm") for name in node.input} == {FLOAT}
    assert {graph.weights[name] for name in graph.weights if name.endswith(".weight")} == {HALF}


# INT8


def test_every_product_but_the_kept_ones_is_int8(int8: Made, workshop: Workshop) -> None:
    floats = precision.weight_products(workshop.make("v1").bundle.graph("step"))
    roles = Counter(floats.values())
    assert roles == {
        "from_latents": 1,
        "final": 1,
        "qkv": 3 * small.V1.depth,
        **dict.fromkeys(("attention.out", "up", "down"), small.V1.depth),
    }
    graph = onnx.load(int8.bundle.graph("step")).graph
    kinds = Counter(node.op_type for node in graph.node)
    kept = sum(roles[role] for role in precision.INT8_KEEPS_FLOAT)
    assert kinds["MatMulInteger"] == sum(roles.values()) - kept
    names = {tensor.name for tensor in graph.initializer}
    assert sum(n.op_type == "MatMul" and n.input[1] in names for n in graph.node) == kept
    weights = {t.name: t for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "MatMulInteger":
            assert weights[node.input[1]].data_type == TensorProto.INT8


def test_what_stays_float_can_be_chosen_by_role(workshop: Workshop, tmp_path: Path) -> None:
    source = workshop.make("v1").bundle.graph("step")
    precision.quantise(source, tmp_path / "step.onnx", ("qkv", "final"))
    graph = onnx.load(tmp_path / "step.onnx").graph
    left = {
        node.input[1]
        for node in graph.node
        if node.op_type == "MatMul" and node.input[1] in {tensor.name for tensor in graph.initializer}
    }
    kept = {f"blocks.{i}.attention.{name}.weight" for i in range(small.V1.depth) for name in "qkv"}
    assert left == {"out.weight", *kept}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step.onnx", "step.onnx.data"]
    with pytest.raises(ValueError, match=re.escape("unknown role attention; roles: from_latents, qkv")):
        precision.quantise(source, tmp_path / "other.onnx", ("attention",))


def test_int8_says_that_batches_change_it_and_runs_one_lane_at_a_time(int8: Made) -> None:
    assert int8.bundle.manifest.batch_invariant is False
    assert int8.bundle.manifest.backends == ("ort-cpu",)
    engine = int8.engine(lanes=4)
    assert (engine.max_lanes, engine.max_batch) == (4, 1)
    ids = [engine.open(lanes.segment(60, seed=i)).id for i in range(2)]
    with pytest.raises(ValueError, match="a batch holds 1 to 1 lanes of this bundle, not 2"):
        engine.step(ids)
    engine.step(ids[:1])


def test_a_backend_that_int8_is_not_for_refuses_it_by_name(int8: Made) -> None:
    class TensorRT(lanes.Watched):
        name = "tensorrt"

    with pytest.raises(BundleError, match="precision int8 is for ort-cpu, not for tensorrt"):
        Synthesizer(int8.bundle, TensorRT())


# How far


@pytest.mark.parametrize(
    ("name", "variant"),
    [("fp16", "softmax_fp16"), ("fp16", "softmax_fp32"), ("fp16", "ort-cpu"), ("int8", "default")],
)
def test_errors_against_upstream_are_bounded(
    name: str, variant: str, workshop: Workshop, capsys: pytest.CaptureFixture[str]
) -> None:
    made = workshop.make("v1", precision=name)  # type: ignore[arg-type]
    bounds = BOUNDS[made.bundle.manifest.precision]
    flow = small.upstream_flow(made.files, made.arch)
    engine = made.engine(variant=variant)
    errors: dict[str, float] = {}
    step, sample = small.case(190), small.case(128)
    backend, d = OrtBackend(1), made.bundle.manifest.dimensions
    t = np.array([0.0, 0.0012, 0.3, 0.9], np.float32)
    rows = np.zeros((4, d.rows, d.dim), np.float32)
    backend.load(made.bundle.graph("modulation")).run({"t": t}, {"rows": rows})
    errors["modulation"] = small.relative(rows, small.upstream_rows(flow, t))
    condition = Conditioner(backend.load(made.bundle.graph("condition")), backend, d)
    seen = np.asarray(condition(step.segment(t.astype(np.float64)))).astype(np.float32)
    errors["condition"] = small.relative(seen, small.upstream_condition(flow, step))
    mel, _ = replay(engine, step.segment(np.array([0.3, 1.3])))
    moved = small.upstream_velocity(flow, step, 0.3)[63:]
    errors["step"] = small.relative((mel - step.noise)[63:], moved)
    for nfe in (5, 7, 16, 32):
        wanted = small.upstream_sample(flow, sample, nfe)
        mel, wave = replay(engine, sample.segment(lanes.time_grid(nfe)))
        errors[f"sample, NFE {nfe}"] = small.relative(mel[42:], wanted[42:])
        errors[f"wave, NFE {nfe}"] = small.relative(wave, small.upstream_wave(made.files, wanted))
    heard = sample.noise - 2.0
    errors["vocoder"] = small.relative(engine.decode(heard), small.upstream_wave(made.files, heard))
    with capsys.disabled():
        for what, error in errors.items():
            print(f"\n{variant:13s} {what:15s} {error:8.1e} {-20 * np.log10(error):6.1f} dB", end="")
    for what, error in errors.items():
        assert 1e-8 < error <= bounds[what.split(",")[0]], what
    assert min(errors["step"], errors["modulation"]) > 1e-5  # it is not the float32 bundle that was measured


@pytest.mark.parametrize("frames", [4, 37, 500, 2000])
def test_float16_stays_finite_at_every_length(fp16: Made, frames: int) -> None:
    given = small.case(frames, reference=1)
    for variant in ("softmax_fp16", "softmax_fp32", "ort-cpu"):
        mel, wave = replay(fp16.engine(variant=variant), given.segment(lanes.time_grid(2)))
        assert np.isfinite(mel).all() and np.isfinite(wave).all()


def test_padding_stays_out_of_float16_batches_too(fp16: Made) -> None:
    """A masked score is finite in float16, so that a softmax over padding alone is no NaN."""
    engine = fp16.engine(lanes=3)
    segments = [lanes.segment(n, seed=n) for n in (60, 143, 700)]
    wanted = [lanes.solo(engine, given, 2) for given in segments]
    ids = [engine.open(given).id for given in segments]
    for _ in range(2):
        engine.step(ids)
    for lane_id, given, want in zip(ids, segments, wanted, strict=True):
        assert lanes.relative(lanes.moved(engine, lane_id, given), want) <= 1e-3
