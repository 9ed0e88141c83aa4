"""TensorRT on a fake device: lanes, alignment, the cache of engines, and what is missing or wrong."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance import durable
from appliance.config import EngineConfig
from appliance.contract.bundle import Bundle, Sampling
from appliance.contract.graphs import Dimensions, signatures
from appliance.engine import engine as synthesizer
from appliance.engine.engine import Synthesizer, ranges
from appliance.engine.loading import load_for, open_backend
from appliance.engine.ort import OrtBackend
from appliance.engine.tensorrt import build
from appliance.engine.tensorrt import trt as trt_backend
from appliance.engine.tensorrt.build import EngineSource, profiles_of
from appliance.engine.tensorrt.trt import TrtBackend
from appliance.errors import ApplianceError, BundleError, EngineFault, StorageError
from tests.engine.lanes import (
    BATCHED,
    MIXED,
    SAMPLINGS,
    check_a_device_that_fails,
    check_a_request_on_a_device,
    moved,
    relative,
    segment,
    solo,
    staggered,
)
from tests.fakes.gpu import installed, open_trt_on, tensorrt
from tests.fakes.gpu.cudart import Runtime, cudaError_t
from tests.fakes.gpu.device import Device
from tests.fakes.gpu.tensorrt import TensorRT
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.once]


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def engines(tmp_path: Path) -> Path:
    return tmp_path / "engines"


def engine_on(tiny: Bundle, backend: TrtBackend, lanes: int = 2) -> Synthesizer:
    return Synthesizer(tiny, backend, host=OrtBackend(1), lanes=lanes)


# Requests


@pytest.mark.parametrize("max_batch", [2, 4])
@pytest.mark.parametrize("captures", [False, True])
def test_lanes_of_different_sampling_nfe_guidance_and_progress_equal_themselves_alone(
    tiny: Bundle, device: Device, engines: Path, max_batch: int, captures: bool
) -> None:
    alone = Synthesizer(tiny, OrtBackend(1))
    engine = engine_on(tiny, open_trt_on(device, engines, max_batch), lanes=len(MIXED))
    engine.captures = captures
    for found, given in zip(staggered(engine, MIXED), MIXED, strict=True):
        assert relative(found, solo(alone, given)) <= BATCHED
    engine.shutdown()
    assert not device.wrong


def test_a_reply_is_the_cpus(tiny: Bundle, device: Device, engines: Path) -> None:
    engine = engine_on(tiny, open_trt_on(device, engines))
    given = segment(120, nfe=3, sampling="short-kv")
    spoken = []
    for one in (engine, Synthesizer(tiny, OrtBackend(1))):
        lane = one.open(given)
        for _ in range(3):
            one.step([lane.id])
        spoken.append(one.finish(lane.id))
    assert relative(*spoken) <= BATCHED


def test_a_request_after_the_warm_up_allocates_nothing_and_waits_once_a_call(
    short: Bundle, device: Device, engines: Path
) -> None:
    engine = engine_on(short, open_trt_on(device, engines))
    check_a_request_on_a_device(engine, device, nfe=2)


def test_contexts_are_one_per_profile_and_share_their_working_memory(
    tiny: Bundle, device: Device, engines: Path
) -> None:
    engine = engine_on(tiny, open_trt_on(device, engines))
    engine.captures = True
    for given in (segment(60, nfe=7), segment(100, nfe=7, guidance=0.0), segment(700, nfe=7)):
        solo(engine, given)
    profiles = 3 + 3  # ranges of `step`; condition, vocoder and update
    assert device.counts["context"] == profiles
    assert len(device.workspaces) == profiles and len({*device.workspaces.values()}) == 1


@pytest.mark.parametrize(
    ("longest", "ends"), [(4096, (512, 1280, 4096)), (1280, (512, 1280)), (700, (512, 704)), (300, (320,))]
)
def test_a_step_graph_has_a_profile_for_each_range_of_lengths(
    tiny: Bundle, device: Device, engines: Path, longest: int, ends: tuple[int, ...]
) -> None:
    manifest = replace(tiny.manifest, max_frames=longest)
    backend = open_trt_on(device, engines)
    for graph, rows in (("step", 2), ("step_keys", 1), ("step_reply", 1)):
        spec = signatures(manifest.dimensions)[graph]
        profiles = build.profiles_of(spec, ranges(graph, manifest, backend))
        assert [p.axes["N"] for p in profiles] == [
            (least, end, end) for least, end in zip((64, *(e + 64 for e in ends)), ends, strict=False)
        ]
        assert {p.axes["R"] for p in profiles} == {(1, rows, rows)}
        for frames in range(64, ends[-1] + 1, 64):
            sizes = {axis: most for axis, (_, _, most) in profiles[0].axes.items()} | {"N": frames}
            assert sum(profile.holds(sizes) for profile in profiles) == 1


def test_a_device_that_fails_ends_the_call_by_name(tiny: Bundle, device: Device, engines: Path) -> None:
    backend = open_trt_on(device, engines)
    check_a_device_that_fails(engine_on(tiny, backend), device, backend.stream)


# CUDA graphs


def counted(device: Device, *names: str) -> tuple[int, ...]:
    """Counts since the last call."""
    found = tuple(device.counts[name] for name in names)
    device.counts.clear()
    return found


@pytest.mark.parametrize("captures", [True, False])
def test_a_step_runs_twice_then_is_captured_and_replayed(
    tiny: Bundle, device: Device, engines: Path, captures: bool
) -> None:
    engine = engine_on(tiny, open_trt_on(device, engines))
    engine.captures = captures
    lane = engine.open(segment(90, nfe=7))
    device.counts.clear()
    # Of each step the lane's update runs too, which is never captured.
    wanted = [(2, 0, 0), (2, 0, 0), (1, 1, 1), (1, 0, 1), (1, 0, 1), (1, 0, 1), (1, 0, 1)]
    for counts in wanted if captures else [(2, 0, 0)] * 7:
        engine.step([lane.id])
        assert counted(device, "run", "capture", "replay") == counts
    engine.close(lane.id)
    few = engine.open(segment(90, nfe=5))  # of the same lane's memory, but no longer worth it
    for _ in range(5):
        engine.step([few.id])
    assert counted(device, "capture") == (0,)
    engine.shutdown()
    assert not device.wrong and not device.executable and not device.graphs


def test_a_reply_of_four_steps_is_captured_if_the_one_before_was_as_long(
    tiny: Bundle, device: Device, engines: Path
) -> None:
    """As a distilled model's are. Its padded lengths are 128, 128, 192 and 192 frames."""
    engine = engine_on(tiny, open_trt_on(device, engines))
    engine.captures = True
    for frames, captures in ((90, 0), (95, 1), (150, 0), (140, 1)):
        lane = engine.open(segment(frames, nfe=4))
        device.counts.clear()
        for _ in range(4):
            engine.step([lane.id])
        engine.close(lane.id)
        assert counted(device, "capture", "replay") == (captures, 4 * captures)


