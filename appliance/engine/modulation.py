"""Table of AdaLN rows by time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

from appliance.engine.backend import Backend, Graph, Tensor

CAPACITY = 128
"""Times: two grids of the largest NFE."""


class ModulationTable:
    """Rows by float32 time. Open lanes hold those of their grids; others stay until their place is needed.

    The graph has 42 % of a model's weights, so it is loaded for each new grid and dropped.
    """

    def __init__(
        self, load: Callable[[], Graph], host: Backend, backend: Backend, rows: int, dim: int
    ) -> None:
        """`host` computes (rows, dim) of a time, `backend` keeps them."""
        self._load, self._host, self._backend = load, host, backend
        self.table: Tensor = backend.empty((CAPACITY, rows, dim), "float32")
        self._place: OrderedDict[np.float32, int] = OrderedDict()  # least recently used first
        self._holders = np.zeros(CAPACITY, np.int64)
        self._free = list(range(CAPACITY - 1, -1, -1))

    def hold(self, times: NDArray[np.float32]) -> NDArray[np.int32]:
        """(k,) times → (k,) indices, held until `release`. Raises RuntimeError when every row is held.

        An error changes nothing.
        """
        needed = dict.fromkeys(times)
        if new := [t for t in needed if t not in self._place]:
            self._make_room(len(new), needed)
            shape = self.table.shape[1:]
            t_in = self._host.empty((len(new),), "float32")
            rows = self._host.empty((len(new), *shape), "float32")
            self._host.upload(np.array(new, np.float32), t_in)
            self._load().bind({"t": t_in}, {"rows": rows}).run()
            for t, row in zip(new, self._host.download(rows), strict=True):
                self._place[t] = self._free.pop()
                self._backend.upload(row, self._backend.view(self.table, shape, (self._place[t],)))
        for t in needed:
            self._place.move_to_end(t)
        indices = np.array([self._place[t] for t in times], np.int32)
        np.add.at(self._holders, indices, 1)
        return indices

    def release(self, indices: NDArray[np.int32]) -> None:
        np.subtract.at(self._holders, indices, 1)

    def _make_room(self, count: int, needed: Collection[np.float32]) -> None:
        """Evict rows that nobody holds or needs, the least recently used first."""
        missing = count - len(self._free)
        idle = [t for t, place in self._place.items() if not self._holders[place] and t not in needed]
        if missing > len(idle):
            raise RuntimeError(
                f"all {len(self._holders)} rows of the modulation table are held by open lanes"
            )
        self._free += [self._place.pop(t) for t in idle[: max(missing, 0)]]
