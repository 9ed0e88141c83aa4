"""Precision rewrites: float32 arithmetic and dynamic INT8 for a CPU, float32 sums for a GPU."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from export import progress

ROLES = ("from_latents", "qkv", "attention.out", "up", "down", "final")
"""Roles of weight products, in execution order."""
INT8_KEEPS_FLOAT = ("from_latents", "final")
"""Roles at the narrow ends, which stay in float; see the curve in tests/records/precision.md."""


def widen(source: Path, out: Path) -> None:
    """Write the float16 graph `source` with float32 arithmetic, sharing its weight file.

    ONNX Runtime has no float16 products on a CPU, so it would cast around each. Weights are widened at
    loading.
    """
    progress.begin("graphs", f"converting {out.stem}")
    model = onnx.load(source, load_external_data=False)
    graph = model.graph
    stored = [one for one in graph.initializer if one.data_type == TensorProto.FLOAT16]
    inputs = [one for one in graph.input if one.type.tensor_type.elem_type == TensorProto.FLOAT16]
    widened = [one.name for one in stored] + [one.name for one in inputs]
    for node in graph.node:
        _compute_in_float32(node)
        for place, name in enumerate(node.input):
            if name in widened:
                node.input[place] = f"{name}_float32"
    entries = [helper.make_node("Cast", [n], [f"{n}_float32"], to=TensorProto.FLOAT) for n in widened]
    put(graph.node, [*entries, *graph.node, *_narrowed_outputs(graph)])
    del graph.value_info[:]
    onnx.save(model, out)


def _compute_in_float32(node: onnx.NodeProto) -> None:
    for attribute in node.attribute:
        if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT16:
            attribute.i = TensorProto.FLOAT
        elif attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT16:
            _widen_tensor(attribute.t)


def _widen_tensor(tensor: onnx.TensorProto) -> None:
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))


def _narrowed_outputs(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Casts of outputs back to the contract's float16."""
    casts = []
    for output in graph.output:
        if output.type.tensor_type.elem_type == TensorProto.FLOAT16:
            maker = next(node for node in graph.node if output.name in node.output)
            wide = f"{output.name}_float32"
            maker.output[list(maker.output).index(output.name)] = wide
            casts.append(helper.make_node("Cast", [wide], [output.name], to=TensorProto.FLOAT16))
    return casts


def _with_wide_weights(source: Path, out: Path) -> None:
    """Write the graph `source` of `widen` with its products' weights in float32, as the quantiser needs."""
    model = onnx.load(source)
    graph = model.graph
    widened = {product.weight for product in products_of(graph) if product.widened}
    stored = {tensor.name: tensor for tensor in graph.initializer if tensor.name in widened}
    nodes, wide = list[onnx.NodeProto](), dict[str, str]()
    for node in graph.node:
        if node.op_type == "Cast" and node.input[0] in stored:
            _widen_tensor(stored[node.input[0]])
            wide[node.output[0]] = node.input[0]
        else:
            nodes.append(node)
    for node in nodes:
        node.input[:] = [wide.get(name, name) for name in node.input]
    put(graph.node, nodes)
    save(model, out)


def put(field: Any, items: Iterable[Any]) -> None:
    """Replace the items of a repeated protobuf field. The new items may include old items."""
    new = list(items)
    del field[:]
    field.extend(new)


def quantise_widened(source: Path, out: Path, roles: Roles) -> None:
    """Write the graph `source` of `widen` with dynamic INT8 products; see `quantise`."""
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        wide = Path(folder) / source.name
        _with_wide_weights(source, wide)
        quantise(wide, out, roles=roles)


def sum_in_float32(source: Path, out: Path) -> None:
    """Write the float16 graph `source` with its weight products between casts, sharing its weight file.

    TensorRT then multiplies float16 numbers and sums in float32.
    """
    progress.begin("graphs", f"converting {out.stem}")
    model = onnx.load(source, load_external_data=False)
    graph = model.graph
    names = {product.node.name for product in products_of(graph)}
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.name not in names:
            nodes.append(node)
            continue
        wide = [f"{node.name}_{place}" for place in range(3)]
        nodes += [
            helper.make_node("Cast", [name], [to], to=TensorProto.FLOAT)
            for name, to in zip(node.input, wide, strict=False)
        ]
        nodes.append(helper.make_node("MatMul", wide[:2], wide[2:], name=node.name))
        nodes.append(helper.make_node("Cast", wide[2:], [*node.output], to=TensorProto.FLOAT16))
    put(graph.node, nodes)
    del graph.value_info[:]
    onnx.save(model, out)


