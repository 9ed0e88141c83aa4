"""The variant for ONNX Runtime on a GPU: its own operators compute the results of the default graphs.

No CPU kernel reads the whole mask, so this file spells attention out, as ONNX Runtime's sources document it
(`MASK_1D_KEY_SEQ_LEN_START` in attention_common.h), on the mask that 1.31 rewrites. The runtime's own kernel
runs too: on a CPU it reads the number of keys alone.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnxscript import FLOAT, INT32, script, values
from onnxscript import opset20 as op

from appliance.contract.bundle import FUSED, Bundle
from appliance.contract.graphs import CONTEXT, STEPS, GraphSpec, signatures
from appliance.engine.backend import Graph, Ranges
from appliance.engine.engine import Synthesizer
from appliance.engine.ort import OrtGraph
from tests.engine.lanes import BATCHED, MIXED, Padded, relative, solo, staggered
from tests.harness.small import Workshop, run

pytestmark = pytest.mark.torch

SPELLED_OUT = "tests"
BOUNDS = {"fp32": 2e-6, "fp16": 2e-3}
"""‖a − b‖ / ‖b‖ of a velocity; in float16 the default graphs round scores and shares."""
Arrays = dict[str, NDArray[Any]]


@script(values.Opset(SPELLED_OUT, 1), default_opset=op)
def MultiHeadAttention(
    query: FLOAT[...], key: FLOAT[...], value: FLOAT[...], bias: FLOAT[...], mask: INT32[...], num_heads: int
) -> FLOAT[...]:
    heads = op.Reshape(op.Constant(value_int=num_heads), [1])
    rows = op.Shape(query, start=0, end=1)
    queries = op.Shape(query, start=1, end=2)
    keys = op.Shape(key, start=1, end=2)
    apart = op.Concat([0, 0], heads, [-1], axis=0)
    q, k, v = (
        op.Transpose(op.Reshape(op.Cast(query, to=1), apart), perm=[0, 2, 1, 3]),
        op.Transpose(op.Reshape(op.Cast(key, to=1), apart), perm=[0, 2, 3, 1]),
        op.Transpose(op.Reshape(op.Cast(value, to=1), apart), perm=[0, 2, 1, 3]),
    )
    given = op.Cast(mask, to=7)
    # The sanitizer of 1.31 rewrites the starts: the first start is 0, the last is the end of all keys.
    starts = op.Concat([0], op.Slice(given, 2 * rows + 2, 3 * rows + 1), rows * keys, axis=0)
    many = op.Min(op.Slice(given, [0], rows), op.Slice(starts, [1], rows + 1) - op.Slice(starts, [0], rows))
    number = op.Range(op.Squeeze(op.Constant(value_ints=[0])), op.Squeeze(rows + 1), op.Squeeze([1]))
    begin = op.Slice(starts - number * keys, [0], rows)
    place = op.Range(op.Squeeze([0]), op.Squeeze(keys), op.Squeeze([1]))
    seen = op.And(
        op.GreaterOrEqual(place, op.Unsqueeze(begin, [1])), op.Less(place, op.Unsqueeze(begin + many, [1]))
    )
    scores = op.Where(op.Unsqueeze(seen, [1, 2]), op.MatMul(q, k), op.Constant(value_float=float("-inf")))
    shares = op.Softmax(scores, axis=-1)
    out = op.Reshape(op.Transpose(op.MatMul(shares, v), perm=[0, 2, 1, 3]), [0, 0, -1])
    # The output is NaN unless the mask is in its final form: other starts of queries would leave output
    # unwritten.
    expected = op.Concat(number * queries, starts, axis=0)
    same = op.Equal(op.Slice(given, rows, 3 * rows + 2), expected)
    whole = op.ReduceMin(op.Cast(same, to=6), keepdims=0)
    return op.CastLike(op.Where(op.Cast(whole, to=9), out, op.Constant(value_float=float("nan"))), query)


def spelled_out(path: Path) -> onnxruntime.InferenceSession:
    """A session of a graph with its attention spelled out."""
    model = onnx.load(path)
    nodes = [node for node in model.graph.node if node.op_type == "MultiHeadAttention"]
    assert nodes
    for node in nodes:
        scale = next(a for a in node.attribute if a.name == "scale")
        assert scale.f == 1.0
        node.attribute.remove(scale)
        node.domain = SPELLED_OUT
    model.functions.append(MultiHeadAttention.to_function_proto())
    model.opset_import.append(onnx.helper.make_opsetid(SPELLED_OUT, 1))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def run_spelled_out(path: Path, given: Arrays) -> Arrays:
    session = spelled_out(path)
    return dict(zip([o.name for o in session.get_outputs()], session.run(None, given), strict=True))


class SpelledOut(Padded):
    """The CPU as a runtime of fixed shapes that reads the whole mask of fused attention."""

    name = FUSED

    def load(self, name: str, path: Path, spec: GraphSpec, ranges: Ranges) -> Graph:
        if name in STEPS:
            return OrtGraph(spelled_out(path), self._run_options)
        return super().load(name, path, spec, ranges)


@pytest.fixture(params=BOUNDS)
def bundle(request: pytest.FixtureRequest, workshop: Workshop) -> Bundle:
    return workshop.make("v1", precision=request.param).bundle


def inputs_of(bundle: Bundle, name: str) -> Arrays:
    """Three rows: one fills its 40 frames, one is padded, one has a single frame. Padding is noise."""
    d = bundle.manifest.dimensions
    rng = np.random.default_rng(7)
    sizes = {"R": 3, "N": 40, "P": 23, "C": CONTEXT, "S": 4}
    given: Arrays = {}
    for tensor in signatures(d)[name].inputs:
        shape = [sizes[axis] if isinstance(axis, str) else axis for axis in tensor.axes]
        given[tensor.name] = (rng.standard_normal(shape) * 0.5).astype(tensor.dtype)
    given |= {"step_index": np.array([1, 0, 3], np.int32), "lengths": np.array([40, 17, 1], np.int32)}
    if "reference_lengths" in given:
        given["reference_lengths"] = np.array([23, 23, 23], np.int32)
    return given


def check_rows(bundle: Bundle, name: str, fused: Arrays, given: Arrays) -> None:
    """Check that velocities of unpadded frames, and the reference's keys and values, equal the default
    graph's."""
    expected = run(bundle.graph(name), given)
    bound = BOUNDS[bundle.manifest.precision]
    for row, length in enumerate(given["lengths"].tolist()):
        velocity = expected["velocity"][row, :length]
        assert np.abs(velocity).mean() > 1e-2
        assert relative(fused["velocity"][row, :length], velocity) <= bound
        for kept in expected.keys() - {"velocity"}:
            assert relative(fused[kept][row], expected[kept][row]) <= bound


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("runtime", [run_spelled_out, run])
def test_rows_of_mixed_lengths_are_the_default_graphs(
    runtime: Callable[[Path, Arrays], Arrays], name: str, bundle: Bundle
) -> None:
    """On a CPU the runtime's own operators compute float16 between casts."""
    given = inputs_of(bundle, name)
    check_rows(bundle, name, runtime(bundle.graph(name, FUSED), given), given)


