"""TensorRT on a fake device: lanes, alignment, the cache of engines, and missing or wrong parts."""

import itertools
import re
import shutil
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
from appliance.contract import bundle as contract
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
    changed,
    moved,
    relative,
    run,
    segment,
    solo,
    staggered,
)
from tests.fakes.nvidia import installed, open_trt_on, tensorrt
from tests.fakes.nvidia.device import Device
from tests.fakes.nvidia.tensorrt import TensorRT
from tests.harness.killing import in_a_process_of_its_own, killed
from tests.harness.patience import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.once]


class Bench:
    """A fake TensorRT, its device, and engines on it."""

    def __init__(self, tiny: Bundle, device: Device, folder: Path) -> None:
        self.tiny, self.device, self.folder = tiny, device, folder
        self.trt = TensorRT(device)
        self.alone = Synthesizer(tiny, OrtBackend(1))

    def backend(self, max_batch: int | None = None, trt: TensorRT | None = None) -> TrtBackend:
        return open_trt_on(self.device, self.folder, max_batch, trt or self.trt)

    def engine(
        self, backend: TrtBackend | None = None, bundle: Bundle | None = None, lanes: int = 2
    ) -> Synthesizer:
        """An engine that captures its steps."""
        backend = backend or self.backend()
        engine = Synthesizer(bundle or self.tiny, backend, host=OrtBackend(1), lanes=lanes)
        engine.captures = True
        return engine

    def load(self, name: str = "update", frames: int = 128, backend: TrtBackend | None = None) -> Any:
        spec = signatures(self.tiny.manifest.dimensions)[name]
        return (backend or self.backend()).load(name, self.tiny.graph(name), spec, {"N": (1, frames)})

    def bound(self, frames: int = 128, **other: Any) -> Any:
        """A binding of `update` for 40 frames; `other` adds or removes tensors on the backend."""
        backend = self.backend()
        graph = self.load(frames=frames, backend=backend)
        names = ("latents", "guided", "unguided", "latents_out")
        tensors = {name: backend.empty((40, 100), "float32") for name in names}
        tensors |= {"weights": backend.empty((2,), "float32")}
        tensors |= {name: make(backend) for name, make in other.items()}
        tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        return graph.bind(tensors, {"latents_out": tensors.pop("latents_out")})

    def builds(self, trt: TensorRT | None = None, frames: int = 128) -> int:
        self.device.counts.clear()
        backend = self.backend(trt=trt)
        self.load("vocoder", frames, backend)
        backend.close()
        return self.device.counts["build"]

    def counted(self, *names: str) -> tuple[int, ...]:
        found = tuple(self.device.counts[name] for name in names)
        self.device.counts.clear()
        return found

    def end(self, engine: Synthesizer) -> None:
        """Shut the engine down; fail if the device noted a wrong use or a CUDA graph remains."""
        engine.shutdown()
        assert not self.device.wrong and not self.device.executable and not self.device.graphs


@pytest.fixture
def bench(tiny: Bundle, device: Device, engines: Path) -> Bench:
    return Bench(tiny, device, engines)


@pytest.mark.parametrize("max_batch", [2, 4])
@pytest.mark.parametrize("captures", [False, True])
def test_lanes_of_different_sampling_nfe_guidance_and_progress_equal_themselves_alone(
    bench: Bench, max_batch: int, captures: bool
) -> None:
    engine = bench.engine(bench.backend(max_batch), lanes=len(MIXED))
    engine.captures = captures
    for found, given in zip(staggered(engine, MIXED), MIXED, strict=True):
        assert relative(found, solo(bench.alone, given)) <= BATCHED
    bench.end(engine)


def test_contexts_are_one_per_profile_and_share_their_working_memory(bench: Bench) -> None:
    engine, device = bench.engine(), bench.device
    for given in (segment(60, nfe=7), segment(100, nfe=7, guidance=0.0), segment(700, nfe=7)):
        solo(engine, given)
    profiles = 3 + 3  # ranges of `step`; condition, vocoder and update
    assert device.counts["context"] == profiles
    assert len(device.workspaces) == profiles and len({*device.workspaces.values()}) == 1


