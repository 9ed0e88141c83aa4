"""open · step · finish · close: a lane's result is independent of the lanes that share its calls."""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from appliance.config import EngineConfig
from appliance.contract.bundle import Bundle, Sampling
from appliance.contract.graphs import signatures
from appliance.contract.limits import MAX_NFE
from appliance.contract.schedule import noise, time_grid
from appliance.engine.engine import Synthesizer
from appliance.engine.flow import RELEASE_FRAMES, Flow
from appliance.engine.loading import load_for
from appliance.engine.ort import OrtBackend
from appliance.errors import BundleError, EngineFault
from appliance.request import Segment
from tests.engine.lanes import (
    BATCHED,
    MIXED,
    SAMPLINGS,
    Padded,
    Watched,
    WatchedPadded,
    changed,
    check_a_padded_batch,
    moved,
    relative,
    run,
    segment,
    solo,
    spoken,
    staggered,
)

pytestmark = pytest.mark.once

Make = Callable[..., Synthesizer]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_padded_batch_equals_single_runs(make_engine: Make, sampling: Sampling) -> None:
    check_a_padded_batch(make_engine(Padded(), lanes=3), (60, 333, 1200), make_engine(), sampling)


@pytest.mark.parametrize("multiple", [2, 32, 300, 512])
def test_padding_changes_nothing(short: Bundle, make_engine: Make, multiple: int) -> None:
    backend = Padded()
    backend.frame_multiple = multiple
    check_a_padded_batch(make_engine(backend, short, lanes=3), (60, 143, 256), make_engine())


@pytest.mark.parametrize("backend", [Watched, WatchedPadded])
def test_lanes_that_differ_in_all_share_calls(make_engine: Make, backend: type[Watched]) -> None:
    watched, alone = backend(), make_engine()
    engine = make_engine(watched, lanes=len(MIXED))
    for found, given in zip(staggered(engine, MIXED), MIXED, strict=True):
        assert relative(found, solo(alone, given)) <= BATCHED
    rows = {rows for _, rows, _, _ in watched.steps()}
    assert rows == {1} if watched.frame_multiple == 1 else max(rows) == 4


@pytest.mark.parametrize("backend", [Watched, WatchedPadded])
@pytest.mark.parametrize("sampling", [None, *SAMPLINGS])
@pytest.mark.slow
def test_lanes_that_join_leave_and_are_cancelled_change_nothing_for_the_others(
    short: Bundle, make_engine: Make, backend: type[Watched], sampling: Sampling | None
) -> None:
    """Segments of random lengths and guidance. `sampling` None: any sampling and NFE; otherwise the usual
    ones, which allocate and load nothing and bind no new memory after the warm-up."""
    rng, watched, alone = np.random.default_rng(8), backend(), make_engine()
    engine = make_engine(watched, changed(short, sampling), lanes=4)
    if sampling:
        engine.warm_up(5)
    watched.watch()
    given: dict[int, Segment] = {}
    left: dict[int, int] = {}
    finished = holes = 0
    for n in range(60):
        if len(given) < 4 and rng.random() < 0.7:
            frames, guidance = int(rng.integers(2, 257 if sampling else 90)), float(rng.choice([0.0, 2.0]))
            reference, own = int(rng.integers(1, frames)), sampling or SAMPLINGS[rng.integers(3)]
            nfe = 5 if sampling else int(rng.integers(1, 9))
            new = segment(frames, reference=reference, nfe=nfe, guidance=guidance, sampling=own, seed=n)
            lane = engine.open(new)
            given[lane.id], left[lane.id] = new, lane.steps_left
        members = [i for i in given if left[i] and rng.random() < 0.8]
        if members:
            rng.shuffle(members)
            engine.step(members)
            left.update({i: left[i] - 1 for i in members})
        for lane_id in [i for i in given if not left[i] or rng.random() < 0.05]:
            if not left[lane_id]:
                found = moved(engine, lane_id, given[lane_id])
                assert relative(found, solo(alone, given[lane_id])) <= BATCHED
                engine.finish(lane_id)
                finished += 1
            holes += lane_id != max(given)  # rows of later lanes move
            engine.close(lane_id)
            del given[lane_id], left[lane_id]
    assert finished >= 5 and holes >= 3
    if sampling:
        assert watched.allocated == [] and watched.strangers == [] and watched.loads == []


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_unguided_row_is_not_computed_without_guidance(make_engine: Make, sampling: Sampling) -> None:
    backend = Watched()
    engine = make_engine(backend, lanes=2)
    plain, guided = (engine.open(segment(80, reference=30, guidance=w, sampling=sampling)).id for w in (0, 2))
    conditional, unconditional = [(80, 0)] * 2 if sampling == "exact" else [(50, 30), (50, 0)]
    one, two = [conditional], [conditional, unconditional]
    for ids, rows in (([plain], one), ([guided], two), ([plain, guided], [conditional, *two])):
        backend.watch()
        engine.step(ids)
        assert sorted(run[2:] for run in backend.steps()) == sorted(rows)


