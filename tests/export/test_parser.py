"""The graphs against the published operators of TensorRT 10.3's ONNX parser. TensorRT-RTX's parser reads
more.

Source: onnx-tensorrt, docs/operators.md of 10.1 GA (commit 96e7811, the parser of TensorRT 10.1). For 10.2
and 10.3 its changelog adds to that document (axes of Slice may be computed) and removes nothing. This file
lists only the types that our graphs use.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from appliance.contract import bundle as contract
from appliance.contract.graphs import Dimensions, vocoder
from appliance.contract.mel import MelSpec
from export.graphs import vocoders
from export.model.source import Source
from export.model.vocos import VocosConfig
from tests.harness import traces
from tests.harness.small import MELS, TRACED, Workshop

pytestmark = pytest.mark.torch

ROOT = Path(__file__).resolve().parents[2]
BUNDLES = {"demo": ROOT / "appliance/demo/bundle", "tiny": ROOT / "tests/tiny/bundle"}

OPSETS = range(9, 21)
MAX_IR_VERSION = 10
"""IR version of ONNX 1.16, which the parser is built with."""

FLOATS = {TensorProto.FLOAT, TensorProto.FLOAT16}
INTEGERS = {TensorProto.INT32, TensorProto.INT64}
BOOL = {TensorProto.BOOL}
NUMBERS = FLOATS | INTEGERS
ANY = NUMBERS | BOOL

OPERATORS = {
    name: types
    for types, names in (
        (NUMBERS, "Abs Add Div Equal Gelu Greater GreaterOrEqual Less LessOrEqual Max Mod Mul Pad Range"),
        (NUMBERS, "ReduceMean ReduceSum Sub"),
        (BOOL, "And Not Or"),
        (ANY, "Cast Concat Expand Gather Reshape Shape Slice Split Squeeze Tile Transpose Unsqueeze Where"),
        (FLOATS, "Clip Conv ConvTranspose Cos CumSum Exp Floor LayerNormalization MatMul Reciprocal Sin"),
        (FLOATS, "Softmax Sqrt"),
    )
    for name in names.split()
}
"""Operator → types of its data."""
FIRST = "CumSum Expand Gather ReduceMean ReduceSum Reshape Slice Split Squeeze Tile Unsqueeze"
DATA_INPUTS = dict.fromkeys(FIRST.split(), (0,)) | {"Pad": (0, 2), "Where": (1, 2)}
"""Operators with inputs that are no data but shapes, axes, indices or conditions → the inputs that are
data."""
AXES = dict.fromkeys(["CumSum", "ReduceMean", "ReduceSum", "Squeeze", "Unsqueeze"], (1,))
CONSTANTS = AXES | {"Clip": (1, 2), "Pad": (3,), "Slice": (3,)}
"""Inputs that the parser needs as constants: axes, and the bounds of Clip."""
OUTPUTS = {"LayerNormalization": 1}
"""Operator → its highest number of outputs, if ONNX defines more."""


def refusals(model: onnx.ModelProto) -> Iterator[str]:
    """Parts of a graph that TensorRT 10.3 is not published to read."""
    if model.ir_version > MAX_IR_VERSION:
        yield f"IR version {model.ir_version}"
    for opset in model.opset_import:
        if opset.domain or opset.version not in OPSETS:
            yield f"opset {opset.domain or 'ai.onnx'} {opset.version}"
    types, constants = types_of(model)
    for node in model.graph.node:
        kind = node.op_type
        if kind not in OPERATORS:
            yield f"{node.name}: operator {kind}"
            continue
        found = {types[name] for name in data_of(node)} - OPERATORS[kind]
        if found:
            yield f"{node.name}: {kind} of {', '.join(sorted(map(helper.tensor_dtype_to_string, found)))}"
        for place in CONSTANTS.get(kind, ()):
            if place < len(node.input) and node.input[place] and node.input[place] not in constants:
                yield f"{node.name}: input {place} of {kind} is computed"
        if len(node.output) > OUTPUTS.get(kind, len(node.output)):
            yield f"{node.name}: {kind} with {len(node.output)} outputs"


def types_of(model: onnx.ModelProto) -> tuple[dict[str, int], set[str]]:
    """Element type of every value, and the names of the constant values."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    values = (*inferred.input, *inferred.output, *inferred.value_info)
    types = {value.name: value.type.tensor_type.elem_type for value in values}
    weights = {tensor.name: tensor.data_type for tensor in inferred.initializer}
    return types | weights, set(weights)


