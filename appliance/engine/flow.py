"""Euler steps of the flow ODE: the rows of a lane, the step graph that each runs, and the lane's update."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from appliance.contract.bundle import Sampling
from appliance.contract.graphs import CONTEXT, Dimensions, signatures
from appliance.engine.backend import Backend, Bound, Graph, Tensor
from appliance.engine.costs import StepCall
from appliance.engine.slab import References, Slab, SlabRow
from appliance.job import FloatArray, Segment

UNGUIDED_BELOW = 1e-5
"""Guidance under this runs the conditional row alone, as upstream's `CFM.sample` does."""
RELEASE_FRAMES = 1024
"""Length from which the last step returns its working memory to the system."""


@dataclass(eq=False)
class LaneState:
    """State of an open segment. Each of its rows holds a copy of the latents."""

    segment: Segment
    rows: list[SlabRow]
    """The conditional row and, with guidance, the unconditional one."""
    start: int
    """First frame of the segment that has latents: 0, or with `short` sampling the end of the reference."""
    times: NDArray[np.int32]
    """(NFE,) indices into the modulation table."""
    weights: FloatArray
    """(NFE, 2) of the velocities: dt·(1 + w) and −dt·w."""
    done: int = 0
    updates: _Updates | None = None

    @property
    def steps_left(self) -> int:
        return len(self.times) - self.done


@dataclass
class _Updates:
    """A lane's bindings of the `update` graph, valid while its rows are at these places."""

    places: list[int]
    step: Bound
    path: Bound | None
    """Moves the reference along its path; None without a reference beside the latents."""


