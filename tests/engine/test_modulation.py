"""The table of modulation rows: exact keys, holds, evictions when it is full, and its graph's life."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.contract.bundle import Bundle
from appliance.contract.graphs import signatures
from appliance.contract.limits import MAX_NFE
from appliance.contract.schedule import time_grid
from appliance.engine import modulation
from appliance.engine.backend import Graph, Tensor
from appliance.engine.modulation import ModulationTable
from appliance.errors import BundleError, EngineFault
from tests.engine.lanes import Watched

pytestmark = pytest.mark.once


class Sums:
    """A modulation graph whose rows are a weighted sum of its inputs."""

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Sums:
        self.inputs, self.rows = inputs, outputs["rows"]
        return self

    def run(self, *, release: bool = False, capture: bool = False) -> None:
        given = {name: np.asarray(tensor) for name, tensor in self.inputs.items()}
        np.asarray(self.rows)[:] = (given["t"] + 10 * given["strength"])[:, None, None]

    def close(self) -> None:
        pass


class Bench:
    """A table and a record of its graph's calls; one backend computes the rows, another stores them."""

    def __init__(self, bundle: Bundle) -> None:
        self.host, self.device, self.d = Watched(), Watched(), bundle.manifest.dimensions
        self.path, self.graphs = bundle.graph("modulation"), weakref.WeakSet[Graph]()
        self.loaded = 0
        self.table = ModulationTable(self.load, self.host, self.device, self.d)

    def load(self) -> Graph:
        graph = self.host.load("modulation", self.path, signatures(self.d)["modulation"], {})
        self.graphs.add(graph)
        self.loaded += 1
        return graph

    def direct(self, t: NDArray[np.float32]) -> NDArray[np.float32]:
        backend = Watched()
        graph = backend.load("modulation", self.path, signatures(self.d)["modulation"], {})
        rows = np.zeros((len(t), self.d.rows, self.d.dim), np.float32)
        for i in range(len(t)):
            graph.bind({"t": t[i : i + 1].copy()}, {"rows": rows[i : i + 1]}).run()
        return rows

    @property
    def computed(self) -> list[int]:
        """Number of times computed in each run of the graph."""
        return [run.shapes["t"][0] for run in self.host.runs]

    def hold(self, *values: float) -> NDArray[np.int32]:
        return self.table.hold(np.array(values, np.float32))

    def use(self, *values: float) -> None:
        self.table.release(self.hold(*values))

    def holds(self, index: NDArray[np.int32], *values: float) -> bool:
        rows = np.asarray(self.table.table)[index]
        return bool(np.allclose(rows, self.direct(np.array(values, np.float32)), rtol=0, atol=1e-6))


