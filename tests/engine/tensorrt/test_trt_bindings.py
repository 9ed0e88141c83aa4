"""Our calls of TensorRT and cuda-python against the bindings of TensorRT and TensorRT-RTX; builds."""

import ast
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from appliance.contract.bundle import Bundle
from appliance.contract.graphs import GRAPHS, signatures
from appliance.engine import cuda
from appliance.engine.engine import ranges
from appliance.engine.tensorrt import build, trt
from appliance.errors import BundleError
from tests.engine import bindings
from tests.engine.lanes import Padded
from tests.export import plan
from tests.fakes.nvidia import cudart
from tests.harness.rows import rows

# The warnings come from the bindings and from timing caches, which TensorRT-RTX accepts and leaves empty.
pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

OBJECTS = dict(rows(__file__, "objects.jsonl"))
"""Names of TensorRT's objects in our source → their classes; empty for the module itself."""
OURS = {"log", "progress", "profile", "source", "graph", "bound"}
"""Parameters annotated as Any whose types are ours."""
WEAK_FLAGS = (("runtime", "BuilderFlag", flag) for flag in ("FP16", "OBEY_PRECISION_CONSTRAINTS"))
WEAK = {("layer", "precision"), ("layer", "set_output_type"), *WEAK_FLAGS}
"""Calls that only weak typing has; TensorRT-RTX and TensorRT 11 lack them."""


@pytest.fixture(scope="module")
def rtx() -> Any:
    """TensorRT-RTX, whose builds need no GPU."""
    return plan.runtime()


def used(module: Any) -> Iterator[tuple[str, ...]]:
    """The attributes of TensorRT's objects in a module: an object's name, then the names that follow it."""
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Attribute):
            path: list[str] = []
            at: ast.expr = node
            while isinstance(at, ast.Attribute):
                path.insert(0, at.attr)
                at = at.value
                if (name := spelt(at)) in OBJECTS:
                    yield (name, *path)


def spelt(node: ast.expr) -> str:
    """`context`, `self._runtime` or `network.get_input()` as OBJECTS spells it."""
    return ast.unparse(ast.Call(node.func, [], [])) if isinstance(node, ast.Call) else ast.unparse(node)


USED = sorted({(*path,) for module in (build, trt) for path in used(module)} - WEAK)
OF_THE_BINDINGS = [path for path in USED if "__version__" not in path]
"""Paths in the bindings; the package adds `__version__`, a text."""


Call = tuple[tuple[str, ...], int, bool, frozenset[str]]
"""A call: name path, number of positional arguments, if a list supplies more of them, keyword names."""


def calls(module: Any) -> Iterator[Call]:
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            for path in {*OF_THE_BINDINGS, *WEAK}:
                if spelt(node.func) == ".".join(path):
                    single = [one for one in node.args if not isinstance(one, ast.Starred)]
                    named = frozenset(keyword.arg or "" for keyword in node.keywords)
                    yield path, len(single), len(single) < len(node.args), named


def spelt_in_the_bindings(path: tuple[str, ...]) -> str:
    """`IExecutionContext.set_input_shape` for `context.set_input_shape`."""
    name, *rest = path
    return ".".join(filter(None, (OBJECTS[name], *rest)))


@pytest.fixture(scope="module", params=bindings.WHEELS)
def tensorrt(request: pytest.FixtureRequest) -> tuple[str, dict[str, str | None]]:
    """A version, and the docstrings of what we use of it."""
    return request.param, bindings.documented(
        request.param, sorted(map(spelt_in_the_bindings, {*OF_THE_BINDINGS, *WEAK}))
    )


@pytest.mark.slow
def test_each_version_has_our_names_and_accepts_our_calls(
    tensorrt: tuple[str, dict[str, str | None]],
) -> None:
    """pybind11 writes signatures into docstrings. If the library cannot start, for example with too old a
    driver, the constructor raises TypeError."""
    version, found = tensorrt
    missing = {name for name, text in found.items() if text is None}
    assert missing == ({spelt_in_the_bindings(path) for path in WEAK} if version == "11.4" else set())
    made = {call for module in (build, trt) for call in calls(module)}
    assert {path[-1] for path, *_ in made} >= {"OnnxParser", "execute_async_v3", "deserialize_cuda_engine"}
    for path, *given in made:
        text = found[spelt_in_the_bindings(path)]
        if text is not None:
            assert any(takes(parameters, *given) for parameters in signatures_in(text)), (path, given, text)
    assert (found["Builder()"], found["Runtime()"]) == ("TypeError", "TypeError")


