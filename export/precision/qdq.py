"""INT8 Q/DQ for tensor cores: calibrated, smoothed products in the step graphs of a float16 bundle.

All scales are symmetric constants. A channel's scale is one number in DequantizeLinear times a ratio up to 1
that multiplies the output. If DequantizeLinear had a scale for each channel, TensorRT-RTX 1.7 would write
unscaled float16 sums, which overflow.

Smoothing (SmoothQuant, arXiv 2211.10438) moves a factor from each input channel to the weight's row: into the
modulation (`qkv`, `up`, `final`), the weights of v (`attention.out`), or a multiplication.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from appliance.contract.bundle import Bundle
from export import progress
from export.graphs.to_onnx import share_weights
from export.parity.oracles import FloatArray
from export.precision.calibration import Observations, Observed
from export.precision.rewrites import DIT, Product, products_of, put, save

STEPS = ("step", "step_keys", "step_reply")

KEEPS_FLOAT = ("from_latents", "final")
"""Roles of products that stay in float16, chosen by the curve in tests/records/precision.md."""
LARGEST = 127
SMALLEST_SCALE = 2.0**-14
"""Smallest normal number of float16."""
ALPHAS = (0.0, 0.35, 0.5, 0.65, 0.8)
"""Smoothing exponents tried on each product; 0 means none."""
SEARCHED_FRAMES = 768
"""Most sampled frames in a trial of an exponent."""

Floats = Mapping[str, FloatArray]


@dataclass(frozen=True)
class Choice:
    """Smoothing and scale of a product's input, and their error."""

    factors: FloatArray
    """Smoothing factors (in,) of the input channels, representable in float16."""
    largest: float
    """Magnitude of the smoothed input that maps to 127."""
    error: float
    """‖found − wanted‖ / ‖wanted‖ of the product on the sampled frames."""


@dataclass(frozen=True)
class Quantised:
    """A product's weight in INT8, and its scales."""

    weight: NDArray[np.int8]
    """(in, out)"""
    weight_scale: np.float16
    ratios: NDArray[np.float16]
    """Ratio (out,) of a channel's scale to `weight_scale`."""
    input_scale: np.float16
    factors: FloatArray
    """Smoothing factors (in,)."""

    @property
    def scales(self) -> FloatArray:
        """Scales of the output channels (out,)."""
        return np.float32(self.weight_scale) * self.ratios.astype(np.float32)


@dataclass(frozen=True)
class Scheme:
    """Quantised products of a bundle's step graphs, by weight name."""

    products: dict[str, Quantised]
    changed: dict[str, FloatArray] = field(default_factory=dict)
    """Float weights and biases that absorb the smoothing factors of the next product."""


# ----------------------------------------------------------------------------------------- the constants


