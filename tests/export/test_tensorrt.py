"""Every graph of the shipped bundle in TensorRT-RTX, built ahead of time: kernels, launches, checks."""

import dataclasses
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from appliance.contract import bundle as contract
from appliance.contract import graphs
from appliance.contract.bundle import FLOAT32_SUMS
from appliance.contract.graphs import STEPS
from appliance.engine.engine import ranges
from appliance.engine.tensorrt import build
from export.assemble import MAX_FRAMES
from export.families import NAMED
from export.graphs.step import Step
from export.precision import qdq
from export.sources.checkpoint import load_dit
from tests.engine.lanes import Padded
from tests.export import plan
from tests.export.plan import Plan
from tests.export.random_checkpoint import write_random
from tests.harness import traces

pytestmark = [
    pytest.mark.torch,
    pytest.mark.tensorrt,
    pytest.mark.slow,
    # The warnings come from timing caches, which TensorRT-RTX accepts and leaves empty.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

DEMO = Path(__file__).resolve().parents[2] / "appliance/demo/bundle"
MAX_BLOCK_LAUNCHES = 8
"""Launches of a block: q, k and v as one product; their split with the rotation; attention; its output; norm,
gate and residual; up; down; norm, gate and residual."""

FRAMES = 512
ONE_LENGTH: dict[str, plan.Range] = {"K": (1, 16, 64), "R": (1, 2, 4)}
ONE_LENGTH |= {name: (n, n, n) for name, n in (("C", 30), ("N", FRAMES), ("P", 256), ("S", 128))}
"""Axis → sizes for one length and one reference."""
ANY_LENGTH = ONE_LENGTH | {"N": (64, FRAMES, 2304)}
FIXED = {axis: (usual, usual, usual) for axis, (_, usual, _) in ONE_LENGTH.items()}
MakePlan = Callable[..., Plan]


@pytest.fixture(scope="module")
def bundle() -> contract.Bundle:
    return contract.read(DEMO)


@pytest.fixture(scope="module")
def made(bundle: contract.Bundle) -> MakePlan:
    """Plans of the bundle's graphs, each made once."""
    plans: dict[tuple[str, str], Plan] = {}

    def make(graph: str, kind: Literal["one length", "any length", "fixed"] = "one length") -> Plan:
        if (graph, kind) not in plans:
            axes = {"one length": ONE_LENGTH, "any length": ANY_LENGTH, "fixed": FIXED}[kind]
            plans[graph, kind] = plan.of(bundle.graph(graph), spec_of(bundle, graph), axes)
        return plans[graph, kind]

    return make


def spec_of(bundle: contract.Bundle, graph: str) -> graphs.GraphSpec:
    return graphs.signatures(bundle.manifest.dimensions)[graph]


@pytest.mark.parametrize("graph", STEPS)
def test_nothing_is_checked_at_run_time_where_shapes_are_fixed(graph: str, made: MakePlan) -> None:
    assert made(graph, "fixed").asserts == ()


# INT8 by Q/DQ. The values of the constants change no plan.

INT8_BLOCK_LAUNCHES = 10
"""Largest number of launches of a block, two more than in float16: the move of attention's output to (N, D),
and bias and GELU after `up`."""


@pytest.fixture(scope="module")
def quantised(bundle: contract.Bundle, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Plan]:
    """Plans of the step graphs with all products but the ends in INT8."""
    folder = tmp_path_factory.mktemp("int8")
    floats, roles = qdq.floats_of(bundle.graph("step"))
    factors = {name: np.linspace(0.5, 2.0, len(floats[name]), dtype=np.float32) for name in roles}
    chosen = {name: qdq.Choice(values, 10.0, 0.0) for name, values in factors.items()}
    scheme = qdq.scheme(floats, chosen, roles, qdq.KEEPS_FLOAT)

    @cache
    def make(graph: str) -> Plan:
        path = folder / f"{graph}.onnx"
        qdq.quantise(bundle.graph(graph), path, scheme)
        return plan.of(path, spec_of(bundle, graph), ONE_LENGTH)

    return make


@pytest.mark.parametrize("graph", STEPS)
def test_int8_kernels_multiply(graph: str, quantised: Callable[[str], Plan], bundle: contract.Bundle) -> None:
    found = [launch for launch in quantised(graph).launches if launch.is_int8]
    names = {launch.name.removeprefix("node_") for launch in found}
    roles = ("attention.qkv", "attention.out", "up", "down")
    depth = bundle.manifest.arch.depth
    assert names == {f"blocks.{i}.{role}.product" for i in range(depth) for role in roles}
    assert len(found) == len(names)
    # The kernels of the products dequantise, and the kernels before them quantise.
    for launch in quantised(graph).launches:
        assert not all(layer.endswith((".input", ".matrix", ".input_int8")) for layer in launch.layers)


@pytest.mark.parametrize("graph", STEPS)
def test_int8_leaves_one_attention_kernel_in_each_block(
    graph: str, quantised: Callable[[str], Plan], bundle: contract.Bundle
) -> None:
    made = quantised(graph)
    assert made.mha_count == bundle.manifest.arch.depth
    assert max(made.block_launches) <= INT8_BLOCK_LAUNCHES
    assert {scores for scores, _ in made.accumulators} == {"fp32"}


# Every profile that the backend asks for, through its own build


BUNDLES = {"fp16": DEMO, "fp32": Path(__file__).resolve().parents[1] / "tiny/bundle"}
MAX_FLOAT32_LAUNCHES = {"step": 34, "step_keys": 38, "step_reply": 36}
"""Launches for the two blocks of the tiny bundle. TensorRT-RTX fuses no attention in float32."""


MAX_ASSERTS = 100
"""Most checks by the host after a change of a shape; TensorRT-RTX has up to 88 for ranges."""


@pytest.mark.parametrize(
    ("precision", "number"), [*(("fp16", number) for number in range(len(build.RANGES) + 1)), ("fp32", 1)]
)
@pytest.mark.parametrize("graph", STEPS)
def test_a_profile_of_a_step_graph(precision: str, graph: str, number: int) -> None:
    """A plan for a range of lengths has the kernels of a plan for a single length."""
    bundle = contract.read(BUNDLES[precision])
    spec = spec_of(bundle, graph)
    profile = build.profiles_of(spec, ranges(graph, bundle.manifest, Padded()))[number]
    made = plan.of(bundle.graph(graph), spec, profile.axes)
    if precision == "fp16":
        assert made.mha_count == bundle.manifest.arch.depth
        assert max(made.block_launches) <= MAX_BLOCK_LAUNCHES
        assert made.accumulators == (("fp32", "fp16"),)
    else:
        assert made.mha_count == 0
        assert len(made.launches) <= MAX_FLOAT32_LAUNCHES[graph]
    assert len(made.asserts) <= MAX_ASSERTS
    print(f"{graph} {profile.axes['N']}: {made.block_launches}, {len(made.asserts)} checks")


@pytest.mark.parametrize("graph", STEPS)
def test_float32_sums_cost_no_launch(graph: str, made: MakePlan, bundle: contract.Bundle) -> None:
    """The casts around a product become part of its kernel, which still reads float16."""
    summed = plan.of(bundle.graph(graph, FLOAT32_SUMS), spec_of(bundle, graph), ONE_LENGTH)
    assert len(summed.launches) == len(made(graph).launches)
    reads = {launch.reads[:2] for launch in summed.launches if launch.kind == "fully_connected"}
    assert reads == {("half", "half")}


@pytest.mark.parametrize("graph", sorted({*graphs.GRAPHS} - {*STEPS}))
@pytest.mark.parametrize("precision", BUNDLES)
def test_a_graph_of_any_length_is_built(precision: str, graph: str) -> None:
    bundle = contract.read(BUNDLES[precision])
    spec = spec_of(bundle, graph)
    [profile] = build.profiles_of(spec, ranges(graph, bundle.manifest, Padded()))
    launches = plan.of(bundle.graph(graph), spec, profile.axes).launches
    assert launches and (graph != "update" or len(launches) == 1)


def test_a_step_of_v1_base(tmp_path: Path) -> None:
    """The step has two of v1_Base's 22 blocks, which are alike, in float16 with random weights."""
    arch = dataclasses.replace(NAMED["F5TTS_v1_Base"].arch, depth=2)
    vocabulary = [" ", *(f"t{n}" for n in range(1, 2545))]
    checkpoint, _ = write_random(tmp_path, arch, vocabulary)
    weights = load_dit(checkpoint, arch, len(vocabulary))
    spec = graphs.signatures(contract.dimensions(arch, 100, "fp16"))["step"]
    path = tmp_path / "step.onnx"
    traces.of(Step(weights, arch, 100, MAX_FRAMES, torch.float16), spec, path)
    del weights
    made = plan.of(path, spec, {"N": (576, 1280, 1280), "R": (1, 2, 2), "S": (128,) * 3})
    shutil.rmtree(tmp_path)
    assert made.mha_count == arch.depth
    assert max(made.block_launches) <= MAX_BLOCK_LAUNCHES
