"""INT8 by explicit Q/DQ: the constants, the calibration, and the results of the graphs."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from appliance.contract import bundle as contract
from appliance.contract.bundle import Bundle
from appliance.engine.cases import FEMALE
from appliance.engine.ort import session_options
from export.cli import main
from export.parity import comparison
from export.precision import calibration, qdq, rewrites
from export.precision.calibration import Observations, Observed
from tests.engine.lanes import relative
from tests.export.feeds import Feed, feed_of, reply_of
from tests.harness import small, traces
from tests.harness.small import BuiltBundle, Workshop

pytestmark = pytest.mark.torch

FILES = {"default": ("step", "step_keys", "step_reply"), "ort-cpu": ("step_keys", "step_reply")}


@pytest.fixture(scope="module")
def made(workshop: Workshop) -> BuiltBundle:
    return workshop.make("v1", precision="int8-qdq")


@pytest.fixture(scope="module")
def observations(fp16: BuiltBundle) -> Observations:
    return calibration.observe(fp16.bundle, [small.case(90), small.case(61, seed=6)])


def graphs(bundle: Bundle) -> dict[tuple[str, str], onnx.GraphProto]:
    """Variant and name → step graph, with its weights."""
    return {(v, n): onnx.load(bundle.graph(n, v)).graph for v, names in FILES.items() for n in names}


def constants(graph: onnx.GraphProto) -> dict[str, NDArray[Any]]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    options, providers = session_options(onnxruntime, 0), ["CPUExecutionProvider"]
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)


# The constants


def unsmoothed(weight: NDArray[np.float32], observed: Observed) -> qdq.Choice:
    """MinMax calibration."""
    factors = np.ones(len(weight), np.float32)
    return qdq._choice(weight, observed.sample, factors, float(observed.largest.max()))


def product(channels: int = 64, outputs: int = 48, outlier: float = 1.0) -> tuple[Any, Observed]:
    """A weight and its observed input: normal distributions, and a channel that is larger."""
    rng = np.random.default_rng(3)
    weight = rng.standard_normal((channels, outputs), dtype=np.float32) / np.float32(8.0)
    frames = rng.standard_normal((500, channels), dtype=np.float32)
    frames[:, 5] *= np.float32(outlier)
    return weight, Observed(np.abs(frames).max(axis=0), [frames.astype(np.float16)])


def test_each_output_channel_has_a_symmetric_scale() -> None:
    weight, observed = product()
    weight[:, 7] *= 1e-3
    made = qdq.quantise_product(weight, unsmoothed(weight, observed))
    assert made.weight.dtype == np.int8 and np.abs(made.weight.astype(int)).max(axis=0).min() >= 126
    np.testing.assert_allclose(made.weight * made.scales, weight, atol=0.51 * made.scales.max())
    assert np.abs(made.weight * made.scales - weight)[:, 7].max() <= 0.51 * made.scales[7]
    assert made.ratios.max() <= 1.0 and made.ratios[7] < 0.01
    assert made.input_scale == pytest.approx(observed.largest.max() / 127, rel=1e-3)


@pytest.mark.parametrize("outlier", [20.0, 200.0])
def test_smoothing_finds_the_cost_of_a_larger_channel(outlier: float) -> None:
    weight, observed = product(outlier=outlier)
    plain, found = unsmoothed(weight, observed), qdq.search(weight, observed)
    even = qdq.search(*product())
    assert plain.error > 0.03 and found.error < plain.error / 3
    assert found.factors[5] == found.factors.min() < 0.5
    assert even.error < 0.015


def test_a_channel_that_is_always_zero_is_no_division_by_zero() -> None:
    weight, observed = product()
    weight[3], weight[:, 4] = 0.0, 0.0
    observed.largest[9] = 0.0
    observed.frames[0][:, 9] = 0.0
    found = qdq.search(weight, observed)
    assert np.isfinite(found.factors).all() and found.factors.min() > 0.0
    assert found.error < 0.02
    assert not qdq.quantise_product(weight, found).weight[:, 4].any()


def test_smoothing_weighs_input_against_weight() -> None:
    weight = np.array([[1.0, 2.0], [0.5, 0.1]], np.float32)
    largest = np.array([8.0, 2.0], np.float32)
    found = qdq.smoothing(weight, largest, 0.5)
    assert found[1] / found[0] == pytest.approx(np.sqrt(8.0 / 2.0) / np.sqrt(2.0 / 0.5), rel=1e-3)
    assert np.prod(found) == pytest.approx(1.0, rel=1e-3)
    np.testing.assert_array_equal(qdq.smoothing(weight, largest, 0.0), [1.0, 1.0])


# Calibration


def test_calibration_sees_every_step_of_both_rows(observations: Observations) -> None:
    cases = 2
    calls = sum(2 * nfe for nfe, _ in calibration.RUNS)  # a row is a call
    assert {len(seen.frames) for seen in observations.products.values()} == {cases * calls}


def test_calibration_sees_the_float_graphs_values(fp16: BuiltBundle) -> None:
    """The largest magnitudes of a step's products, computed again in this test."""
    model = onnx.load(fp16.bundle.graph("step_keys", "ort-cpu"))
    taken = {one.weight: one.node.input[0] for one in rewrites.products_of(model.graph)}
    for name in taken.values():
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    feed = feed_of(fp16.bundle, 23, 37)
    expected = dict(zip(taken, session(model).run(list(taken.values()), feed), strict=True))
    tapped, taps = calibration.tapped(fp16.bundle.graph("step_keys", "ort-cpu"))
    run = session(tapped)
    for tap, weight in taps.items():
        largest, frames = run.run([f"{tap}_largest", f"{tap}_frames"], feed)
        np.testing.assert_array_equal(largest, np.abs(expected[weight]).max(axis=0))
        np.testing.assert_array_equal(frames, expected[weight][:: calibration.STRIDE])
    assert len(taps) == 4 * small.V1.depth + 2


