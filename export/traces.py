"""Graphs of earlier exports without their weights. An export of the same structure fills them with its own
weights.

A trace takes seconds, and its graph depends on the structure of the module alone. A kept graph holds the
places of its weights, and the bytes of the constants that the tracer made.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import lzma
import os
import pickle
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

from appliance.contract.graphs import GraphSpec
from appliance.durable import replace_file
from export.graphs import to_onnx

ROOT = Path(__file__).resolve().parent
TRACERS = "graphs/*.py", "model/*.py", "families/*.py", "watermark.py", "../appliance/contract/graphs.py"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "f5-appliance", "graphs")
MOST_KEPT = 500
"""Most graphs in a folder. A bundle has 7 to 20 graphs."""


def export(module: nn.Module, spec: GraphSpec, path: Path, folder: Path | None = None) -> None:
    """Write what `to_onnx.export` writes, from a graph in `folder`. If the folder lacks the graph, trace it
    and add it there.
    """
    if folder is None:
        return to_onnx.export(module, spec, path)
    graph = folder / f"{source()[:16]}-{key(module, spec, path.name)}.xz"
    try:
        packed = graph.read_bytes()
        os.utime(graph)
        fill(packed, module, path)
    except (OSError, lzma.LZMAError):
        to_onnx.export(module, spec, path)
        with contextlib.suppress(OSError):  # a folder that nobody can write keeps none
            folder.mkdir(parents=True, exist_ok=True)
            replace_file(graph, pack(module, path))
            for oldest in sorted(folder.glob("*.xz"), key=os.path.getmtime)[:-MOST_KEPT]:
                oldest.unlink()


def pack(module: nn.Module, path: Path) -> bytes:
    """The graph at `path` without the module's weights."""
    model, weights = onnx.load(path, load_external_data=False), module.state_dict()
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.raw_data = b""
        elif tensor.external_data:
            tensor.raw_data = to_onnx.stored(tensor, path.parent)
    return lzma.compress(model.SerializeToString(deterministic=True))


def fill(packed: bytes, module: nn.Module, path: Path) -> None:
    """Write the packed graph with the module's weights. Raises LZMAError."""
    model, weights = onnx.ModelProto.FromString(lzma.decompress(packed)), module.state_dict()
    model.producer_version = torch.__version__  # the version names the build, for CPUs or CUDA
    data = path.with_name(f"{path.name}.data")
    with data.open("wb") as stream:
        for tensor in model.graph.initializer:
            content = memoryview(tensor.raw_data)
            if tensor.name in weights:
                content = np.ascontiguousarray(weights[tensor.name].numpy()).data
            if tensor.external_data:
                stream.seek(int(next(at.value for at in tensor.external_data if at.key == "offset")))
                stream.write(content)
                tensor.ClearField("raw_data")
            else:
                tensor.raw_data = bytes(content)
    if not data.stat().st_size:
        data.unlink()
    path.write_bytes(model.SerializeToString(deterministic=True))


def key(module: nn.Module, spec: GraphSpec, name: str) -> str:
    """Hash of everything that a trace depends on, except `source` and the weights' values."""
    shapes = [(each, tensor.dtype, tensor.shape) for each, tensor in module.state_dict().items()]
    plain = vars(nn.Module())
    parts = [
        (part, type(owner), pickle.dumps({k: v for k, v in vars(owner).items() if k not in plain}, 4))
        for part, owner in module.named_modules()
    ]
    return hashlib.sha256(repr((name, spec, shapes, parts)).encode()).hexdigest()[:24]


@functools.cache
def source(code: Callable[[str], str] = str) -> str:
    """Hash of the tracer's versions, and of its sources as `code` reads them."""
    files = sorted(path for pattern in TRACERS for path in ROOT.glob(pattern))
    packages = "torch", "onnx", "onnxscript", "onnx-ir"
    versions = [metadata.version(name).partition("+")[0] for name in packages]
    whole = "\0".join([*(code(path.read_text("utf-8")) for path in files), *versions])
    return hashlib.sha256(whole.encode()).hexdigest()
