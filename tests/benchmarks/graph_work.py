"""Work of a bundle's graphs: operations and weights, counted from the ONNX files.

Each graph runs at three small lengths, and the operations of its products and convolutions follow from the
shapes. They are a polynomial of the frames of degree two, which three lengths determine exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from appliance.contract.bundle import Bundle
from appliance.contract.graphs import CONTEXT, signatures
from appliance.engine.backend import HostArray
from tests.benchmarks.timing import profile

GRAPHS = ("modulation", "condition", "step", "vocoder")
CLASSES = ("linear", "attention", "convolution", "rest")
COUNTED_AT = (96, 160, 256)
"""Frames at which work is counted."""
TIMES = 8
"""Rows of a step's modulation table."""
FRAMES_PER_TOKEN = 8
"""Pace of texts of a family that encodes tokens, not frames: twelve characters a second."""

Polynomial = tuple[float, float, float]
"""Coefficients of a polynomial of frames: constant, linear, quadratic."""


@dataclass(frozen=True)
class Work:
    """Operations by class, and parameters, of a call, or of one row of a step."""

    flops: Mapping[str, Polynomial]
    parameters: float
    values: Polynomial = (0.0, 0.0, 0.0)
    """Numbers that products, convolutions and softmaxes read and write, weights apart."""
    kernels: int = 0
    """Number of these."""

    def at(self, frames: int) -> dict[str, float]:
        return {
            name: max(constant + (linear + quadratic * frames) * frames, 0.0)
            for name, (constant, linear, quadratic) in self.flops.items()
        }


def count(bundle: Bundle, graph: str) -> Work:
    """Count a graph's work. Raises BundleError if ONNX Runtime cannot read it."""
    path = bundle.graph(file_of(bundle, graph), bundle.variant_for("ort-cpu"))
    totals: dict[str, list[float]] = {name: [] for name in CLASSES}
    values: list[float] = []
    nodes: list[dict[str, Any]] = []
    for frames in COUNTED_AT:
        nodes = profile(path, inputs_of(bundle, graph, frames), optimised=False)
        for name in CLASSES:
            totals[name].append(sum(operations(node) for node in nodes if class_of(node) == name))
        values.append(sum(map(values_of, nodes)))
    kernels = sum(class_of(node) != "rest" for node in nodes)
    fitted = {name: _polynomial(counts) for name, counts in totals.items()}
    return Work(fitted, sum(map(parameters, nodes)), _polynomial(values), kernels)


def _polynomial(counts: Sequence[float]) -> Polynomial:
    powers = np.vander(np.array(COUNTED_AT, float), 3, increasing=True)
    constant, linear, quadratic = np.linalg.solve(powers, counts)
    return float(constant), float(linear), float(quadratic)


def class_of(node: Mapping[str, Any]) -> str:
    op, inputs = node["op"], node["inputs"]
    if "Attention" in op or "Softmax" in op:
        return "attention"
    if "MatMul" in op or "Gemm" in op:
        # Weights have two axes; the operands of attention have lanes and heads too.
        return "attention" if len(inputs) > 1 and len(inputs[1]) > 2 else "linear"
    return "convolution" if "Conv" in op else "rest"


def operations(node: Mapping[str, Any]) -> float:
    """Multiplications and additions of a node; only products, convolutions and attention count."""
    op, inputs, outputs = node["op"], node["inputs"], node["outputs"]
    if "Attention" in op:
        rows, frames, width = inputs[0]
        return float(4 * rows * frames * inputs[1][-2] * width)
    if "MatMul" in op or "Gemm" in op:
        return 2.0 * float(math.prod(inputs[0])) * float(outputs[0][-1])
    if "ConvTranspose" in op:
        return float(2 * math.prod(inputs[0]) * math.prod(inputs[1][1:]))
    return 2.0 * float(math.prod(outputs[0])) * float(math.prod(inputs[1][1:])) if "Conv" in op else 0.0


def parameters(node: Mapping[str, Any]) -> float:
    kind = class_of(node)
    if kind == "linear":
        return float(node["inputs"][0][-1] * node["outputs"][0][-1])
    return float(math.prod(node["inputs"][1])) if kind == "convolution" else 0.0


def values_of(node: Mapping[str, Any]) -> float:
    """Numbers that a product, a convolution or a softmax reads and writes, its weights apart."""
    kind = class_of(node)
    if kind == "rest":
        return 0.0
    read = node["inputs"] if kind == "attention" else node["inputs"][:1]
    return float(sum(math.prod(shape) for shape in (*read, *node["outputs"])))


def inputs_of(bundle: Bundle, graph: str, frames: int) -> dict[str, HostArray]:
    sizes = {"R": 1, "N": frames, "P": 0, "C": CONTEXT, "S": TIMES, "K": 1, "T": frames // FRAMES_PER_TOKEN}
    draw = np.random.default_rng(0)
    arrays: dict[str, HostArray] = {}
    for tensor in signatures(bundle.manifest.dimensions)[file_of(bundle, graph)].inputs:
        shape = tensor.shape(sizes)
        is_whole = tensor.dtype == "int32"
        array = np.zeros(shape, "int32") if is_whole else draw.normal(0.0, 0.3, shape).astype(tensor.dtype)
        if tensor.name == "lengths":
            array[:] = frames
        arrays[tensor.name] = array
    return arrays


def bytes_moved(bundle: Bundle, graph: str, frames: int, work: Work, width: int) -> float:
    """Bytes of the weights (`width` each), inputs and outputs of a call."""
    sizes = {"R": 1, "N": frames, "P": 0, "C": CONTEXT, "S": 1, "K": 1}
    sizes |= {"L": frames * bundle.manifest.mel.hop, "T": frames // FRAMES_PER_TOKEN}
    spec = signatures(bundle.manifest.dimensions)[file_of(bundle, graph)]
    values = 0
    for tensor in (*spec.inputs, *spec.outputs):
        values += math.prod(tensor.shape(sizes)) * np.dtype(tensor.dtype).itemsize
    return work.parameters * width + values


def speedups(bundle: Bundle) -> dict[str, float]:
    """Speed of classes on a GPU relative to FP16, where it differs."""
    return {"linear": 2.0} if bundle.manifest.precision == "int8-qdq" else {}


def file_of(bundle: Bundle, graph: str) -> str:
    """Name of the graph's file; a step's has exact shapes."""
    return "step_keys" if graph == "step" and "step" not in bundle.manifest.dimensions.required else graph