def test_the_largest_value_of_all_calls_counts() -> None:
    seen = Observations()
    for value in (1.0, 3.0, 2.0):
        row = np.array([value, 1e6], np.float32)
        seen.add("weight", row, row[None])
    np.testing.assert_array_equal(seen.products["weight"].largest, [3.0, 1e6])
    assert seen.products["weight"].sample.shape == (3, 2)
    assert np.isfinite(seen.products["weight"].sample).all()


# The graphs


def test_every_step_graph_shares_a_scheme_and_a_file_of_weights(made: BuiltBundle) -> None:
    loaded = graphs(made.bundle)
    every = {key: constants(graph) for key, graph in loaded.items()}
    own = {name for name in every["default", "step"] if name.startswith(("blocks.", "out."))}
    assert sum(name.endswith(".int8") for name in own) == 4 * small.V1.depth
    for one in every.values():
        assert own == {name for name in one if name.startswith(("blocks.", "out."))}
        for name in own:
            actual, expected = (held[name].astype(np.float32) for held in (one, every["default", "step"]))
            np.testing.assert_array_equal(actual, expected)
    modes = {path.stat().st_mode & 0o777 for path in made.bundle.folder.glob("step*")}
    assert len(modes) == 1


def test_products_are_int8_but_for_the_ends(made: BuiltBundle) -> None:
    for (variant, name), graph in graphs(made.bundle).items():
        kind = TensorProto.FLOAT if variant == "ort-cpu" else TensorProto.FLOAT16
        held = constants(graph)
        makers = {out: node for node in graph.node for out in node.output}
        products = [n for n in graph.node if n.op_type == "MatMul" and _has_weight(n, makers, held)]
        quantised = [node for node in products if makers[node.input[0]].op_type == "DequantizeLinear"]
        assert len(quantised) == 4 * small.V1.depth, name
        for node in quantised:
            x, matrix = (makers[value] for value in node.input)
            assert matrix.op_type == "DequantizeLinear" and held[matrix.input[0]].dtype == np.int8
            assert makers[x.input[0]].op_type == "QuantizeLinear"
            for side in (x, makers[x.input[0]], matrix):
                assert held[side.input[1]].shape == held[side.input[2]].shape == ()
                assert held[side.input[2]].dtype == np.int8 and held[side.input[2]] == 0
                assert helper.np_dtype_to_tensor_dtype(held[side.input[1]].dtype) == kind
        left = {n.input[1] if n.input[1] in held else makers[n.input[1]].input[0] for n in products}
        assert {"from_latents.weight", "out.weight"} <= left
        assert not any(name.endswith(".weight") and name.startswith("blocks.") for name in held)


def _has_weight(
    node: onnx.NodeProto, makers: Mapping[str, onnx.NodeProto], held: Mapping[str, NDArray[Any]]
) -> bool:
    name = node.input[1]
    while name in makers and makers[name].op_type in ("Cast", "DequantizeLinear"):
        name = makers[name].input[0]
    return name in held


