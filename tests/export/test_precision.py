"""FP16 and INT8: the parts that stay float32. `test_matrix` measures the distance from upstream."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from appliance.config import EngineConfig
from appliance.contract.bundle import FLOAT32, FLOAT32_SUMS, FUSED, INT8, Bundle, Precision
from appliance.engine import ort
from appliance.engine.engine import Synthesizer
from appliance.engine.loading import load_for
from appliance.engine.replay import replay
from export import assemble
from export.parity import comparison
from export.precision import rewrites
from tests.engine import lanes
from tests.harness import small, traces
from tests.harness.small import BuiltBundle, Workshop

pytestmark = pytest.mark.torch

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16


GPUS = ("ort-cpu", "ort-cuda", "tensorrt")
PRECISIONS: dict[Precision, tuple[tuple[str, ...], bool, str, set[str]]] = {
    "fp32": (GPUS, True, "float32", {"default", "ort-cpu", FUSED}),
    "fp16": (GPUS, True, "float16", {"default", "ort-cpu", FLOAT32, FUSED, FLOAT32_SUMS}),
    "int8": (("ort-cpu",), False, "float32", {"default"}),
    "int8-qdq": (("tensorrt", "ort-cpu"), True, "float16", {"default", "ort-cpu", FLOAT32}),
}
"""Backends, if results are independent of the batch, the type between graphs, and variants."""


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_manifest_names_backends(precision: Precision, workshop: Workshop) -> None:
    m = workshop.make("v1", precision=precision).bundle.manifest
    assert PRECISIONS[m.precision] == (m.backends, m.batch_invariant, m.dimensions.compute, {*m.variants})


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
        """Nodes that compute with a value, reached through nodes that only cut or reshape it."""
        for node in self.nodes:
            if value not in node.input:
                continue
            if node.op_type in ("Slice", "Split", "Unsqueeze", "Squeeze", "Reshape", "Expand", "Gather"):
                for out in node.output:
                    yield from self.readers(out)
            elif node.op_type != "Shape":
                yield node


STEPS = ("step", "step_keys", "step_reply")


@pytest.fixture(scope="module", params=STEPS)
def step(request: pytest.FixtureRequest, fp16: BuiltBundle) -> Typed:
    return Typed(fp16.bundle.graph(request.param))


def test_steps_sum_in_float32_and_multiply_weights_in_float16(step: Typed) -> None:
    depth = small.V1.depth
    assert step.types["latents"] == step.types["velocity"] == step.types["mod_table"] == FLOAT
    assert set(step.inputs("LayerNormalization", "Softmax")) == {FLOAT}
    assert (len(step.of("LayerNormalization")), len(step.of("Softmax"))) == (2 * depth + 1, depth)
    assert set(step.inputs("Exp")) == {FLOAT}  # Mish uses it
    for table in ("cos", "sin"):
        assert step.types[table] == FLOAT
        products = list(step.readers(table))
        assert len(products) == 2 * depth  # a product for both halves of q and k together in each block
        assert {(n.op_type, step.types[n.output[0]]) for n in products} == {("Mul", FLOAT)}
    # Rows of modulation act in float32, except the gates.
    uses = Counter((n.op_type, step.types[n.output[0]]) for n in step.readers("mod_table"))
    assert uses == {("Add", FLOAT): 4 * depth + 2, ("Cast", HALF): 2 * depth}
    products = step.of("MatMul")
    assert len(products) == 6 * depth + 2
    assert {step.types[name] for node in products for name in node.input} == {HALF}
    assert set(step.inputs("Conv")) == {HALF}
    given = {name for name in step.types if name.startswith(("keys_", "values_"))}
    assert {step.types[name] for name in given | {"condition"}} == {HALF}


def test_an_update_is_float32(fp16: BuiltBundle) -> None:
    assert set(Typed(fp16.bundle.graph("update")).types.values()) == {FLOAT}


@pytest.mark.parametrize("name", ["condition", "step_keys", "step_reply", "vocoder"])
def test_on_a_cpu_only_weights_and_signature_are_float16(name: str, fp16: BuiltBundle) -> None:
    narrow, wide = (onnx.load(fp16.bundle.graph(name, variant)) for variant in ("default", "ort-cpu"))
    kinds, given = (
        {v.name: v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)}
        for model in (wide, narrow)
    )
    assert kinds == given
    halves = {name for name, kind in kinds.items() if kind == HALF}
    halves |= {tensor.name for tensor in wide.graph.initializer if tensor.data_type == HALF}
    assert halves
    for node in wide.graph.node:
        target = next((a.i for a in node.attribute if node.op_type == "Cast" and a.name == "to"), None)
        if halves & {*node.input, *node.output}:
            assert target == (HALF if node.output[0] in halves else FLOAT)
        else:
            assert target != HALF
    if not name.startswith("step"):
        computed = [node.op_type for node in wide.graph.node if node.op_type != "Cast"]
        assert computed == [node.op_type for node in narrow.graph.node if node.op_type != "Cast"]


def test_the_condition_sums_its_responses_in_float32(fp16: BuiltBundle) -> None:
    graph = Typed(fp16.bundle.graph("condition"))
    assert set(graph.inputs("LayerNormalization", "ReduceMean", "Sqrt", "Div")) == {FLOAT}
    assert {graph.types[f"blocks.0.{name}"] for name in ("gamma", "beta", "norm_weight")} == {FLOAT}
    weighted = [node for node in graph.of("MatMul") if set(node.input) & set(graph.weights)]
    assert {graph.types[name] for node in weighted for name in node.input} == {HALF}
    summing = [node for node in graph.of("MatMul") if node not in weighted]
    assert {graph.types[name] for node in summing for name in node.input} == {FLOAT} and summing
    assert graph.types["condition"] == HALF


def test_the_vocoders_head_is_float32_and_its_backbone_float16(fp16: BuiltBundle) -> None:
    graph = Typed(fp16.bundle.graph("vocoder"))
    assert set(graph.inputs("Exp", "Cos", "Sin", "LayerNormalization", "Div")) == {FLOAT}
    kinds = {
        next(name for name in node.input if name in graph.weights): graph.types[node.output[0]]
        for node in graph.of("MatMul")
    }
    stft = {f"inverse_stft.{name}" for name in ("inner", "outer", "square")}
    assert {name for name, kind in kinds.items() if kind == FLOAT} == {"head.weight", *stft}
    assert {kind for name, kind in kinds.items() if name.startswith("blocks.")} == {HALF}
    assert set(graph.inputs("Conv")) == {HALF}


def test_modulation_is_computed_in_float32_from_weights_in_float16(fp16: BuiltBundle) -> None:
    graph = Typed(fp16.bundle.graph("modulation"))
    assert {graph.types[name] for node in graph.of("Gemm") for name in node.input} == {FLOAT}
    assert {graph.weights[name] for name in graph.weights if name.endswith(".weight")} == {HALF}


# INT8


@pytest.mark.parametrize("name", ["step_keys", "step_reply"])
def test_every_product_but_the_kept_ones_is_int8(name: str, int8: BuiltBundle, workshop: Workshop) -> None:
    traced = onnx.load(workshop.make("v1").bundle.graph(name, "ort-cpu"), load_external_data=False)
    floats = {product.node.name: product.role for product in rewrites.products_of(traced.graph)}
    roles = Counter(floats.values())
    of_blocks = dict.fromkeys(("qkv", "attention.out", "up", "down"), small.V1.depth)
    assert roles == {"from_latents": 1, "final": 1, **of_blocks}
    graph = onnx.load(int8.bundle.graph(name)).graph
    kinds = Counter(node.op_type for node in graph.node)
    kept = sum(roles[role] for role in rewrites.INT8_KEEPS_FLOAT)
    assert kinds["MatMulInteger"] == sum(roles.values()) - kept
    assert kinds["MultiHeadAttention"] == small.V1.depth  # the form for one row is quantised
    names = {tensor.name for tensor in graph.initializer}
    left = {n.input[1] for n in graph.node if n.op_type == "MatMul" and n.input[1] in names}
    assert left == {"from_latents.weight", "out.weight"}
    weights = {t.name: t for t in graph.initializer}
    for node in graph.node:
        if node.op_type == "MatMulInteger":
            assert weights[node.input[1]].data_type == TensorProto.INT8


def test_a_vocoders_blocks_are_int8_and_nothing_else(int8: BuiltBundle, workshop: Workshop) -> None:
    kinds = Counter(node.op_type for node in onnx.load(int8.bundle.graph("vocoder")).graph.node)
    assert kinds["MatMulInteger"] == 2 * small.VOCOS.layers and not kinds["ConvInteger"]
    assert not rewrites.quantise_vocoder(workshop.make("v1", "bigvgan").bundle.graph("vocoder"), Path())


def test_every_product_of_every_option_has_a_role(workshop: Workshop) -> None:
    """The long skip connection's product stays in float like the last product."""
    graph = onnx.load(workshop.make(small.TRACED[-1]).bundle.graph("step"), load_external_data=False).graph
    roles = {product.weight: product.role for product in rewrites.products_of(graph)}
    assert roles["skip.weight"] == roles["out.weight"] == "final"
    assert set(roles.values()) == set(rewrites.ROLES)


