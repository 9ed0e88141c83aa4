"""Steps of the flow, as the bundle's sampler takes them.

A segment is a fixed number of equal steps, and a step is the unit of scheduling. Between two steps a lane can
be closed or wait, and several lanes can share the next step. A lane's state is its latents and its number of
steps.

A step has three parts. It sets the reference's latents to their known path, (1 − t)·noise + t·mel. The step
graphs compute the velocity of each row. `update` combines the velocities of a lane's rows, and moves the
latents. The update is a graph of its own because the rows of a lane may be in different calls (with `short`
sampling their lengths differ), and a call may have rows of several lanes.

Memory is allocated once for each lane, at the size of the longest segment. So addresses never change: CUDA
graphs stay valid, and no request runs out of memory halfway. The price is that memory, and a copy of the
latents into each row after each step: a call reads its rows one after the other, so rows cannot share
latents.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from appliance.contract.graphs import CONTEXT, KEYED, Dimensions, signatures
from appliance.contract.sampler import Sampler
from appliance.contract.schedule import noise
from appliance.engine.backend import Backend, Bound, Graph, Tensor
from appliance.engine.calls import BackendCalls, StepCall, changes, joined_calls, padded, unguided
from appliance.engine.rows import PADDED, SharedRows
from appliance.request import FloatArray, Segment

RELEASE_FRAMES = 1536
"""Length in frames from which a segment's calls release working memory, so that one long segment does not
hold it for good. A piece of 8 s behind a reference of 8 s stays below: released memory must be mapped again,
which takes an eighth of such a piece's time on a CPU.
"""
WORTH_CAPTURING = 4
"""Fewest steps left for a CUDA graph, which costs as much as a few runs."""


@dataclass
class Places:
    """Memory of a lane."""

    rows: dict[tuple[int, bool], SharedRows] = field(default_factory=dict)
    """(part, has a reference) → rows."""
    unguided: dict[int, Tensor] = field(default_factory=dict)
    """Index in `Sampler.conditions` → (longest, D) condition, if the unguided row has several."""


@dataclass(eq=False)
class LaneState:
    """An open segment. Each of its rows has a copy of the latents."""

    segment: Segment
    place: Places
    parts: list[SharedRows]
    """The conditional row and any unconditional one; a single part if both share calls."""
    referring: list[SharedRows]
    """Parts with a reference."""
    start: int
    """First frame with latents: 0, or with `short` sampling the reference's end in whole strides."""
    times: NDArray[np.int32]
    """(NFE,) indices into the modulation table."""
    weights: FloatArray
    """(NFE, 2), from `Sampler.weights`."""
    step: Bound
    """Binding that moves the latents of the parts by one step."""
    paths: list[Bound]
    """For each part with a reference: moves the reference along its path, because it has no latents."""
    noise: FloatArray
    """(N, M) of the next step."""
    unguided: tuple[int, ...]
    """(NFE,) index of the unguided row's condition in `Sampler.conditions`, by step; empty without the row.
    """
    steps_done: int = 0
    """Number of finished steps."""

    @property
    def steps_left(self) -> int:
        return len(self.times) - self.steps_done

    @property
    def frames(self) -> int:
        """Frames that have latents."""
        return self.segment.frames - self.start

    @property
    def conditions(self) -> tuple[int, ...]:
        """Index in `Sampler.conditions` of each row's first condition."""
        return (0, *self.unguided[:1])