def test_a_product_is_what_integers_give(made: BuiltBundle) -> None:
    """numpy computes each INT8 product of a step again, with integers, from the stored constants."""
    model = onnx.load(made.bundle.graph("step_keys", "ort-cpu"))
    graph, held = model.graph, constants(model.graph)
    makers = {out: node for node in graph.node for out in node.output}
    scaled = [n for n in graph.node if n.op_type == "Mul" and n.input[1].endswith(".ratios")]
    quantisers = {n.output[0]: makers[makers[makers[n.input[0]].input[0]].input[0]] for n in scaled}
    for name in (*quantisers, *(quantiser.input[0] for quantiser in quantisers.values())):
        graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
    run = session(model)
    names = [output.name for output in graph.output]
    values = dict(zip(names, run.run(names, feed_of(made.bundle, 23, 37)), strict=True))
    assert len(quantisers) == 4 * small.V1.depth
    for node in scaled:
        quantiser, product = quantisers[node.output[0]], makers[node.input[0]]
        scale = held[quantiser.input[1]]
        matrix = makers[product.input[1]]
        x = np.clip(np.rint(values[quantiser.input[0]] / scale), -128, 127).astype(np.int64)
        sums = x @ held[matrix.input[0]].astype(np.int64)
        total = sums * np.float64(scale) * np.float64(held[matrix.input[1]]) * held[node.input[1]]
        np.testing.assert_allclose(values[node.output[0]], total, rtol=1e-4, atol=1e-4 * np.abs(total).max())


@pytest.mark.parametrize(("variant", "name"), [(v, name) for v, names in FILES.items() for name in names])
def test_smoothing_alone_changes_no_graph(variant: str, name: str, fp16: BuiltBundle, tmp_path: Path) -> None:
    """The factors are strong everywhere, and float products replace the quantised products."""
    floats, roles = qdq.floats_of(fp16.bundle.graph("step"))
    rng = np.random.default_rng(1)
    # Powers of two change no digit of a weight or bias in float16.
    factors = {weight: np.exp2(rng.integers(-2, 3, len(floats[weight]))) for weight in roles}
    chosen = {weight: qdq.Choice(values.astype(np.float32), 20.0, 0.0) for weight, values in factors.items()}
    made = qdq.scheme(floats, chosen, roles, ())
    source = fp16.bundle.graph(name, variant)
    qdq.quantise(source, tmp_path / "smooth.onnx", made)
    before, files = comparison.Graphs(fp16.bundle, variant), fp16.bundle.manifest.variants[variant]
    model = onnx.load(tmp_path / "smooth.onnx")
    _unquantise(model.graph, floats, made, chosen, roles)
    onnx.save(model, tmp_path / "float.onnx")
    variants = {"default": {**files, name: "float.onnx"}}
    trial = Bundle(tmp_path, dataclasses.replace(fp16.bundle.manifest, variants=variants))
    after = comparison.Graphs(trial, "default")
    feed = _feed(fp16, name)
    expected = before.output(name, feed)
    for key in feed:  # a smoothed graph stores smoothed keys
        if key.startswith("values_"):
            moved = chosen[f"blocks.{key.removeprefix('values_')}.attention.out.weight"].factors
            feed[key] = (feed[key] * moved).astype(np.float16)
    actual = after.output(name, feed)
    bound = 5e-6 if variant == "ort-cpu" else 5e-3
    assert relative(actual, expected) < bound


def _feed(fp16: BuiltBundle, name: str) -> Feed:
    feed = feed_of(fp16.bundle, 23, 37)
    if name == "step_reply":
        _, *kept = comparison.Graphs(fp16.bundle, "ort-cpu").run("step_keys", feed).values()
        feed = reply_of(feed, kept)
    return feed


