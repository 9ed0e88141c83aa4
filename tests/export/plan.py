"""TensorRT-RTX's plan of a graph, built ahead of time on a machine without a GPU.

    shapes = plan.profile(spec.inputs, {"R": (1, 2, 4), "N": (512, 512, 512), "S": (16, 16, 16)})
    made = plan.read(plan.build(path, shapes))
    made.mha_count, made.block_launches, made.asserts, made.accumulators

An engine built with detailed verbosity holds its programs as text: `main` lists the kernels that one run
launches, in order; `shape_main` what the host computes and checks when an input's shape has changed. A fused
kernel has a program of its own, with constants in a region `runtime-fusion-consts`; it is one launch.

TensorRT-RTX has no SM 87, Orin's: SM 86 is the nearest. It is another product than Jetson's TensorRT 10.3, so
a plan shows what a graph allows to be fused, not what a Jetson does with it.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.contract.graphs import TensorSpec

PACKAGE = "tensorrt_rtx_bindings"
ATTENTION = "_gemm_mha_v2"

Range = tuple[int, int, int]
"""Least, usual and greatest size of an axis."""
Shape = tuple[int, ...]
Profile = dict[str, tuple[Shape, Shape, Shape]]
"""Input → its least, usual and greatest shape."""


class PlanError(Exception):
    """TensorRT-RTX does not parse or does not build a graph."""


@dataclass(frozen=True)
class Launch:
    """One kernel launch of a run."""

    kind: str
    """`function` (made by the compiler), `fully_connected`, `corrltn` (library kernels), `runtime_fusion`."""
    name: str
    layers: tuple[str, ...]
    """Names of the ONNX nodes that it computes."""
    reads: tuple[str, ...] = ()
    """Element types of the tensors that it reads, in order."""

    @property
    def is_int8(self) -> bool:
        """Whether it is a product of two int8 tensors."""
        return self.kind == "fully_connected" and self.reads[:2] == ("int8", "int8")


@dataclass(frozen=True)
class Plan:
    """What one run of an engine does."""

    launches: tuple[Launch, ...]
    asserts: tuple[str, ...]
    """Messages of the shape checks that the host makes after a change of an input's shape."""
    accumulators: tuple[tuple[str, str], ...]
    """Types in which fused attention sums scores and values, one pair per different kernel, sorted."""

    @property
    def mha_count(self) -> int:
        """Number of fused attention kernels."""
        return len(self._attentions)

    @property
    def block_launches(self) -> tuple[int, ...]:
        """Launches from one fused attention kernel to the next, that one not counted.

        Node names do not tell the block. But each block has one attention, and blocks follow each other, so a
        gap holds the launches of one block exactly: its second half and the first half of the next. What
        comes before the first block and after the last is in no gap.
        """
        return tuple(after - before for before, after in itertools.pairwise(self._attentions))

    @cached_property
    def _attentions(self) -> list[int]:
        return [at for at, launch in enumerate(self.launches) if launch.name == ATTENTION]


def require() -> None:
    """Skip the calling test where TensorRT-RTX is not installed (fail it with F5_REQUIRE_UPSTREAM=1)."""
    if importlib.util.find_spec(PACKAGE) is not None:
        return
    reason = f"{PACKAGE} is not installed (scripts/requirements/tensorrt.txt; scripts/test installs it)"
    if os.environ.get("F5_REQUIRE_UPSTREAM") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def runtime() -> Any:
    """TensorRT-RTX, used as `engine/tensorrt/build.py` uses TensorRT: for SM 86, described in detail."""
    require()
    import tensorrt_rtx_bindings as trt

    class Builder(trt.Builder):  # type: ignore[misc]
        def create_builder_config(self) -> Any:
            config = super().create_builder_config()
            config.num_compute_capabilities = 1  # before the next line, or the builder looks for a GPU
            config.set_compute_capability(trt.ComputeCapability.SM86, 0)
            config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
            return config

    return SimpleNamespace(**{name: getattr(trt, name) for name in dir(trt)} | {"Builder": Builder})


def profile(inputs: Iterable[TensorSpec], ranges: Mapping[str, Range]) -> Profile:
    """Shapes of a graph's inputs, with `ranges` for its symbolic axes. Raises KeyError for an unnamed one."""

    def shape(spec: TensorSpec, which: int) -> Shape:
        return tuple(axis if isinstance(axis, int) else ranges[axis][which] for axis in spec.axes)

    return {spec.name: (shape(spec, 0), shape(spec, 1), shape(spec, 2)) for spec in inputs}


def build(path: Path, shapes: Profile) -> bytes:
    """The serialised engine of an ONNX file for SM 86, strongly typed, with one optimisation profile.

    Raises PlanError with TensorRT-RTX's messages.
    """
    require()
    import tensorrt_rtx_bindings as trt

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.errors.append(message)

    log = Log()
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(path)):
        found = (parser.get_error(i) for i in range(parser.num_errors))
        errors = [f"node {error.node_name()} ({error.node_operator()}): {error.desc()}" for error in found]
        raise PlanError(f"{path.name}: {'; '.join(errors)}")
    names = {network.get_input(i).name for i in range(network.num_inputs)}
    if names != set(shapes):
        raise PlanError(f"{path.name}: its inputs are {sorted(names)}, not {sorted(shapes)}")
    config = builder.create_builder_config()
    config.num_compute_capabilities = 1  # before the next line, or the builder looks for a GPU
    config.set_compute_capability(trt.ComputeCapability.SM86, 0)
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    ranges = builder.create_optimization_profile()
    for name, three in shapes.items():
        ranges.set_shape(name, *three)
    config.add_optimization_profile(ranges)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        raise PlanError(f"{path.name}: {'; '.join(log.errors) or 'not built'}")
    return bytes(engine)


def read(engine: bytes) -> Plan:
    """The plan of an engine that `build` made."""
    text = "\n".join(part.decode() for part in re.findall(rb"[\t\n\x20-\x7e]{4,}", engine))
    launches: list[Launch] = []
    asserts: list[str] = []
    for section in re.split(r"^header \{", text, flags=re.MULTILINE)[1:]:
        head, _, program = section.partition("\nmain {\n")
        if "runtime-fusion-consts" in head:
            continue
        run, _, shapes = program.partition("\nshape_main {\n")
        types = dict(re.findall(r'^  (?:sub_)?tensor=\{ .*? name="([^"]+)" .*? type=(\w+) \}$', head, re.M))
        for kind, name, rest in re.findall(r'^  (\w+)=\{ name="?([^"\s]+)"?(.*?)\}$', run, re.M | re.S):
            if kind != "shape_call":  # runs `shape_main`
                given = re.search(r" (?:input|args)=\{(.*?)\}", rest, re.S)
                names = re.findall(r'"([^"]+)"', given[1] if given else "")
                layers = tuple(re.findall(r"\[ONNX Layer: ([^\]]+)\]", rest))
                launches.append(Launch(kind, name, layers, tuple(types.get(one, "") for one in names)))
        asserts += re.findall(r'^  assert=\{ name=\S+ .*?msg="(.*?)" \}$', shapes, re.M | re.S)
    if not launches:
        raise PlanError("the engine lists no launch: it is not in the form of TensorRT-RTX 1.7")
    pairs = re.findall(r"Ampere_hmma_(fp\d+)_traits,\s+fmha::Ampere_hmma_(fp\d+)_traits", text)
    return Plan(tuple(launches), tuple(asserts), tuple(sorted(set(pairs))))
