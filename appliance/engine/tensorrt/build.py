"""ONNX graph → TensorRT engine, and the cache of engines. An engine is valid for one device only."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from appliance.contract.graphs import GraphSpec, TensorSpec, rate_of
from appliance.durable import locked, replace_file, sha256
from appliance.engine.backend import Ranges
from appliance.engine.cuda import fault_of
from appliance.errors import BundleError, StorageError

logger = logging.getLogger(__name__)

FORMAT = 1
WORKSPACE_BYTES = 2 << 30
RANGES = (512, 1280)
"""Ends of the ranges of N with a profile each: 5.5 and 13.7 s."""
USUAL_FRAMES = 512
"""Optimum of axes with one range."""
SEVERAL_PROFILES = (10, 8)
"""First version whose engines are accurate with several profiles (issue 4250)."""
WEAKLY_TYPED = ((10, 0), (10, 12))
"""First supported version, and the version that deprecates weak typing (release notes)."""
REPORT_S = 1.0

Report = Callable[[str], None]
"""Takes a progress line. It may raise Interrupted to end the build."""
Shape = tuple[int, ...]
Sizes = tuple[int, int, int]
"""Minimum, optimum and maximum of an axis."""


@dataclass(frozen=True)
class Profile:
    """An optimization profile: the range of each symbolic axis."""

    axes: Mapping[str, Sizes]

    def shapes(self, tensor: TensorSpec) -> tuple[Shape, Shape, Shape]:
        least, usual, greatest = (
            tuple(axis if isinstance(axis, int) else self.axes[axis][which] for axis in tensor.axes)
            for which in range(3)
        )
        return least, usual, greatest

    def holds(self, sizes: Mapping[str, int]) -> bool:
        return all(least <= sizes[axis] <= greatest for axis, (least, _, greatest) in self.axes.items())


def profiles_of(spec: GraphSpec, ranges: Ranges) -> tuple[Profile, ...]:
    """A profile for each range of N if the graph has rows (axis R), else one profile.

    The optimum of a range is its end, because a step takes longest there.
    """
    axes = dict.fromkeys(a for t in spec.inputs for a in t.axes if isinstance(a, str))
    wide = {
        a: (least, min(max(USUAL_FRAMES // rate_of(a)[1], least), most), most)
        for a in axes
        for least, most in [ranges[a]]
    }
    if "R" not in wide:
        return (Profile(wide),)
    least, _, longest = wide["N"]
    ends = [*(end for end in RANGES if end < longest), longest]
    begins = [least, *(end + least for end in ends)]
    return tuple(Profile(wide | {"N": (a, b, b)}) for a, b in zip(begins, ends, strict=False))


@dataclass(frozen=True)
class EngineSource:
    """A graph, and how to build its engine."""

    path: Path
    spec: GraphSpec
    profiles: tuple[Profile, ...]
    tf32: bool = False
    """True if float32 products may use TF32."""


@dataclass(frozen=True)
class EnginePlatform:
    """Versions and device that a stored engine is valid for."""

    tensorrt: str
    driver: int
    """CUDA's version number: 12060 for 12.6."""
    compute_capability: str
    device: str
    multiprocessors: int
    """Number of multiprocessors: every Orin has the same name and compute capability."""