def test_frames_before_a_reference_are_read_as_keys(workshop: Workshop) -> None:
    """Frames before a reference would be read as keys; so the tests above can fail."""
    bundle = workshop.make("v1").bundle
    for name in ("step_keys", "step_reply"):
        given = inputs_of(bundle, name) | {"reference_lengths": np.array([23, 5, 11], np.int32)}
        actual, expected = (run(bundle.graph(name, v), given)["velocity"] for v in (FUSED, "default"))
        assert relative(actual[0], expected[0]) <= BOUNDS["fp32"]
        assert relative(actual[1, :17], expected[1, :17]) > 1e-2


def test_lanes_of_all_samplings_share_calls(workshop: Workshop) -> None:
    bundle = workshop.make("v1").bundle
    fused = Synthesizer(bundle, SpelledOut(), lanes=len(MIXED))
    alone = Synthesizer(bundle, Padded(), lanes=1, variant="default")
    for found, given in zip(staggered(fused, MIXED), MIXED, strict=True):
        assert relative(found, solo(alone, given)) <= BATCHED


@pytest.mark.parametrize("name", STEPS)
def test_each_block_has_one_fused_attention_and_nothing_of_the_plain_one(bundle: Bundle, name: str) -> None:
    fused, usual = (onnx.load(bundle.graph(name, v), load_external_data=False) for v in (FUSED, "default"))
    kinds = Counter((node.domain, node.op_type) for node in fused.graph.node)
    depth = bundle.manifest.arch.depth
    assert kinds["com.microsoft", "MultiHeadAttention"] == depth
    assert kinds["", "Softmax"] == 0
    products = sum(node.op_type == "MatMul" for node in usual.graph.node)
    assert kinds["", "MatMul"] == products - 2 * depth
    # All blocks share a mask; the last block of `step_keys` has another mask.
    masks = {node.input[4] for node in fused.graph.node if node.op_type == "MultiHeadAttention"}
    assert len(masks) == (2 if name == "step_keys" else 1)
