"""ONNX graph → serialised TensorRT engine, kept in a folder until anything that it depends on changes.

An engine is valid for one TensorRT, driver and GPU, so bundles carry graphs and each device builds its own.
In step graphs each number of frames and rows has a profile to itself: kernels that were chosen for one size
may be slow at another, and have been wrong there. The other graphs run at true length, in one wide profile.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from appliance.contract.graphs import GraphSpec, TensorSpec
from appliance.durable import locked, replace_file, sha256
from appliance.engine.backend import Shapes
from appliance.errors import BundleError, StorageError

logger = logging.getLogger(__name__)

FORMAT = 1
WORKSPACE_BYTES = 2 << 30
"""Scratch memory that a kernel may ask for, at most."""
USUAL_FRAMES = 512
"""The length, 5.5 s, for which graphs of any length are optimised."""
WEAKLY_TYPED = ((10, 0), (10, 12))
"""TensorRT from the first that we support to that which deprecates weak typing (its release notes)."""

REPORT_S = 1.0
"""Period of the lines about a build's progress."""

Report = Callable[[str], None]
"""Callback for a line about progress. It may raise Interrupted to end the build."""
Shape = tuple[int, ...]
Sizes = tuple[int, int, int]
"""Least, usual and greatest size of an axis."""


@dataclass(frozen=True)
class Profile:
    """Sizes of the symbolic axes among which an engine runs, and those that its kernels are chosen for."""

    axes: Mapping[str, Sizes]

    def shapes(self, tensor: TensorSpec) -> tuple[Shape, Shape, Shape]:
        """Least, usual and greatest shape of an input."""
        least, usual, greatest = (
            tuple(axis if isinstance(axis, int) else self.axes[axis][which] for axis in tensor.axes)
            for which in range(3)
        )
        return least, usual, greatest

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """True if each of these sizes lies in the profile's range."""
        return all(least <= sizes[axis] <= greatest for axis, (least, _, greatest) in self.axes.items())


def profiles_of(spec: GraphSpec, shapes: Shapes) -> tuple[Profile, ...]:
    """The profiles of a graph: one per number of frames and rows if it has rows, else one for all sizes."""
    axes = dict.fromkeys(str(a) for t in spec.inputs for a in t.axes if isinstance(a, str))
    wide = {axis: _wide(shapes[axis]) for axis in axes}
    if "R" not in axes:
        return (Profile(wide),)
    return tuple(
        Profile(wide | {"N": (frames, frames, frames), "R": (rows, rows, rows)})
        for frames in shapes["N"]
        for rows in range(shapes["R"][0], shapes["R"][-1] + 1)
    )