def import_runtime(backend: str) -> Any:
    """Import TensorRT. Raises BundleError naming what is missing."""
    try:
        import tensorrt
    except (ImportError, OSError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "tensorrt":
            reason = "needs TensorRT's Python package, on a Jetson python3-libnvinfer of JetPack"
        else:
            reason = f"TensorRT cannot be imported: {_line(str(error))}"
        if "libnvdla_compiler" in str(error):
            # Public reports: JetPack 7.2's own TensorRT 10.16 loads without it, an image's 10.11 does not.
            reason += (
                "; JetPack 6 has that library in the package nvidia-l4t-dla-compiler, JetPack 7.2 nowhere: "
                "there, take its own TensorRT, or a container whose base image has that one"
            )
        raise BundleError(f"backend {backend!r}: {reason}") from error
    return tensorrt


def make_log(runtime: Any) -> Any:
    """An ILogger that collects errors for `reason`. TensorRT holds no reference to it."""

    class Log(runtime.ILogger):  # type: ignore[misc]
        """Collects TensorRT's errors, so that exceptions can name them."""

        def __init__(self) -> None:
            super().__init__()
            self._errors: list[str] = []
            self._failures = (runtime.ILogger.ERROR, runtime.ILogger.INTERNAL_ERROR)

        def log(self, severity: Any, message: str) -> None:
            failed = severity in self._failures
            # Warnings are about the graph, which cannot be changed on a device.
            logger.log(logging.ERROR if failed else logging.DEBUG, "TensorRT: %s", message)
            if failed:
                self._errors.append(message)

        def reason(self) -> str:
            """ ": " and the errors since the last call; "" without errors."""
            errors, self._errors = self._errors, []
            return f": {_line('; '.join(errors))}" if errors else ""

    return Log()


def make_progress(runtime: Any) -> Any:
    """An IProgressMonitor. TensorRT's threads call it, and hold no reference to it."""

    class BuildMonitor(runtime.IProgressMonitor):  # type: ignore[misc]
        """Reports the progress of a build, and can cancel it."""

        def __init__(self) -> None:
            super().__init__()
            self._steps: dict[str, tuple[int, int]] = {}
            self.stopped: BaseException | None = None
            """Exception that cancels the build at its next step."""

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._steps[phase_name] = (0, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            self._steps[phase_name] = (step + 1, self._steps.get(phase_name, (0, 0))[1])
            return self.stopped is None

        def phase_finish(self, phase_name: str) -> None:
            self._steps.pop(phase_name, None)

        def line(self) -> str:
            return ", ".join(f"{name} {n} of {of}" for name, (n, of) in [*self._steps.items()])

    return BuildMonitor()


@contextlib.contextmanager
def reporting(progress: Any, report: Report) -> Iterator[None]:
    """Report progress every REPORT_S, because most of a profile is one step without a callback.

    An exception of `report` is stored in `progress.stopped`.
    """
    ended, begun = threading.Event(), time.monotonic()

    def beat() -> None:
        while progress.stopped is None and not ended.wait(REPORT_S):
            try:
                report(f"{progress.line() or 'begun'}, for {time.monotonic() - begun:.0f} s")
            except BaseException as stopped:
                progress.stopped = stopped

    heart = threading.Thread(target=beat, name="build", daemon=True)
    heart.start()
    try:
        yield
    finally:
        ended.set()
        heart.join()


def start(factory: Callable[[Any], Any], log: Any, version: str) -> Any:
    """A Builder or Runtime. Raises EngineFault if the library cannot start."""
    try:
        return factory(log)
    except (TypeError, RuntimeError) as error:  # TypeError: the library returned nothing
        raise fault_of(f"TensorRT {version} cannot start: {error}{log.reason()}") from error


def fused_attentions(runtime: Any, engine: Any) -> int | None:
    """Number of fused attention kernels; None if TensorRT does not report them.

    The inspector's words are from TensorRT's issue 4397, so only reports may depend on them.
    """
    try:
        inspection: dict[str, Any] = json.loads(
            engine.create_engine_inspector().get_engine_information(runtime.LayerInformationFormat.JSON)
        )
        return sum("_mha_v" in layer["Name"] for layer in inspection["Layers"])
    except Exception as error:
        logger.warning("TensorRT does not tell an engine's layers: %s: %s", type(error).__name__, error)
        return None


def build(
    source: EngineSource,
    runtime: Any,
    log: Any,
    timing: bytes = b"",
    report: Report = logger.debug,
    keep: Callable[[bytes], None] = lambda timing: None,
) -> tuple[bytes, bytes]:
    """Build an engine. Returns it serialised, and the timing cache `timing` extended by the build.

    `keep` gets the timing cache, even of a failed build. If a TensorRT in WEAKLY_TYPED refuses the graph's
    element types, each layer's type is set. Raises BundleError if the graph cannot be built or its inputs
    differ, EngineFault if TensorRT cannot start, and the errors of `report`.
    """
    try:
        return _build(source, runtime, log, timing, report, keep, strongly_typed=True)
    except BundleError as refusal:
        if not WEAKLY_TYPED[0] <= version_of(runtime) < WEAKLY_TYPED[1]:
            raise
        logger.warning("%s; it is built once more, weakly typed", refusal)
        try:
            return _build(source, runtime, log, timing, report, keep, strongly_typed=False)
        except BundleError as second:
            raise refusal from second


def _build(
    source: EngineSource,
    runtime: Any,
    log: Any,
    timing: bytes,
    report: Report,
    keep: Callable[[bytes], None],
    *,
    strongly_typed: bool,
) -> tuple[bytes, bytes]:
    """Build an engine for all profiles.

    Returns it, and the timing cache, which `keep` gets even if this fails.
    """
    path, version = source.path, runtime.__version__
    builder = start(runtime.Builder, log, version)
    # TensorRT 11 knows strongly typed networks alone, and since 10 every batch is explicit.
    network = builder.create_network(
        strongly_typed << int(runtime.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    )
    parser = runtime.OnnxParser(network, log)
    if not parser.parse_from_file(str(path)):
        refusals = []
        for number in range(parser.num_errors):
            refusal = parser.get_error(number)
            refusals.append(f"node {refusal.node_name()} ({refusal.node_operator()}): {refusal.desc()}")
        reason = f": {_line('; '.join(refusals))}" if refusals else log.reason()
        raise BundleError(f"{path}: TensorRT {version} cannot parse it{reason}")
    names = {network.get_input(number).name for number in range(network.num_inputs)}
    if names != (expected := {tensor.name for tensor in source.spec.inputs}):
        raise BundleError(f"{path}: missing or unknown inputs: {', '.join(sorted(names ^ expected))}")
    config = builder.create_builder_config()
    config.set_memory_pool_limit(runtime.MemoryPoolType.WORKSPACE, WORKSPACE_BYTES)
    if not source.tf32:  # otherwise products in float32 have ten bits of mantissa
        config.clear_flag(runtime.BuilderFlag.TF32)
    config.profiling_verbosity = runtime.ProfilingVerbosity.DETAILED  # for `fused_attentions`
    config.max_aux_streams = 0  # nothing here gains by more, and each context would have its own
    if not strongly_typed:
        _hold_types(runtime, network, config)
    for profile in source.profiles:
        ranges = builder.create_optimization_profile()
        for tensor in source.spec.inputs:
            ranges.set_shape(tensor.name, *profile.shapes(tensor))
        config.add_optimization_profile(ranges)
    progress = make_progress(runtime)
    config.progress_monitor = progress
    cache = config.create_timing_cache(timing)
    if cache is None or not config.set_timing_cache(cache, False):  # damaged, or of another device
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, False)
    with reporting(progress, report):
        engine = builder.build_serialized_network(network, config)
    timing = bytes(cache.serialize())
    keep(timing)
    if progress.stopped is not None:
        raise progress.stopped
    if engine is None:
        raise BundleError(f"{path}: TensorRT {version} cannot build it{log.reason()}")
    return bytes(engine), timing


def _hold_types(runtime: Any, network: Any, config: Any) -> None:
    """Set each layer's type in a weakly typed network; TensorRT would otherwise choose the fastest type."""
    floats = (runtime.DataType.FLOAT, runtime.DataType.HALF)
    for number in range(network.num_layers):
        layer = network.get_layer(number)
        types = [layer.get_output(index).dtype for index in range(layer.num_outputs)]
        # TensorRT's own tools do the same: constants, and layers that compute shapes or conditions, have no
        # precision.
        if layer.type == runtime.LayerType.CONSTANT or not all(kind in floats for kind in types):
            continue
        layer.precision = types[0]
        for index, kind in enumerate(types):
            layer.set_output_type(index, kind)
        if runtime.DataType.HALF in types:
            config.set_flag(runtime.BuilderFlag.FP16)
    config.set_flag(runtime.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)


@dataclass
class Tally:
    """Counter of the engines that are built one after the other, for their progress lines."""

    total: int
    number: int = 0
    """Number of the current engine, from 1."""
    begun: float = field(default_factory=time.monotonic)

    @property
    def so_far(self) -> str:
        """Time since the first engine was begun, as "7 min so far"."""
        seconds = time.monotonic() - self.begun
        return f"{seconds:.0f} s so far" if seconds < 60 else f"{seconds / 60:.0f} min so far"

    def line(self, what: str, detail: str) -> str:
        """A progress line. The part before its colon changes with each engine."""
        return f"{what}, {self.number} of {self.total}: {self.so_far}, {detail}"


class EngineCache:
    """A folder of engines, named by the hash of everything that each depends on."""

    def __init__(
        self, folder: Path, platform: EnginePlatform, runtime: Any, log: Any, report: Report = logger.debug
    ) -> None:
        self.folder, self.platform, self.report = folder, platform, report
        self._runtime, self._log = runtime, log
        self._hashes: dict[Path, str] = {}
        self.tally = Tally(0)

    def announce(self, line: str, level: int = logging.INFO) -> None:
        logger.log(level, line)
        self.report(line)

    def parts(self, source: EngineSource) -> tuple[EngineSource, ...]:
        """Sources of a graph's engines. Before SEVERAL_PROFILES there is one for each profile."""
        if version_of(self._runtime) >= SEVERAL_PROFILES:
            return (source,)
        return tuple(replace(source, profiles=(profile,)) for profile in source.profiles)

    def name(self, source: EngineSource) -> str:
        """File name of an engine. Raises BundleError if the graph cannot be read."""
        return f"{hashlib.sha256(_json(self._ingredients(source))).hexdigest()}.engine"

    def size(self, source: EngineSource) -> int:
        """Bytes of a graph's cached engines; 0 if one is missing. Raises BundleError."""
        paths = [self.folder / self.name(part) for part in self.parts(source)]
        return sum(path.stat().st_size for path in paths) if all(path.exists() for path in paths) else 0

    def digests(self, source: EngineSource) -> tuple[str, ...]:
        """SHA-256 of a graph's engines; "" for a missing or damaged one. Raises BundleError, StorageError."""
        try:
            engines = (_read(self.folder / self.name(p), self._ingredients(p)) for p in self.parts(source))
            return tuple("" if engine is None else hashlib.sha256(engine).hexdigest() for engine in engines)
        except OSError as error:
            raise StorageError(f"the cache of engines {self.folder}: {error}") from error

    def drop(self, source: EngineSource) -> None:
        (self.folder / self.name(source)).unlink(missing_ok=True)

    def engine(self, source: EngineSource) -> bytes:
        """The cached engine of one of `parts`, or a new one, which takes minutes.

        Raises BundleError, EngineFault, StorageError.
        """
        ingredients = self._ingredients(source)
        path = self.folder / self.name(source)
        try:
            if (engine := _read(path, ingredients)) is not None:
                return engine
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked(self.folder):
                # Another process may have built it in the meantime.
                if (engine := _read(path, ingredients)) is not None:
                    return engine
                return self._build(source, path, ingredients)
        except OSError as error:
            raise StorageError(f"the cache of engines {self.folder}: {error}") from error

    def _build(self, source: EngineSource, path: Path, ingredients: Mapping[str, Any]) -> bytes:
        """Build an engine and store it, with `ingredients` in its header."""
        for unfinished in self.folder.glob("*.new"):  # from a build that was killed
            unfinished.unlink()
        self.tally.number += 1
        self.tally.total = max(self.tally.total, self.tally.number)
        what, count = f"the engine of {source.spec.name}", len(source.profiles)
        where = f"for {self.platform.device}, profiles: {count}; it takes minutes"
        self.announce(self.tally.line(f"building {what}", where))
        platform = hashlib.sha256(_json(asdict(self.platform))).hexdigest()
        timings = self.folder / f"{platform}.timing"
        timing = timings.read_bytes() if timings.exists() else b""
        engine, _ = build(
            source,
            self._runtime,
            self._log,
            timing,
            lambda line: self.report(self.tally.line(f"building {what}", line)),
            keep=partial(replace_file, timings),
        )
        replace_file(path, _json(_header(ingredients, engine)) + b"\n" + engine)
        self.announce(self.tally.line(f"built {what}", f"{len(engine) >> 20} MiB in {path}"))
        return engine

    def _ingredients(self, source: EngineSource) -> dict[str, Any]:
        """Everything that an engine depends on. A stored engine with other ingredients is not used."""
        try:
            graph = hashlib.sha256(source.path.read_bytes())
            for weights in files_of(source.path):
                if weights not in self._hashes:  # the step graphs share one file
                    self._hashes[weights] = sha256(weights)
                graph.update(self._hashes[weights].encode())
        except OSError as error:
            raise BundleError(f"{source.path}: {error}") from error
        return {
            "format": FORMAT,
            "graph": graph.hexdigest(),
            "profiles": [{axis: list(sizes) for axis, sizes in p.axes.items()} for p in source.profiles],
            "workspace_bytes": WORKSPACE_BYTES,
            "tf32": source.tf32,
            **asdict(self.platform),
        }


def version_of(runtime: Any) -> tuple[int, ...]:
    return tuple(map(int, runtime.__version__.split(".")[:2]))


def files_of(graph: Path) -> list[Path]:
    """The files of a graph's weights. Raises OSError."""
    content = graph.read_bytes()
    # The graph names them as plain bytes. The library that parses graphs is not on the device.
    return [
        beside
        for beside in sorted(graph.parent.iterdir())
        if beside != graph and beside.name.encode() in content and beside.is_file()
    ]


def _header(ingredients: Mapping[str, Any], engine: bytes) -> dict[str, Any]:
    return {**ingredients, "bytes": len(engine), "sha256": hashlib.sha256(engine).hexdigest()}


def _read(path: Path, ingredients: Mapping[str, Any]) -> bytes | None:
    """The engine after a line of JSON; None if the file is missing or damaged."""
    try:
        head, _, engine = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    if head != _json(_header(ingredients, engine)):
        logger.warning("%s: damaged; the engine is built again", path)
        return None
    return engine


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _line(text: str) -> str:
    return " ".join(text.split())
