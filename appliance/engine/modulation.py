"""Table of AdaLN rows by time and embedded strength."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

from appliance import heap
from appliance.contract.graphs import Dimensions, signatures
from appliance.engine.backend import Backend, Graph, Tensor

CAPACITY = 128
"""Number of times: two grids of the largest NFE."""
EMBEDDED_CAPACITY = 512
"""Eight such grids, because requests of different strengths share no rows."""
Key = tuple[np.float32, np.float32]


class ModulationTable:
    """Rows by float32 time, and by strength if it is embedded.

    Open lanes hold the rows of their grids. Other rows stay until their place is needed. The graph has 42 %
    of a model's weights, so it is loaded for each new grid and dropped.
    """

    def __init__(self, load: Callable[[], Graph], host: Backend, backend: Backend, d: Dimensions) -> None:
        """`host` computes the rows of a time; they stay in the memory of `backend`."""
        self._load, self._host, self._backend = load, host, backend
        self._inputs = [t.name for t in signatures(d)["modulation"].inputs]
        size = capacity(d)
        self.table: Tensor = backend.empty((size, d.rows, d.dim), "float32")
        self._place: OrderedDict[Key, int] = OrderedDict()  # least recently used first
        self._holders = np.zeros(size, np.int64)
        self._free = list(range(size - 1, -1, -1))

    def hold(self, times: NDArray[np.float32], strength: float = 0.0) -> NDArray[np.int32]:
        """(k,) times → (k,) indices, held until `release`. Raises RuntimeError if every row is held.

        `strength` counts if it is embedded. An error changes nothing.
        """
        w = np.float32(strength if "strength" in self._inputs else 0.0)
        keys = [(t, w) for t in times]
        needed = dict.fromkeys(keys)
        if new := [key for key in needed if key not in self._place]:
            self._make_room(len(new), needed)
            shape = self.table.shape[1:]
            inputs = {name: self._host.empty((len(new),), "float32") for name in self._inputs}
            rows = self._host.empty((len(new), *shape), "float32")
            for tensor, values in zip(inputs.values(), zip(*new, strict=True), strict=False):
                self._host.upload(np.array(values, np.float32), tensor)
            self._load().bind(inputs, {"rows": rows}).run(release=True)
            heap.trim()  # the graph's weights are free
            for key, row in zip(new, self._host.download(rows), strict=True):
                self._place[key] = self._free.pop()
                self._backend.upload(row, self._backend.view(self.table, shape, (self._place[key],)))
        for key in needed:
            self._place.move_to_end(key)
        indices = np.array([self._place[key] for key in keys], np.int32)
        np.add.at(self._holders, indices, 1)
        return indices

    def release(self, indices: NDArray[np.int32]) -> None:
        np.subtract.at(self._holders, indices, 1)

    def _make_room(self, count: int, needed: Collection[Key]) -> None:
        """Evict rows that nobody holds or needs, the least recently used first."""
        missing = count - len(self._free)
        idle = [key for key, at in self._place.items() if not self._holders[at] and key not in needed]
        if missing > len(idle):
            raise RuntimeError(
                f"all {len(self._holders)} rows of the modulation table are held by open lanes"
            )
        self._free += [self._place.pop(key) for key in idle[: max(missing, 0)]]


def capacity(d: Dimensions) -> int:
    """Rows of the table."""
    return EMBEDDED_CAPACITY if d.embeds_guidance else CAPACITY
