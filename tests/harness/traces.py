"""Traced graphs in the repository, without weights; each test fills them with its weights.

A trace takes seconds; what it makes depends on a module's structure alone. A kept graph holds the names, the
places and the shapes of its weights, and the bytes of the constants that the tracer made. `of` gives a module
its graph if the kept ones were made by this source and these versions, else traces.

After a change of what traces, tests trace again, once for each structure. `python -m tests.harness.traces`
then keeps what they traced.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import lzma
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

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
TRACERS = ("export/graphs/*.py", "export/model/*.py", "export/families/*.py", "appliance/contract/graphs.py")
PACKAGES = ("torch", "onnx", "onnxscript", "onnx-ir")
MOST_CONSTANTS = 1 << 16
"""Bytes of a graph's constants; a graph with more holds a weight that the tracer has converted."""

Trace = Callable[[nn.Module, GraphSpec, Path], None]


class Unkeepable(ValueError):
    """A graph whose weights the tracer has converted, so that it fits one checkpoint only."""


@functools.cache
def source() -> str:
    digest = hashlib.sha256()
    for pattern in TRACERS:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    for package in PACKAGES:
        digest.update(f"{package} {metadata.version(package).partition('+')[0]}\n".encode())
    return digest.hexdigest()


@functools.cache
def folders() -> tuple[Path, ...]:
    """Folders of graphs that this source made: the repository's, and the one that new graphs go to."""
    recent = KEPT / f"traces-{source()[:16]}"
    recent.mkdir(parents=True, exist_ok=True)
    return (GRAPHS, recent) if is_current() else (recent,)


def is_current() -> bool:
    return SOURCE.is_file() and SOURCE.read_text().strip() == source()


def key(module: nn.Module, spec: GraphSpec, name: str) -> str:
    """Hash of all that a trace depends on but for source, versions and the weights' values."""
    shapes = [(key, str(value.dtype), tuple(value.shape)) for key, value in tensors(module).items()]
    settings = [
        (part, type(owner).__qualname__, key, repr(value))
        for part, owner in module.named_modules()
        for key, value in vars(owner).items()
        if value is None or isinstance(value, (bool, int, float, str, tuple, torch.dtype))
    ]
    words = repr((name, spec, f"{type(module).__module__}.{type(module).__qualname__}", shapes, settings))
    return hashlib.sha256(words.encode()).hexdigest()[:24]


def tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Weights and buffers, by the names that initializers of a graph have."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def of(module: nn.Module, spec: GraphSpec, path: Path, *, trace: Trace = to_onnx.export) -> None:
    """Write what `trace(module, spec, path)` would write."""
    name = f"{key(module, spec, path.name)}.xz"
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


def pack(module: nn.Module, path: Path) -> bytes:
    """The graph at `path` without the module's weights. Raises Unkeepable."""
    model, own, pieces = onnx.load(path, load_external_data=False), tensors(module), []
    data = path.with_name(f"{path.name}.data")
    stored = data.read_bytes() if data.exists() else b""
    constants = 0
    for tensor in model.graph.initializer:
        at = {entry.key: int(entry.value) for entry in tensor.external_data if entry.key != "location"}
        content = stored[at["offset"] : at["offset"] + at["length"]] if at else tensor.raw_data
        is_weight = tensor.name in own and bytes_of(own[tensor.name]) == content
        if is_weight and not at:
            tensor.raw_data = b""
        constants += 0 if is_weight else len(content)
        pieces.append([at.get("offset"), None if is_weight else content.hex() if at else ""])
    if constants > MOST_CONSTANTS:
        raise Unkeepable(f"{path.name}: {constants} bytes of constants that are no weights of its module")
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
    for tensor, (offset, constant) in zip(model.graph.initializer, head["pieces"], strict=True):
        content = bytes_of(own[tensor.name]) if constant is None else bytes.fromhex(constant)
        if offset is not None:
            stored[offset : offset + len(content)] = content
        elif constant is None:
            tensor.raw_data = content
    return model.SerializeToString(deterministic=True), bytes(stored)


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().numpy().tobytes()


def keep() -> None:
    """Add what tests of this source have traced to the repository's graphs; drop those of another source."""
    if not is_current():
        shutil.rmtree(GRAPHS, ignore_errors=True)
        GRAPHS.mkdir()
    for path in sorted((KEPT / f"traces-{source()[:16]}").glob("*.xz")):
        shutil.copy(path, GRAPHS)
    SOURCE.write_text(f"{source()}\n")


if __name__ == "__main__":
    keep()
