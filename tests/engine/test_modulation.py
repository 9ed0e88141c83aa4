"""The table of modulation rows: exact keys, holding, and what is thrown out when it is full."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.contract.bundle import Bundle
from appliance.contract.schedule import time_grid
from appliance.engine.modulation import ModulationTable
from appliance.errors import EngineFault
from tests.engine.lanes import Watched


def times(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


class Bench:
    """A table of a few rows and what it asks of its graph."""

    def __init__(self, bundle: Bundle, capacity: int) -> None:
        self.backend, d = Watched(), bundle.manifest.dimensions
        self.d, self.graph = d, self.backend.load(bundle.graph("modulation"))
        self.table = ModulationTable(self.graph, self.backend, capacity, d.rows, d.dim)

    def direct(self, t: NDArray[np.float32]) -> NDArray[np.float32]:
        rows = np.zeros((len(t), self.d.rows, self.d.dim), np.float32)
        self.graph.run({"t": t}, {"rows": rows})
        self.backend.runs.pop()
        return rows

    @property
    def computed(self) -> list[int]:
        """How many times were computed in each run of the graph."""
        return [run["t"][0] for run in self.backend.runs]

    def holds(self, index: NDArray[np.int32], t: NDArray[np.float32]) -> bool:
        rows = np.asarray(self.table.table)[index]
        return bool(np.allclose(rows, self.direct(t), rtol=0, atol=1e-6))


@pytest.fixture
def bench(tiny: Bundle) -> Bench:
    return Bench(tiny, 6)


def test_rows_equal_the_graphs_own(tiny: Bundle) -> None:
    bench = Bench(tiny, 40)
    for nfe in (7, 16):
        t = time_grid(nfe)[:-1].astype(np.float32)
        index = bench.table.hold(t)
        assert index.dtype == np.int32
        assert bench.holds(index, t)
        assert len(set(index.tolist())) == nfe
    first, second = np.asarray(bench.table.table)[index[:2]]
    assert not np.allclose(first, second, atol=1e-6)


def test_times_that_are_known_are_not_computed_again(bench: Bench) -> None:
    first = bench.table.hold(times(0.0, 0.25, 0.5))
    again = bench.table.hold(times(0.5, 0.0))
    assert bench.computed == [3]
    assert again.tolist() == first[[2, 0]].tolist()
    bench.table.hold(times(0.25, 0.75))
    assert bench.computed == [3, 1]


def test_rows_outlive_their_last_holder(bench: Bench) -> None:
    bench.table.release(bench.table.hold(times(0.0, 0.25, 0.5)))
    bench.table.hold(times(0.0, 0.25, 0.5))
    assert bench.computed == [3]


def test_keys_are_exact_float32(bench: Bench) -> None:
    near = np.nextafter(np.float32(0.3), np.float32(1.0))
    index = bench.table.hold(np.array([np.float32(0.3), near], np.float32))
    assert index[0] != index[1]
    assert bench.table.hold(np.array([0.3], np.float64).astype(np.float32)).tolist() == [index[0]]
    assert bench.computed == [2]


def test_the_longest_unused_row_is_thrown_out_and_no_held_one(bench: Bench) -> None:
    held = bench.table.hold(times(0.0, 0.1))
    bench.table.release(bench.table.hold(times(0.2, 0.3)))
    bench.table.release(bench.table.hold(times(0.4, 0.5)))
    bench.table.release(bench.table.hold(times(0.2)))  # used again: 0.3 is now the longest unused
    new = bench.table.hold(times(0.6))
    assert bench.computed == [2, 2, 2, 1]
    assert bench.holds(held, times(0.0, 0.1)) and bench.holds(new, times(0.6))
    bench.table.hold(times(0.2, 0.4, 0.5))
    assert bench.computed == [2, 2, 2, 1]  # all of them are still there


def test_a_row_about_to_be_used_is_not_thrown_out_for_its_neighbour(bench: Bench) -> None:
    bench.table.release(bench.table.hold(times(0.0, 0.1, 0.2, 0.3, 0.4, 0.5)))
    index = bench.table.hold(times(0.0, 0.6, 0.7, 0.8, 0.9, 0.95))
    assert len(set(index.tolist())) == 6
    assert bench.holds(index, times(0.0, 0.6, 0.7, 0.8, 0.9, 0.95))


def test_a_row_is_held_until_its_last_holder_lets_go(bench: Bench) -> None:
    one, two = (bench.table.hold(times(0.0, 0.1, 0.2)) for _ in range(2))
    bench.table.release(one)
    bench.table.release(bench.table.hold(times(0.3, 0.4, 0.5)))
    new = bench.table.hold(times(0.6, 0.7, 0.8))
    assert bench.holds(two, times(0.0, 0.1, 0.2)) and bench.holds(new, times(0.6, 0.7, 0.8))


def test_a_full_table_says_so_and_loses_nothing(bench: Bench) -> None:
    held = bench.table.hold(times(0.0, 0.1, 0.2, 0.3))
    with pytest.raises(RuntimeError, match="all 6 rows of the modulation table are held by open lanes"):
        bench.table.hold(times(0.0, 0.5, 0.6, 0.7))
    assert bench.holds(held, times(0.0, 0.1, 0.2, 0.3))
    bench.table.release(held)
    t = times(0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    assert bench.holds(bench.table.hold(t), t)  # a refusal leaks neither places nor holders


def test_the_same_time_twice_in_one_grid_counts_twice(bench: Bench) -> None:
    index = bench.table.hold(times(0.3, 0.3))
    assert index[0] == index[1]
    bench.table.release(index)
    t = times(0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    assert bench.holds(bench.table.hold(t), t)


def test_a_graph_that_fails_costs_no_place(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise EngineFault("out of memory")

    bench.table.release(bench.table.hold(times(0.0, 0.1)))
    with monkeypatch.context() as patch:
        patch.setattr(bench.graph, "run", fail)
        for _ in range(8):
            with pytest.raises(EngineFault):
                bench.table.hold(times(0.1, 0.2, 0.3, 0.4, 0.5))
    t = times(0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
    assert bench.holds(bench.table.hold(t), t)
