"""Traced graphs in the repository, without weights; each test fills them with its weights.

A trace takes seconds, but the graph depends on the structure of the module alone. A kept graph holds the
names, the places and the shapes of its weights, also of weights that the tracer has converted to another
type, and the bytes of the constants that the tracer made. `of` fills the kept graph for a module if this
source and these versions made it. Otherwise `of` traces.

After a change of the traced code, tests trace again, once for each structure. `python -m
tests.harness.traces` then stores their graphs.
"""

import ast
import contextlib
import fcntl
import functools
import hashlib
import inspect
import io
import json
import lzma
import os
import shutil
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest import mock

import onnx
import torch
from torch import nn

from appliance.contract.graphs import GraphSpec
from export.graphs import to_onnx
from tests.harness.kept import KEPT

ROOT = Path(__file__).resolve().parents[2]
GRAPHS = ROOT / "tests" / "harness" / "graphs"
SOURCE = GRAPHS / "source"
"""Hash of the source and the versions that made the kept graphs."""
TRACERS = (
    *("export/graphs/*.py", "export/model/*.py", "export/families/*.py", "export/watermark.py"),
    "appliance/contract/graphs.py",
)
PACKAGES = ("torch", "onnx", "onnxscript", "onnx-ir")
MOST_CONSTANT = 1 << 11
"""Most bytes of a constant: a larger tensor must be a weight of the module."""

Trace = Callable[[nn.Module, GraphSpec, Path], None]


class Unkeepable(ValueError):
    """A graph with a large constant that is no weight: it may fit only its checkpoint."""


@functools.cache
def source() -> str:
    digest = hashlib.sha256()
    for pattern in TRACERS:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(f"{path.relative_to(ROOT).as_posix()}\0{code_of(path.read_text('utf-8'))}".encode())
    for package in PACKAGES:
        digest.update(f"{package} {metadata.version(package).partition('+')[0]}\n".encode())
    return digest.hexdigest()


def code_of(text: str) -> str:
    """Lines of a source without comments, docstrings, and strings under constants and fields."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0] - 1] = lines[token.start[0] - 1][: token.start[1]]
    for node in ast.walk(ast.parse(text)):
        value = node.value if isinstance(node, ast.Expr) else None
        if value is not None and isinstance(value, ast.Constant) and isinstance(value.value, str):
            lines[value.lineno - 1 : value.end_lineno] = [""] * ((value.end_lineno or 0) - value.lineno + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip())


@functools.cache
def folders() -> tuple[Path, ...]:
    """Folders of graphs that this source made: the repository's, and the folder for new graphs."""
    recent = KEPT / f"traces-{source()[:16]}"
    recent.mkdir(parents=True, exist_ok=True)
    return (GRAPHS, recent) if is_current() else (recent,)


def is_current() -> bool:
    return SOURCE.is_file() and SOURCE.read_text().strip() == source()


def key(module: nn.Module, spec: GraphSpec, name: str) -> str:
    """Hash of everything that a trace depends on, except TRACERS, versions and the values of weights."""
    shapes = [(key, str(value.dtype), tuple(value.shape)) for key, value in tensors(module).items()]
    settings = [
        (part, type(owner).__qualname__, key, repr(value))
        for part, owner in module.named_modules()
        for key, value in vars(owner).items()
        if value is None or isinstance(value, (bool, int, float, str, tuple, torch.dtype))
    ]
    words = repr((name, spec, f"{type(module).__module__}.{type(module).__qualname__}", shapes, settings))
    kinds = {type(part) for part in module.modules() if type(part).__module__.startswith("tests.")}
    code = sorted(code_of(textwrap.dedent(inspect.getsource(kind))) for kind in kinds)
    return hashlib.sha256("".join([words, *code]).encode()).hexdigest()[:24]


def tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Weights and buffers, by their names as initialisers of a graph."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def of(module: nn.Module, spec: GraphSpec, path: Path, *, trace: Trace = to_onnx.export) -> None:
    """Write the files that `trace(module, spec, path)` would write.

    F5_TRACES=anew makes `of` trace and compare the result with the kept graph.
    """
    name = f"{key(module, spec, path.name)}.xz"
    if os.environ.get("F5_TRACES") == "anew" and is_current() and (GRAPHS / name).is_file():
        trace(module, spec, path)
        data = path.with_name(f"{path.name}.data")
        traced = path.read_bytes(), data.read_bytes() if data.exists() else b""
        assert traced == filled((GRAPHS / name).read_bytes(), module), f"{path.name}: not the graph {name}"
        return
    for folder in folders():
        if (folder / name).is_file():
            fill((folder / name).read_bytes(), module, path)
            return
    recent = folders()[-1] / name
    with recent.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if recent.is_file():
            fill(recent.read_bytes(), module, path)
            return
        trace(module, spec, path)
        with contextlib.suppress(Unkeepable):
            recent.with_suffix(".new").write_bytes(pack(module, path))
            recent.with_suffix(".new").rename(recent)


@contextlib.contextmanager
def reusing() -> Iterator[None]:
    """Let the exporter fill known graphs instead of tracing them."""
    with mock.patch.object(to_onnx, "export", of):
        yield


def pack(module: nn.Module, path: Path) -> bytes:
    """The graph at `path` without the module's weights. Raises Unkeepable."""
    model, own, pieces = onnx.load(path, load_external_data=False), tensors(module), []
    data = path.with_name(f"{path.name}.data")
    stored = data.read_bytes() if data.exists() else b""
    for tensor in model.graph.initializer:
        at = {entry.key: int(entry.value) for entry in tensor.external_data if entry.key != "location"}
        content = stored[at["offset"] : at["offset"] + at["length"]] if at else tensor.raw_data
        names = [tensor.name] if tensor.name in own else own if len(content) > MOST_CONSTANT else []
        weight = next((name for name in names if bytes_of(own[name], tensor) == content), "")
        if len(content) > MOST_CONSTANT and not weight:
            raise Unkeepable(f"{path.name}: {tensor.name} is no weight of its module")
        if weight and not at:
            tensor.raw_data = b""
        pieces.append([at.get("offset"), weight, content.hex() if at and not weight else ""])
    head = json.dumps({"size": len(stored), "pieces": pieces}).encode()
    packed = lzma.compress(
        len(head).to_bytes(8, "little") + head + model.SerializeToString(deterministic=True)
    )
    if filled(packed, module) != (path.read_bytes(), stored):
        raise Unkeepable(f"{path.name}: is not the same once it is filled")
    return packed


def fill(packed: bytes, module: nn.Module, path: Path) -> None:
    """Write the packed graph with the module's weights."""
    graph, data = filled(packed, module)
    path.write_bytes(graph)
    if data:
        path.with_name(f"{path.name}.data").write_bytes(data)


def filled(packed: bytes, module: nn.Module) -> tuple[bytes, bytes]:
    """Content of a graph's file and of its file of weights."""
    whole = lzma.decompress(packed)
    end = 8 + int.from_bytes(whole[:8], "little")
    head: dict[str, Any] = json.loads(whole[8:end])
    model, own = onnx.ModelProto.FromString(whole[end:]), tensors(module)
    stored = bytearray(head["size"])
    for tensor, (offset, weight, constant) in zip(model.graph.initializer, head["pieces"], strict=True):
        content = bytes_of(own[weight], tensor) if weight else bytes.fromhex(constant)
        if offset is not None:
            stored[offset : offset + len(content)] = content
        elif weight:
            tensor.raw_data = content
    model.producer_version = torch.__version__  # names the build, for CPUs or for CUDA
    return model.SerializeToString(deterministic=True), bytes(stored)


def bytes_of(weight: torch.Tensor, initializer: onnx.TensorProto) -> bytes:
    """Values of a weight in the type and order of an initializer; empty if the shapes differ."""
    if list(weight.shape) != list(initializer.dims):
        return b""
    kind = onnx.helper.tensor_dtype_to_np_dtype(initializer.data_type)
    return weight.detach().numpy().astype(kind).tobytes()


def keep() -> None:
    """Add the graphs that tests of this source have traced to the repository; drop the graphs of another
    source."""
    if not is_current():
        shutil.rmtree(GRAPHS, ignore_errors=True)
        GRAPHS.mkdir()
    for path in sorted((KEPT / f"traces-{source()[:16]}").glob("*.xz")):
        shutil.copy(path, GRAPHS)
    SOURCE.write_text(f"{source()}\n")


if __name__ == "__main__":
    keep()