@pytest.mark.parametrize(("longest", "ends"), [
    (4096, (512, 1280, 4096)), (1280, (512, 1280)), (700, (512, 704)), (300, (320,)),
])  # fmt: skip
def test_a_step_has_a_profile_for_each_range(bench: Bench, longest: int, ends: tuple[int, ...]) -> None:
    manifest, backend = replace(bench.tiny.manifest, max_frames=longest), bench.backend()
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


PLAIN, CAPTURED, REPLAYED = (2, 0, 0), (1, 1, 1), (1, 0, 1)
"""Runs, captures and replays of a step. The lane's update also runs, and is never captured."""
LAUNCHES = {
    "a step runs twice, is captured and replayed; five steps are not worth it": [
        (90, [PLAIN, PLAIN, CAPTURED, *[REPLAYED] * 4]),
        (90, [REPLAYED] * 5),
        (150, [PLAIN] * 5),
    ],
    # Four steps, as a distilled model takes. Padded lengths are 128, 128, 192 and 192 frames.
    "four steps are, if the reply before was as long": [
        *[(90, [PLAIN] * 4), (95, [CAPTURED, *[REPLAYED] * 3])],
        *[(150, [PLAIN] * 4), (140, [CAPTURED, *[REPLAYED] * 3])],
    ],
    "nothing is captured where steps are long": [(90, [PLAIN] * 7)],
}
"""Replies: their frames, and the launches of each step."""


@pytest.mark.parametrize("case", LAUNCHES)
def test_steps_are_captured_if_it_pays(bench: Bench, case: str) -> None:
    engine = bench.engine()
    engine.captures = "nothing" not in case
    for frames, launches in LAUNCHES[case]:
        lane = engine.open(segment(frames, nfe=len(launches)))
        for counts in launches:
            bench.device.counts.clear()
            engine.step([lane.id])
            assert bench.counted("run", "capture", "replay") == counts
        engine.close(lane.id)
    bench.end(engine)


@pytest.mark.parametrize(("bound_s", "captures"), [(0.0, False), (1e9, True)])
def test_launches_are_captured_where_steps_are_short(
    bench: Bench, short: Bundle, monkeypatch: pytest.MonkeyPatch, bound_s: float, captures: bool
) -> None:
    monkeypatch.setattr(synthesizer, "LAUNCH_BOUND_S", bound_s)
    engine = bench.engine(bundle=short)
    engine.captures = False
    engine.warm_up(7)
    assert not bench.device.counts["capture"]
    solo(engine, segment(90, nfe=7))
    assert bool(bench.device.counts["capture"]) == captures


