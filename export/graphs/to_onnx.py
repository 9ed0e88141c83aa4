"""Traces a graph module to ONNX, and checks its signature against the contract."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import onnx
import onnx_ir
import torch
from onnx_ir.passes import common as passes
from onnxscript import optimizer
from torch import nn

from appliance.contract import graphs as contract

EXAMPLE_SIZES = {"R": 3, "N": 37, "S": 5, "K": 4, "P": 24, "C": 11, "T": 29}
"""Sizes of the trace, all different and above 1: 0 and 1 become constants, equal sizes one symbol.

P divides by 2 and 4.
"""
ANY_ROWS = 1009
"""Number of rows if the tracer may treat it as a constant, which halves its time.

No other size is a multiple of this prime, so a constant that depends on the rows is recognised by it.
"""

MANY = 16  # numbers, which no sizes are
INT64_MAX = 2**63 - 1
DTYPES = {"float32": torch.float32, "float16": torch.float16, "int32": torch.int32}


class ExportError(RuntimeError):
    """A traced graph differs from the contract."""


def export(module: nn.Module, spec: contract.GraphSpec, path: Path) -> None:
    """Write `module` to `path`, and its weights to `path`.data. Traces `module.rows` rows, or a symbol of
    them.

    Raises ExportError if the traced signature, opset or IR version differs from the contract.
    """
    rows: int | None = getattr(module, "rows", None)
    sizes = {**EXAMPLE_SIZES, "R": rows or EXAMPLE_SIZES["R"]}
    fixed = {"R"} if rows else set[str]()
    shapes = {
        t.name: {
            i: torch.export.Dim.DYNAMIC
            for i, axis in enumerate(t.axes)
            if isinstance(axis, str) and axis not in fixed
        }
        for t in spec.inputs
    }
    with warnings.catch_warnings(), torch.no_grad(), _one_registry():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            module.eval(),
            kwargs=_grouped(module, {t.name: _example(t, sizes) for t in spec.inputs}),
            dynamo=True,
            dynamic_shapes=_grouped(module, shapes),
            input_names=[t.name for t in spec.inputs],
            output_names=[t.name for t in spec.outputs],
            opset_version=contract.MAX_OPSET,
            optimize=False,  # its pattern rewriting takes minutes on a BigVGAN
            verbose=False,
        )
    assert program is not None
    model = program.model
    weights = module.state_dict()
    with _without_weights(model.graph, weights):
        optimizer.fold_constants(model)
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
        # Equal constants need one name, by which common subexpressions are found.
        passes.DeduplicateInitializersPass(size_limit=4096)(model)
        _drop_whole_slices(model.graph)
        _reshape_by_position(model.graph)
        passes.CommonSubexpressionEliminationPass()(model)
        optimizer.remove_unused_nodes(model)
    passes.ClearMetadataAndDocStringPass()(model)  # contains file paths of this machine
    model.ir_version = contract.MAX_IR_VERSION
    if rows == ANY_ROWS:
        _name_rows(model.graph, spec, weights)
    _name_axes(model.graph, spec, fixed)
    program.save(str(path), external_data=True)
    data = path.with_name(f"{path.name}.data")
    if data.exists() and data.stat().st_size == 0:
        data.unlink()
    check_signature(path, spec)


@contextlib.contextmanager
def _without_weights(graph: onnx_ir.Graph, names: Collection[str]) -> Iterator[None]:
    """Hide the weights from passes, so that what the passes make depends on the structure alone."""
    hidden = {value: value.const_value for name, value in graph.initializers.items() if name in names}
    for value in hidden:
        del graph.initializers[str(value.name)]
        value.const_value = None
    yield
    constants = dict(graph.initializers)
    graph.initializers.clear()
    for value, value.const_value in hidden.items():
        if value.uses():
            graph.register_initializer(value)
    graph.initializers.update(constants)


@contextlib.contextmanager
def _one_registry() -> Iterator[None]:
    """Let the exporter build its table of operators once, because that takes half a second."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    # From Python 3.14 on, a partial in a class is a method.
    once = staticmethod(functools.partial(_registry, ONNXRegistry.from_torchlib))
    with mock.patch.object(ONNXRegistry, "from_torchlib", once):
        yield


@functools.cache
def _registry(make: Callable[..., Any], opset_version: int) -> Any:
    return make(opset_version=opset_version)


def share_weights(path: Path, weights: Path) -> None:
    """Make the graph at `path` use the weight file of the graph at `weights`, in the same folder.

    Tensors with equal name and bytes are shared; the few others move into the graph.
    """
    model, other = (onnx.load(file, load_external_data=False) for file in (path, weights))
    theirs = {tensor.name: tensor for tensor in other.graph.initializer if tensor.external_data}
    for tensor in model.graph.initializer:
        if not tensor.external_data:
            continue
        same = theirs.get(tensor.name)
        own = stored(tensor, path.parent)
        if same is not None and own == stored(same, path.parent):
            del tensor.external_data[:]
            tensor.external_data.extend(same.external_data)
        else:
            tensor.raw_data = own
            del tensor.external_data[:]
            tensor.data_location = onnx.TensorProto.DEFAULT
    onnx.save(model, path)
    path.with_name(f"{path.name}.data").unlink(missing_ok=True)


def stored(tensor: onnx.TensorProto, folder: Path) -> bytes:
    at = {entry.key: entry.value for entry in tensor.external_data}
    with (folder / at["location"]).open("rb") as stream:
        stream.seek(int(at.get("offset", 0)))
        return stream.read(int(at["length"]))