def _unquantise(
    graph: onnx.GraphProto,
    floats: qdq.Floats,
    made: qdq.Scheme,
    chosen: Mapping[str, qdq.Choice],
    roles: Mapping[str, str],
) -> None:
    """Replace int8 matrices by float ones, and take inputs from before their quantisation."""
    makers = {out: node for node in graph.node for out in node.output}
    for node in list(graph.node):
        if node.op_type != "MatMul" or not node.output[0].endswith(".product"):
            continue
        name = node.output[0].removesuffix(".product")
        weight = f"{name}.weight"
        matrix = floats[weight] / chosen[weight].factors[:, None]
        if roles[weight] == "qkv":  # makes v with the factors of attention's output
            third = matrix.shape[1] // 3
            matrix[:, 2 * third :] *= chosen[weight.replace("qkv", "out")].factors
        ratios = made.products[weight].ratios.astype(np.float32)
        quantiser = makers[makers[node.input[0]].input[0]]
        kind = next(t.data_type for t in graph.initializer if t.name == quantiser.input[1])
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        graph.initializer.append(numpy_helper.from_array((matrix / ratios).astype(dtype), f"{name}.float"))
        node.input[0], node.input[1] = quantiser.input[0], f"{name}.float"
    read = {name for node in graph.node if "QuantizeLinear" not in node.op_type for name in node.input}
    kept = [n for n in graph.node if n.op_type not in ("QuantizeLinear", "DequantizeLinear")]
    assert read and not any(makers[n].op_type == "DequantizeLinear" for n in read if n in makers)
    del graph.node[:]
    graph.node.extend(kept)


def test_float_products_can_be_chosen_by_role(fp16: BuiltBundle, tmp_path: Path) -> None:
    floats, roles = qdq.floats_of(fp16.bundle.graph("step"))
    chosen = {name: qdq.Choice(np.full(len(floats[name]), 2.0, np.float32), 9.0, 0.0) for name in roles}
    made = qdq.scheme(floats, chosen, roles, ("qkv", "down", "from_latents", "final"))
    assert Counter(roles[name] for name in made.products) == dict.fromkeys(("attention.out", "up"), 2)
    # The factors of attention's output are in the float weights that make v.
    qkv = floats["blocks.0.attention.qkv.weight"]
    third = qkv.shape[1] // 3
    changed = made.changed["blocks.0.attention.qkv.weight"]
    np.testing.assert_array_equal(changed[:, : 2 * third], qkv[:, : 2 * third])
    np.testing.assert_array_equal(changed[:, 2 * third :], qkv[:, 2 * third :] * 2.0)
    qdq.quantise(fp16.bundle.graph("step"), tmp_path / "step.onnx", made)
    held = constants(onnx.load(tmp_path / "step.onnx").graph)
    assert {name for name in held if name.endswith(".int8")} == {
        f"blocks.{i}.{role}.int8" for i in range(2) for role in ("attention.out", "up")
    }
    np.testing.assert_array_equal(held["blocks.0.attention.qkv.weight"], changed.astype(np.float16))
    with pytest.raises(ValueError, match="unknown role out; roles: from_latents, qkv"):
        qdq.scheme(floats, chosen, roles, ("out",))


# The bundle


def test_a_bundle_says_how_far_it_is_from_float(made: BuiltBundle) -> None:
    manifest = made.bundle.manifest
    assert set(manifest.variants["ort-cpu"]) == {"condition", "step_keys", "step_reply", "vocoder"}
    rows = manifest.parity["rows"]
    for variant in ("default", "ort-cpu"):
        errors = {row["what"]: row["error"] for row in rows if row["variant"] == variant}
        assert {"mel", "wave mel", "guided", "unguided", "keys", "reply"} <= set(errors)
        assert 0.01 < errors["mel"] < 0.5  # random weights are solved in few steps
    assert manifest.parity["accepted_by"] == small.ACCEPTED["int8-qdq"]


def test_float_products_reach_a_bundle_accepted_beyond_its_bound(
    made: BuiltBundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, brief_gate: None
) -> None:
    monkeypatch.setitem(comparison.BOUNDS["int8-qdq"], "mel", 1e-6)
    monkeypatch.setattr(calibration, "READINGS", ((FEMALE, 300),))
    command = small.bundle_command(made.files, tmp_path / "out", "int8-qdq")
    with traces.reusing():
        assert main([*command, "--keep-float", "down", "from_latents", "--accept", "a test"]) == 0
    read = contract.read(tmp_path / "out")
    assert read.manifest.parity["accepted_by"] == "a test"
    assert any(line.startswith("mel at ") for line in read.manifest.parity["failed"])
    names = {name for name in constants(onnx.load(read.graph("step")).graph) if name.endswith(".int8")}
    roles = ("attention.qkv", "attention.out", "up")
    assert names == {"out.int8", *(f"blocks.{i}.{role}.int8" for i in range(2) for role in roles)}
