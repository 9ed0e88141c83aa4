"""open · step · finish · close: a lane's result is its own, whatever shares its batches."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from appliance.contract.bundle import Bundle
from appliance.contract.schedule import MAX_NFE, time_grid
from appliance.engine.ort import OrtBackend
from appliance.engine.synthesizer import Synthesizer, load
from appliance.errors import BundleError, EngineFault
from appliance.job import FloatArray, Segment
from tests.engine import lanes
from tests.engine.lanes import BATCHED, Bucketed, Watched, moved, relative, segment, solo

Make = Callable[..., Synthesizer]


def run(engine: Synthesizer, ids: list[int], steps: int = 1) -> None:
    for _ in range(steps):
        engine.step(ids)


# Batches


def test_a_padded_batch_equals_single_runs(engine: Synthesizer) -> None:
    lanes.check_a_padded_batch(engine, (60, 333, 2000))


@pytest.mark.parametrize("bucket", [300, 301, 512])
def test_frames_padded_beyond_the_longest_change_nothing(make_engine: Make, bucket: int) -> None:
    padded = make_engine(Bucketed(1), lanes=3, buckets=(bucket,))
    lanes.check_a_padded_batch(padded, (60, 143, 300), make_engine())


def test_an_unused_lane_disturbs_nothing(tiny: Bundle) -> None:
    lanes.check_an_unused_lane(tiny)


MIXED = [
    segment(80, nfe=5, guidance=2.0, seed=1),
    segment(131, nfe=8, guidance=0.0, seed=2),
    segment(97, nfe=7, guidance=0.4, seed=3),
    segment(64, nfe=16, guidance=3.5, seed=4),
]
"""Lanes of different lengths, NFE and guidance; the second runs without."""


def test_lanes_of_different_nfe_guidance_and_progress_share_batches(engine: Synthesizer) -> None:
    wanted = [solo(engine, given) for given in MIXED]
    opened = [engine.open(given) for given in MIXED]
    for ahead, lane in enumerate(opened):  # so that no two are at the same step
        run(engine, [lane.id], ahead)
    left = {lane.id: lane.steps_left - ahead for ahead, lane in enumerate(opened)}
    found: dict[int, FloatArray] = {}
    while left:
        run(engine, list(left))
        left = {lane_id: steps - 1 for lane_id, steps in left.items()}
        for lane_id in [i for i, steps in left.items() if steps == 0]:
            given = MIXED[[lane.id for lane in opened].index(lane_id)]
            found[lane_id] = moved(engine, lane_id, given)
            engine.close(lane_id)
            del left[lane_id]
    for lane, want in zip(opened, wanted, strict=True):
        assert relative(found[lane.id], want) <= BATCHED


def test_without_guidance_the_unguided_row_is_not_computed(make_engine: Make) -> None:
    backend = Watched()
    engine = make_engine(backend, lanes=2)
    plain, guided = engine.open(MIXED[1]), engine.open(MIXED[0])
    engine.step([plain.id])
    assert backend.runs[-1]["condition"][:2] == (1, 1)
    engine.step([plain.id, guided.id])
    assert backend.runs[-1]["condition"][:2] == (2, 2)
    assert backend.runs[-1]["combine"] == (2, 2)
    engine.step([guided.id])
    assert backend.runs[-1]["condition"][:2] == (1, 2)


def test_no_guidance_is_the_limit_of_little(engine: Synthesizer) -> None:
    none, little, some = (solo(engine, dataclasses.replace(MIXED[0], guidance=w)) for w in (0.0, 1.1e-5, 0.5))
    assert relative(little, none) <= 1e-4
    assert relative(some, none) > 1e-3


@pytest.mark.parametrize("seed", range(4))
def test_lanes_that_join_leave_and_are_cancelled_change_nothing_for_the_others(
    make_engine: Make, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    engine, alone = make_engine(lanes=3), make_engine()
    given: dict[int, Segment] = {}
    left: dict[int, int] = {}
    finished = 0
    for n in range(60):
        if len(given) < 3 and rng.random() < 0.4:
            frames, nfe = int(rng.integers(20, 90)), int(rng.integers(1, 9))
            new = segment(frames, nfe=nfe, guidance=float(rng.choice([0.0, 2.0])), seed=n)
            lane = engine.open(new)
            given[lane.id], left[lane.id] = new, lane.steps_left
        members = [i for i in given if left[i] and rng.random() < 0.8]
        if members:
            rng.shuffle(members)
            engine.step(members)
            left.update({i: left[i] - 1 for i in members})
        for lane_id in [i for i in given if not left[i] or rng.random() < 0.05]:
            if not left[lane_id]:
                assert relative(moved(engine, lane_id, given[lane_id]), solo(alone, given[lane_id])) <= (
                    BATCHED
                )
                finished += 1
            engine.close(lane_id)
            del given[lane_id], left[lane_id]
    assert finished >= 5


def test_latents_move_only_when_members_change(make_engine: Make) -> None:
    backend = Watched()
    engine = make_engine(backend, lanes=3)
    ids = [engine.open(segment(50, nfe=16, seed=i)).id for i in range(3)]
    engine.step(ids)
    copied = backend.copies
    run(engine, ids, 5)
    assert backend.copies == copied
    engine.step(ids[:2])
    assert backend.copies > copied


# What happens inside the step loop


@pytest.mark.parametrize("members", [1, 3])
def test_nothing_is_logged_printed_or_allocated_inside_the_step_loop(
    make_engine: Make,
    members: int,
    records: list[logging.LogRecord],
    capfd: pytest.CaptureFixture[str],
) -> None:
    backend = Watched()
    engine = make_engine(backend, lanes=3)
    ids = [engine.open(segment(50 + 9 * i, nfe=32, seed=i)).id for i in range(members)]
    engine.step(ids)
    logging.getLogger(__name__).debug("seen")
    assert [record.msg for record in records] == ["seen"]  # the listener does listen
    before = len(backend.allocated), backend.copies
    capfd.readouterr()
    run(engine, ids, 31)
    assert (len(backend.allocated), backend.copies) == before
    assert len(records) == 1
    assert capfd.readouterr() == ("", "")


def test_the_step_graph_is_given_the_same_memory_again_and_again(
    make_engine: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(lanes=2)
    ids = [engine.open(segment(40, nfe=16, seed=i)).id for i in range(2)]
    engine.step(ids)
    seen: list[set[int]] = []
    graph = engine._flow._graph
    monkeypatch.setattr(engine._flow, "_graph", Spy(graph, seen))
    run(engine, ids, 8)
    assert all(addresses == seen[0] for addresses in seen)
    assert len(seen) == 8


class Spy:
    """Notes where the memory lies that a graph is run on."""

    def __init__(self, graph: Any, seen: list[set[int]]) -> None:
        self._graph, self._seen = graph, seen

    def run(self, inputs: Any, outputs: Any) -> None:
        self._seen.append({array.ctypes.data for array in (*inputs.values(), *outputs.values())})
        self._graph.run(inputs, outputs)


# Faults


def test_a_lane_of_nan_fails_alone(engine: Synthesizer) -> None:
    healthy = [segment(70, seed=1), segment(90, seed=2)]
    wanted = [solo(engine, given) for given in healthy]
    noise = np.full((80, 100), np.nan, np.float32)
    sick = dataclasses.replace(segment(80), noise=noise)
    ids = [engine.open(given).id for given in (healthy[0], sick, healthy[1])]
    run(engine, ids, 5)
    with pytest.raises(EngineFault, match="not finite"):
        engine.finish(ids[1])
    engine.close(ids[1])
    for lane_id, given, want in zip((ids[0], ids[2]), healthy, wanted, strict=True):
        assert relative(moved(engine, lane_id, given), want) <= BATCHED
        assert np.isfinite(engine.finish(lane_id)).all()
        engine.close(lane_id)
    assert np.array_equal(solo(engine, healthy[0]), wanted[0])


def test_a_sick_lane_that_is_finished_late_costs_the_others_no_step(engine: Synthesizer) -> None:
    healthy = segment(70, seed=1)
    wanted = solo(engine, healthy)
    sick = dataclasses.replace(segment(80, nfe=1), noise=np.full((80, 100), np.inf, np.float32))
    ids = [engine.open(given).id for given in (healthy, sick)]
    run(engine, ids)
    run(engine, ids[:1], 3)
    with pytest.raises(EngineFault, match="not finite"):
        engine.finish(ids[1])
    engine.close(ids[1])
    run(engine, ids[:1])
    assert relative(moved(engine, ids[0], healthy), wanted) <= BATCHED


class Failing:
    """A step graph whose runtime gives up."""

    def run(self, *_: object) -> None:
        raise EngineFault("ONNX Runtime: out of memory")


def test_a_batch_that_fails_is_lost_and_says_so(engine: Synthesizer, monkeypatch: pytest.MonkeyPatch) -> None:
    bystander = segment(60, seed=9)
    wanted = solo(engine, bystander)
    ids = [engine.open(segment(70, seed=i)).id for i in range(2)]
    other = engine.open(bystander).id
    run(engine, [other], 2)
    run(engine, ids, 2)
    with monkeypatch.context() as patch:
        patch.setattr(engine._flow, "_graph", Failing())
        with pytest.raises(EngineFault, match="out of memory"):
            engine.step(ids)
    for lane_id in ids:  # two steps would be missing from what they hold
        with pytest.raises(EngineFault, match=f"lane {lane_id} was lost"):
            engine.step([lane_id])
        with pytest.raises(EngineFault, match=f"lane {lane_id} was lost"):
            engine.log_mel(lane_id)
        engine.close(lane_id)
    run(engine, [other], 3)
    assert relative(moved(engine, other, bystander), wanted) <= BATCHED


def test_a_condition_that_fails_takes_no_lane(make_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(lanes=1)
    with monkeypatch.context() as patch:
        patch.setattr(engine._condition, "_graph", Failing())
        for _ in range(3):
            with pytest.raises(EngineFault):
                engine.open(segment())
    assert solo(engine, segment()).shape == (54, 100)


def test_samples_that_are_not_finite_are_a_fault(engine: Synthesizer) -> None:
    with pytest.raises(EngineFault, match="the vocoder produced"):
        engine.decode(np.full((9, 100), np.nan, np.float32))


# Lanes, buckets, limits


def test_the_same_segment_gives_the_same_bits(make_engine: Make) -> None:
    engine = make_engine(lanes=2)
    one = solo(engine, MIXED[0])
    solo(engine, MIXED[1])
    assert np.array_equal(solo(engine, MIXED[0]), one)
    assert np.array_equal(solo(make_engine(), MIXED[0]), one)


def test_a_lane_counts_its_steps(engine: Synthesizer) -> None:
    lane = engine.open(segment(80, nfe=3))
    assert (lane.bucket, lane.steps_left) == (256, 3)
    with pytest.raises(ValueError, match=f"lane {lane.id} has 3 steps left"):
        engine.finish(lane.id)
    run(engine, [lane.id], 3)
    with pytest.raises(ValueError, match=f"lane {lane.id} has no step left"):
        engine.step([lane.id])
    engine.finish(lane.id)


def test_finish_gives_what_follows_the_reference_at_its_level(engine: Synthesizer) -> None:
    given = segment(80, reference=31, gain=0.25)
    lane = engine.open(given)
    run(engine, [lane.id], lane.steps_left)
    samples = engine.finish(lane.id)
    mel = engine.log_mel(lane.id)
    assert np.array_equal(mel[:31], given.reference_log_mel)
    assert samples.shape == ((80 - 30 - 1) * 256,) and samples.dtype == np.float32
    assert np.array_equal(samples, engine.decode(mel[30:]) * np.float32(0.25))


def test_lanes_are_given_back(make_engine: Make) -> None:
    engine = make_engine(lanes=2)
    ids = [engine.open(segment(40)).id for _ in range(2)]
    with pytest.raises(RuntimeError, match="all 2 lanes are open"):
        engine.open(segment(40))
    engine.close(ids[0])
    third = engine.open(segment(40)).id
    assert third not in ids
    for gone in (ids[0], 99):
        with pytest.raises(KeyError):
            engine.step([gone])
        with pytest.raises(KeyError):
            engine.close(gone)


def test_every_lane_may_have_times_of_its_own(make_engine: Make) -> None:
    """The table of modulation rows is as large as its worst case."""
    engine = make_engine(lanes=2)
    for n in range(6):
        given = [
            dataclasses.replace(segment(12, nfe=MAX_NFE), times=time_grid(MAX_NFE, sway=-0.01 * (2 * n + i)))
            for i in range(2)
        ]
        ids = [engine.open(one).id for one in given]
        engine.step(ids)
        for lane_id in ids:
            engine.close(lane_id)


def test_a_batch_is_not_larger_than_the_engine(make_engine: Make) -> None:
    engine = make_engine(lanes=2)
    ids = [engine.open(segment(30)).id for _ in range(2)]
    with pytest.raises(ValueError, match="a batch holds 1 to 2 lanes of this bundle, not 0"):
        engine.step([])
    with pytest.raises(ValueError, match="not 3"):
        engine.step([*ids, ids[0]])


def test_a_lane_cannot_sit_in_a_batch_twice(make_engine: Make) -> None:
    engine = make_engine(lanes=2)
    lane = engine.open(segment(30))
    with pytest.raises(ValueError, match="twice"):
        engine.step([lane.id, lane.id])


def test_buckets_end_at_what_the_bundle_holds(make_engine: Make) -> None:
    engine = make_engine(buckets=(300, 100, 9000))
    assert engine.buckets == (100, 300, 2048)
    assert [engine.bucket(n) for n in (1, 100, 101, 300, 301, 2048)] == [100, 100, 300, 300, 2048, 2048]
    with pytest.raises(ValueError, match="2049 frames exceed this bundle's 2048"):
        engine.bucket(2049)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frames": 2049}, "2049 frames exceed this bundle's 2048"),
        ({"noise": np.zeros((79, 100), np.float32)}, r"noise must be \(80, 100\), not \(79, 100\)"),
        ({"reference_log_mel": np.zeros((80, 100), np.float32)}, r"under 80, 100\), not \(80, 100\)"),
        ({"reference_log_mel": np.zeros((9, 80), np.float32)}, r"not \(9, 80\)"),
        ({"ids": np.zeros(0, np.int32)}, "ids must be one or more indices under 113"),
        ({"ids": np.array([3, 113], np.int32)}, "under 113"),
        ({"ids": np.array([-1], np.int32)}, "under 113"),
        ({"times": np.array([0.0])}, "nfe must be between 1 and 64, not 0"),
        ({"times": np.linspace(0, 1, 66)}, "not 65"),
    ],
)
def test_a_segment_that_does_not_fit_is_refused_and_takes_no_lane(
    make_engine: Make, change: dict[str, Any], message: str
) -> None:
    engine = make_engine(lanes=1)
    with pytest.raises(ValueError, match=message):
        engine.open(dataclasses.replace(segment(80), **change))
    engine.open(segment(80))


def test_a_text_longer_than_the_segment_is_cut(engine: Synthesizer) -> None:
    given = segment(30)
    long = dataclasses.replace(given, ids=np.arange(100, dtype=np.int32))
    cut = dataclasses.replace(given, ids=np.arange(30, dtype=np.int32))
    assert np.array_equal(solo(engine, long), solo(engine, cut))


def test_warming_up_leaves_no_lane_and_computes_the_grid(make_engine: Make) -> None:
    backend = Watched()
    engine = make_engine(backend, lanes=1)
    engine.warm_up(5)
    shapes = [run["condition"][:3] for run in backend.runs if "condition" in run]
    assert shapes == 5 * [(1, 2, 128)] + 5 * [(1, 1, 128)]
    backend.runs.clear()
    engine.open(segment(40, nfe=5))
    assert [sorted(run) for run in backend.runs] == [["ids", "log_mel"]]  # the modulation was not run


def test_warming_up_a_runtime_of_fixed_shapes_meets_every_bucket(make_engine: Make) -> None:
    engine = make_engine(Bucketed(1), lanes=1, buckets=(32, 64))
    seen: list[set[int]] = []
    engine._flow._graph = Spy(engine._flow._graph, seen)
    engine.warm_up(1)
    assert len(seen) == 2 * 3  # 32, 64 and the bundle's own 2048, guided and not


def test_shutdown_closes_every_lane(make_engine: Make) -> None:
    closed: list[str] = []

    class Backend(OrtBackend):
        def close(self) -> None:
            closed.append(self.name)

    engine = make_engine(Backend(1), lanes=2)
    engine.open(segment(20))
    engine.shutdown()
    assert closed == ["ort-cpu"] and not engine._lanes


def test_a_bundle_for_other_backends_is_refused(tiny: Bundle) -> None:
    class Other(OrtBackend):
        name = "elsewhere"

    with pytest.raises(BundleError, match="precision fp32 is for ort-cpu, tensorrt, not for elsewhere"):
        Synthesizer(tiny, Other(1))
    with pytest.raises(BundleError, match="backend 'elsewhere' is not built in; available: ort-cpu"):
        load(tiny, backend="elsewhere", threads=1, lanes=1, buckets=())
    engine = load(tiny, backend="ort-cpu", threads=1, lanes=2, buckets=(64,))
    assert (engine.max_lanes, engine.buckets) == (2, (64, 2048))


def test_a_bundle_whose_batches_vary_runs_one_lane_at_a_time(tiny: Bundle) -> None:
    varying = dataclasses.replace(tiny.manifest, batch_invariant=False)
    engine = Synthesizer(dataclasses.replace(tiny, manifest=varying), OrtBackend(1), lanes=3)
    ids = [engine.open(segment(30)).id for _ in range(2)]
    with pytest.raises(ValueError, match="1 to 1 lanes"):
        engine.step(ids)
    engine.step(ids[:1])
