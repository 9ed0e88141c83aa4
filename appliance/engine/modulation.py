"""The table of AdaLN rows: computed once for each new time value, kept where the step graph gathers from it."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from numpy.typing import NDArray

from appliance.engine.backend import Backend, Graph, Tensor


class ModulationTable:
    """Rows by exact float32 time. A lane holds the rows of its grid while it is open; rows that no lane
    holds stay until their place is needed, so a daemon that always runs one grid computes it once."""

    def __init__(self, graph: Graph, backend: Backend, capacity: int, rows: int, dim: int) -> None:
        """`capacity` is S, the number of time values that may be held at once."""
        self._graph, self._backend = graph, backend
        self.table: Tensor = backend.empty((capacity, rows, dim), "float32")
        self._place: OrderedDict[np.float32, int] = OrderedDict()  # least recently used first
        self._holders = np.zeros(capacity, np.int64)
        self._free = list(range(capacity - 1, -1, -1))

    def hold(self, times: NDArray[np.float32]) -> NDArray[np.int32]:
        """(k,) times → (k,) row indices, held until `release`. Raises RuntimeError when the table is full."""
        new = [t for t in times if t not in self._place]
        for t in times:
            if t in self._place:  # before making room, so that a row about to be used is not evicted
                self._place.move_to_end(t)
                self._holders[self._place[t]] += 1
        if new:
            self._compute(new)
        return np.array([self._place[t] for t in times], np.int32)

    def release(self, indices: NDArray[np.int32]) -> None:
        """Let go of rows that `hold` gave."""
        self._holders[indices] -= 1

    def _compute(self, times: list[np.float32]) -> None:
        places = [self._room() for _ in times]
        rows = self._backend.empty((len(times), *self.table.shape[1:]), "float32")
        t = self._backend.empty((len(times),), "float32")
        self._backend.upload(np.array(times, np.float32), t)
        self._graph.run({"t": t}, {"rows": rows})
        for i, (time, place) in enumerate(zip(times, places, strict=True)):
            self._backend.copy(rows, self.table, take=(i,), put=(place,))
            self._place[time] = place
            self._holders[place] = 1

    def _room(self) -> int:
        if self._free:
            return self._free.pop()
        for time, place in self._place.items():
            if self._holders[place] == 0:
                del self._place[time]
                return place
        raise RuntimeError(f"all {len(self._holders)} rows of the modulation table are held by open lanes")
