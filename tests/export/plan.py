"""TensorRT-RTX's plan of a graph, built ahead of time on a machine without a GPU.

    made = plan.of(path, spec, {"R": (1, 2, 4), "N": (512, 512, 512), "S": (16, 16, 16)})
    made.mha_count, made.block_launches, made.asserts, made.accumulators

An engine built with detailed verbosity holds its programs as text. `main` lists the kernels that one run
launches, in order. `shape_main` lists the computations and checks of the host after a change of an input's
shape. A fused kernel has a separate program, with constants in a region `runtime-fusion-consts`; it is one
launch.

TensorRT-RTX has no SM 87, Orin's: SM 86 is the nearest. It is another product than Jetson's TensorRT 10.3, so
a plan shows what a graph allows to be fused, not what a Jetson does with it.
"""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from appliance.contract.graphs import GraphSpec
from appliance.engine.tensorrt.build import EngineSource, Profile, build, make_log
from tests.oracle import upstream

ATTENTION = "_gemm_mha_v2"

Range = tuple[int, int, int]
"""Least, usual and greatest size of an axis."""


@dataclass(frozen=True)
class Launch:
    """A kernel launch of a run."""

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
    """The kernel launches of one run of an engine, and the host's checks."""

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
        """Number of launches between each fused attention kernel and the next, without the second kernel.

        Node names do not tell the block. But each block has one attention, and blocks follow each other. So
        the gap between two attentions holds exactly the launches of one block: the second half of a block and
        the first half of the next. No gap holds the launches before the first block or after the last.
        """
        return tuple(after - before for before, after in itertools.pairwise(self._attentions))

    @cached_property
    def _attentions(self) -> list[int]:
        return [at for at, launch in enumerate(self.launches) if launch.name == ATTENTION]


def runtime() -> Any:
    """TensorRT-RTX, used as `engine/tensorrt/build.py` uses TensorRT: for SM 86, described in detail."""
    upstream.require("tensorrt_rtx_bindings")
    import tensorrt_rtx_bindings as trt

    class Builder(trt.Builder):  # type: ignore[misc]
        def create_builder_config(self) -> Any:
            config = super().create_builder_config()
            config.num_compute_capabilities = 1  # before the next line, so that no GPU is needed
            config.set_compute_capability(trt.ComputeCapability.SM86, 0)
            config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
            return config

    return SimpleNamespace(**{name: getattr(trt, name) for name in dir(trt)} | {"Builder": Builder})


def of(path: Path, spec: GraphSpec, axes: Mapping[str, Range]) -> Plan:
    """The plan of an ONNX file with one optimisation profile, built as the backend builds it.

    Raises BundleError with TensorRT-RTX's messages.
    """
    trt = runtime()
    return read(build(EngineSource(path, spec, (Profile(axes),)), trt, make_log(trt))[0])


def read(engine: bytes) -> Plan:
    """The plan of a serialised engine. Raises ValueError if the engine has another form."""
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
        raise ValueError("the engine lists no launch: it is not in the form of TensorRT-RTX 1.7")
    pairs = re.findall(r"Ampere_hmma_(fp\d+)_traits,\s+fmha::Ampere_hmma_(fp\d+)_traits", text)
    return Plan(tuple(launches), tuple(asserts), tuple(sorted(set(pairs))))