@pytest.mark.parametrize("backend", [Watched, WatchedPadded])
def test_rows_run_at_true_length_or_padded_and_share_calls(make_engine: Make, backend: type[Watched]) -> None:
    """Replies of 31, 45 and 80 frames; padded rows that have no reference share a call."""
    watched, sizes = backend(), ((51, 20), (90, 45), (130, 50))
    engine = make_engine(watched, lanes=3)
    ids = [engine.open(segment(n, reference=p, nfe=7, sampling="short-kv")).id for n, p in sizes]
    assert [run.shapes["condition"] for run in watched.counted("condition")] == [(2, n, 64) for n, _ in sizes]
    for graph in ("step_keys", "step_reply", "step_reply", "step_reply", "step_keys", "step_reply"):
        watched.watch()
        engine.step(ids)
        if backend is Watched:
            rows = [(graph, 1, n, p) for n, p in ((31, 20), (45, 45), (80, 50))]
            assert sorted(watched.steps()) == sorted(rows + [("step_keys", 1, n, 0) for n in (31, 45, 80)])
        else:
            rows = [(graph, 1, n, p) for n, p in ((64, 20), (64, 45), (128, 50))]
            assert watched.steps() == [("step", 3, 128, 0), *rows]
        contexts = {run.shapes["context"][1] for run in watched.counted("step_reply")}
        assert contexts == ({20, 30} if graph == "step_reply" else set())


@pytest.mark.parametrize("backend", [Watched, WatchedPadded])
def test_nothing_is_logged_printed_or_allocated_inside_the_step_loop(
    make_engine: Make,
    backend: type[Watched],
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    watched = backend()
    engine = make_engine(watched, lanes=3)
    ids = [engine.open(segment(50 + 9 * i, nfe=32, seed=i)).id for i in range(3)]
    engine.step(ids)
    caplog.set_level(logging.NOTSET)
    logging.getLogger(__name__).debug("seen")
    watched.watch()
    capfd.readouterr()
    run(engine, ids, 31)
    assert watched.allocated == [] and caplog.messages == ["seen"] and capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("frames", "released"), [(RELEASE_FRAMES - 1, False), (RELEASE_FRAMES, True)])
def test_last_calls_of_a_long_segment_free_memory(make_engine: Make, frames: int, released: bool) -> None:
    backend = Watched()
    engine = make_engine(backend, lanes=1)
    lane = engine.open(segment(frames, reference=2, nfe=2, sampling="short"))
    run(engine, [lane.id], 2)
    engine.finish(lane.id)
    steps = [run.release for run in backend.counted("step_keys")]
    assert steps == [False, False, released, released]
    assert [run.release for run in backend.counted("condition", "vocoder")] == [released] * 2


def test_no_guidance_is_the_limit_of_little(engine: Synthesizer) -> None:
    none, little, some = (solo(engine, dataclasses.replace(MIXED[0], guidance=w)) for w in (0.0, 1.1e-5, 0.5))
    assert relative(little, none) <= 1e-4
    assert relative(some, none) > 1e-3


def test_a_graph_is_loaded_with_the_sizes_that_are_bound(make_engine: Make, short: Bundle) -> None:
    backend = WatchedPadded()
    engine = make_engine(backend, changed(short, "short-kv"), lanes=2)
    engine.warm_up(5)
    solo(engine, segment(81, reference=43, nfe=5, sampling="short-kv"))
    for call in backend.runs:
        spec = signatures(short.manifest.dimensions)[call.graph]
        for tensor in (*spec.inputs, *spec.outputs):
            for axis, size in zip(tensor.axes, call.shapes[tensor.name], strict=True):
                if isinstance(axis, str):
                    least, most = backend.ranges[call.graph][axis]
                    assert least <= size <= most, (call, axis)
                if axis == "N" and call.graph.startswith("step"):
                    assert size % 64 == 0
    assert backend.ranges["step_keys"]["N"] == (64, 256) and backend.ranges["condition"]["N"] == (1, 256)


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
    # Rows after a reference never share a call.
    after = 0 if sampling == "exact" else 4
    assert sorted(rows for _, rows, _, _ in backend.steps()) == [1] * after + [2] * 2


