"""A runtime that fails, and numbers that are not finite: who gets the error. The other lanes go on."""

import dataclasses
import itertools
import threading
from collections.abc import Callable

import numpy as np
import pytest

from appliance.contract.bundle import Sampling
from appliance.contract.graphs import STEPS
from appliance.contract.limits import MAX_NFE
from appliance.contract.schedule import time_grid
from appliance.engine.backend import HostArray, Tensor
from appliance.engine.engine import Synthesizer
from appliance.engine.vocoder import Decoder
from appliance.errors import BundleError, EngineFault, Interrupted
from appliance.request import FloatArray, Segment
from tests.engine.lanes import (
    BATCHED,
    SAMPLINGS,
    Padded,
    Watched,
    WatchedPadded,
    moved,
    relative,
    run,
    segment,
    solo,
)

pytestmark = pytest.mark.once

Make = Callable[..., Synthesizer]
THREE = [
    segment(80, guidance=0.0),
    segment(97, seed=1, sampling="short"),
    segment(64, seed=2, sampling="short-kv"),
]


@pytest.fixture(params=[Watched, WatchedPadded])
def backend(request: pytest.FixtureRequest) -> Watched:
    backend: Watched = request.param()
    return backend


def at(n: int, graphs: tuple[str, ...], act: Callable[[], None]) -> Callable[[str], None]:
    """Hook that acts before the n-th run of these graphs alone."""
    runs = itertools.count(1)

    def before_run(graph: str) -> None:
        if graph in graphs and next(runs) == n:
            act()

    return before_run


def fail() -> None:
    raise EngineFault("out of memory")


@pytest.mark.parametrize("sampling", ["exact", "short-kv"])
def test_an_interrupted_call_can_be_repeated(make_engine: Make, sampling: Sampling) -> None:
    """The interruption comes before the first node or during the run, in each run of a step."""
    backend = Watched()
    engine = make_engine(backend, lanes=1)
    given = segment(1000, nfe=3, sampling=sampling)
    wanted = solo(engine, given)
    lane = engine.open(given)
    for n, concurrently in ((1, False), (2, True), (1, True)):
        thread = threading.Thread(target=engine.interrupt, args=[True])

        def interrupt(thread: threading.Thread = thread, joins: bool = not concurrently) -> None:
            thread.start()
            if joins:
                thread.join()

        backend.before_run = at(n, STEPS, interrupt)
        with pytest.raises(Interrupted):
            engine.step([lane.id])
        thread.join()
        engine.interrupt(False)
    backend.before_run = lambda graph: None
    run(engine, [lane.id], 3)
    np.testing.assert_array_equal(moved(engine, lane.id, given), wanted)


def stepped(engine: Synthesizer, segments: list[Segment]) -> tuple[list[FloatArray], int]:
    """Results of segments that are stepped together, with each failed step repeated; and the number of
    faults."""
    lanes = [engine.open(given) for given in segments]
    ids, faults, done = [lane.id for lane in lanes], 0, 0
    while done < lanes[0].steps_left:
        try:
            engine.step(ids)
            done += 1
        except EngineFault:
            faults += 1
    out = [moved(engine, lane_id, given) for lane_id, given in zip(ids, segments, strict=True)]
    for lane_id in ids:
        engine.close(lane_id)
    return out, faults