@pytest.fixture
def bench(tiny: Bundle, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A table with six places."""
    monkeypatch.setattr(modulation, "CAPACITY", 6)
    return Bench(tiny)


@pytest.fixture
def roomy(tiny: Bundle) -> Bench:
    return Bench(tiny)


def test_rows_equal_the_graphs_own_and_there_is_room_for_two_of_the_largest_grids(roomy: Bench) -> None:
    assert roomy.table.table.shape == (2 * MAX_NFE, roomy.d.rows, roomy.d.dim)
    for nfe in (7, 16):
        t = time_grid(nfe)[:-1].astype(np.float32)
        index = roomy.table.hold(t)
        assert index.dtype == np.int32
        assert roomy.holds(index, *t)
        assert len(set(index.tolist())) == nfe
    first, second = np.asarray(roomy.table.table)[index[:2]]
    assert not np.allclose(first, second, atol=1e-6)


def test_rows_are_the_same_whatever_the_order_and_the_company(tiny: Bundle) -> None:
    t = time_grid(16)[:-1].astype(np.float32)
    wanted = Bench(tiny).direct(t)
    for seed in range(3):
        bench, rng = Bench(tiny), np.random.default_rng(seed)
        order = rng.permutation(16)
        for part in np.split(order, sorted(rng.integers(1, 16, 3))):
            bench.table.release(bench.table.hold(t[part]))
        rows = np.asarray(bench.table.table)[bench.table.hold(t)]
        assert np.abs(rows - wanted).max() <= 1e-6


OTHERS = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Keys for every place of the table: holding all of them shows that no place was lost."""
LIVES: dict[str, list[tuple[Any, ...]]] = {
    "known times are not computed again": [
        ("hold", 3, 0.0, 0.25, 0.5), ("hold", 0, 0.5, 0.0), ("hold", 1, 0.25, 0.75)
    ],
    "keys are exact float32": [
        ("hold", 2, 0.3, np.nextafter(np.float32(0.3), np.float32(1.0))), ("hold", 0, 0.3)
    ],
    "rows outlive their last holder, the longest unused is thrown out and no held one": [
        ("hold", 2, 0.0, 0.1), ("use", 2, 0.2, 0.3), ("use", 2, 0.4, 0.5), ("use", 0, 0.2),
        ("hold", 1, 0.6), ("hold", 0, 0.2, 0.4, 0.5),
    ],
    "a row about to be used is not thrown out for its neighbour": [
        ("use", 6, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5), ("hold", 5, 0.0, 0.6, 0.7, 0.8, 0.9, 0.95)
    ],
    "a row is held until its last holder lets go": [
        ("hold", 3, 0.0, 0.1, 0.2), ("use", 0, 0.0, 0.1, 0.2), ("use", 3, 0.3, 0.4, 0.5),
        ("hold", 3, 0.6, 0.7, 0.8),
    ],
    "a full table says so and loses nothing": [
        ("hold", 4, 0.0, 0.1, 0.2, 0.3), ("full", 0, 0.0, 0.5, 0.6, 0.7), ("release", 0), ("hold", 6, *OTHERS)
    ],
    "the same time twice in one grid counts twice": [("use", 1, 0.3, 0.3), ("hold", 6, *OTHERS)],
}  # fmt: skip
"""An action, the number of times that the graph computes for it, and the times."""


@pytest.mark.parametrize("life", LIVES)
def test_held_rows_stay_in_the_table(bench: Bench, life: str) -> None:
    """The table loads the graph for new times only, and drops it afterwards."""
    held: list[tuple[NDArray[np.int32], Sequence[float]]] = []
    for act, computed, *times in LIVES[life]:
        before, loaded = sum(bench.computed), bench.loaded
        match act:
            case "hold":
                held.append((bench.hold(*times), times))
            case "use":
                bench.use(*times)
            case "release":
                bench.table.release(held.pop()[0])
            case "full":
                full = "all 6 rows of the modulation table are held by open lanes"
                with pytest.raises(RuntimeError, match=full):
                    bench.hold(*times)
        assert (sum(bench.computed) - before, bench.loaded - loaded) == (computed, computed > 0)
        assert len(bench.graphs) == 0  # freed at once, without a garbage collection
        for index, own in held:
            assert len({*index.tolist()}) == len({*own}) and bench.holds(index, *own)


@pytest.mark.parametrize("error", [EngineFault("out of memory"), BundleError("modulation.onnx: damaged")])
def test_failed_graphs_cost_no_place(bench: Bench, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(graph: str = "") -> Any:
        raise error

    bench.use(0.0, 0.1)
    with monkeypatch.context() as patch:
        if isinstance(error, EngineFault):
            patch.setattr(bench.host, "before_run", fail)
        else:
            patch.setattr(bench.table, "_load", fail)
        for _ in range(8):
            with pytest.raises(type(error)):
                bench.hold(0.1, 0.2, 0.3, 0.4, 0.5)
    assert bench.holds(bench.hold(*OTHERS), *OTHERS)


def test_rows_of_embedded_strengths_are_separate(tiny: Bundle, roomy: Bench) -> None:
    d = dataclasses.replace(tiny.manifest.dimensions, embeds_guidance=True)
    table, t = ModulationTable(Sums, Watched(), Watched(), d), np.array([0.0, 0.5], np.float32)
    held = {w: table.hold(t, w) for w in (1.0, 2.0)}
    for w, index in held.items():
        assert np.array_equal(np.asarray(table.table)[index][:, 0, 0], t + np.float32(10 * w))
        assert np.array_equal(table.hold(t, w), index)  # not computed again
    # Eight requests of the most steps, each with another strength.
    room = ModulationTable(Sums, Watched(), Watched(), d)
    grid = time_grid(MAX_NFE)[:-1].astype(np.float32)
    assert len({place for w in range(8) for place in room.hold(grid, 1 + w / 8)}) == 8 * MAX_NFE
    with pytest.raises(RuntimeError, match="all 512 rows of the modulation table are held"):
        room.hold(grid, 3.0)
    # If the guidance is not embedded, all strengths share rows.
    assert np.array_equal(roomy.table.hold(t, 1.0), roomy.table.hold(t, 2.0))
