"""Segments to synthesise, backends to watch, and what must hold of every bundle's batches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from appliance.contract.bundle import Bundle, Sampling
from appliance.contract.graphs import STEPS, GraphSpec
from appliance.engine.backend import Backend, Bound, Graph, HostArray, Ranges, Tensor
from appliance.engine.engine import Synthesizer
from appliance.engine.ort import OrtBackend
from appliance.errors import EngineFault
from appliance.request import FloatArray, Segment
from tests.harness.segments import drawn as segment

BATCHED = 2e-5
"""Largest ‖a − b‖ / ‖b‖ of a lane in a batch against the same lane alone."""
SAMPLINGS: tuple[Sampling, ...] = ("exact", "short", "short-kv")


MIXED = [
    segment(80, nfe=5, guidance=2.0, seed=1),
    segment(131, nfe=8, guidance=0.0, seed=2, sampling="short"),
    segment(97, nfe=7, guidance=0.4, seed=3, sampling="short-kv"),
    segment(64, nfe=16, guidance=3.5, seed=4, sampling="short"),
    segment(75, nfe=6, guidance=0.0, seed=5, sampling="short-kv"),
    segment(110, nfe=4, guidance=0.0, seed=6),
]
"""Lanes of different lengths, NFE, guidance and sampling; half of them run without guidance."""


def changed(bundle: Bundle, sampling: Sampling | None = None, **manifest: Any) -> Bundle:
    """The bundle with another default sampling and other fields in its manifest."""
    if sampling:
        manifest["defaults"] = replace(bundle.manifest.defaults, sampling=sampling)
    return replace(bundle, manifest=replace(bundle.manifest, **manifest))


def relative(found: Any, wanted: Any) -> float:
    """‖a − b‖ / ‖b‖ of arrays, or of tensors, that must have one shape."""
    assert found.shape == wanted.shape
    return float(np.linalg.norm(np.asarray(found, np.float64) - np.asarray(wanted)) / np.linalg.norm(wanted))


def moved(engine: Synthesizer, lane_id: int, of: Segment) -> FloatArray:
    """Change of the lane's generated frames from their noise. The frames themselves would hide an error in
    the noise."""
    start = len(of.reference_log_mel)
    return engine.log_mel(lane_id)[start:] - of.noise[start:]


def run(engine: Synthesizer, ids: Sequence[int], steps: int = 1) -> None:
    for _ in range(steps):
        engine.step(ids)


def spoken(engine: Synthesizer, given: Segment) -> tuple[FloatArray, FloatArray]:
    """The whole log-mel and the samples of a segment that never shares a batch."""
    lane = engine.open(given)
    run(engine, [lane.id], lane.steps_left)
    found = engine.log_mel(lane.id), engine.finish(lane.id)
    engine.close(lane.id)
    return found


def solo(engine: Synthesizer, given: Segment, steps: int | None = None) -> FloatArray:
    """`moved` of a segment that never shares a batch, after `steps` steps (None: all)."""
    lane = engine.open(given)
    run(engine, [lane.id], lane.steps_left if steps is None else steps)
    out = moved(engine, lane.id, given)
    engine.close(lane.id)
    return out


def staggered(engine: Synthesizer, segments: Sequence[Segment]) -> list[FloatArray]:
    """`moved` of segments that share every step, the first four each ahead by another number of steps."""
    opened = [engine.open(given) for given in segments]
    for ahead, lane in enumerate(opened[:4]):
        run(engine, [lane.id], ahead)
    left = {lane.id: lane.steps_left - (n if n < 4 else 0) for n, lane in enumerate(opened)}
    found: dict[int, FloatArray] = {}
    while left:
        engine.step(list(left))
        left = {lane_id: steps - 1 for lane_id, steps in left.items()}
        for lane_id in [i for i, steps in left.items() if steps == 0]:
            given = segments[[lane.id for lane in opened].index(lane_id)]
            found[lane_id] = moved(engine, lane_id, given)
            engine.close(lane_id)
            del left[lane_id]
    return [found[lane.id] for lane in opened]


def check_a_padded_batch(
    engine: Synthesizer,
    lengths: Sequence[int],
    alone: Synthesizer,
    sampling: Sampling = "exact",
    bound: float = BATCHED,
) -> None:
    """Segments of those lengths in one batch equal themselves alone on another engine."""
    segments = [segment(n, nfe=2, seed=i, sampling=sampling) for i, n in enumerate(lengths)]
    wanted = [solo(alone, s) for s in segments]
    ids = [engine.open(s).id for s in segments]
    run(engine, ids, 2)
    for lane_id, given, want in zip(ids, segments, wanted, strict=True):
        assert np.abs(want).mean() > 1e-2
        assert relative(moved(engine, lane_id, given), want) <= bound
        engine.close(lane_id)


def on_zeros(
    backend: Backend, spec: GraphSpec, sizes: Mapping[str, int]
) -> tuple[dict[str, Any], dict[str, Any]]:
    inputs, outputs = (
        {t.name: backend.empty(t.shape(sizes), t.dtype) for t in tensors}
        for tensors in (spec.inputs, spec.outputs)
    )
    return inputs, outputs


def bind_on_device(session: Any, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Any:
    """ONNX Runtime's binding of tensors in a device's memory."""
    binding = session.io_binding()
    for bind, tensors in ((binding.bind_input, inputs), (binding.bind_output, outputs)):
        for name, t in tensors.items():
            bind(name, "cuda", 0, t.dtype.type, t.shape, t.address)
    return binding


class Padded(OrtBackend):
    """The CPU as a GPU's runtime: rows are padded and share calls."""

    name = "tensorrt"
    frame_multiple = 64
    max_batch = 4

    def __init__(self, threads: int = 1) -> None:
        super().__init__(threads)