def _grouped(module: nn.Module, named: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `forward`. Unnamed ones form `kept`."""
    names = inspect.signature(module.forward).parameters
    rest = tuple(value for name, value in named.items() if name not in names)
    return {name: value for name, value in named.items() if name in names} | ({"kept": rest} if rest else {})


def _constant(value: onnx_ir.Value | None) -> list[int] | None:
    tensor = None if value is None else onnx_ir.convenience.get_const_tensor(value)
    return None if tensor is None else tensor.numpy().flatten().tolist()


def _drop_whole_slices(graph: onnx_ir.Graph) -> None:
    """Remove slices over whole axes."""
    for node in list(graph):
        if node.op_type != "Slice":
            continue
        starts, ends, steps = (_constant(node.inputs[i]) if i < len(node.inputs) else [1] for i in (1, 2, 4))
        if starts and ends and steps and (set(starts), set(steps)) == ({0}, {1}) and min(ends) >= INT64_MAX:
            assert node.inputs[0] is not None
            onnx_ir.convenience.replace_all_uses_with(node.outputs[0], node.inputs[0])
            graph.remove(node, safe=True)


def _reshape_by_position(graph: onnx_ir.Graph) -> None:
    """Give each Reshape a constant target instead of a computed one: 0 copies an axis, -1 is the one unknown
    axis.

    If more axes are unknown, only the number of rows is copied.
    """
    for node in list(graph):
        if node.op_type != "Reshape" or node.inputs[0] is None:
            continue
        before, after = node.inputs[0].shape, node.outputs[0].shape
        if before is None or after is None:
            continue
        if all(isinstance(axis, int) and not _of_rows(axis) for axis in after):
            continue
        stays = [i < len(before) and before[i] == axis for i, axis in enumerate(after)]
        target = [axis if isinstance(axis, int) and not _of_rows(axis) else -1 for axis in after]
        target = [0 if kept and axis == -1 else axis for kept, axis in zip(stays, target, strict=True)]
        if target.count(-1) <= 1:
            node.replace_input_with(1, _constant_shape(graph, node, target))
        elif stays[0] and _of_rows(after[0]) and (joined := _joined_target(node, len(after))) is not None:
            joined.replace_input_with(0, _constant_shape(graph, node, [0]))
        else:
            continue
        node.attributes.pop("allowzero", None)


def _joined_target(node: onnx_ir.Node, axes: int) -> onnx_ir.Node | None:
    """The Concat that makes a Reshape's target, if nothing else reads it and each input is one axis."""
    target = node.inputs[1]
    joined = None if target is None else target.producer()
    if target is None or joined is None or joined.op_type != "Concat" or len(target.uses()) > 1:
        return None
    return joined if len(joined.inputs) == axes else None


def _constant_shape(graph: onnx_ir.Graph, node: onnx_ir.Node, axes: list[int]) -> onnx_ir.Value:
    shape = onnx_ir.tensor(axes, onnx_ir.DataType.INT64, f"{node.outputs[0].name}_shape")
    value = onnx_ir.Value(name=shape.name, const_value=shape)
    graph.register_initializer(value)
    return value


def _of_rows(size: object) -> bool:
    return isinstance(size, int | float) and size > 0 and size % ANY_ROWS == 0


def _name_rows(graph: onnx_ir.Graph, spec: contract.GraphSpec, weights: Collection[str]) -> None:
    """Make the number of rows a symbol in all shapes. Raises ExportError if a constant depends on it."""
    for value in (output for node in graph for output in node.outputs):
        if value.shape is not None:
            value.shape = onnx_ir.Shape(
                f"{axis // ANY_ROWS}*R" if isinstance(axis, int) and _of_rows(axis) else axis
                for axis in value.shape
            )
    for name, value in graph.initializers.items():
        tensor = value.const_value
        if tensor is None or name in weights:
            continue
        numbers = tensor.numpy().flatten().tolist() if tensor.size < MANY else []
        if any(map(_of_rows, [*tensor.shape.numpy(), *numbers])):
            raise ExportError(f"{spec.name}: {name} depends on the number of rows while tracing")


def _example(spec: contract.TensorSpec, sizes: Mapping[str, int]) -> torch.Tensor:
    shape = spec.shape(sizes)
    if spec.dtype == "int32":
        return torch.ones(shape, dtype=torch.int32)
    return torch.empty(shape, dtype=DTYPES[spec.dtype])  # nobody reads it, so it takes no memory


def _name_axes(graph: onnx_ir.Graph, spec: contract.GraphSpec, fixed: Collection[str]) -> None:
    """Name axes of inputs and outputs after the contract. Raises ExportError."""
    for values, tensors in ((graph.inputs, spec.inputs), (graph.outputs, spec.outputs)):
        for value, tensor in zip(values, tensors, strict=True):
            traced = value.shape
            for i, axis in enumerate(tensor.axes):
                varies = isinstance(axis, str) and axis not in fixed
                if varies and traced is not None and isinstance(traced[i], int):
                    raise ExportError(f"{spec.name}: axis {axis} of {tensor.name} was fixed at {traced[i]}")
            value.shape = onnx_ir.Shape(tensor.axes)


def check_signature(path: Path, spec: contract.GraphSpec) -> None:
    """Raise ExportError if a graph violates the contract."""
    model = onnx.load(path, load_external_data=False)
    want = {t.name: (t.dtype, t.axes) for t in (*spec.inputs, *spec.outputs)}
    got = {}
    for value in (*model.graph.input, *model.graph.output):
        kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name
        axes = tuple(d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim)
        got[value.name] = (kind, axes)
    if got != want:
        raise ExportError(f"{path.name}: signature {got} differs from the contract's {want}")
    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=0)
    if opset > contract.MAX_OPSET or model.ir_version > contract.MAX_IR_VERSION:
        raise ExportError(f"{path.name}: opset {opset}, IR {model.ir_version} are too new")