def test_lanes_of_other_sizes_end_a_capture(bench: Bench) -> None:
    """A context whose shapes change voids its graphs; alternating lanes launch their kernels one by one."""
    engine, device = bench.engine(), bench.device
    given = [segment(90, nfe=16, seed=1), segment(140, nfe=16, seed=2)]
    one, other = (engine.open(each).id for each in given)
    run(engine, [one], 4)
    assert len(device.executable) == 1
    for _ in range(12):
        engine.step([other])
        engine.step([one])
    assert device.counts["capture"] == 1 and not device.executable
    run(engine, [other], 4)
    for lane_id, each in zip((one, other), given, strict=True):
        assert relative(moved(engine, lane_id, each), solo(bench.alone, each)) <= BATCHED
    bench.end(engine)


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_storm_after_the_warm_up_takes_no_memory(bench: Bench, short: Bundle, sampling: Sampling) -> None:
    """Six lanes that join, step in any order and leave: one wait a call, each step graph one launch."""
    engine = bench.engine(bundle=changed(short, sampling), lanes=6)
    engine.warm_up(4)
    engine.captures = True
    rng = np.random.default_rng(4)
    left: dict[int, int] = {}
    graphs = updates = 1 if sampling == "exact" else 2
    for number in range(60):
        if len(left) < 6:
            given = segment(int(rng.integers(20, 250)), nfe=12, seed=number, sampling=sampling)
            lane = engine.open(given)
            left[lane.id] = lane.steps_left
        bench.device.counts.clear()
        stepped = int(rng.choice(list(left)))
        for _ in range(min(left[stepped], int(rng.choice([1, 5])))):
            engine.step([stepped])
            left[stepped] -= 1
            counts = dict(bench.device.counts)
            bench.device.counts.clear()
            assert counts.pop("replay", 0) + counts.pop("run", 0) == graphs + updates
            assert counts.pop("synchronise") == 1
            assert counts.pop("HostToDevice") == graphs + updates
            assert set(counts) <= {"DeviceToDevice", "event", "capture"}
        if not left[stepped]:
            engine.finish(stepped)
        if not left[stepped] or rng.random() < 0.05:
            engine.close(stepped)
            del left[stepped]
    bench.end(engine)


def test_memory_that_moves_ends_captures_in_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    backend, given = bench.backend(), segment(90, nfe=12)
    engine = bench.engine(backend)
    lane = engine.open(given)
    run(engine, [lane.id], 4)
    [before] = bench.device.executable
    monkeypatch.setattr(tensorrt.Engine, "device_memory_size_v2", property(lambda _: 1 << 24))
    bench.load(backend=backend)
    assert not bench.device.executable
    bench.device.counts.clear()
    for counts in (PLAIN, PLAIN, CAPTURED, REPLAYED):
        engine.step([lane.id])
        assert bench.counted("run", "capture", "replay") == counts
    assert [*bench.device.executable] != [before]
    run(engine, [lane.id], 4)
    assert relative(moved(engine, lane.id, given), solo(bench.alone, given)) <= BATCHED
    bench.end(engine)


UNCAPTURED = {
    "refused": r"TensorRT: step: cannot be run: step: not permitted when stream is capturing",
    "no memory": r"CUDA: cudaGraphInstantiate: cudaErrorMemoryAllocation: .*",
}


@pytest.mark.parametrize("what", UNCAPTURED)
def test_a_step_that_cannot_be_captured_runs_and_says_so_once(bench: Bench, caplog: Any, what: str) -> None:
    if what == "refused":
        bench.trt.uncapturable = {"step"}
    bench.device.can_instantiate = what != "no memory"
    engine = bench.engine()
    for frames in (50, 110):
        given = segment(frames, nfe=7)
        assert relative(solo(engine, given), solo(bench.alone, given)) <= BATCHED
    assert not bench.device.counts["replay"]
    [warning] = [r.getMessage() for r in caplog.records if r.name == trt_backend.__name__]
    message = f"^step launches its kernels one by one, it cannot be captured: {UNCAPTURED[what]}$"
    assert re.match(message, warning)
    bench.end(engine)


@pytest.mark.parametrize(("name", "make", "message"), [
    ("weights", lambda b: None, "missing or unknown inputs: weights"),
    ("sigma", lambda b: b.empty((2,), "float32"), "missing or unknown inputs: sigma"),
    ("weights", lambda b: b.empty((2,), "float16"), r"weights: float16 \(2,\) is not float32 \(2,\)"),
    ("weights", lambda b: b.empty((3,), "float32"), "weights: 2 is 3, not 2"),
    ("guided", lambda b: b.empty((40, 1, 100), "float32"), r"guided: float32 \(40, 1, 100\) is not"),
    ("guided", lambda b: b.empty((41, 100), "float32"), "guided: N is 41, not 40"),
])  # fmt: skip
def test_tensors_that_do_not_fit_are_refused(
    bench: Bench, name: str, make: Callable[[TrtBackend], Any], message: str
) -> None:
    with pytest.raises(EngineFault, match=f"^TensorRT: update: {message}"):
        bench.bound(**{name: make})


