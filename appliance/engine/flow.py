"""Euler steps of the flow ODE for a batch of lanes. Memory is laid out when the batch's members change, never
inside the step loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from appliance.contract.graphs import Dimensions
from appliance.engine.backend import Backend, Graph, Tensor


@dataclass(eq=False)
class LaneState:
    """What the engine keeps of one open segment."""

    latents: Tensor
    """(N, M) float32; current while the lane sits in no batch."""
    condition: Tensor
    """(2, N, D)"""
    frames: int
    rows: NDArray[np.int32]
    """(NFE,) rows of the modulation table."""
    dt: NDArray[np.float32]
    """(NFE,)"""
    combine: tuple[float, ...]
    """(1 + w, -w), or (1,) without guidance."""
    done: int = 0
    lost: bool = False
    """Its latents went with a batch that failed: the lane can only be closed."""

    @property
    def steps_left(self) -> int:
        """Steps until the segment's latents are its log-mel."""
        return len(self.dt) - self.done


@dataclass(eq=False)
class Batch:
    """The lanes that sit together in the step graph's inputs, and those inputs."""

    lanes: tuple[LaneState, ...]
    inputs: dict[str, Tensor]
    spare: Tensor
    """(B, N, M) where the next step's latents go; changes places with `inputs["latents"]`."""
    index: NDArray[np.int32] = field(init=False)
    dt: NDArray[np.float32] = field(init=False)

    def __post_init__(self) -> None:
        self.index = np.zeros(len(self.lanes), np.int32)
        self.dt = np.zeros(len(self.lanes), np.float32)


class Flow:
    """Owns the batch."""

    def __init__(self, graph: Graph, backend: Backend, table: Tensor, dimensions: Dimensions) -> None:
        self._graph, self._backend, self._table, self._dimensions = graph, backend, table, dimensions
        self._batch: Batch | None = None

    def step(self, lanes: Sequence[LaneState], frames: int) -> None:
        """Advance every lane by one step, in a batch padded to `frames`.

        The caller guarantees that each lane has a step left and fits.
        """
        batch = self._seated(tuple(lanes), frames)
        for i, lane in enumerate(batch.lanes):
            batch.index[i] = lane.rows[lane.done]
            batch.dt[i] = lane.dt[lane.done]
        self._backend.upload(batch.index, batch.inputs["step_index"])
        self._backend.upload(batch.dt, batch.inputs["dt"])
        self._graph.run(batch.inputs, {"latents_out": batch.spare})
        batch.inputs["latents"], batch.spare = batch.spare, batch.inputs["latents"]
        for lane in batch.lanes:
            lane.done += 1

    def leave(self, lane: LaneState) -> None:
        """Bring the lane's latents up to date in its own memory and break up the batch it sat in."""
        if self._batch is not None and lane in self._batch.lanes:
            self._unseat()

    def forget(self) -> None:
        """Drop the batch and what its lanes had computed: after a fault, none of it may be used."""
        for lane in self._batch.lanes if self._batch else ():
            lane.lost = True
        self._batch = None

    def _seated(self, lanes: tuple[LaneState, ...], frames: int) -> Batch:
        batch = self._batch
        if batch is not None and batch.lanes == lanes and batch.spare.shape[1] == frames:
            return batch
        self._unseat()
        self._batch = self._seat(lanes, frames)
        return self._batch

    def _seat(self, lanes: tuple[LaneState, ...], frames: int) -> Batch:
        lanes_in, guided = len(lanes), max(len(lane.combine) for lane in lanes)
        d, empty = self._dimensions, self._backend.empty
        inputs = {
            "latents": empty((lanes_in, frames, d.mels), "float32"),
            "condition": empty((lanes_in, guided, frames, d.dim), d.compute),
            "mod_table": self._table,
            "step_index": empty((lanes_in,), "int32"),
            "dt": empty((lanes_in,), "float32"),
            "combine": empty((lanes_in, guided), "float32"),
            "lengths": empty((lanes_in,), "int32"),
        }
        combine = np.zeros((lanes_in, guided), np.float32)
        for i, lane in enumerate(lanes):
            self._backend.copy(lane.latents, inputs["latents"], put=(i,))
            for g in range(len(lane.combine)):
                self._backend.copy(lane.condition, inputs["condition"], take=(g,), put=(i, g))
            combine[i, : len(lane.combine)] = lane.combine
        self._backend.upload(combine, inputs["combine"])
        self._backend.upload(np.array([lane.frames for lane in lanes], np.int32), inputs["lengths"])
        return Batch(lanes, inputs, spare=empty((lanes_in, frames, d.mels), "float32"))

    def _unseat(self) -> None:
        if self._batch is None:
            return
        for i, lane in enumerate(self._batch.lanes):
            self._backend.copy(self._batch.inputs["latents"], lane.latents, take=(i,))
        self._batch = None