@pytest.mark.parametrize("backend", [Watched, WatchedPadded])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_lane_loads_the_graphs_that_it_runs_and_does_so_as_it_opens(
    make_engine: Make, backend: type[Watched], sampling: Sampling
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


def test_the_same_segment_gives_the_same_bits(make_engine: Make) -> None:
    engine = make_engine(lanes=2)
    one = solo(engine, MIXED[0])
    solo(engine, MIXED[1])
    assert np.array_equal(solo(engine, MIXED[0]), one)
    assert np.array_equal(solo(make_engine(), MIXED[0]), one)


def test_noise_that_is_not_given_is_drawn_from_the_seed_when_a_lane_opens(engine: Synthesizer) -> None:
    given = dataclasses.replace(segment(40), seed=7, index=3, noise=noise(7, 3, 40, 100))
    drawn = dataclasses.replace(given, noise=None)
    samples = [spoken(engine, one)[1] for one in (given, drawn, dataclasses.replace(drawn, index=4))]
    assert np.array_equal(samples[1], samples[0]) and not np.array_equal(samples[2], samples[1])
    assert drawn.noise is None


def test_an_engine_proves_itself_or_says_why_not(make_engine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(lanes=1)
    engine.self_test()

    def fail(flow: Flow, lanes: Any, **_: Any) -> None:
        raise EngineFault("the device is lost")

    with monkeypatch.context() as patch:
        patch.setattr(Flow, "step", fail)
        with pytest.raises(EngineFault, match="the device is lost"):
            engine.self_test()
    engine.open(segment(40))  # fails unless the only lane is free


def test_lanes_count_their_steps_and_are_released(make_engine: Make) -> None:
    engine = make_engine(lanes=2)
    one, other = engine.open(segment(80, nfe=3)), engine.open(segment(40))
    assert one.steps_left == 3
    with pytest.raises(RuntimeError, match="all 2 lanes are open"):
        engine.open(segment(40))
    with pytest.raises(ValueError, match=f"lane {one.id} has 3 steps left"):
        engine.finish(one.id)
    run(engine, [one.id], 3)
    before = engine.log_mel(other.id)
    with pytest.raises(ValueError, match=f"lane {one.id} has no step left"):
        engine.step([other.id, one.id])
    for wrong in ([], [other.id] * 2, [other.id, one.id, other.id]):
        with pytest.raises(ValueError, match="one or more different lanes are stepped, not"):
            engine.step(wrong)
    with pytest.raises(KeyError):
        engine.step([other.id, 99])
    assert np.array_equal(engine.log_mel(other.id), before), "a refused step moves no lane"
    engine.finish(one.id)
    engine.close(one.id)
    assert engine.open(segment(40)).id not in (one.id, other.id)
    for gone in (one.id, 99):
        with pytest.raises(KeyError):
            engine.step([gone])
        with pytest.raises(KeyError):
            engine.close(gone)


def test_every_lane_may_have_its_own_times_within_the_table(make_engine: Make) -> None:
    """Three lanes of 64 times each need more rows than the modulation table has; it has room for two."""
    engine, sways = make_engine(lanes=3), iter(np.linspace(-0.9, -0.1, 15).tolist())

    def given() -> Segment:
        return dataclasses.replace(segment(12), times=time_grid(MAX_NFE, sway=next(sways)))

    for _ in range(5):
        lanes = [engine.open(given()).id for _ in range(2)]
        engine.step(lanes)
        for lane_id in lanes:
            engine.close(lane_id)
    one, two, three = given(), given(), given()
    first, second = engine.open(one), engine.open(two)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="all 128 rows of the modulation table are held by open lanes"):
            engine.open(three)
    engine.close(first.id)
    third = engine.open(three)
    for lane, each in ((second, two), (third, three)):
        engine.step([lane.id])
        assert relative(moved(engine, lane.id, each), solo(make_engine(), each, 1)) <= BATCHED


@pytest.mark.parametrize(("change", "message"), [
    ({"frames": 2049}, "2049 frames exceed this bundle's 2048"),
    ({"noise": np.zeros((79, 100), np.float32)}, r"noise must be \(80, 100\), not \(79, 100\)"),
    ({"reference_log_mel": np.zeros((80, 100), np.float32)}, r"must be \(1 to 79, 100\), not \(80, 100\)"),
    ({"reference_log_mel": np.zeros((0, 100), np.float32)}, r"not \(0, 100\)"),
    ({"reference_log_mel": np.zeros((9, 80), np.float32)}, r"not \(9, 80\)"),
    ({"ids": np.zeros(0, np.int32)}, "ids must be one or more indices under 113"),
    ({"ids": np.array([3, 113], np.int32)}, "under 113"),
    ({"ids": np.array([-1], np.int32)}, "under 113"),
    ({"upsample_index": np.zeros(80, np.int32)}, "upsample_index must be absent"),
    ({"times": np.array([0.0])}, "nfe must be between 1 and 64, not 0"),
    ({"times": np.linspace(0, 1, 66)}, "not 65"),
    ({"sampling": "shorter"}, "sampling must be one of exact, short, short-kv, short-once, not 'shorter'"),
])  # fmt: skip
def test_a_segment_that_does_not_fit_is_refused_and_takes_no_lane(
    make_engine: Make, change: dict[str, Any], message: str
) -> None:
    engine = make_engine(lanes=1)
    with pytest.raises(ValueError, match=message):
        engine.open(dataclasses.replace(segment(80), **change))
    engine.open(segment(80))


@pytest.mark.parametrize("index", [[0] * 79, [11] * 80, [-1] * 80])
def test_a_place_of_no_token_is_refused(make_engine: Make, index: list[int]) -> None:
    engine = make_engine(lanes=1)
    arch = dataclasses.replace(engine.manifest.arch, text_embedding_average_upsampling=True)
    engine.manifest = dataclasses.replace(engine.manifest, arch=arch)
    with pytest.raises(ValueError, match="upsample_index must be 80 indices under 11"):
        engine.check(dataclasses.replace(segment(80), upsample_index=np.array(index, np.int32)))


def test_a_text_longer_than_the_segment_is_cut(engine: Synthesizer) -> None:
    given = segment(30)
    long = dataclasses.replace(given, ids=np.arange(100, dtype=np.int32))
    cut = dataclasses.replace(given, ids=np.arange(30, dtype=np.int32))
    assert np.array_equal(solo(engine, long), solo(engine, cut))


def test_warming_up_leaves_no_lane_and_computes_the_grid(make_engine: Make) -> None:
    backend = Watched()
    engine = make_engine(backend, lanes=1)
    engine.warm_up(5)
    shapes = [run.shapes["latents"][1] for run in backend.counted("step_keys")]
    assert shapes[:15] == [128] * 15  # with and without guidance
    assert {80, 160, 300, 560, 1000} <= set(shapes), "what calls cost is measured over sizes"
    backend.watch()
    engine.open(segment(40, nfe=5))  # fails unless the only lane is free
    assert [run.graph for run in backend.runs] == ["condition"] and backend.loads == []


def test_a_host_computes_modulation_and_shutdown_closes_both_and_every_lane(make_engine: Make) -> None:
    host, device, given = Watched(), WatchedPadded(), segment(70)
    engine = make_engine(device, host=host, lanes=1)
    assert relative(solo(engine, given), solo(make_engine(), given)) <= BATCHED
    assert [run.graph for run in host.runs] == ["modulation"] and "modulation" not in device.files
    lane = engine.open(given)
    engine.shutdown()
    with pytest.raises(KeyError):
        engine.close(lane.id)
    make_engine(own := Watched(), lanes=1).shutdown()
    assert (host.closed, device.closed, own.closed) == (1, 1, 1)


def test_a_backend_runs_its_own_variant_unless_another_is_named(make_engine: Make) -> None:
    given, backends = segment(50, nfe=5, sampling="short-kv"), (Watched(), Watched())
    own, masked = backends
    one, other = (
        solo(make_engine(backend, lanes=1, **options), given)
        for backend, options in zip(backends, ({}, {"variant": "default"}), strict=True)
    )
    assert relative(other, one) <= BATCHED
    for name in ("step_keys", "step_reply"):
        assert (own.files[name], masked.files[name]) == (f"{name}_cpu.onnx", f"{name}.onnx")
    assert own.files["vocoder"] == masked.files["vocoder"] == "vocoder.onnx"
    with pytest.raises(BundleError, match="no graph 'condition' in variant 'fast'"):
        make_engine(variant="fast")


def test_a_bundle_for_other_backends_is_refused(tiny: Bundle) -> None:
    """A bundle of an earlier version may name a backend that no longer exists."""

    class Other(OrtBackend):
        name = "elsewhere"

    with pytest.raises(
        BundleError, match="precision fp32 is for ort-cpu, ort-cuda, openvino, tensorrt, not for elsewhere"
    ):
        Synthesizer(tiny, Other(1))
    with pytest.raises(BundleError, match="backend 'elsewhere' is not built in; available: tensorrt, "):
        load_for(tiny, EngineConfig(backend="elsewhere", threads=1, lanes=1))
    engine = load_for(tiny, EngineConfig(backend="ort-cpu", threads=1, lanes=2))
    assert engine.max_lanes == 2