@dataclass
class Flow:
    """Owns the slabs and the step graphs; a graph is loaded when the first lane that needs it is opened."""

    backend: Backend
    dimensions: Dimensions
    load: Callable[[str], Graph]
    table: Tensor
    buckets: tuple[int, ...]
    """Frames to which rows are padded; empty with exact shapes."""
    max_frames: int
    longest_reference: int
    """Frames."""
    max_lanes: int
    _graphs: dict[str, Graph] = field(default_factory=dict)
    _slabs: dict[tuple[int, int], Slab] = field(default_factory=dict)
    _references: dict[int, References] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = (self.max_frames, self.dimensions.mels)
        self._next = self.backend.empty(shape, "float32")
        self._weights = self.backend.empty((2,), "float32")

    def open(self, segment: Segment, condition: Tensor, times: NDArray[np.int32]) -> LaneState:
        """Take and fill the rows of a segment with condition (2, N, D). Raises RuntimeError without room."""
        start = 0 if segment.sampling == "exact" else len(segment.reference_log_mel)
        frames = segment.frames - start
        w = segment.guidance
        guidance = (1.0 + w, -w) if w >= UNGUIDED_BELOW else (1.0,)
        rows: list[SlabRow] = []
        try:
            for i in range(len(guidance)):
                reference = start if i == 0 else 0
                rows.append(self._slab(frames, reference).join(frames, reference))
            dt = np.diff(segment.times).astype(np.float32)
            lane = LaneState(
                segment,
                rows,
                start,
                times,
                np.outer(dt, np.array((*guidance, 0.0)[:2], np.float32)),
            )
            self._load("update")
            for row in rows:
                for step in range(lane.steps_left):
                    self._load(self._graph_for(lane, row, step))
            self._fill(lane, condition)
        except Exception:
            for row in rows:
                row.slab.leave(row)
            raise
        return lane

    def step(self, lanes: Sequence[LaneState]) -> None:
        """Advance every lane by one step; each has one left.

        Raises EngineFault; lanes that did not advance keep their latents.
        """
        calls: dict[tuple[Slab, str], list[tuple[SlabRow, int]]] = {}
        for lane in lanes:
            self._set_reference(lane)
            for row in lane.rows:
                call = calls.setdefault((row.slab, self._graph_for(lane, row, lane.done)), [])
                call.append((row, int(lane.times[lane.done])))
        release = any(lane.steps_left == 1 and lane.segment.frames >= RELEASE_FRAMES for lane in lanes)
        for (slab, graph), rows in calls.items():
            slab.run(graph, [row for row, _ in rows], [time for _, time in rows], release=release)
        for lane in lanes:  # latents += dt · v
            frames = lane.rows[0].frames
            self.backend.upload(lane.weights[lane.done], self._weights)
            self._updates(lane).step.run()
            new = self.backend.view(self._next, (frames, self.dimensions.mels))
            for row in lane.rows:
                self.backend.copy(new, row.view("latents", row.frames))
            lane.done += 1

    def calls_of(self, steps: Sequence[tuple[Segment, int]]) -> list[StepCall]:
        """The runtime calls in which these segments make these steps together."""
        rows: Counter[tuple[str, int, int]] = Counter()
        for segment, step in steps:
            start = 0 if segment.sampling == "exact" else len(segment.reference_log_mel)
            keys = step in segment.key_steps
            for reference in (start, 0) if segment.guidance >= UNGUIDED_BELOW else (start,):
                frames, padded = self._padded(segment.frames - start, reference)
                rows[self._graph_of(reference, keys), frames, padded] += 1
        return [
            StepCall(graph, frames, reference, min(most, count - first))
            for (graph, frames, reference), count in rows.items()
            for most in (self.backend.rows(frames),)
            for first in range(0, count, most)
        ]

    def latents(self, lane: LaneState, skip: int = 0) -> Tensor:
        """(frames, M) on the device, from frame `start` + `skip`."""
        row = lane.rows[0]
        return row.view("latents", row.frames - skip, skip)

    def close(self, lane: LaneState) -> None:
        """Free the lane's rows, the last one first, so that none moves into the place of another."""
        for row in reversed(lane.rows):
            row.slab.leave(row)

    def sizes(self, sampling: Sampling) -> Iterator[tuple[int, int]]:
        """(frames, reference frames) of segments that together need every slab and graph."""
        if self.backend.exact_shapes:
            yield min(128, self.max_frames), 40
            return
        for shortest, bucket in self._bucket_ranges():
            if sampling == "exact":
                yield bucket, 1
                continue
            for least, other in self._bucket_ranges():
                if least > self.longest_reference:
                    break
                # The longest reply of its bucket that leaves room for a reference of the other.
                reply = min(bucket, self.max_frames - least)
                if reply >= shortest:
                    reference = min(other, self.longest_reference, self.max_frames - reply)
                    yield reply + reference, reference

    def _bucket_ranges(self) -> Iterator[tuple[int, int]]:
        """Least and most frames of each bucket."""
        least = 1
        for bucket in self.buckets:
            yield least, bucket
            least = bucket + 1

    def _graph_for(self, lane: LaneState, row: SlabRow, step: int) -> str:
        return self._graph_of(row.reference, step in lane.segment.key_steps)

    def _graph_of(self, reference: int, keys: bool) -> str:
        if reference and not keys:
            return "step_reply"
        return "step_keys" if reference or self.backend.exact_shapes else "step"

    def _padded(self, frames: int, reference: int) -> tuple[int, int]:
        """N and P of the row's call."""
        if self.backend.exact_shapes:
            return frames, reference
        bucket = {n: next(b for b in self.buckets if b >= n) for n in (frames, reference)}
        return bucket[frames], bucket[reference] if reference else 0

    def _slab(self, frames: int, reference: int) -> Slab:
        if self.backend.exact_shapes:
            sizes = {"N": self.max_frames, "P": self.max_frames}
        else:
            sizes = dict(zip("NP", self._padded(frames, reference), strict=True))
        key = (sizes["N"], sizes["P"])
        if key not in self._slabs:
            names = ("step_keys", "step_reply") if sizes["P"] else ("step",)
            specs = {name: signatures(self.dimensions)[name] for name in names}
            sizes["C"] = CONTEXT
            # Without a reference, as with `exact`, both rows of a lane are in one slab.
            is_shared = sizes["P"] > 0 and not self.backend.exact_shapes
            references = self._references.setdefault(sizes["P"], References()) if is_shared else None
            capacity = self.max_lanes if is_shared else 2 * self.max_lanes
            self._slabs[key] = Slab(self.backend, specs, self._load, sizes, capacity, self.table, references)
        return self._slabs[key]

    def _load(self, name: str) -> Graph:
        if name not in self._graphs:
            self._graphs[name] = self.load(name)
        return self._graphs[name]

    def _fill(self, lane: LaneState, condition: Tensor) -> None:
        """Write noise, condition and both ends of the reference's path into the lane's rows."""
        segment, backend, dim = lane.segment, self.backend, self.dimensions.dim
        assert segment.noise is not None
        for i, row in enumerate(lane.rows):
            backend.upload(segment.noise[lane.start :], row.view("latents", row.frames))
            own = backend.view(condition, (row.frames, dim), (i, lane.start))
            backend.copy(own, row.view("condition", row.frames))
        row = lane.rows[0]
        if row.reference:
            backend.upload(segment.noise[: lane.start], row.view_reference("path_noise"))
            backend.upload(segment.reference_log_mel, row.view_reference("path_mel"))
            before = backend.view(condition, (lane.start, dim), (0, 0))
            backend.copy(before, row.view_reference("reference_condition"))
            seen = min(CONTEXT, row.reference)
            last = row.view_reference("reference_condition", seen)
            backend.copy(last, row.view_reference("context_condition", seen))

    def _set_reference(self, lane: LaneState) -> None:
        """Set the reference's latents to (1 − t)·noise + t·mel; repeated when a step is retried."""
        bound = self._updates(lane)
        if bound.path is None:
            return
        first, t = lane.rows[0], float(lane.segment.times[lane.done])
        self.backend.upload(np.array([t, -t], np.float32), self._weights)
        bound.path.run()
        seen = min(CONTEXT, first.reference)
        self.backend.copy(first.view_reference("reference", seen), first.view_reference("context", seen))

    def _updates(self, lane: LaneState) -> _Updates:
        places = [row.place for row in lane.rows]
        if lane.updates is None or lane.updates.places != places:
            first, last = lane.rows[0], lane.rows[-1]
            step = self._bind_update(
                first.view("latents", first.frames),
                first.view("velocity", first.frames),
                last.view("velocity", first.frames),
                self.backend.view(self._next, (first.frames, self.dimensions.mels)),
            )
            path = None
            if first.reference:
                noise, mel, to = (first.view_reference(n) for n in ("path_noise", "path_mel", "reference"))
                path = self._bind_update(noise, mel, noise, to)
            lane.updates = _Updates(places, step, path)
        return lane.updates

    def _bind_update(self, latents: Tensor, guided: Tensor, unguided: Tensor, out: Tensor) -> Bound:
        inputs: Mapping[str, Tensor] = {
            "latents": latents,
            "guided": guided,
            "unguided": unguided,
            "weights": self._weights,
        }
        return self._load("update").bind(inputs, {"latents_out": out})