def test_sizes_that_no_profile_holds_are_refused(bench: Bench) -> None:
    with pytest.raises(EngineFault, match=r"update: no profile holds \{'N': 40\}$"):
        bench.bound(frames=39)


def test_a_run_that_tensorrt_refuses_is_a_fault(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(context: tensorrt.Context, *_: Any) -> bool:
        context.engine.log.log(tensorrt.ILogger.ERROR, "out of\nmemory")
        return False

    binding = bench.bound()
    for method in ("execute_async_v3", "set_tensor_address", "set_input_shape"):
        monkeypatch.setattr(tensorrt.Context, method, refuse)
        with pytest.raises(EngineFault, match=r"^TensorRT: update: .*: out of memory; lower engine"):
            binding.run()


def other_weights(path: Path) -> None:
    weights = path.with_name(f"{path.name}.data")
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)


def other_graph(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\x32\x01x")  # the model's doc_string


CHANGES: dict[str, Callable[[Device, Path], Any]] = {
    "nothing": lambda device, _: None,
    "version": lambda device, _: {"trt": TensorRT(device, "10.16.1")},
    "driver": lambda device, _: setattr(device, "driver", 12080),
    "capability": lambda device, _: setattr(device, "compute_capability", (8, 6)),
    "device": lambda device, _: setattr(device, "name", "Thor"),
    "multiprocessors": lambda device, _: setattr(device, "multiprocessors", 8),
    "profiles": lambda device, _: {"frames": 256},
    "graph": lambda _, path: other_graph(path),
    "weights": lambda _, path: other_weights(path),
}
"""Changes of the device or the graph; a function returns other options of `builds`."""


@pytest.mark.parametrize("change", CHANGES)
def test_an_engine_is_built_once_and_again_after_a_change(bench: Bench, tmp_path: Path, change: str) -> None:
    own = replace(bench.tiny, folder=shutil.copytree(bench.tiny.folder, tmp_path / "bundle"))
    assert [Bench(own, bench.device, bench.folder).builds() for _ in range(2)] == [1, 0]
    assert sorted(path.suffix for path in bench.folder.iterdir()) == [".engine", ".timing"]
    other = Bench(own, Device(), bench.folder)
    options = CHANGES[change](other.device, own.graph("vocoder")) or {}
    assert [other.builds(**options) for _ in range(2)] == [int(change != "nothing"), 0]


@pytest.mark.parametrize("damage", [
    lambda data: b"", lambda data: data[:-1], lambda data: data + b"\0",
    lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    lambda data: data.replace(b"Orin", b"Thor", 1), lambda data: b"\xff" + data,
])  # fmt: skip
def test_a_damaged_engine_is_built_again(bench: Bench, damage: Callable[[bytes], bytes], caplog: Any) -> None:
    bench.builds()
    [kept] = bench.folder.glob("*.engine")
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))
    assert bench.builds() == 1
    assert kept.read_bytes() == whole
    assert f"{kept}: damaged; the engine is built again" in caplog.text


def test_the_measurements_of_a_build_serve_the_next(bench: Bench) -> None:
    """A failed build leaves its measurements to the next one too."""
    bench.trt.refused = {"vocoder"}
    with pytest.raises(BundleError):
        bench.builds()
    [timing] = bench.folder.iterdir()
    assert timing.suffix == ".timing"
    bench.trt.refused = set()
    for kept, measured in ((timing.read_bytes(), 0), (b"half", 1)):
        for path in bench.folder.glob("*.engine"):
            path.unlink()
        timing.write_bytes(kept)
        assert bench.builds() == 1
        assert bench.device.counts["timed"] == measured