@dataclass
class Flow:
    """Owner of rows and step graphs, each loaded at its first use."""

    backend: Backend
    dimensions: Dimensions
    load: Callable[[str], Graph]
    """Loads a graph by its name."""
    table: Tensor
    """The modulation table."""
    max_frames: int
    """Longest segment, reference and reply together."""
    longest_reference: int  # in frames
    max_lanes: int
    """Lanes that may be open at the same time."""
    sampler: Sampler
    calls: BackendCalls
    _batch: SharedRows | None = None

    def __post_init__(self) -> None:
        self._load = functools.cache(self.load)
        longest = padded(self.max_frames, self.backend.frame_multiple)
        self._capacity = {"N": longest, "P": self.longest_reference, "C": CONTEXT}
        self._next = self.backend.empty((longest, self.dimensions.mels), "float32")
        self._weights = self.backend.empty((2,), "float32")
        self._renoises = self.sampler.update == "renoise"
        if self._renoises:
            self._fresh = self.backend.empty(self._next.shape, "float32")
        self._free = [Places() for _ in range(self.max_lanes)]
        self._shared = {"mod_table": self.table}
        if self.backend.frame_multiple > 1:
            spec = signatures(self.dimensions)["step"]
            sizes = {"R": 1, "N": longest}
            self._shared |= {
                t.name: self.backend.empty(t.shape(sizes)[1:], t.dtype)
                for t in spec.inputs
                if t.name in PADDED
            }

    def open(self, segment: Segment, condition: Tensor, times: NDArray[np.int32]) -> LaneState:
        """Open a lane for a segment with condition (G, N, D). The caller opens at most `max_lanes`."""
        calls = self.calls.alone(segment, 0)
        place = self._free.pop()
        try:
            for number in range(segment.nfe):
                for call in self.calls.alone(segment, number):
                    self._load(call.graph)
            start = calls[0].reference
            frames = segment.frames - start
            parts = [self._rows(place, number, call) for number, call in enumerate(calls)]
            for rows, call in zip(parts, calls, strict=True):
                rows.take([frames] * call.rows, call.frames, call.reference)
            weights = self.sampler.weights(segment.times, segment.guidance)
            referring = [rows for rows in parts if rows.reference]
            step, paths = self._bind(parts, frames), [self._bind_path(rows) for rows in referring]
            drawn = self._noise(segment, 0)
            others = unguided(self.sampler, segment)
            lane = LaneState(
                segment, place, parts, referring, start, times, weights, step, paths, drawn, others
            )
            self._fill(lane, condition)
        except Exception:
            self._free.append(place)
            raise
        return lane

    def step(self, lanes: Sequence[LaneState], *, captures: bool = False) -> None:
        """Advance every lane by one step. Each must have one left. `captures` allows CUDA graphs.

        Raises EngineFault. Lanes that did not advance keep their latents.
        """
        parts: list[SharedRows] = []
        calls: list[StepCall] = []
        times: list[int] = []
        for lane in lanes:
            self._set_reference(lane)
            self._set_unguided(lane)
            parts += lane.parts
            calls += self.calls.alone(lane.segment, lane.steps_done)
            times += [int(lane.times[lane.steps_done])] * len(lane.parts)
        release = any(lane.steps_left == 1 and lane.segment.frames >= RELEASE_FRAMES for lane in lanes)
        capture = captures and min(lane.steps_left for lane in lanes) >= WORTH_CAPTURING
        for shared in joined_calls(calls, self.backend.max_batch):
            members, graph = [parts[i] for i in shared], calls[shared[0]].graph
            when = [times[i] for i in shared for _ in range(calls[i].rows)]
            if len(members) == 1:
                members[0].run(graph, when, release=release, capture=capture)
            else:
                self.batch().run_for(members, graph, when, release=release, capture=capture)
        for lane in lanes:
            drawn = self._next_noise(lane) if self._renoises else lane.noise
            self.backend.upload(lane.weights[lane.steps_done], self._weights)
            lane.step.run()
            new = self.backend.view(self._next, (lane.frames, self.dimensions.mels))
            for rows in lane.parts:
                for row in range(len(rows.lengths)):
                    self.backend.copy(new, rows.view("latents", lane.frames, row=row))
            lane.steps_done, lane.noise = lane.steps_done + 1, drawn

    def _noise(self, segment: Segment, step: int) -> FloatArray:
        """(N, M) noise before a step: the segment's own, else drawn."""
        values, mels = segment.noise, self.dimensions.mels
        if values is None or (step and values.ndim == 2):
            return noise(segment.seed, segment.index, segment.frames, mels, step)
        return values[step] if values.ndim == 3 else values

    def _next_noise(self, lane: LaneState) -> FloatArray:
        """Draw (N, M) noise for the step after the next, and upload its share of the latents."""
        segment, after = lane.segment, lane.steps_done + 1
        drawn = self._noise(segment, after) if after < segment.nfe else np.zeros_like(lane.noise)
        share = np.float32(1.0) - np.float32(segment.times[after])
        place = self.backend.view(self._fresh, (lane.frames, self.dimensions.mels))
        self.backend.upload(share * drawn[lane.start :], place)
        return drawn

    def latents(self, lane: LaneState, skip: int = 0) -> Tensor:
        """(frames, M) on the device, from frame `start` + `skip`."""
        return lane.parts[0].view("latents", lane.frames - skip, skip=skip)

    def close(self, lane: LaneState) -> None:
        self._free.append(lane.place)

    def _rows(self, place: Places, number: int, call: StepCall) -> SharedRows:
        has_reference = call.graph in KEYED
        key = (number, has_reference)
        if key not in place.rows:
            alone = ("step",), min(self.backend.max_batch, self.sampler.most_rows)
            place.rows[key] = self._allocate(*((KEYED, 1) if has_reference else alone))
        return place.rows[key]

    def batch(self) -> SharedRows:
        """Memory for rows of several lanes."""
        if self._batch is None:
            self._batch = self._allocate(("step",), self.backend.max_batch)
        return self._batch

    def _allocate(self, names: Sequence[str], rows: int) -> SharedRows:
        specs = {name: signatures(self.dimensions)[name] for name in names}
        return SharedRows(self.backend, specs, self._load, self._shared, self._capacity | {"R": rows})

    def _fill(self, lane: LaneState, condition: Tensor) -> None:
        """Write noise, condition and both ends of the reference's path."""
        segment, backend, dim = lane.segment, self.backend, self.dimensions.dim
        places = [(rows, row) for rows in lane.parts for row in range(len(rows.lengths))]
        for index, (rows, row) in zip(lane.conditions, places, strict=True):
            backend.upload(lane.noise[lane.start :], rows.view("latents", lane.frames, row=row))
            own = backend.view(condition, (lane.frames, dim), (index, lane.start))
            backend.copy(own, rows.view("condition", lane.frames, row=row))
        if lane.unguided and self.dimensions.conditions > 2:
            for index in range(1, self.dimensions.conditions):
                own = backend.view(condition, (segment.frames, dim), (index, 0))
                backend.copy(own, self._unguided(lane, index, 0, segment.frames))
        for index, rows in zip(lane.conditions, lane.referring, strict=False):
            backend.upload(lane.noise[: lane.start], rows.view("path_noise", lane.start))
            backend.upload(segment.reference_log_mel[: lane.start], rows.view("path_mel", lane.start))
            before = backend.view(condition, (lane.start, dim), (index, 0))
            backend.copy(before, rows.view("reference_condition", lane.start))
        self._copy_context(lane, "reference_condition", "context_condition")

    def _unguided(self, lane: LaneState, index: int, begin: int, frames: int) -> Tensor:
        """(frames, D), from frame `begin` on, of a condition that an unguided row has at some time."""
        if index not in lane.place.unguided:
            shape = (*self._next.shape[:1], self.dimensions.dim)
            lane.place.unguided[index] = self.backend.empty(shape, self.dimensions.compute)
        return self.backend.view(lane.place.unguided[index], (frames, self.dimensions.dim), (begin,))

    def _set_unguided(self, lane: LaneState) -> None:
        """Copy the condition of the current time into the unguided row."""
        if changes(lane.unguided, lane.steps_done):
            index = lane.unguided[lane.steps_done]
            rows = lane.parts[-1]
            copy = self.backend.copy
            last = len(rows.lengths) - 1
            own = self._unguided(lane, index, lane.start, lane.frames)
            copy(own, rows.view("condition", lane.frames, row=last))
            if rows.reference:
                before = self._unguided(lane, index, 0, lane.start)
                copy(before, rows.view("reference_condition", lane.start))

    def _copy_context(self, lane: LaneState, reference: str, context: str) -> None:
        """Copy the end of the reference, which the position convolution of a DiT sees."""
        if self.dimensions.kept:
            return
        for rows in lane.referring:
            size = min(CONTEXT, lane.start)
            self.backend.copy(rows.view(reference, size, skip=lane.start - size), rows.view(context, size))

    def _set_reference(self, lane: LaneState) -> None:
        """Set the reference's latents to (1 − t)·noise + t·mel."""
        if not lane.paths:
            return
        if self._renoises and lane.steps_done:
            for rows in lane.referring:
                self.backend.upload(lane.noise[: lane.start], rows.view("path_noise", lane.start))
        t = float(lane.segment.times[lane.steps_done])
        self.backend.upload(np.array([t, -t], np.float32), self._weights)
        for path in lane.paths:
            path.run()
        self._copy_context(lane, "reference", "context")

    def _bind(self, parts: Sequence[SharedRows], frames: int) -> Bound:
        """Bind the update of latents from the velocities of the parts."""
        first, last = parts[0], parts[-1]
        shape = (frames, self.dimensions.mels)
        latents, velocity = (first.view(name, frames) for name in ("latents", "velocity"))
        unguided = last.view("velocity", frames, row=len(last.lengths) - 1)
        tensors = (latents, velocity, unguided)
        if self._renoises:
            tensors = (self.backend.view(self._fresh, shape), latents, velocity)
        return self._bind_update(*tensors, self.backend.view(self._next, shape))

    def _bind_path(self, rows: SharedRows) -> Bound:
        names = ("path_noise", "path_mel", "reference")
        noise, mel, reference = (rows.view(name, rows.reference) for name in names)
        return self._bind_update(noise, mel, noise, reference)

    def _bind_update(self, latents: Tensor, guided: Tensor, unguided: Tensor, out: Tensor) -> Bound:
        """Bind the graph `update`: out = latents moved by the weighted velocities."""
        inputs: Mapping[str, Tensor] = {
            "latents": latents,
            "guided": guided,
            "unguided": unguided,
            "weights": self._weights,
        }
        return self._load("update").bind(inputs, {"latents_out": out})