def test_float_products_can_be_chosen_by_role(workshop: Workshop, tmp_path: Path) -> None:
    source = workshop.make("v1").bundle.graph("step_keys", "ort-cpu")
    chosen = dataclasses.replace(rewrites.DIT, floats=("qkv", "final"))
    rewrites.quantise(source, tmp_path / "step.onnx", chosen)
    graph = onnx.load(tmp_path / "step.onnx").graph
    weights = {tensor.name for tensor in graph.initializer}
    left = {n.input[1] for n in graph.node if n.op_type == "MatMul" and n.input[1] in weights}
    assert left == {"out.weight", *(f"blocks.{i}.attention.qkv.weight" for i in range(small.V1.depth))}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step.onnx", "step.onnx.data"]


def beside(files: small.Files, out: Path, *rows: comparison.Row) -> Bundle:
    """The fp16 bundle `out` with an INT8 variant; `rows` are the gate's results for it."""
    report = comparison.Report("fp16", list(rows))
    options = assemble.BuildOptions("fp16", small.MAX_FRAMES, int8_beside=True)
    return assemble.build(small.load(files), options, out, lambda _: report)


def test_a_quick_cpu_prefers_int8_to_fp16(
    fp16: BuiltBundle, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = workshop.bundle("v1-vocos-beside", lambda folder: beside(fp16.files, folder / "bundle"))
    assert made.manifest.precision == "fp16" and made.manifest.batch_invariant
    assert {p.name for p in made.folder.glob("vocoder_*")} == {"vocoder_float32.onnx", "vocoder_int8.onnx"}
    config = EngineConfig(backend="ort-cpu", threads=1)
    usual, given, mels = load_for(made, config), lanes.segment(60), {}
    assert usual.backend == ("ort-cpu" if ort.adds_in_16_bits() else "ort-cpu (int8)")
    for variant in (INT8, "ort-cpu"):
        engine = Synthesizer(made, ort.OrtBackend(1), lanes=1, variant=variant)
        mels[variant] = replay(engine, given)[0]
    assert 1e-4 < comparison.relative_error(mels[INT8], mels["ort-cpu"]) < 5e-2
    np.testing.assert_array_equal(replay(usual, given)[0], mels["ort-cpu" if ort.adds_in_16_bits() else INT8])
    monkeypatch.setattr(ort, "adds_in_16_bits", lambda: True)
    assert load_for(made, config).backend == "ort-cpu"


def test_bad_int8_is_dropped(fp16: BuiltBundle, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    beyond = comparison.Row("wave mel", INT8, "torch", 128, 7, 0.3, 0.25)
    with traces.reusing():
        made = beside(fp16.files, tmp_path / "out", beyond)
    assert f"the bundle has no int8 graph for CPUs: {beyond}" in capsys.readouterr().err
    assert made.manifest.variants == fp16.bundle.manifest.variants
    assert {path.name for path in made.folder.iterdir()} == {p.name for p in fp16.bundle.folder.iterdir()}


@pytest.mark.parametrize("name", ["step", "step_keys", "step_reply"])
def test_every_weight_product_is_summed_in_float32(name: str, fp16: BuiltBundle) -> None:
    """The weights stay float16, and so do all values between the products."""
    usual, summed = (
        onnx.shape_inference.infer_shapes(onnx.load(fp16.bundle.graph(name, variant)))
        for variant in ("default", FLOAT32_SUMS)
    )
    products = {product.node.name for product in rewrites.products_of(usual.graph)}
    made = {n.name: n for n in summed.graph.node if n.op_type == "MatMul"}
    makers = {output: node for node in summed.graph.node for output in node.output}
    assert products and products < made.keys(), "attention's are as they were"
    for product in products:
        casts = [makers[given] for given in made[product].input]
        assert [[a.i for a in cast.attribute] for cast in casts] == [[TensorProto.FLOAT]] * 2
    rest = [n.op_type for n in usual.graph.node]
    kept = [n.op_type for n in summed.graph.node]
    assert Counter(kept) - Counter(rest) == Counter({"Cast": 3 * len(products)})