def test_a_silent_build_is_alive(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each report differs from the previous one, so that systemd does not end the start."""
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

    bench.trt.before_build = wait
    with installed(bench.device, bench.trt):
        backend = TrtBackend(bench.folder, report=report)
    bench.load("vocoder", backend=backend)
    for seconds in (0, 1):
        found = (
            f"building the engine of vocoder, 1 of 1: {seconds} s so far, Building 1 of 2, for {seconds} s"
        )
        assert found in lines


def test_an_early_tensorrt_gets_an_engine_for_each_profile(bench: Bench, tiny: Bundle) -> None:
    """TensorRT 10.3 has an accuracy defect in engines with several profiles, 10.8 has not."""
    spec, device = signatures(tiny.manifest.dimensions)["step"], bench.device
    for version, count in (("10.3.0", 2), ("10.8.0", 1)):
        device.counts.clear()
        folder = bench.folder / version
        backend = open_trt_on(device, folder, trt=TensorRT(device, version))
        shapes = ranges("step", replace(tiny.manifest, max_frames=1024), backend)
        source = EngineSource(tiny.graph("step"), spec, profiles_of(spec, shapes))
        assert backend.cache.size(source) == 0
        backend.load("step", source.path, spec, shapes)
        kept = [*folder.glob("*.engine")]
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


def test_two_that_need_one_engine_build_it_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first builds while the second waits for the lock."""
    at_the_lock: list[Path] = []
    second_waits = threading.Event()

    def locked(folder: Path) -> Any:
        at_the_lock.append(folder)
        if len(at_the_lock) == 2:
            second_waits.set()
        return durable.locked(folder)

    monkeypatch.setattr(build, "locked", locked)
    bench.trt.before_build = lambda: bool(second_waits.wait(PATIENCE_S))
    backends = [bench.backend() for _ in range(2)]
    with ThreadPoolExecutor(2) as threads:
        graphs = list(threads.map(lambda backend: bench.load(backend=backend), backends))
    assert len(graphs) == 2 and len(at_the_lock) == 2
    assert bench.device.counts["build"] == 1


def lives(folder: Path, bundle: str) -> dict[str, int]:
    """Kill a build at its n-th change on the disk, for each n, and build again: engines left → kills."""
    left = {"none": 0, "whole": 0}
    for number in itertools.count(1):
        bench = Bench(contract.read(Path(bundle)), Device(), folder / str(number))
        if killed(number, lambda bench=bench: bench.builds()) == 0:  # type: ignore[misc]
            return left
        kept = len(list(bench.folder.glob("*.engine")))
        left["whole" if kept else "none"] += 1
        assert bench.builds() == 1 - kept
        assert bench.builds(frames=64) == 1
        assert not list(bench.folder.glob("*.new"))
    raise AssertionError


def test_killed_at_any_moment_a_build_leaves_no_engine_or_a_whole_one(tiny: Bundle, tmp_path: Path) -> None:
    left = in_a_process_of_its_own("engine.tensorrt.test_trt", tmp_path, str(tiny.folder))
    assert left["none"] >= 5 and left["whole"] >= 1, left


def test_a_folder_that_cannot_be_used_is_named_before_the_build(bench: Bench) -> None:
    bench.folder.write_text("a file")
    with pytest.raises(StorageError, match=f"^the cache of engines {bench.folder}: .*Not a directory"):
        bench.builds()
    assert not bench.device.counts["build"]


def test_a_library_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "libnvdla_compiler.so: cannot open shared object file: No such file or directory"
    for error in ("ImportError", "OSError"):
        (tmp_path / "tensorrt.py").write_text(f"raise {error}({text!r})")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "tensorrt", raising=False)
        with pytest.raises(BundleError) as caught:
            open_backend("tensorrt")
        message = str(caught.value)
        assert message.startswith(
            f"backend 'tensorrt': TensorRT cannot be imported: {text}; JetPack 6 has that library in "
        )
        assert "JetPack 7.2 nowhere" in message and "base image" in message


