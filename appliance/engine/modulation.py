"""The table of AdaLN rows: computed once for each new time, kept where the step graphs gather from it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection

import numpy as np
from numpy.typing import NDArray

from appliance.engine.backend import Backend, Graph, Tensor

CAPACITY = 128
"""Times that may be held at once: two grids of the largest NFE, and many more of a usual one."""


class ModulationTable:
    """Rows by exact float32 time. A lane holds the rows of its grid while it is open; rows that no lane
    holds stay until their place is needed, so a daemon that always runs one grid computes it once.

    The graph holds two fifths of a model's weights and runs once a grid: it is loaded on the host for a new
    one, and dropped.
    """

    def __init__(
        self, load: Callable[[], Graph], host: Backend, backend: Backend, rows: int, dim: int
    ) -> None:
        """`host` computes rows (rows, dim) of a time; `backend` keeps them."""
        self._load, self._host, self._backend = load, host, backend
        self.table: Tensor = backend.empty((CAPACITY, rows, dim), "float32")
        self._place: OrderedDict[np.float32, int] = OrderedDict()  # least recently used first
        self._holders = np.zeros(CAPACITY, np.int64)
        self._free = list(range(CAPACITY - 1, -1, -1))

    def hold(self, times: NDArray[np.float32]) -> NDArray[np.int32]:
        """(k,) times → (k,) row indices, held until `release`. Raises RuntimeError when the table is full.

        What raises, the graph included, leaves every holder and every place as it was.
        """
        wanted = dict.fromkeys(times)
        if new := [t for t in wanted if t not in self._place]:
            self._make_room(len(new), wanted)
            self._compute(new)
        for t in wanted:
            self._place.move_to_end(t)
        indices = np.array([self._place[t] for t in times], np.int32)
        np.add.at(self._holders, indices, 1)
        return indices

    def release(self, indices: NDArray[np.int32]) -> None:
        """Let go of rows that `hold` gave."""
        np.subtract.at(self._holders, indices, 1)

    def _make_room(self, count: int, wanted: Collection[np.float32]) -> None:
        """Free places of rows that nobody holds or is about to, the least recently used first."""
        missing = count - len(self._free)
        idle = [t for t, place in self._place.items() if not self._holders[place] and t not in wanted]
        if missing > len(idle):
            raise RuntimeError(
                f"all {len(self._holders)} rows of the modulation table are held by open lanes"
            )
        self._free += [self._place.pop(t) for t in idle[: max(missing, 0)]]

    def _compute(self, times: list[np.float32]) -> None:
        shape = self.table.shape[1:]
        t = self._host.empty((len(times),), "float32")
        rows = self._host.empty((len(times), *shape), "float32")
        self._host.upload(np.array(times, np.float32), t)
        self._load().bind({"t": t}, {"rows": rows}).run()
        for time, row in zip(times, self._host.download(rows), strict=True):
            self._place[time] = self._free.pop()
            self._backend.upload(row, self._backend.view(self.table, shape, (self._place[time],)))