def data_of(node: onnx.NodeProto) -> Sequence[str]:
    """Names of a node's data, outputs included."""
    places = DATA_INPUTS.get(node.op_type, range(len(node.input)))
    made = node.output if node.op_type in ("Cast", *DATA_INPUTS) else ()
    return [name for name in (*(node.input[i] for i in places if i < len(node.input)), *made) if name]


def check(*graphs: Path) -> set[str]:
    """Check that no graph has a refusal; return the operators of all graphs."""
    found: set[str] = set()
    for path in graphs:
        model = onnx.load(path)
        assert list(refusals(model)) == [], path
        found |= {node.op_type for node in model.graph.node}
    return found


def graphs_of(bundle: contract.Bundle) -> list[Path]:
    """Graphs of the default variant, except the modulation graph, which the host computes."""
    files = bundle.manifest.variants["default"].items()
    return [bundle.folder / file for name, file in files if name != "modulation"]


def test_committed_bundles_a_source_filter_and_the_table_agree(tmp_path: Path) -> None:
    config = VocosConfig(MELS, 32, 64, 1, 1024, 256, "center", head="SourceFilterHead")
    weights, record = Source(config).state_dict(), contract.Vocoder("source-filter", "center")
    module = vocoders.SourceFilter(weights, MelSpec("vocos"), record, torch.float16)
    traces.of(module, vocoder(Dimensions(1, 1, MELS, 1)), tmp_path / "vocoder.onnx")
    found = check(tmp_path / "vocoder.onnx")
    for folder in BUNDLES.values():
        found |= check(*graphs_of(contract.read(folder)))
    assert found == set(OPERATORS) - {"ConvTranspose"}  # only BigVGAN has it


@pytest.mark.slow
@pytest.mark.thorough
def test_a_bundle_with_every_other_operator_is_read(workshop: Workshop) -> None:
    """The bundle is in float16, whose graphs have every operator and type of the float32 graphs, and casts.
    The committed bundles have the usual architectures with Vocos."""
    found = check(*graphs_of(workshop.make(TRACED[-1], "bigvgan", "fp16").bundle))
    assert {"ConvTranspose", "Reciprocal"} <= found


def graph_of(
    operator: str, *inputs: str, made: Sequence[str] = ("y",), kind: int = TensorProto.FLOAT, opset: int = 20
) -> onnx.ModelProto:
    node = helper.make_node(operator, inputs, made, name="odd")
    given = [helper.make_tensor_value_info(name, kind, [2, 3]) for name in {*inputs}]
    graph = helper.make_graph([node], "one", given, [onnx.ValueInfoProto(name=name) for name in made])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


REFUSED = {
    "operator DFT": graph_of("DFT", "x"),
    "Sin of TensorProto.DOUBLE": graph_of("Sin", "x", kind=TensorProto.DOUBLE),
    "LayerNormalization with 2 outputs": graph_of("LayerNormalization", "x", "x", made=("y", "mean")),
    "opset ai.onnx 21": graph_of("Cos", "x", opset=21),
    "input 1 of Clip is computed": graph_of("Clip", "x", "least"),
}


@pytest.mark.parametrize("told", REFUSED)
def test_unlisted_operators_are_found(told: str) -> None:
    assert [line.removeprefix("odd: ") for line in refusals(REFUSED[told])] == [told]
