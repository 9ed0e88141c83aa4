"""Kept graphs of the repository, in the form of `export.traces`. Each test fills the graphs with the weights
of the test.

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
import os
import shutil
import textwrap
import tokenize
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from torch import nn

from appliance.contract.graphs import GraphSpec
from appliance.durable import replace_file
from export import traces
from export.graphs import to_onnx
from tests.harness.kept import KEPT

ROOT = Path(__file__).resolve().parents[2]
GRAPHS = ROOT / "tests" / "harness" / "graphs"
SOURCE = GRAPHS / "source"
"""Hash of the source and the versions that made the kept graphs."""


def source() -> str:
    return traces.source(code_of)


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
    """Hash of `traces.key` and of the code of modules in tests."""
    kinds = {type(part) for part in module.modules() if type(part).__module__.startswith("tests.")}
    code = sorted(code_of(textwrap.dedent(inspect.getsource(kind))) for kind in kinds)
    return hashlib.sha256("".join([traces.key(module, spec, name), *code]).encode()).hexdigest()[:24]


def of(module: nn.Module, spec: GraphSpec, path: Path, folder: Path | None = None) -> None:
    """Write what `to_onnx.export` would write.

    F5_TRACES=anew makes `of` trace and compare the result with the kept graph.
    """
    name = f"{key(module, spec, path.name)}.xz"
    if os.environ.get("F5_TRACES") == "anew" and is_current() and (GRAPHS / name).is_file():
        to_onnx.export(module, spec, path)
        traced = contents(path)
        traces.fill((GRAPHS / name).read_bytes(), module, path)
        assert traced == contents(path), f"{path.name}: not the graph {name}"
        return
    for kept in folders():
        if (kept / name).is_file():
            traces.fill((kept / name).read_bytes(), module, path)
            return
    recent = folders()[-1] / name
    with recent.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not recent.is_file():
            to_onnx.export(module, spec, path)
            replace_file(recent, traces.pack(module, path))
    traces.fill(recent.read_bytes(), module, path)


def contents(path: Path) -> tuple[bytes, bytes]:
    """Content of a graph's file and of its file of weights."""
    data = path.with_name(f"{path.name}.data")
    return path.read_bytes(), data.read_bytes() if data.exists() else b""


@contextlib.contextmanager
def reusing() -> Iterator[None]:
    """Let the exporter fill known graphs instead of tracing the modules."""
    with mock.patch.object(traces, "export", of):
        yield


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