@pytest.mark.parametrize("kind", ["Builder", "Runtime"])
def test_a_library_that_cannot_start_is_a_fault_and_auto_takes_the_next(bench: Bench, kind: str) -> None:
    bench.trt.unstartable = {kind}
    reason = "TensorRT 10.16.0 cannot start: .* returned nullptr: CUDA initialization failure with error: 35"
    options = {"threads": 1, "lanes": 1, "cache": bench.folder}
    with installed(bench.device, bench.trt):
        with pytest.raises(ApplianceError, match=f"{reason}$"):
            load_for(bench.tiny, EngineConfig(backend="tensorrt", **options))
        engine = load_for(bench.tiny, EngineConfig(backend="auto", **options))
        assert engine.backend == "ort-cuda"
        [passed_over] = engine.passed_over
        assert passed_over.backend == "tensorrt" and re.search(reason, passed_over.reason)
        engine.shutdown()


def test_a_profile_that_is_refused_is_a_fault(bench: Bench) -> None:
    bench.trt.refused_profiles = {0}
    with pytest.raises(EngineFault, match="no context for profile 0 Error in set optimization profile async"):
        bench.load()


def test_layers_in_other_words_do_no_harm(bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(tensorrt.EngineInspector, "get_engine_information", lambda *_: '{"Layers": ["a"]}')
    backend = bench.backend()
    assert bench.load(backend=backend)
    assert backend.attentions == {"update": [None]}
    assert "TensorRT does not tell an engine's layers: TypeError" in caplog.text


def test_a_graph_that_is_absent_or_cannot_be_parsed_is_named(bench: Bench, tmp_path: Path) -> None:
    specs, sizes = signatures(Dimensions(64, 2, 100, 64)), {"N": (1, 9)}
    broken, backend = tmp_path / "update.onnx", bench.backend()
    broken.write_bytes(b"no graph")
    for name, path, message in (
        ("update", Path("/nowhere/update.onnx"), r"/nowhere/update.onnx: .*No such file"),
        ("update", broken, rf"{broken}: TensorRT 10.16.0 cannot parse it: node odd \(NoSuchOperator\): "),
        ("vocoder", bench.tiny.graph("update"), ".*unknown inputs: guided, latents, log_mel, unguided"),
    ):
        with pytest.raises(BundleError, match=f"^{message}") as caught:
            backend.load(name, path, specs[name], sizes)
        assert "\n" not in str(caught.value)
    assert not list(bench.folder.iterdir())


def test_a_graph_refused_strongly_typed_is_built_weakly_typed(bench: Bench, caplog: Any) -> None:
    bench.trt = TensorRT(bench.device, "10.3.0")
    bench.trt.refused_strongly_typed = {"update"}
    assert bench.load()
    refusal = r"update.onnx: TensorRT \S+ cannot build it: no implementation for a node of update"
    [warning] = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert re.search(rf"{refusal}; it is built once more, weakly typed$", warning)
    assert bench.device.counts["build"] == 1 and not bench.device.wrong
    bench.trt.__version__ = "10.12.0"
    bench.folder = bench.folder.with_name("other")
    with pytest.raises(BundleError, match=f"{refusal}$"):
        bench.load()


def test_a_graph_that_is_not_built_or_loaded_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.trt.refused = {"update"}
    message = "update.onnx: TensorRT 10.16.0 cannot build it: no implementation for a node of update$"
    with pytest.raises(BundleError, match=message):
        bench.load()
    bench.trt.refused = set()

    def refuse(runtime: tensorrt.Runtime, _: bytes) -> None:
        runtime.log.log(tensorrt.ILogger.ERROR, "no memory")

    bench.load()
    monkeypatch.setattr(tensorrt.Runtime, "deserialize_cuda_engine", refuse)
    with pytest.raises(EngineFault, match=r"update.onnx: TensorRT refuses the kept engine: no memory$"):
        bench.load()
    assert list(bench.folder.glob("*.engine"))