def role_of(weight: str) -> str:
    """Role of a step graph's product, by its weight's name. Raises ValueError for other names."""
    if weight.startswith(("out.", "skip.")):  # the long skip connection joins it
        return "final"
    for role in ROLES:
        if f"{role}." in weight:
            return role
    raise ValueError(f"{weight}: not a matrix of the step graph")


@dataclass(frozen=True)
class Roles:
    """Roles of a family's weight products."""

    names: tuple[str, ...]
    floats: tuple[str, ...]
    """Roles that dynamic INT8 leaves in float."""
    of: Callable[[str], str]
    """Weight's name → role."""

    def check(self, roles: Collection[str]) -> None:
        """Raise ValueError for unknown roles."""
        if unknown := [role for role in roles if role not in self.names]:
            raise ValueError(f"unknown role {', '.join(unknown)}; roles: {', '.join(self.names)}")


DIT = Roles(ROLES, INT8_KEEPS_FLOAT, role_of)
VOCODER = Roles(
    ("blocks", "ends"),
    ("ends",),
    lambda weight: "blocks" if weight.endswith((".up.weight", ".down.weight")) else "ends",
)
"""Products of a vocoder: `blocks` of the backbone, and `ends`, the head and the Fourier transforms."""


def quantise_vocoder(source: Path, out: Path) -> bool:
    """Write the vocoder `source` with dynamic INT8 products in its blocks. Returns False if it has none.

    Convolutions stay in float: ONNX Runtime's `ConvInteger` takes three times as long.
    """
    products = products_of(onnx.load(source, load_external_data=False).graph)
    if all(VOCODER.of(product.weight) in VOCODER.floats for product in products):
        return False
    quantise_widened(source, out, VOCODER)
    return True


def quantise(source: Path, out: Path, roles: Roles = DIT) -> None:
    """Write the float32 step graph `source` with dynamic INT8 products, except `roles.floats`.

    Weights have a scale for each output channel, activations one for the tensor, so results depend on the
    batch.
    """
    progress.begin("graphs", f"converting {out.stem}")
    graph = onnx.load(source, load_external_data=False).graph
    excluded = [
        product.node.name for product in products_of(graph) if roles.of(product.weight) in roles.floats
    ]
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        raw = Path(folder) / out.name
        only = {"MatMulConstBOnly": True}
        _quantise_dynamic(source, raw, only, per_channel=True, reduce_range=False, nodes_to_exclude=excluded)
        model = onnx.load(raw)
    # The quantiser renames axes and raises the IR version, so the contract's are restored.
    traced = onnx.load(source, load_external_data=False)
    model.ir_version = traced.ir_version
    put(model.graph.input, traced.graph.input)
    put(model.graph.output, traced.graph.output)
    save(model, out)


def quantise_as_upstream(source: Path, out: Path) -> None:
    """Write the step graph `source` as ZipVoice's `bin/onnx_export.py` (2f7326f) quantises it."""
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        wide = Path(folder) / source.name
        _with_wide_weights(source, wide)
        _quantise_dynamic(wide, out, {})


def _quantise_dynamic(source: Path, out: Path, extra: Mapping[str, object], **options: Any) -> None:
    """Let ONNX Runtime write a graph with dynamic INT8 products, without its advice on the root logger."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        quantize_dynamic(
            source,
            out,
            op_types_to_quantize=["MatMul"],
            weight_type=QuantType.QInt8,
            use_external_data_format=True,
            # The quantiser infers no types behind ONNX Runtime's own operators.
            extra_options={"DefaultTensorType": TensorProto.FLOAT, **extra},
            **options,
        )
    finally:
        logging.disable(before)


def save(model: onnx.ModelProto, path: Path) -> None:
    data = path.with_name(path.name + ".data")
    data.unlink(missing_ok=True)
    onnx.save_model(
        model,
        path,
        save_as_external_data=True,
        location=data.name,
        size_threshold=1024,
        convert_attribute=False,
    )
    if data.exists():
        data.chmod(path.stat().st_mode)  # the library gives it mode 600


@dataclass(frozen=True)
class Product:
    """A MatMul with a stored weight."""

    node: onnx.NodeProto
    weight: str
    widened: bool
    """True if the weight is cast to float32 first; see `widen`."""

    @property
    def role(self) -> str:
        """Role of the product, among ROLES."""
        return role_of(self.weight)


def products_of(graph: onnx.GraphProto) -> list[Product]:
    """Weight products in graph order."""
    weights = {tensor.name for tensor in graph.initializer}
    casts = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Cast"}
    products = []
    for node in graph.node:
        if node.op_type == "MatMul":
            weight = casts.get(node.input[1], node.input[1])
            if weight in weights:
                products.append(Product(node, weight, weight != node.input[1]))
    return products
