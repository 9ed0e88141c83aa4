"""Slabs: the tensors of one bucket's rows, allocated once, so that no step allocates or moves memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from appliance.contract.graphs import CONTEXT, GraphSpec
from appliance.engine.backend import Backend, Bound, Graph, Tensor


@dataclass(eq=False)
class SlabRow:
    """A sequence of latents with one condition, in a slab while its lane is open."""

    slab: Slab
    place: int
    frames: int
    """N: frames of latents."""
    reference: int
    """P: frames of a reference before them, on a known path."""

    def view(self, name: str, frames: int | None = None, skip: int = 0) -> Tensor:
        """This row of the tensor `name`: `frames` frames (None: all) from `skip` on."""
        whole = self.slab.tensors[name]
        rest = whole.shape[2:]
        return self.slab.backend.view(
            whole, (whole.shape[1] - skip if frames is None else frames, *rest), (self.place, skip)
        )

    def view_reference(self, name: str, frames: int | None = None) -> Tensor:
        """The last `frames` frames (None: all) of a reference tensor, which is aligned to its end."""
        frames = self.reference if frames is None else frames
        held = self.slab.sizes_of(self)["C" if name.startswith("context") else "P"]
        return self.view(name, frames, held - frames)


@dataclass(eq=False)
class References:
    """Tensors of references of one bucket, shared by slabs: a row has the same place in all of them.

    A reference's keys and values are the largest tensors: 90 kB a frame of a Base-size model.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    taken: set[int] = field(default_factory=set)


class Slab:
    """Tensors for up to `capacity` rows, by the names of the step graphs' inputs and outputs."""

    def __init__(
        self,
        backend: Backend,
        specs: Mapping[str, GraphSpec],
        graph: Callable[[str], Graph],
        sizes: Mapping[str, int],
        capacity: int,
        table: Tensor,
        references: References | None = None,
    ) -> None:
        """`specs` are those of the step graphs that may run; `graph` loads one by name.

        `sizes` has N, P and C as allocated. Slabs of equal P and `capacity` may share `references`.
        """
        references = references or References()
        self._taken = references.taken
        self.backend, self._specs, self._graph, self._sizes = backend, specs, graph, dict(sizes)
        shared: dict[str, Tensor] = {"mod_table": table}
        self.tensors: dict[str, Tensor] = {}
        self._axes: dict[str, Sequence[int | str]] = {}
        for spec in specs.values():
            for tensor in (*spec.inputs, *spec.outputs):
                if tensor.name not in shared and tensor.name not in self.tensors:
                    self._axes[tensor.name] = tensor.axes
                    shape = [capacity, *(int(sizes.get(str(axis), axis)) for axis in tensor.axes[1:])]
                    if {"P", "C"} & set(tensor.axes):
                        if tensor.name not in references.tensors:
                            references.tensors[tensor.name] = backend.empty(shape, tensor.dtype)
                        self.tensors[tensor.name] = references.tensors[tensor.name]
                    else:
                        self.tensors[tensor.name] = backend.empty(shape, tensor.dtype)
        if "reference" in self.tensors:
            for name in ("path_noise", "path_mel"):
                self._axes[name] = self._axes["reference"]
                if name not in references.tensors:
                    references.tensors[name] = backend.empty(self.tensors["reference"].shape, "float32")
                self.tensors[name] = references.tensors[name]
        computed = {t.name for spec in specs.values() for t in spec.outputs}
        padded = {t.name for spec in specs.values() for t in spec.inputs if {"N", "P", "C"} & set(t.axes)}
        self._blank = {
            name: backend.empty(self.tensors[name].shape[1:], self.tensors[name].dtype.name)
            for name in padded - computed
            if not backend.exact_shapes
        }
        self._shared = shared
        self._index = np.zeros(capacity, np.int32)
        self._rows: dict[int, SlabRow] = {}
        self._bounds: dict[tuple[str, int, int, int, int], Bound] = {}

    @property
    def rows(self) -> int:
        return len(self._rows)

    def join(self, frames: int, reference: int) -> SlabRow:
        """Take a row. Raises RuntimeError when none is free."""
        free = [place for place in range(len(self._index)) if place not in self._taken]
        if not free:
            raise RuntimeError(f"all {len(self._index)} rows of a bucket are taken")
        row = SlabRow(self, free[0], frames, reference)
        # Padding is masked, but an earlier row may have left NaN there, and 0 · NaN is NaN.
        for name, blank in self._blank.items():
            self.backend.copy(blank, row.view(name))
        for name, length in (("lengths", frames), ("reference_lengths", reference)):
            if name in self.tensors:
                cell = self.backend.view(self.tensors[name], (1,), (row.place,))
                self.backend.upload(np.array([length], np.int32), cell)
        self._rows[row.place] = row
        self._taken.add(row.place)
        return row

    def leave(self, row: SlabRow) -> None:
        """Free a row. Where rows are batched, the last one moves into its place."""
        del self._rows[row.place]
        self._taken.discard(row.place)
        if self.backend.exact_shapes:
            self._bounds = {key: bound for key, bound in self._bounds.items() if key[1] != row.place}
            return
        last = self._rows.get(max(self._rows, default=-1))
        if last is not None and last.place > row.place:
            sizes = self.sizes_of(last)
            for name, axes in self._axes.items():
                source, to = (self._span(name, axes, r.place, 1, sizes) for r in (last, row))
                self.backend.copy(source, to)
            self._index[row.place] = self._index[last.place]
            self._rows[row.place] = self._rows.pop(last.place)
            self._taken.discard(last.place)
            self._taken.add(row.place)
            last.place = row.place

    def sizes_of(self, row: SlabRow) -> dict[str, int]:
        """N, P and C of a row's call."""
        if not self.backend.exact_shapes:
            return self._sizes
        return {"N": row.frames, "P": row.reference, "C": min(row.reference, CONTEXT)}

    def run(
        self, graph: str, rows: Sequence[SlabRow], times: Sequence[int], *, release: bool = False
    ) -> None:
        """Run a step graph on rows at `times`, indices into the modulation table. Raises EngineFault."""
        for row, time in zip(rows, times, strict=True):
            self._index[row.place] = time
        self.backend.upload(self._index, self.tensors["step_index"])
        for first, count in self._spans(sorted(row.place for row in rows)):
            sizes = self.sizes_of(self._rows[first])
            key = (graph, first, count, sizes["N"], sizes["P"])
            if key not in self._bounds:
                spec = self._specs[graph]
                inputs, outputs = (
                    {t.name: self._span(t.name, t.axes, first, count, sizes) for t in tensors}
                    for tensors in (spec.inputs, spec.outputs)
                )
                self._bounds[key] = self._graph(graph).bind(inputs, outputs)
            self._bounds[key].run(release=release)

    def _spans(self, places: list[int]) -> Iterator[tuple[int, int]]:
        """Runs of neighbouring places as (first, count), each within the limit of one call."""
        first, most = 0, self.backend.rows(self._sizes["N"])
        for i in range(1, len(places) + 1):
            full = i - first == most
            if i == len(places) or places[i] != places[i - 1] + 1 or full:
                yield places[first], i - first
                first = i

    def _span(
        self, name: str, axes: Sequence[int | str], first: int, count: int, sizes: Mapping[str, int]
    ) -> Tensor:
        if name in self._shared:
            return self._shared[name]
        shape = [count, *(int(sizes.get(str(axis), axis)) for axis in axes[1:])]
        return self.backend.view(self.tensors[name], shape, (first,))