@dataclass(frozen=True)
class Run:
    graph: str
    shapes: dict[str, tuple[int, ...]]
    release: bool


class Watched(OrtBackend):
    """A backend that records the calls of itself and its graphs, and fails on request."""

    def watch(self) -> None:
        self.loads: list[str] = []
        self.runs: list[Run] = []
        self.allocated: list[tuple[int, ...]] = []
        self.strangers: list[str] = []
        """Bound tensors in memory that `empty` did not return."""

    def __init__(self, threads: int = 1) -> None:
        super().__init__(threads)
        self.watch()
        self.memory: list[tuple[int, int]] = []
        self.files: dict[str, str] = {}
        self.ranges: dict[str, Ranges] = {}
        """File and sizes of the last load of each graph."""
        self.closed = 0
        self.before_run: Callable[[str], None] = lambda graph: None
        """Hook before each run, called with the graph's name. If it raises, the run fails and its outputs are
        spoilt."""

    def load(self, name: str, path: Path, spec: GraphSpec, ranges: Ranges) -> Graph:
        self.loads.append(name)
        self.files[name], self.ranges[name] = path.name, ranges
        return _WatchedGraph(name, super().load(name, path, spec, ranges), self)

    def empty(self, shape: Sequence[int], dtype: str) -> HostArray:
        self.allocated.append(tuple(shape))
        array = super().empty(shape, dtype)
        self.memory.append((array.ctypes.data, array.ctypes.data + array.nbytes))
        return array

    def close(self) -> None:
        self.closed += 1

    def counted(self, *graphs: str) -> list[Run]:
        return [run for run in self.runs if run.graph in graphs]

    def steps(self) -> list[tuple[str, int, int, int]]:
        """Graph, rows, frames and frames of the reference of each run of a step graph."""
        found = [(r.graph, r.shapes["latents"], r.shapes.get("keys_0", (0, 0))) for r in self.counted(*STEPS)]
        return [(graph, *latents[:2], keys[1]) for graph, latents, keys in found]


class WatchedPadded(Watched, Padded):
    """A backend of fixed shapes that records calls."""


class _WatchedGraph:
    def __init__(self, name: str, graph: Graph, backend: Watched) -> None:
        self.name, self.graph, self.backend = name, graph, backend

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Bound:
        for name, tensor in (*inputs.items(), *outputs.items()):
            array = cast(HostArray, tensor)
            first, last = array.ctypes.data, array.ctypes.data + array.nbytes
            if array.size and not any(a <= first and last <= b for a, b in self.backend.memory):
                self.backend.strangers.append(f"{self.name}: {name}")
        shapes = {name: tensor.shape for name, tensor in (*inputs.items(), *outputs.items())}
        spoilt = [cast(HostArray, tensor) for tensor in outputs.values()]
        return _WatchedBound(self.graph.bind(inputs, outputs), self.name, shapes, spoilt, self.backend)


@dataclass
class _WatchedBound:
    bound: Bound
    graph: str
    shapes: dict[str, tuple[int, ...]]
    outputs: list[HostArray]
    backend: Watched

    def run(self, *, release: bool = False, capture: bool = False) -> None:
        try:
            self.backend.before_run(self.graph)
        except EngineFault:
            for array in self.outputs:
                array.fill(np.nan)
            raise
        self.backend.runs.append(Run(self.graph, self.shapes, release))
        self.bound.run(release=release)