def _wide(sizes: Sequence[int]) -> Sizes:
    """All sizes of an axis. Buckets are optimised for a middle one, which most references need."""
    usual = sizes[(len(sizes) - 1) // 2] if len(sizes) > 2 else min(USUAL_FRAMES, sizes[-1])
    return sizes[0], max(usual, sizes[0]), sizes[-1]


@dataclass(frozen=True)
class Recipe:
    """A graph, and the profiles that its engine gets."""

    path: Path
    spec: GraphSpec
    profiles: tuple[Profile, ...]


@dataclass(frozen=True)
class Platform:
    """Versions and device that an engine is built for; it runs on no other."""

    tensorrt: str
    driver: int
    """CUDA's version of the driver, 12060 for 12.6."""
    compute_capability: str
    device: str
    """Name of the GPU."""


def import_runtime(backend: str) -> Any:
    """TensorRT's module. Raises BundleError, which names the library that is missing."""
    try:
        import tensorrt
    except (ImportError, OSError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "tensorrt":
            reason = "needs TensorRT's Python package, on a Jetson python3-libnvinfer of JetPack"
        else:
            reason = f"TensorRT cannot be imported: {_line(str(error))}"
        if "libnvdla_compiler" in str(error):
            reason += "; on a Jetson the package nvidia-l4t-dla-compiler holds that library"
        raise BundleError(f"backend {backend!r}: {reason}") from error
    return tensorrt


def make_log(runtime: Any) -> Any:
    """TensorRT's messages: into the log, and errors kept until `reason` gives them. Used while it lives."""

    class Log(runtime.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._errors: list[str] = []
            self._failures = (runtime.ILogger.ERROR, runtime.ILogger.INTERNAL_ERROR)

        def log(self, severity: Any, message: str) -> None:
            failed = severity in self._failures
            # Its warnings are about the graph, which nobody can change on a device.
            logger.log(logging.ERROR if failed else logging.DEBUG, "TensorRT: %s", message)
            if failed:
                self._errors.append(message)

        def reason(self) -> str:
            """The errors since the last call in one line, after a colon; empty without any."""
            errors, self._errors = self._errors, []
            return f": {_line('; '.join(errors))}" if errors else ""

    return Log()


def make_progress(runtime: Any, report: Report) -> Any:
    """TensorRT's reports of a build's progress as lines, at most one a second. Used while it lives."""

    class Progress(runtime.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._steps: dict[str, tuple[int, int]] = {}
            self._reported = time.monotonic()
            self.stopped: BaseException | None = None

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            self._steps[phase_name] = (0, num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            """True: go on; False where `report` raised. TensorRT calls this from threads of its own."""
            self._steps[phase_name] = (step + 1, self._steps.get(phase_name, (0, 0))[1])
            if (now := time.monotonic()) - self._reported >= REPORT_S:
                self._reported = now
                try:
                    report(", ".join(f"{name} {n} of {of}" for name, (n, of) in [*self._steps.items()]))
                except BaseException as stopped:  # it may not pass through TensorRT
                    self.stopped = stopped
            return self.stopped is None

        def phase_finish(self, phase_name: str) -> None:
            self._steps.pop(phase_name, None)

    return Progress()


def build(
    recipe: Recipe, runtime: Any, log: Any, timing: bytes = b"", report: Report = logger.debug
) -> tuple[bytes, bytes]:
    """The serialised engine, and the timing cache with what the build has measured beside `timing`.

    Element types are the graph's. An early TensorRT that refuses it so is asked once more for a weakly typed
    engine, each layer held to its type. `report` is given lines about its progress; what it raises ends the
    build. Raises BundleError when TensorRT cannot parse or build the graph, or its inputs are others.
    """
    try:
        return _build(recipe, runtime, log, timing, report, strongly_typed=True)
    except BundleError as refusal:
        version = tuple(map(int, runtime.__version__.split(".")[:2]))
        if not WEAKLY_TYPED[0] <= version < WEAKLY_TYPED[1]:
            raise
        logger.warning("%s; it is built once more, weakly typed", refusal)
        try:
            return _build(recipe, runtime, log, timing, report, strongly_typed=False)
        except BundleError as second:
            raise refusal from second


def _build(
    recipe: Recipe, runtime: Any, log: Any, timing: bytes, report: Report, *, strongly_typed: bool
) -> tuple[bytes, bytes]:
    path, version = recipe.path, runtime.__version__
    builder = runtime.Builder(log)
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
    found = {network.get_input(number).name for number in range(network.num_inputs)}
    if found != (wanted := {tensor.name for tensor in recipe.spec.inputs}):
        raise BundleError(f"{path}: missing or unknown inputs: {', '.join(sorted(found ^ wanted))}")
    config = builder.create_builder_config()
    config.set_memory_pool_limit(runtime.MemoryPoolType.WORKSPACE, WORKSPACE_BYTES)
    # Float32 is float32: TF32 has ten bits of mantissa.
    config.clear_flag(runtime.BuilderFlag.TF32)
    if not strongly_typed:
        _hold_types(runtime, network, config)
    for profile in recipe.profiles:
        ranges = builder.create_optimization_profile()
        for tensor in recipe.spec.inputs:
            ranges.set_shape(tensor.name, *profile.shapes(tensor))
        config.add_optimization_profile(ranges)
    progress = make_progress(runtime, report)
    config.progress_monitor = progress
    cache = _timing_cache(config, timing)
    engine = builder.build_serialized_network(network, config)
    if progress.stopped is not None:
        raise progress.stopped
    if engine is None:
        raise BundleError(f"{path}: TensorRT {version} cannot build it{log.reason()}")
    return bytes(engine), bytes(cache.serialize())


def _hold_types(runtime: Any, network: Any, config: Any) -> None:
    """Hold the layers of a weakly typed network to their types; TensorRT would choose the faster one."""
    floats = (runtime.DataType.FLOAT, runtime.DataType.HALF)
    for number in range(network.num_layers):
        layer = network.get_layer(number)
        types = [layer.get_output(index).dtype for index in range(layer.num_outputs)]
        # As TensorRT's own tools do: constants and what computes shapes or conditions have no precision.
        if layer.type == runtime.LayerType.CONSTANT or not all(kind in floats for kind in types):
            continue
        layer.precision = types[0]
        for index, kind in enumerate(types):
            layer.set_output_type(index, kind)
        if runtime.DataType.HALF in types:
            config.set_flag(runtime.BuilderFlag.FP16)
    config.set_flag(runtime.BuilderFlag.OBEY_PRECISION_CONSTRAINTS)


def _timing_cache(config: Any, data: bytes) -> Any:
    """The cache that a build uses and extends; an empty one where `data` is of another device or damaged."""
    cache = config.create_timing_cache(data)
    if cache is None or not config.set_timing_cache(cache, False):
        cache = config.create_timing_cache(b"")
        config.set_timing_cache(cache, False)
    return cache


class EngineCache:
    """A folder of engines, one file each, named by the hash of all that the engine depends on."""

    def __init__(
        self, folder: Path, platform: Platform, runtime: Any, log: Any, report: Report = logger.debug
    ) -> None:
        """`report` is given a line before a build, while it goes on, and after it: builds take minutes."""
        self.folder, self.platform, self.report = folder, platform, report
        self._runtime, self._log = runtime, log
        self._hashes: dict[Path, str] = {}

    def announce(self, line: str, level: int = logging.INFO) -> None:
        """Report a line, and log it: it is of interest later, too."""
        logger.log(level, line)
        self.report(line)

    def name(self, recipe: Recipe) -> str:
        """The engine's file. Raises BundleError when the graph cannot be read."""
        return f"{hashlib.sha256(_json(self._ingredients(recipe))).hexdigest()}.engine"

    def size(self, recipe: Recipe) -> int:
        """Bytes of the file that is kept for a recipe; 0 without one. Raises BundleError."""
        kept = self.folder / self.name(recipe)
        return kept.stat().st_size if kept.exists() else 0

    def digest(self, recipe: Recipe) -> str | None:
        """sha256 of the kept engine; None when there is none that is whole.

        Raises BundleError, StorageError.
        """
        try:
            engine = _read(self.folder / self.name(recipe), self._ingredients(recipe))
        except OSError as error:
            raise StorageError(f"the cache of engines {self.folder}: {error}") from error
        return None if engine is None else hashlib.sha256(engine).hexdigest()

    def drop(self, recipe: Recipe) -> None:
        """Remove the kept engine. Raises BundleError."""
        (self.folder / self.name(recipe)).unlink(missing_ok=True)

    def engine(self, recipe: Recipe) -> bytes:
        """The serialised engine: the kept one if it is whole and nothing has changed, else a new one.

        Raises BundleError when it cannot be built, StorageError when the folder cannot be used.
        """
        ingredients = self._ingredients(recipe)
        kept = self.folder / self.name(recipe)
        try:
            if (engine := _read(kept, ingredients)) is not None:
                return engine
            self.folder.mkdir(parents=True, exist_ok=True)
            with locked(self.folder):
                # Another process may have built it meanwhile.
                if (engine := _read(kept, ingredients)) is not None:
                    return engine
                return self._build(recipe, kept, ingredients)
        except OSError as error:
            raise StorageError(f"the cache of engines {self.folder}: {error}") from error

    def _build(self, recipe: Recipe, kept: Path, ingredients: Mapping[str, Any]) -> bytes:
        for left in self.folder.glob("*.new"):  # by a build that was killed
            left.unlink()
        what, count = f"the engine of {recipe.spec.name}", len(recipe.profiles)
        self.announce(f"building {what} for {self.platform.device}, profiles: {count}; it takes minutes")
        platform = hashlib.sha256(_json(asdict(self.platform))).hexdigest()
        timings = self.folder / f"{platform}.timing"
        timing = timings.read_bytes() if timings.exists() else b""
        engine, timing = build(
            recipe, self._runtime, self._log, timing, lambda line: self.report(f"building {what}: {line}")
        )
        replace_file(kept, _json(_header(ingredients, engine)) + b"\n" + engine)
        replace_file(timings, timing)
        self.announce(f"built {what}: {len(engine) >> 20} MiB in {kept}")
        return engine

    def _ingredients(self, recipe: Recipe) -> dict[str, Any]:
        """All that an engine depends on. Raises BundleError when the graph cannot be read."""
        try:
            graph = self._hash_of_graph(recipe.path)
        except OSError as error:
            raise BundleError(f"{recipe.path}: {error}") from error
        return {
            "format": FORMAT,
            "graph": graph,
            "profiles": [{axis: list(sizes) for axis, sizes in p.axes.items()} for p in recipe.profiles],
            "workspace_bytes": WORKSPACE_BYTES,
            **asdict(self.platform),
        }

    def _hash_of_graph(self, path: Path) -> str:
        """sha256 of a graph's file and of the files that hold its weights. Raises OSError."""
        digest = hashlib.sha256(path.read_bytes())
        for beside in files_of(path):
            if beside not in self._hashes:  # the step graphs share one
                self._hashes[beside] = sha256(beside)
            digest.update(self._hashes[beside].encode())
        return digest.hexdigest()


def files_of(graph: Path) -> list[Path]:
    """The files that hold a graph's weights. Raises OSError."""
    content = graph.read_bytes()
    # A graph names them in plain bytes; reading it needs a library that the device does not have.
    return [
        beside
        for beside in sorted(graph.parent.iterdir())
        if beside != graph and beside.name.encode() in content and beside.is_file()
    ]


def _header(ingredients: Mapping[str, Any], engine: bytes) -> dict[str, Any]:
    return {**ingredients, "bytes": len(engine), "sha256": hashlib.sha256(engine).hexdigest()}


def _read(path: Path, ingredients: Mapping[str, Any]) -> bytes | None:
    """The engine in a file: a line of JSON, then the engine. None when there is none, or it is damaged."""
    try:
        head, _, engine = path.read_bytes().partition(b"\n")
    except FileNotFoundError:
        return None
    if head != _json(_header(ingredients, engine)):
        logger.warning("%s: damaged; the engine is built anew", path)
        return None
    return engine


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _line(text: str) -> str:
    return " ".join(text.split())