def signatures_in(text: str) -> Iterator[list[tuple[str, bool]]]:
    """Parameters of each overload except `self`: their names, and if they are optional."""
    for line in re.findall(r"^(?:\d+\. )?\w+\((self: .*)\) -> ", text, re.MULTILINE):
        # Commas in the brackets of a type separate nothing.
        flat = re.sub(r"\[[^\[\]]*\]", "", re.sub(r"\[[^\[\]]*\]", "", line))
        yield [(part.split(":")[0].strip(), "=" in part) for part in flat.split(",")][1:]


def takes(parameters: list[tuple[str, bool]], positional: int, more: bool, names: frozenset[str]) -> bool:
    rest = dict(parameters[positional:])
    needed = {name for name, optional in rest.items() if not optional}
    return positional + more <= len(parameters) and names <= set(rest) and (more or needed <= names)


def test_the_list_is_of_all_that_is_used() -> None:
    assert {name for name, *_ in USED} == set(OBJECTS)
    assert {path for module in (build, trt) for path in used(module)} - set(USED) == WEAK
    assert {("context", "execute_async_v3"), ("self._deserialiser", "deserialize_cuda_engine")} <= set(USED)
    for module in (build, trt):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.arg) and node.annotation and ast.unparse(node.annotation) == "Any":
                assert node.arg in OBJECTS or node.arg in OURS | {"severity"}, f"{node.arg}: of which class?"
            # A result of TensorRT's objects is examined under a name of OBJECTS, or not at all.
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                [target], made_by = node.targets, node.value.func
                if isinstance(made_by, ast.Attribute) and spelt(made_by.value) in OBJECTS:
                    assert ast.unparse(target) in OBJECTS, f"{ast.unparse(node)}: of which class?"


CUDA = {
    0: "DriverGetVersion RuntimeGetVersion GetDeviceCount",
    1: "EventDestroy EventSynchronize Free FreeHost GetDeviceProperties GetErrorString GraphDestroy"
    " GraphExecDestroy Malloc MallocHost SetDevice StreamDestroy StreamEndCapture StreamSynchronize"
    " EventCreateWithFlags StreamCreateWithFlags",
    2: "EventRecord GraphInstantiate GraphLaunch StreamBeginCapture",
    4: "MemsetAsync",
    5: "MemcpyAsync",
}
"""Numbers of parameters → functions that we call, equal in cuda-python 12.6.1, 12.9.10 and 13.5.0."""


def test_our_calls_of_cuda_python_fit_its_versions_and_the_fake() -> None:
    called: dict[str, set[int]] = {}
    for module in (cuda, trt):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if not isinstance(node, ast.Call):
                continue
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and spelt(node.func).endswith("call"):
                called.setdefault(str(first.value), set()).add(len(node.args) - 1)
            elif isinstance(node.func, ast.Attribute) and node.func.attr.startswith("cuda"):
                called.setdefault(node.func.attr, set()).add(len(node.args))
    # `close` takes these by name.
    called |= {name: {1} for name in ("cudaStreamSynchronize", "cudaFree")}
    known = {f"cuda{name}": count for count, names in CUDA.items() for name in names.split()}
    assert called == {name: {count} for name, count in known.items()}
    for name, count in known.items():
        assert len(inspect.signature(getattr(cudart.Runtime, name)).parameters) == count + 1, name


@pytest.mark.torch
@pytest.mark.tensorrt
@pytest.mark.parametrize("graph", [name for name in GRAPHS if name != "modulation"])
def test_each_graph_is_built_in_all_its_profiles(rtx: Any, tiny: Bundle, graph: str) -> None:
    """A second build reuses the timing cache of the first."""
    source, log = source_of(tiny, graph), build.make_log(rtx)
    engine, timing = build.build(source, rtx, log)
    assert len(source.profiles) == (3 if graph.startswith("step") else 1)
    assert engine
    if graph == "update":
        assert len(build.build(source, rtx, log, timing)[0]) == len(engine)


def source_of(bundle: Bundle, graph: str) -> build.EngineSource:
    spec = signatures(bundle.manifest.dimensions)[graph]
    sizes = ranges(graph, bundle.manifest, Padded())
    return build.EngineSource(bundle.graph(graph), spec, build.profiles_of(spec, sizes))


@pytest.mark.torch
@pytest.mark.tensorrt
def test_unparsable_and_unbuildable_graphs_are_named(rtx: Any, tiny: Bundle, tmp_path: Any) -> None:
    source, log = source_of(tiny, "update"), build.make_log(rtx)
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no graph")
    with pytest.raises(BundleError, match=rf"^{broken}: TensorRT {rtx.__version__} cannot parse it: \S"):
        build.build(build.EngineSource(broken, source.spec, source.profiles), rtx, log)
    two = build.Profile({"N": (2, 1, 2)})
    with pytest.raises(BundleError, match=r"update.onnx: TensorRT \S+ cannot build it: \S"):
        build.build(build.EngineSource(source.path, source.spec, (two,)), rtx, log)