@pytest.mark.parametrize(("bound_s", "captures"), [(0.0, False), (1e9, True)])
def test_launches_are_captured_where_steps_are_short(
    short: Bundle,
    device: Device,
    engines: Path,
    monkeypatch: pytest.MonkeyPatch,
    bound_s: float,
    captures: bool,
) -> None:
    monkeypatch.setattr(synthesizer, "LAUNCH_BOUND_S", bound_s)
    engine = engine_on(short, open_trt_on(device, engines))
    engine.warm_up(7)
    assert not device.counts["capture"]
    solo(engine, segment(90, nfe=7))
    assert bool(device.counts["capture"]) == captures


def test_lanes_of_other_sizes_end_what_was_captured(tiny: Bundle, device: Device, engines: Path) -> None:
    """A context whose shapes change voids its graphs; lanes in turns launch their kernels one by one."""
    engine, alone = engine_on(tiny, open_trt_on(device, engines), lanes=2), Synthesizer(tiny, OrtBackend(1))
    engine.captures = True
    given = [segment(90, nfe=16, seed=1), segment(140, nfe=16, seed=2)]
    lanes = [engine.open(one) for one in given]
    for _ in range(4):
        engine.step([lanes[0].id])
    assert len(device.executable) == 1
    for _ in range(12):
        for lane in reversed(lanes):
            engine.step([lane.id])
    assert device.counts["capture"] == 1 and not device.executable
    for _ in range(4):
        engine.step([lanes[1].id])
    for lane, one in zip(lanes, given, strict=True):
        assert relative(moved(engine, lane.id, one), solo(alone, one)) <= BATCHED
    engine.shutdown()
    assert not device.wrong and not device.executable and not device.graphs


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_storm_after_the_warm_up_takes_no_memory(
    short: Bundle, device: Device, engines: Path, sampling: Sampling
) -> None:
    """Six lanes that join, step in any order and leave: one wait a call, each step graph one launch."""
    defaults = replace(short.manifest.defaults, sampling=sampling)
    bundle = replace(short, manifest=replace(short.manifest, defaults=defaults))
    engine = engine_on(bundle, open_trt_on(device, engines), lanes=6)
    engine.warm_up(4)
    engine.captures = True
    rng = np.random.default_rng(4)
    left: dict[int, int] = {}
    graphs = 1 if sampling == "exact" else 2
    updates = 1 if sampling == "exact" else 2
    for number in range(60):
        if len(left) < 6:
            given = segment(int(rng.integers(20, 250)), nfe=12, seed=number, sampling=sampling)
            lane = engine.open(given)
            left[lane.id] = lane.steps_left
        device.counts.clear()
        stepped = int(rng.choice(list(left)))
        for _ in range(min(left[stepped], int(rng.choice([1, 5])))):
            engine.step([stepped])
            left[stepped] -= 1
            counts = dict(device.counts)
            device.counts.clear()
            assert counts.pop("replay", 0) + counts.pop("run", 0) == graphs + updates
            assert counts.pop("synchronise") == 1
            assert counts.pop("HostToDevice") == graphs + updates
            assert set(counts) <= {"DeviceToDevice", "event", "capture"}
        if not left[stepped]:
            engine.finish(stepped)
        if not left[stepped] or rng.random() < 0.05:
            engine.close(stepped)
            del left[stepped]
    engine.shutdown()
    assert not device.wrong


