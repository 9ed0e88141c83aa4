"""Rows of lanes: what opening takes and gives back, and which graphs and calls there are."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from appliance.contract.bundle import Bundle, Sampling
from appliance.contract.graphs import GraphSpec, signatures
from appliance.contract.schedule import MAX_NFE, time_grid
from appliance.engine.backend import Graph, HostArray, Ranges, Tensor
from appliance.engine.engine import Synthesizer
from appliance.errors import BundleError, EngineFault
from tests.engine.lanes import (
    SAMPLINGS,
    Padded,
    Watched,
    WatchedPadded,
    Watching,
    changed,
    run,
    segment,
    solo,
)

pytestmark = pytest.mark.once

Make = Callable[..., Synthesizer]


class Uploads(Padded):
    """Fails at the n-th upload from now on."""

    left = -1

    def upload(self, array: HostArray, to: Tensor) -> None:
        self.left -= 1
        if self.left == 0:
            raise EngineFault("out of memory")
        super().upload(array, to)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_an_opening_that_fails_anywhere_leaves_no_row_and_no_hold_behind(
    make_engine: Make, sampling: Sampling
) -> None:
    """A leak of rows, or of the 64 times of each attempt, would end a later attempt with RuntimeError."""
    backend = Uploads()
    engine = make_engine(backend, lanes=1)
    given = segment(80, nfe=2, sampling=sampling)
    wanted = solo(engine, given)
    faults = 0
    for count in itertools.count(1):
        backend.left = count
        times = time_grid(MAX_NFE, sway=-0.01 * count)
        try:
            lane = engine.open(dataclasses.replace(given, times=times))
        except EngineFault:
            faults += 1
        else:
            break
    backend.left = -1
    assert faults >= 6
    engine.close(lane.id)
    assert np.array_equal(solo(engine, given), wanted)


def test_a_graph_that_cannot_be_loaded_leaves_no_row_behind(make_engine: Make) -> None:
    class Unloadable(Padded):
        def load(self, name: str, *rest: object) -> object:
            if name == "step":
                raise BundleError("step.onnx: damaged")
            return super().load(name, *rest)  # type: ignore[arg-type]

    engine = make_engine(Unloadable(), lanes=1)
    for _ in range(3):  # a row that is left behind would be a RuntimeError
        with pytest.raises(BundleError):
            engine.open(segment(80, sampling="short"))  # its unguided row runs `step`


def test_a_graph_is_loaded_with_the_sizes_that_are_bound(make_engine: Make, short: Bundle) -> None:
    loaded: dict[str, Ranges] = {}

    class Loading(WatchedPadded):
        def load(self, name: str, path: Path, spec: GraphSpec, ranges: Ranges) -> Graph:
            loaded[name] = ranges
            return super().load(name, path, spec, ranges)

    backend = Loading()
    engine = make_engine(backend, changed(short, "short-kv"), lanes=2)
    engine.warm_up(5)
    solo(engine, segment(81, reference=43, nfe=5, sampling="short-kv"))
    for call in backend.runs:
        spec = signatures(short.manifest.dimensions)[call.graph]
        for tensor in (*spec.inputs, *spec.outputs):
            for axis, size in zip(tensor.axes, call.shapes[tensor.name], strict=True):
                if isinstance(axis, str):
                    least, most = loaded[call.graph][axis]
                    assert least <= size <= most, (call, axis)
                if axis == "N" and call.graph.startswith("step"):
                    assert size % 64 == 0
    assert loaded["step_keys"]["N"] == (64, 256) and loaded["condition"]["N"] == (1, 256)


@pytest.mark.parametrize(("sampling", "lanes"), [("exact", 1), ("short", 2), ("short-kv", 2)])
def test_calls_of_two_rows_take_the_rows_of_one_guided_lane_or_of_two(
    make_engine: Make, short: Bundle, sampling: Sampling, lanes: int
) -> None:
    backend = WatchedPadded()
    backend.max_batch = 2
    engine = make_engine(backend, changed(short, sampling), lanes=lanes)
    assert engine.max_batch == lanes
    opened = [engine.open(segment(80, nfe=5, sampling=sampling, seed=n)) for n in range(lanes)]
    backend.runs.clear()
    run(engine, [lane.id for lane in opened], 2)
    steps = [call for call in backend.runs if call.graph.startswith("step")]
    # Rows after a reference run alone.
    after = 0 if sampling == "exact" else 4
    assert sorted(call.shapes["latents"][0] for call in steps) == [1] * after + [2] * 2


@pytest.mark.parametrize("backend", [Watched, WatchedPadded])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_lane_loads_the_graphs_that_it_runs_and_does_so_as_it_opens(
    make_engine: Make, backend: type[Watching], sampling: Sampling
) -> None:
    watched = backend()
    engine = make_engine(watched, lanes=1)
    watched.watch()
    lane = engine.open(segment(80, nfe=5, sampling=sampling))
    loads = list(watched.loads)
    run(engine, [lane.id], 5)
    assert watched.loads == loads
    steps = {call.graph for call in watched.runs} - {"modulation", "condition"}
    assert set(loads) - {"modulation"} == steps
    expected = {"step_keys", "step_reply"} if sampling == "short-kv" else {"step_keys"}
    if watched.frame_multiple > 1:
        expected = {"step"} if sampling == "exact" else expected | {"step"}
    assert steps == expected | {"update"}
