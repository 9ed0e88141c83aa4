"""Segments to synthesise, backends to watch, and what must hold of every bundle's batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from appliance.contract.bundle import Bundle
from appliance.contract.schedule import time_grid
from appliance.engine.backend import Graph, HostArray, Tensor
from appliance.engine.ort import OrtBackend
from appliance.engine.synthesizer import Synthesizer
from appliance.job import FloatArray, Segment

BATCHED = 2e-5
"""Largest ‖a − b‖ / ‖b‖ of a lane in a batch against the same lane alone."""


def segment(
    frames: int = 80,
    *,
    nfe: int = 5,
    guidance: float = 2.0,
    seed: int = 0,
    reference: int = 0,
    mels: int = 100,
    vocab: int = 33,
    gain: float = 1.0,
) -> Segment:
    """Something to say; by default a third of it is reference."""
    rng = np.random.default_rng([seed, frames])
    reference = reference or max(frames // 3, 1)
    return Segment(
        index=0,
        text="",
        ids=rng.integers(0, vocab, max(frames // 7, 2), dtype=np.int32),
        frames=frames,
        reference_log_mel=rng.normal(-4.0, 2.0, (reference, mels)).astype(np.float32),
        reference_frames=reference - 1,
        noise=rng.standard_normal((frames, mels), dtype=np.float32),
        times=time_grid(nfe),
        guidance=guidance,
        gain=gain,
    )


def relative(found: FloatArray, wanted: FloatArray) -> float:
    """‖a − b‖ / ‖b‖ of arrays that must have one shape."""
    assert found.shape == wanted.shape
    return float(np.linalg.norm(found.astype(np.float64) - wanted) / np.linalg.norm(wanted))


def moved(engine: Synthesizer, lane_id: int, of: Segment) -> FloatArray:
    """How far the lane's generated frames have come from their noise, which would hide an error."""
    start = len(of.reference_log_mel)
    return engine.log_mel(lane_id)[start:] - of.noise[start:]


def solo(engine: Synthesizer, given: Segment, steps: int | None = None) -> FloatArray:
    """`moved` of a segment that never shares a batch, after so many steps (None: all)."""
    lane = engine.open(given)
    for _ in range(lane.steps_left if steps is None else steps):
        engine.step([lane.id])
    out = moved(engine, lane.id, given)
    engine.close(lane.id)
    return out


def check_a_padded_batch(
    engine: Synthesizer, lengths: Sequence[int], alone: Synthesizer | None = None
) -> None:
    """Segments of those lengths in one batch equal themselves alone (on another engine, where given)."""
    segments = [segment(n, nfe=2, seed=i) for i, n in enumerate(lengths)]
    wanted = [solo(alone or engine, s) for s in segments]
    ids = [engine.open(s).id for s in segments]
    for _ in range(2):
        engine.step(ids)
    for lane_id, given, want in zip(ids, segments, wanted, strict=True):
        assert np.abs(want).mean() > 1e-2
        assert relative(moved(engine, lane_id, given), want) <= BATCHED
        engine.close(lane_id)


def check_an_unused_lane(bundle: Bundle) -> None:
    """The step graph with a lane of length 1 and dt 0 between two used ones."""
    d, backend = bundle.manifest.dimensions, OrtBackend(1)
    graph = backend.load(bundle.graph("step"))
    rng = np.random.default_rng(3)
    frames = 70
    inputs: dict[str, HostArray] = {
        "latents": rng.standard_normal((3, frames, d.mels), dtype=np.float32),
        "condition": rng.standard_normal((3, 2, frames, d.dim), dtype=np.float32),
        "mod_table": rng.standard_normal((4, d.rows, d.dim), dtype=np.float32) * np.float32(0.3),
        "step_index": np.array([1, 0, 3], np.int32),
        "dt": np.array([0.3, 0.0, 0.5], np.float32),
        "combine": np.array([[3, -2], [0, 0], [1.5, -0.5]], np.float32),
        "lengths": np.array([frames, 1, 41], np.int32),
    }
    out = np.zeros_like(inputs["latents"])
    graph.run(inputs, {"latents_out": out})
    assert np.array_equal(out[1], inputs["latents"][1])
    for lane in (0, 2):
        length = int(inputs["lengths"][lane])
        own = {n: a if n == "mod_table" else a[lane : lane + 1].copy() for n, a in inputs.items()}
        own["latents"], own["condition"] = own["latents"][:, :length], own["condition"][:, :, :length]
        own = {name: np.ascontiguousarray(array) for name, array in own.items()}
        single = np.zeros((1, length, d.mels), np.float32)
        graph.run(own, {"latents_out": single})
        step = single - own["latents"]
        assert relative(out[lane : lane + 1, :length] - own["latents"], step) <= BATCHED


class Bucketed(OrtBackend):
    """The CPU as a runtime that has fixed shapes: batches are padded to a bucket."""

    exact_shapes = False


class Watched(OrtBackend):
    """Counts what is asked of it and of its graphs."""

    def __init__(self, threads: int = 1) -> None:
        super().__init__(threads)
        self.allocated: list[tuple[int, ...]] = []
        self.copies = 0
        self.runs: list[dict[str, tuple[int, ...]]] = []

    def load(self, path: Any) -> Graph:
        return _WatchedGraph(super().load(path), self.runs)

    def empty(self, shape: Sequence[int], dtype: str) -> HostArray:
        self.allocated.append(tuple(shape))
        return super().empty(shape, dtype)

    def copy(
        self, source: Tensor, to: Tensor, *, take: tuple[int, ...] = (), put: tuple[int, ...] = ()
    ) -> None:
        self.copies += 1
        super().copy(source, to, take=take, put=put)


class _WatchedGraph:
    def __init__(self, graph: Graph, runs: list[dict[str, tuple[int, ...]]]) -> None:
        self._graph, self._runs = graph, runs

    def run(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
        self._runs.append({name: tensor.shape for name, tensor in inputs.items()})
        self._graph.run(inputs, outputs)
