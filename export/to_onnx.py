"""Trace a graph module to ONNX, with its axes named and checked against the contract."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import onnx
import onnx_ir
import torch
from onnx_ir.passes import common as passes
from onnxscript import optimizer
from torch import nn

from appliance.contract import graphs as contract

EXAMPLE_SIZES = {"B": 3, "G": 2, "N": 37, "S": 5, "K": 4}
"""All different and above 1: the tracer takes sizes 0 and 1 for constants, and equal sizes for one symbol."""

DTYPES = {"float32": torch.float32, "float16": torch.float16, "int32": torch.int32}


class ExportError(RuntimeError):
    """A traced graph is not what the contract says."""


def export(module: nn.Module, spec: contract.GraphSpec, path: Path) -> None:
    """Write `module` as `path` with its weights beside it in `path`.data.

    Raises ExportError when the traced signature, opset or IR version differs from the contract.
    """
    symbols = {name: torch.export.Dim.DYNAMIC for name in EXAMPLE_SIZES}
    shapes = {
        t.name: {i: symbols[axis] for i, axis in enumerate(t.axes) if isinstance(axis, str)}
        for t in spec.inputs
    }
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            module.eval(),
            kwargs={t.name: _example(t) for t in spec.inputs},
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=[t.name for t in spec.inputs],
            output_names=[t.name for t in spec.outputs],
            opset_version=contract.MAX_OPSET,
            optimize=False,  # its pattern rewriting takes minutes on a BigVGAN
            verbose=False,
        )
    assert program is not None
    optimizer.fold_constants(program.model)
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(program.model)
    passes.CommonSubexpressionEliminationPass()(program.model)
    optimizer.remove_unused_nodes(program.model)
    passes.ClearMetadataAndDocStringPass()(program.model)  # the tracer notes file paths of this machine
    program.model.ir_version = contract.MAX_IR_VERSION
    _name_axes(program.model.graph, spec)
    program.save(str(path), external_data=True)
    check_signature(path, spec)


def _example(spec: contract.TensorSpec) -> torch.Tensor:
    shape = [EXAMPLE_SIZES[axis] if isinstance(axis, str) else axis for axis in spec.axes]
    if spec.dtype == "int32":
        return torch.ones(shape, dtype=torch.int32)
    return torch.rand(shape, dtype=DTYPES[spec.dtype])


def _name_axes(graph: onnx_ir.Graph, spec: contract.GraphSpec) -> None:
    """Give inputs and outputs the contract's letters in place of the tracer's own symbols."""
    for values, tensors in ((graph.inputs, spec.inputs), (graph.outputs, spec.outputs)):
        for value, tensor in zip(values, tensors, strict=True):
            traced = value.shape
            for i, axis in enumerate(tensor.axes):
                if isinstance(axis, str) and traced is not None and isinstance(traced[i], int):
                    raise ExportError(f"{spec.name}: axis {axis} of {tensor.name} was fixed at {traced[i]}")
            value.shape = onnx_ir.Shape(tensor.axes)


def check_signature(path: Path, spec: contract.GraphSpec) -> None:
    """Compare a written graph's names, types, axes, opset and IR version with the contract."""
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