@pytest.mark.parametrize(("segments", "graphs"), [
    (THREE, STEPS),
    *(([segment(90, sampling=sampling)], ("update",)) for sampling in SAMPLINGS),
], ids=["steps of three", *(f"updates of {sampling}" for sampling in SAMPLINGS)])  # fmt: skip
def test_after_a_fault_every_lane_steps_on_as_if_nothing_had_been(
    make_engine: Make, backend: Watched, segments: list[Segment], graphs: tuple[str, ...]
) -> None:
    """A fault of the update that moves the reference along its path is no exception."""
    engine = make_engine(backend, lanes=3)
    wanted, _ = stepped(engine, segments)
    runs = len(backend.counted(*graphs))
    if graphs == ("update",):
        assert runs == (5 if segments[0].sampling == "exact" else 10)
    for n in range(1, runs + 1) if runs <= 10 else sorted({1, 2, runs // 3, runs // 2, runs - 1, runs}):
        backend.before_run = at(n, graphs, fail)
        found, faults = stepped(engine, segments)
        assert faults == 1, n
        for one, other in zip(found, wanted, strict=True):
            assert np.array_equal(one, other), n


def test_a_lane_abandoned_after_a_fault_harms_no_other(make_engine: Make, backend: Watched) -> None:
    engine = make_engine(backend, lanes=3)
    wanted = [solo(engine, given) for given in THREE]
    ids = [engine.open(given).id for given in THREE]
    engine.step(ids)
    backend.before_run = at(3, STEPS, fail)
    with pytest.raises(EngineFault, match="out of memory"):
        engine.step(ids)
    engine.close(ids[0])
    run(engine, ids[1:], 4)
    for lane_id, given, want in zip(ids[1:], THREE[1:], wanted[1:], strict=True):
        assert relative(moved(engine, lane_id, given), want) <= BATCHED


class Uploads(Padded):
    """Fails at the n-th upload from now on."""

    left = -1

    def upload(self, array: HostArray, to: Tensor) -> None:
        self.left -= 1
        if self.left == 0:
            raise EngineFault("out of memory")
        super().upload(array, to)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_an_opening_that_fails_leaves_no_row_and_no_hold(make_engine: Make, sampling: Sampling) -> None:
    """Leaked rows, or the leaked 64 times of each attempt, would end a later attempt with RuntimeError."""
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
    for _ in range(3):  # a leaked row would raise RuntimeError
        with pytest.raises(BundleError):
            engine.open(segment(80, sampling="short"))  # its unguided row runs `step`


def test_a_lane_of_nan_fails_alone(either: Synthesizer) -> None:
    healthy = [segment(70, seed=1), segment(90, seed=2)]
    wanted = [solo(either, given) for given in healthy]
    sick = dataclasses.replace(segment(80), noise=np.full((80, 100), np.nan, np.float32))
    ids = [either.open(given).id for given in (healthy[0], sick, healthy[1])]
    run(either, ids, 5)
    with pytest.raises(EngineFault, match="the flow produced"):
        either.finish(ids[1])
    either.close(ids[1])
    for lane_id, given, want in zip((ids[0], ids[2]), healthy, wanted, strict=True):
        assert relative(moved(either, lane_id, given), want) <= BATCHED
        assert np.isfinite(either.finish(lane_id)).all()
        either.close(lane_id)
    assert np.array_equal(solo(either, healthy[0]), wanted[0])


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_row_is_clean_of_the_lane_that_had_its_place(either: Synthesizer, sampling: Sampling) -> None:
    """A masked frame does not count, but a NaN in it would: zero times NaN is NaN."""
    given = segment(30, reference=9, nfe=5, sampling=sampling)
    wanted = solo(either, given)
    sick = dataclasses.replace(
        segment(60, reference=29, nfe=5, sampling=sampling),
        noise=np.full((60, 100), np.nan, np.float32),
        reference_log_mel=np.full((29, 100), np.nan, np.float32),
    )
    lane = either.open(sick)
    run(either, [lane.id], 5)
    either.close(lane.id)
    assert np.array_equal(solo(either, given), wanted)


def test_a_fault_names_the_flow_or_the_vocoder(either: Synthesizer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineFault, match="the vocoder produced"):
        either.decode(np.full((9, 100), np.nan, np.float32))
    for noise, at_fault in ((np.nan, "flow"), (0.0, "vocoder")):
        given = dataclasses.replace(segment(40, nfe=1), noise=np.full((40, 100), noise, np.float32))
        lane = either.open(given)
        either.step([lane.id])
        with monkeypatch.context() as patch:
            patch.setattr(Decoder, "run", lambda *_, **options: np.full(256, np.nan, np.float32))
            with pytest.raises(EngineFault, match=f"the {at_fault} produced numbers that are not finite"):
                either.finish(lane.id)
        if at_fault == "flow":
            with pytest.raises(EngineFault, match="the flow produced"):
                either.log_mel(lane.id)
        else:
            assert np.isfinite(either.finish(lane.id)).all()
        either.close(lane.id)