def search(weight: FloatArray, observed: Observed) -> Choice:
    """Choose the smoothing exponent with the smallest error on the sampled frames. No scale clips."""
    sample = observed.sample
    sample = sample[:: -(-len(sample) // SEARCHED_FRAMES)]
    candidates = []
    for alpha in ALPHAS:
        factors = smoothing(weight, observed.largest, alpha)
        candidates.append(_choice(weight, sample, factors, float((observed.largest * factors).max())))
    return min(candidates, key=lambda choice: choice.error)


def smoothing(weight: FloatArray, largest: FloatArray, alpha: float) -> FloatArray:
    """Factors (in,) ∝ (largest weight of the row)¹⁻ᵅ / largestᵅ, with geometric mean 1."""
    if alpha == 0.0:
        return np.ones(len(weight), np.float32)
    inputs = np.maximum(largest, 1e-4 * largest.max() + 1e-12)
    rows = np.abs(weight).max(axis=1)
    rows = np.maximum(rows, 1e-4 * rows.max() + 1e-12)
    factors = (1.0 - alpha) * np.log(rows) - alpha * np.log(inputs)
    # Rounded, so that float16 and float32 graphs have equal factors.
    return np.exp(factors - factors.mean()).astype(np.float16).astype(np.float32)


def quantise_product(weight: FloatArray, choice: Choice) -> Quantised:
    """Quantise a weight (in, out) with scales that float16 can represent."""
    smoothed = weight / choice.factors[:, None]
    largest = np.abs(smoothed).max(axis=0)
    scale = _scale(largest.max())
    ratios = np.maximum(largest / LARGEST / np.float32(scale), SMALLEST_SCALE).astype(np.float16)
    quantised = Quantised(
        weight=np.empty(weight.shape, np.int8),
        weight_scale=scale,
        ratios=ratios,
        input_scale=_scale(choice.largest),
        factors=choice.factors,
    )
    quantised.weight[...] = _rounded(smoothed, quantised.scales)
    return quantised


def _choice(weight: FloatArray, sample: FloatArray, factors: FloatArray, largest: float) -> Choice:
    int8 = quantise_product(weight, Choice(factors, largest, 0.0))
    scale = np.float32(int8.input_scale)
    output = _rounded(sample * int8.factors, scale) @ int8.weight.astype(np.float32) * (scale * int8.scales)
    product = sample @ weight
    error = float(np.linalg.norm(output - product) / max(float(np.linalg.norm(product)), 1e-12))
    return Choice(factors, largest, error)


def _scale(largest: float) -> np.float16:
    return np.float16(max(float(largest) / LARGEST, SMALLEST_SCALE))


def _rounded(values: FloatArray, scale: FloatArray | np.float32) -> FloatArray:
    return np.rint(values / scale).clip(-LARGEST - 1, LARGEST)


# -------------------------------------------------------------------------------------------- the scheme


def choices(floats: Floats, observations: Observations) -> dict[str, Choice]:
    progress.begin("calibrating", "scales")
    return {name: search(floats[name], observed) for name, observed in observations.products.items()}


def scheme(
    floats: Floats, chosen: Mapping[str, Choice], roles: Mapping[str, str], keep_float: Collection[str]
) -> Scheme:
    """Quantise all products except the roles in `keep_float`. Raises ValueError."""
    DIT.check(keep_float)
    weights, changed = dict(floats), dict[str, FloatArray]()
    names = [name for name, role in roles.items() if role not in keep_float]
    for name in names:
        if roles[name] == "attention.out":
            # attention.out's input channel is a mean over frames of v's, so the factors move there exactly.
            qkv = name.replace("attention.out.", "attention.qkv.")
            factors = chosen[name].factors
            whole = np.concatenate([np.ones(2 * len(factors), np.float32), factors])
            multiplied = {key: weights[key] * whole for key in (qkv, qkv.replace(".weight", ".bias"))}
            weights |= multiplied
            changed |= multiplied
    products = {name: quantise_product(weights[name], chosen[name]) for name in names}
    return Scheme(products, {name: values for name, values in changed.items() if name not in products})


def floats_of(path: Path) -> tuple[dict[str, FloatArray], dict[str, str]]:
    """Weights and biases of a step graph in float32, and weight name → role."""
    graph = onnx.load(path).graph
    roles = {product.weight: product.role for product in products_of(graph)}
    names = {*roles, *(name.replace(".weight", ".bias") for name in roles)}
    stored = {tensor.name: tensor for tensor in graph.initializer if tensor.name in names}
    return {name: numpy_helper.to_array(t).astype(np.float32) for name, t in stored.items()}, roles


# -------------------------------------------------------------------------------------------- the graphs


def quantise_steps(bundle: Bundle, plan: Scheme) -> None:
    """Quantise all step graphs of an fp16 bundle in place, on one weight file."""
    variants = bundle.manifest.variants
    names = dict.fromkeys(v[name] for v in variants.values() for name in STEPS if name in v)
    first, *others = names
    with tempfile.TemporaryDirectory(dir=bundle.folder) as scratch:
        folder = Path(scratch)
        for name in names:
            quantise(bundle.folder / name, folder / name, plan)
        for name in others:
            share_weights(folder / name, folder / first)
        for path in folder.iterdir():
            os.replace(path, bundle.folder / path.name)


def quantise(source: Path, out: Path, plan: Scheme) -> None:
    """Write the step graph `source`, float16 or widened, with a scheme's products."""
    model = onnx.load(source)
    graph = model.graph
    for tensor in graph.initializer:
        if (values := plan.changed.get(tensor.name)) is not None:
            kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
            tensor.CopyFrom(numpy_helper.from_array(values.astype(kind), tensor.name))
    writer = _Writer(graph)
    for product in products_of(graph):
        if product.weight in plan.products:
            writer.quantise(product, plan.products[product.weight])
    writer.finish()
    save(model, out)


@dataclass
class _Writer:
    """Inserts Q/DQ nodes and constants into a graph."""

    graph: onnx.GraphProto
    before: dict[str, list[onnx.NodeProto]] = field(default_factory=dict)
    """First output of a node → nodes to insert before it."""

    def __post_init__(self) -> None:
        self.makers = {output: node for node in self.graph.node for output in node.output}
        self.kinds = {tensor.name: tensor.data_type for tensor in self.graph.initializer}
        self._constant("int8_zero", np.array(0, np.int8))

    def quantise(self, product: Product, quantised: Quantised) -> None:
        """Replace a product in the graph by its INT8 form, with its constants and scales."""
        node, name = product.node, product.weight.removesuffix(".weight")
        wide = product.widened or self.kinds[product.weight] == TensorProto.FLOAT
        kind = np.float32 if wide else np.float16
        if (quantised.factors != 1.0).any():
            self._smooth(product, quantised, kind)
        self._constant(f"{name}.int8", quantised.weight)
        self._constant(f"{name}.int8_scale", np.asarray(quantised.weight_scale, kind))
        self._constant(f"{name}.input_scale", np.asarray(quantised.input_scale, kind))
        self._constant(f"{name}.ratios", quantised.ratios.astype(kind))
        scaled = [f"{name}.input_scale", "int8_zero"]
        matrix = [f"{name}.int8", f"{name}.int8_scale", "int8_zero"]
        self._put(
            node,
            self._node("QuantizeLinear", [node.input[0], *scaled], f"{name}.input_int8"),
            self._node("DequantizeLinear", [f"{name}.input_int8", *scaled], f"{name}.input"),
            self._node("DequantizeLinear", matrix, f"{name}.matrix"),
            self._node("MatMul", [f"{name}.input", f"{name}.matrix"], f"{name}.product"),
        )
        node.op_type = "Mul"
        node.input[0], node.input[1] = f"{name}.product", f"{name}.ratios"

    def finish(self) -> None:
        nodes = [node for old in self.graph.node for node in (*self.before.get(old.output[0], ()), old)]
        inputs = {name for node in nodes for name in node.input} | {o.name for o in self.graph.output}
        needed = [node for node in nodes if node.op_type != "Cast" or node.output[0] in inputs]
        put(self.graph.node, needed)
        inputs = {name for node in needed for name in node.input}
        put(self.graph.initializer, [one for one in self.graph.initializer if one.name in inputs])
        del self.graph.value_info[:]

    def _smooth(self, product: Product, quantised: Quantised, kind: type[Any]) -> None:
        """Multiply a product's input by its factors at the cheapest point."""
        node, name = product.node, product.weight.removesuffix(".weight")
        if product.role == "attention.out":
            return  # its factors are in the weights of v
        if product.role in ("qkv", "up", "final"):
            self._constant(f"{name}.factors", quantised.factors)
            for number, (reader, place) in enumerate(self._modulation(node.input[0])):
                out = f"{name}.smooth_{number}"
                self._put(reader, self._node("Mul", [reader.input[place], f"{name}.factors"], out))
                reader.input[place] = out
        else:
            self._constant(f"{name}.factors", quantised.factors.astype(kind))
            self._put(node, self._node("Mul", [node.input[0], f"{name}.factors"], f"{name}.smooth"))
            node.input[0] = f"{name}.smooth"

    def _modulation(self, value: str) -> Iterator[tuple[onnx.NodeProto, int]]:
        """Yield (node, index of its input) for each place at which a norm of either form reads 1 + scale or
        shift.

        Raises ValueError.
        """
        node = self.makers[value]
        while node.op_type == "Cast":
            node = self.makers[node.input[0]]
        if node.op_type == "LayerNormalization":
            yield from ((node, 1), (node, 2))
            return
        for place in (0, 1):
            product = self.makers.get(node.input[place])
            if node.op_type == "Add" and product is not None and product.op_type == "Mul":
                for norm in (0, 1):
                    maker = self.makers.get(product.input[norm])
                    if maker is not None and maker.op_type == "LayerNormalization":
                        yield from ((product, 1 - norm), (node, 1 - place))
                        return
        raise ValueError(f"{value}: not the output of a modulated norm")

    def _node(self, operator: str, inputs: Iterable[str], out: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(operator, list(inputs), [out], name=f"node_{out}", **attributes)

    def _put(self, node: onnx.NodeProto, *new: onnx.NodeProto) -> None:
        self.before.setdefault(node.output[0], []).extend(new)

    def _constant(self, name: str, values: NDArray[Any]) -> None:
        self.graph.initializer.append(numpy_helper.from_array(values, name))