def test_working_memory_that_moves_ends_what_was_captured_in_it(
    tiny: Bundle, device: Device, engines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = open_trt_on(device, engines)
    engine, alone = engine_on(tiny, backend), Synthesizer(tiny, OrtBackend(1))
    engine.captures = True
    given = segment(90, nfe=12)
    lane = engine.open(given)
    for _ in range(4):
        engine.step([lane.id])
    [before] = device.executable
    monkeypatch.setattr(tensorrt.Engine, "device_memory_size_v2", property(lambda _: 1 << 24))
    loaded(backend, tiny)
    assert not device.executable
    device.counts.clear()
    found = []
    for _ in range(4):
        engine.step([lane.id])
        found.append(counted(device, "run", "capture", "replay"))
    assert found == [(2, 0, 0), (2, 0, 0), (1, 1, 1), (1, 0, 1)]
    assert [*device.executable] != [before]
    for _ in range(4):
        engine.step([lane.id])
    assert relative(moved(engine, lane.id, given), solo(alone, given)) <= BATCHED
    engine.shutdown()
    assert not device.wrong


def cannot_be_captured(trt: TensorRT) -> None:
    trt.uncapturable = {"step"}


def no_memory_for_the_graph(trt: TensorRT) -> None:
    trt.device.can_instantiate = False


UNCAPTURED = {
    cannot_be_captured: r"TensorRT: step: cannot be run: step: not permitted when stream is capturing",
    no_memory_for_the_graph: r"CUDA: cudaGraphInstantiate: cudaErrorMemoryAllocation: .*",
}


@pytest.mark.parametrize("spoil", UNCAPTURED)
def test_a_step_that_cannot_be_captured_runs_and_says_so_once(
    tiny: Bundle, device: Device, engines: Path, caplog: Any, spoil: Callable[[TensorRT], None]
) -> None:
    trt = TensorRT(device)
    backend = open_trt_on(device, engines, trt=trt)
    spoil(trt)
    engine, alone = engine_on(tiny, backend), Synthesizer(tiny, OrtBackend(1))
    engine.captures = True
    for frames in (50, 110):
        given = segment(frames, nfe=7)
        assert relative(solo(engine, given), solo(alone, given)) <= BATCHED
    assert not device.counts["replay"] and not device.executable and not device.graphs
    warnings = [r.getMessage() for r in caplog.records if r.name == trt_backend.__name__]
    assert len(warnings) == 1
    message = f"^step launches its kernels one by one, it cannot be captured: {UNCAPTURED[spoil]}$"
    assert re.match(message, warnings[0])
    engine.shutdown()
    assert not device.wrong


# Bindings


def bound(backend: TrtBackend, tiny: Bundle, **other: Any) -> Any:
    """A binding of `update` for 40 frames, some of its tensors others."""
    graph = loaded(backend, tiny)
    names = ("latents", "guided", "unguided", "latents_out")
    tensors = {name: backend.empty((40, 100), "float32") for name in names}
    tensors |= {"weights": backend.empty((2,), "float32"), **other}
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    return graph.bind(tensors, {"latents_out": tensors.pop("latents_out")})


def loaded(backend: TrtBackend, tiny: Bundle, name: str = "update", frames: int = 128) -> Any:
    spec = signatures(tiny.manifest.dimensions)[name]
    return backend.load(name, tiny.graph(name), spec, {"N": (1, frames)})


@pytest.mark.parametrize(
    ("name", "make", "message"),
    [
        ("weights", lambda b: None, "missing or unknown inputs: weights"),
        ("sigma", lambda b: b.empty((2,), "float32"), "missing or unknown inputs: sigma"),
        ("weights", lambda b: b.empty((2,), "float16"), r"weights: float16 \(2,\) is not float32 \(2,\)"),
        ("weights", lambda b: b.empty((3,), "float32"), "weights: 2 is 3, not 2"),
        ("guided", lambda b: b.empty((40, 1, 100), "float32"), r"guided: float32 \(40, 1, 100\) is not"),
        ("guided", lambda b: b.empty((41, 100), "float32"), "guided: N is 41, not 40"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(
    tiny: Bundle, device: Device, engines: Path, name: str, make: Callable[[TrtBackend], Any], message: str
) -> None:
    backend = open_trt_on(device, engines)
    with pytest.raises(EngineFault, match=f"^TensorRT: update: {message}"):
        bound(backend, tiny, **{name: make(backend)})


def test_sizes_that_no_profile_holds_are_refused(tiny: Bundle, device: Device, engines: Path) -> None:
    backend = open_trt_on(device, engines)
    loaded(backend, tiny, frames=39)
    tensors = {n: backend.empty((40, 100), "float32") for n in ("latents", "guided", "unguided")}
    tensors["weights"] = backend.empty((2,), "float32")
    graph = loaded(backend, tiny, frames=39)
    with pytest.raises(EngineFault, match=r"update: no profile holds \{'N': 40\}$"):
        graph.bind(tensors, {"latents_out": backend.empty((40, 100), "float32")})


def test_a_run_that_tensorrt_refuses_is_a_fault_with_its_reason(
    tiny: Bundle, device: Device, engines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(context: tensorrt.Context, *_: Any) -> bool:
        context.engine.log.log(tensorrt.ILogger.ERROR, "out of\nmemory")
        return False

    binding = bound(open_trt_on(device, engines), tiny)
    for method in ("execute_async_v3", "set_tensor_address", "set_input_shape"):
        monkeypatch.setattr(tensorrt.Context, method, refuse)
        with pytest.raises(EngineFault, match=r"^TensorRT: update: .*: out of memory; lower engine"):
            binding.run()


# The cache of engines


def builds(
    device: Device, tiny: Bundle, engines: Path, trt: TensorRT | None = None, frames: int = 128
) -> int:
    """How many engines are built to load the vocoder."""
    device.counts.clear()
    backend = open_trt_on(device, engines, trt=trt)
    loaded(backend, tiny, "vocoder", frames)
    backend.close()
    return device.counts["build"]


def test_an_engine_is_built_once(tiny: Bundle, device: Device, engines: Path) -> None:
    assert builds(device, tiny, engines) == 1
    assert [builds(device, tiny, engines) for _ in range(2)] == [0, 0]
    again = Device()
    assert builds(again, tiny, engines) == 0
    assert sorted(path.suffix for path in engines.iterdir()) == [".engine", ".timing"]


def other_weights(path: Path) -> None:
    data = bytearray(path.with_name(f"{path.name}.data").read_bytes())
    data[len(data) // 2] ^= 1
    path.with_name(f"{path.name}.data").write_bytes(data)


def other_graph(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\x32\x01x")  # the model's doc_string


CHANGES: dict[str, Callable[[Device, Path], Any]] = {
    "version": lambda device, _: {"trt": TensorRT(device, "10.16.1")},
    "driver": lambda device, _: setattr(device, "driver", 12080),
    "capability": lambda device, _: setattr(device, "compute_capability", (8, 6)),
    "device": lambda device, _: setattr(device, "name", "Thor"),
    "multiprocessors": lambda device, _: setattr(device, "multiprocessors", 8),
    "profiles": lambda device, _: {"frames": 256},
    "graph": lambda _, path: other_graph(path),
    "weights": lambda _, path: other_weights(path),
}
"""On another device, or of another graph; returns other options of `builds`."""


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_the_engine_is_built_anew(
    tiny: Bundle, device: Device, engines: Path, tmp_path: Path, change: str
) -> None:
    own = replace(tiny, folder=shutil.copytree(tiny.folder, tmp_path / "bundle"))
    assert builds(device, own, engines) == 1
    other = Device()
    options = CHANGES[change](other, own.graph("vocoder")) or {}
    assert builds(other, own, engines, **options) == 1
    assert builds(other, own, engines, **options) == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
        lambda data: data.replace(b"Orin", b"Thor", 1),
        lambda data: b"\xff" + data,
    ],
)
def test_a_damaged_engine_is_built_anew(
    tiny: Bundle, device: Device, engines: Path, damage: Callable[[bytes], bytes], caplog: Any
) -> None:
    builds(device, tiny, engines)
    [kept] = engines.glob("*.engine")
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))
    assert builds(device, tiny, engines) == 1
    assert kept.read_bytes() == whole
    assert f"{kept}: damaged; the engine is built anew" in caplog.text


def test_what_a_build_has_measured_serves_the_next(tiny: Bundle, device: Device, engines: Path) -> None:
    builds(device, tiny, engines)
    [timing] = engines.glob("*.timing")
    for kept, measured in ((timing.read_bytes(), 0), (b"half", 1)):
        for path in engines.glob("*.engine"):
            path.unlink()
        timing.write_bytes(kept)
        assert builds(device, tiny, engines) == 1
        assert device.counts["timed"] == measured


def test_what_a_build_that_fails_has_measured_serves_the_next(
    tiny: Bundle, device: Device, engines: Path
) -> None:
    trt = TensorRT(device)
    trt.refused = {"vocoder"}
    with pytest.raises(BundleError):
        builds(device, tiny, engines, trt)
    assert [path.suffix for path in engines.iterdir()] == [".timing"]
    assert builds(device, tiny, engines) == 1
    assert device.counts["timed"] == 0


def test_a_silent_build_is_alive(
    tiny: Bundle, device: Device, engines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each report differs from the one before, which is what keeps systemd from ending the start."""
    monkeypatch.setattr(build, "REPORT_S", 0.01)
    lines: list[str] = []
    grown = threading.Condition()

    def report(line: str) -> None:
        with grown:
            lines.append(line)
            grown.notify_all()

    def wait() -> None:
        with grown:
            assert grown.wait_for(lambda: len({*lines}) >= 4, PATIENCE_S)

    trt = TensorRT(device)
    trt.before_build = wait
    with installed(device, trt):
        backend = TrtBackend(engines, report=report)
    loaded(backend, tiny, "vocoder")
    during = [line for line in dict.fromkeys(lines) if "for" in line and "s" in line]
    assert "building the engine of vocoder: Building 1 of 2, for 0 s" in during
    assert "building the engine of vocoder: Building 1 of 2, for 1 s" in during


def test_an_early_tensorrt_gets_an_engine_for_each_profile(
    tiny: Bundle, device: Device, engines: Path
) -> None:
    """TensorRT 10.3, with an accuracy defect of engines with several profiles, beside 10.8, without."""
    spec = signatures(tiny.manifest.dimensions)["step"]
    for version, count in (("10.3.0", 2), ("10.8.0", 1)):
        device.counts.clear()
        backend = open_trt_on(device, engines / version, trt=TensorRT(device, version))
        shapes = ranges("step", replace(tiny.manifest, max_frames=1024), backend)
        source = EngineSource(tiny.graph("step"), spec, profiles_of(spec, shapes))
        assert backend.cache.size(source) == 0
        backend.load("step", source.path, spec, shapes)
        kept = [*(engines / version).glob("*.engine")]
        assert len(source.profiles) == 2 and device.counts["build"] == len(kept) == count
        assert backend.cache.size(source) == sum(path.stat().st_size for path in kept)
        assert len({*backend.cache.digests(source)}) == count
        assert backend.attentions == {"step": [2 // count] * count}
        kept[0].unlink()
        assert backend.cache.size(source) == 0 and backend.cache.digests(source).count("") == 1
        device.counts.clear()
        backend.load("step", source.path, spec, shapes)
        assert device.counts["build"] == 1
        backend.close()
    assert not device.wrong


def test_two_that_need_one_engine_build_it_once(
    tiny: Bundle, device: Device, engines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first builds while the second waits for the lock."""
    at_the_lock: list[Path] = []
    second_waits = threading.Event()

    def locked(folder: Path) -> Any:
        at_the_lock.append(folder)
        if len(at_the_lock) == 2:
            second_waits.set()
        return durable.locked(folder)

    monkeypatch.setattr(build, "locked", locked)
    trt = TensorRT(device)
    trt.before_build = lambda: bool(second_waits.wait(PATIENCE_S))
    backends = [open_trt_on(device, engines, trt=trt) for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        graphs = list(threads.map(lambda backend: loaded(backend, tiny), backends))
    assert len(graphs) == 2 and len(at_the_lock) == 2
    assert device.counts["build"] == 1


KILLED = """
import os, signal, sys
from pathlib import Path
from appliance.contract import bundle
from tests.engine.tensorrt.test_trt import builds
from tests.fakes.gpu.device import Device

what, count = sys.argv[1], int(sys.argv[2])
real, calls = getattr(os, what), 0
def call(*arguments):
    global calls
    calls += 1
    if calls == count:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)
setattr(os, what, call)
builds(Device(), bundle.read(Path(sys.argv[3])), Path(sys.argv[4]))
"""


@pytest.mark.parametrize(
    ("what", "count", "kept", "left"),
    # First the timing cache, then the engine; each in a new file, then the folder.
    [("fsync", 1, 0, 1), ("replace", 1, 0, 1), ("fsync", 3, 0, 1), ("replace", 2, 0, 1), ("fsync", 4, 1, 0)],
)
def test_a_kill_while_an_engine_is_written_leaves_none_or_a_whole_one(
    tiny: Bundle, device: Device, engines: Path, what: str, count: int, kept: int, left: int
) -> None:
    command = [sys.executable, "-c", KILLED, what, str(count), str(tiny.folder), str(engines)]
    assert subprocess.run(command, check=False, env={"PYTHONPATH": "."}).returncode == -9
    assert len(list(engines.glob("*.engine"))) == kept
    assert len(list(engines.glob("*.new"))) == left
    assert builds(device, tiny, engines) == 1 - kept
    assert builds(device, tiny, engines, frames=64) == 1
    assert not list(engines.glob("*.new"))


def test_a_folder_that_cannot_be_used_is_named_before_the_build(
    tiny: Bundle, device: Device, engines: Path
) -> None:
    engines.write_text("a file")
    with pytest.raises(StorageError, match=f"^the cache of engines {engines}: .*Not a directory"):
        builds(device, tiny, engines)
    assert not device.counts["build"]


def test_a_graph_that_is_not_there_is_the_bundles_fault(device: Device, engines: Path) -> None:
    spec = signatures(Dimensions(64, 2, 100, 64))["update"]
    with pytest.raises(BundleError, match=r"^/nowhere/update.onnx: .*No such file"):
        open_trt_on(device, engines).load("update", Path("/nowhere/update.onnx"), spec, {"N": (1, 2)})


def test_a_build_is_logged(tiny: Bundle, device: Device, engines: Path, caplog: Any) -> None:
    with caplog.at_level("INFO", "appliance.engine.tensorrt.build"):
        builds(device, tiny, engines)
    [kept] = engines.glob("*.engine")
    assert caplog.messages == [
        "building the engine of vocoder for Orin, profiles: 1; it takes minutes",
        f"built the engine of vocoder: 0 MiB in {kept}",
    ]


# What is missing or cannot be built


def no_package(modules: dict[str, Any], cuda: Runtime) -> None:
    modules["tensorrt"] = None


def no_bindings(modules: dict[str, Any], cuda: Runtime) -> None:
    modules["cuda.bindings"] = None


def no_device(modules: dict[str, Any], cuda: Runtime) -> None:
    cuda.start = cudaError_t.cudaErrorNoDevice


MISSING = {
    no_package: "needs TensorRT's Python package, on a Jetson python3-libnvinfer of JetPack$",
    no_bindings: r"needs cuda-python \(.*\): the package holds it: ",
    no_device: "no NVIDIA device can be used: CUDA: cudaGetDeviceCount: cudaErrorNoDevice",
}


@pytest.mark.parametrize("spoil", MISSING)
def test_what_is_missing_is_named_and_the_cpu_is_not_taken_in_its_place(
    tiny: Bundle, device: Device, engines: Path, spoil: Callable[[dict[str, Any], Runtime], None]
) -> None:
    with installed(device, TensorRT(device)) as (cuda, _):
        spoil(sys.modules, cuda)
        with pytest.raises(BundleError, match=f"^backend 'tensorrt'.*{MISSING[spoil]}"):
            load_for(tiny, EngineConfig(backend="tensorrt", threads=1, lanes=1, cache=engines))


def test_a_library_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "libnvdla_compiler.so: cannot open shared object file: No such file or directory"
    for error in ("ImportError", "OSError"):
        (tmp_path / "tensorrt.py").write_text(f"raise {error}({text!r})")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
        with pytest.raises(BundleError) as caught:
            open_backend("tensorrt")
        message = str(caught.value)
        assert message.startswith(f"backend 'tensorrt': TensorRT cannot be imported: {text}; on a Jetson ")
        assert message.endswith("the package nvidia-l4t-dla-compiler holds that library")


@pytest.mark.parametrize("kind", ["Builder", "Runtime"])
def test_a_library_that_cannot_start_is_a_fault_with_its_version_and_auto_takes_the_next(
    tiny: Bundle, device: Device, engines: Path, kind: str
) -> None:
    trt = TensorRT(device)
    trt.unstartable = {kind}
    reason = "TensorRT 10.16.0 cannot start: .* returned nullptr: CUDA initialization failure with error: 35"
    with installed(device, trt):
        with pytest.raises(ApplianceError, match=f"{reason}$"):
            load_for(tiny, EngineConfig(backend="tensorrt", threads=1, lanes=1, cache=engines))
        engine = load_for(tiny, EngineConfig(backend="auto", threads=1, lanes=1, cache=engines))
        assert engine.backend == "ort-cuda"
        [tensorrt] = engine.passed_over
        assert tensorrt.backend == "tensorrt" and re.search(reason, tensorrt.reason)
        engine.shutdown()


def test_a_profile_that_is_refused_is_a_fault(tiny: Bundle, device: Device, engines: Path) -> None:
    trt = TensorRT(device)
    trt.refused_profiles = {0}
    with pytest.raises(EngineFault, match="no context for profile 0 Error in set optimization profile async"):
        loaded(open_trt_on(device, engines, trt=trt), tiny)


def test_layers_that_are_told_in_other_words_are_no_fault(
    tiny: Bundle, device: Device, engines: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(tensorrt.EngineInspector, "get_engine_information", lambda *_: '{"Layers": ["a"]}')
    backend = open_trt_on(device, engines)
    assert loaded(backend, tiny)
    assert backend.attentions == {"update": [None]}
    assert "TensorRT does not tell an engine's layers: TypeError" in caplog.text


@pytest.mark.parametrize("runtime", ["tensorrt", "ort-cuda"])
def test_auto_takes_tensorrt_where_it_is(
    short: Bundle, device: Device, engines: Path, monkeypatch: pytest.MonkeyPatch, runtime: str
) -> None:
    with installed(device, TensorRT(device) if runtime == "tensorrt" else None):
        engine = load_for(short, EngineConfig(backend="auto", threads=1, lanes=1, cache=engines))
    assert engine.backend == runtime
    engine.shutdown()


def test_a_graph_that_cannot_be_parsed_is_named_in_one_line(
    tiny: Bundle, device: Device, engines: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "update.onnx"
    broken.write_bytes(b"no graph")
    backend = open_trt_on(device, engines)
    spec = signatures(tiny.manifest.dimensions)["update"]
    with pytest.raises(BundleError) as caught:
        backend.load("update", broken, spec, {"N": (1, 9)})
    message = str(caught.value)
    assert message.startswith(f"{broken}: TensorRT 10.16.0 cannot parse it: node odd (NoSuchOperator): ")
    assert "\n" not in message
    other = signatures(tiny.manifest.dimensions)["vocoder"]
    with pytest.raises(BundleError, match="missing or unknown inputs: guided, latents, log_mel, unguided"):
        backend.load("vocoder", tiny.graph("update"), other, {"N": (1, 9)})
    assert not list(engines.iterdir())


def test_what_is_refused_strongly_typed_is_built_weakly_typed_by_an_early_tensorrt(
    tiny: Bundle, device: Device, engines: Path, caplog: Any
) -> None:
    trt = TensorRT(device, "10.3.0")
    trt.refused_strongly_typed = {"update"}
    backend = open_trt_on(device, engines, trt=trt)
    assert loaded(backend, tiny)
    refusal = r"update.onnx: TensorRT \S+ cannot build it: no implementation for a node of update"
    [warning] = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert re.search(rf"{refusal}; it is built once more, weakly typed$", warning)
    assert device.counts["build"] == 1 and not device.wrong
    trt.__version__ = "10.12.0"
    with pytest.raises(BundleError, match=f"{refusal}$"):
        open_trt_on(device, engines.with_name("other"), trt=trt).load(
            "update", tiny.graph("update"), signatures(tiny.manifest.dimensions)["update"], {"N": (1, 9)}
        )


def test_a_graph_that_cannot_be_built_or_loaded_is_named(
    tiny: Bundle, device: Device, engines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trt = TensorRT(device)
    trt.refused = {"update"}
    backend = open_trt_on(device, engines, trt=trt)
    message = "update.onnx: TensorRT 10.16.0 cannot build it: no implementation for a node of update$"
    with pytest.raises(BundleError, match=message):
        loaded(backend, tiny)
    trt.refused = set()

    def refuse(runtime: tensorrt.Runtime, _: bytes) -> None:
        runtime.log.log(tensorrt.ILogger.ERROR, "no memory")

    loaded(backend, tiny)
    monkeypatch.setattr(tensorrt.Runtime, "deserialize_cuda_engine", refuse)
    with pytest.raises(EngineFault, match=r"update.onnx: TensorRT refuses the kept engine: no memory$"):
        loaded(backend, tiny)
    assert list(engines.glob("*.engine"))
