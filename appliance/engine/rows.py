"""Memory of a lane's rows, allocated once at the size of the longest segment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from appliance.contract.graphs import CONTEXT, GraphSpec
from appliance.engine.backend import Backend, Bound, Graph, Tensor

MOST_BOUND = 64
PADDED = ("latents", "condition")
"""Inputs of N frames."""


class SharedRows:
    """Rows that share every call, each with its own latents and condition.

    A tensor has the rows one after the other, padded to N frames. Only a single row has a reference, at its
    true length. So every tensor is bound at its beginning.
    """

    def __init__(
        self,
        backend: Backend,
        specs: Mapping[str, GraphSpec],
        graph: Callable[[str], Graph],
        shared: Mapping[str, Tensor],
        capacity: Mapping[str, int],
    ) -> None:
        """Allocate for the graphs of `specs`, at the R, N, P and C of `capacity`.

        `shared` has the modulation table, and zeros for PADDED if frames are padded.
        """
        self._backend, self._specs, self._graph = backend, specs, graph
        self._zeros = {name: tensor for name, tensor in shared.items() if name in PADDED}
        self._tensors = {name: tensor for name, tensor in shared.items() if name not in PADDED}
        for spec in specs.values():
            for t in (*spec.inputs, *spec.outputs):
                if t.name not in self._tensors:
                    self._tensors[t.name] = backend.empty(t.shape(capacity), t.dtype)
        if "reference" in self._tensors:
            for name in ("path_noise", "path_mel"):
                self._tensors[name] = backend.empty(self._tensors["reference"].shape, "float32")
        self._bound: dict[tuple[str, int, int, int], Bound] = {}
        self.lengths: tuple[int, ...] = ()
        self.padded = self.reference = 0

    def take(self, lengths: Sequence[int], padded: int, reference: int = 0) -> None:
        """Set the frames of each row, N and P."""
        self.lengths = tuple(lengths)
        self.padded = padded
        self.reference = reference
        if self._backend.frame_multiple == 1:  # true lengths hardly recur
            self._bound.clear()
        self._upload("lengths", self.lengths)
        if "reference_lengths" in self._tensors:
            self._upload("reference_lengths", [reference])
        # Padding is masked, but an earlier row may have left NaN there, and 0 · NaN is NaN.
        for name, zeros in self._zeros.items():
            for row, frames in enumerate(self.lengths):
                if frames < padded:
                    rest = padded - frames
                    blank = self._backend.view(zeros, (rest, *zeros.shape[1:]))
                    self._backend.copy(blank, self.view(name, rest, skip=frames, row=row))

    def view(self, name: str, frames: int, *, skip: int = 0, row: int = 0) -> Tensor:
        """Frames of a row of the tensor `name`, from `skip` on."""
        whole = self._tensors[name]
        return self._backend.view(whole, (frames, *whole.shape[2:]), (0, row * self.padded + skip))

    def run(self, graph: str, times: Sequence[int], *, release: bool, capture: bool) -> None:
        """Run a step graph at `times`, indices of the modulation table. Raises EngineFault."""
        self._upload("step_index", times)
        self._binding(graph).run(release=release, capture=capture)

    def run_for(
        self, members: Sequence[SharedRows], graph: str, times: Sequence[int], *, release: bool, capture: bool
    ) -> None:
        """Run a step graph on copies of the rows of `members`, which have no reference."""
        lengths = [frames for rows in members for frames in rows.lengths]
        self.take(lengths, max(rows.padded for rows in members))
        for name in PADDED:
            for own, copied in self._pairs(members, name):
                self._backend.copy(own, copied)
        self.run(graph, times, release=release, capture=capture)
        for own, copied in self._pairs(members, "velocity"):
            self._backend.copy(copied, own)

    def _pairs(self, members: Sequence[SharedRows], name: str) -> Iterator[tuple[Tensor, Tensor]]:
        places = [(rows, row, frames) for rows in members for row, frames in enumerate(rows.lengths)]
        for place, (rows, row, frames) in enumerate(places):
            yield rows.view(name, frames, row=row), self.view(name, frames, row=place)

    def _upload(self, name: str, values: Sequence[int]) -> None:
        cells = self._backend.view(self._tensors[name], (len(values),))
        self._backend.upload(np.array(values, np.int32), cells)

    def _binding(self, graph: str) -> Bound:
        """The binding of a graph at the current sizes. The MOST_BOUND latest are cached."""
        key = (graph, len(self.lengths), self.padded, self.reference)
        if key not in self._bound:
            sizes = {"R": key[1], "N": key[2], "P": key[3], "C": min(key[3], CONTEXT)}
            sizes["S"] = self._tensors["mod_table"].shape[0]
            inputs, outputs = (
                {t.name: self._backend.view(self._tensors[t.name], t.shape(sizes)) for t in tensors}
                for tensors in (self._specs[graph].inputs, self._specs[graph].outputs)
            )
            if len(self._bound) == MOST_BOUND:
                del self._bound[next(iter(self._bound))]
            self._bound[key] = self._graph(graph).bind(inputs, outputs)
        return self._bound[key]
