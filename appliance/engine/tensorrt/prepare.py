"""Builds a bundle's engines for this device, compares them with the CPU, and records the result.

A graph that cannot be built, or that differs, is built in the next Arithmetic. Old engines stay until the new
ones have passed.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from appliance.contract.bundle import Bundle, Manifest, identity
from appliance.contract.graphs import STEPS, GraphSpec, signatures
from appliance.contract.tokens import read_vocabulary
from appliance.durable import free_bytes, locked, replace_file
from appliance.engine.backend import Arithmetic, Backend, Bound, Graph, HostArray, Ranges, Tensor
from appliance.engine.engine import Synthesizer, ranges
from appliance.engine.host import HostMemory
from appliance.engine.tensorrt import build
from appliance.engine.tensorrt.build import WORKSPACE_BYTES, EngineSource, Tally, files_of, profiles_of
from appliance.engine.tensorrt.gate import WHOLE, Comparison, compare, graphs_of
from appliance.engine.tensorrt.trt import TrtBackend
from appliance.errors import BundleError, DeviceLost, EngineFault, OutOfDeviceMemory, StorageError
from appliance.fields import from_mapping

logger = logging.getLogger(__name__)

FORMAT = 3
KEPT_RECORDS = 2
"""Records that stay, for each bundle in use and for all others: the last one, and one to go back to."""
MIB = 1 << 20

OpenBackend = Callable[[str], Backend]


@dataclass(frozen=True)
class EngineRecord:
    """Engines that passed, by graph, stored in `<manifest's sha256>.<versions>.json`."""

    format: int
    platform: dict[str, Any]
    engines: dict[str, tuple[str, ...]]
    """Graph → SHA-256 of each of its engines."""
    arithmetic: dict[str, str]
    """Graph → value of an Arithmetic, for graphs that do not compute as exported."""
    refused: dict[str, str]
    """Graph → reason for its other arithmetic."""
    worst: dict[str, float]
    build_s: dict[str, float]
    """Graph → seconds of its build; cached graphs are absent."""
    attentions: dict[str, int]
    """Step graph → number of fused attention kernels; absent in float32, or if unknown."""

    @property
    def safer(self) -> dict[str, Arithmetic]:
        return {graph: Arithmetic(value) for graph, value in self.arithmetic.items()}


@dataclass(frozen=True)
class PlannedEngine:
    """An engine that is stored, or that must be built."""

    graph: str
    profiles: int
    is_kept: bool
    size_bytes: int
    """Size of the cached engine, else of the graph's weights."""


@dataclass(frozen=True)
class BuildPlan:
    """Steps that `prepare` would take, for --dry-run."""

    device: str
    folder: Path
    engines: tuple[PlannedEngine, ...]
    compared: bool
    """True if the engines were compared with the CPU's results before."""
    speaking_bytes: int
    """Estimate of GPU memory while speaking."""
    lanes: int
    build_s: float | None
    """Estimate from earlier builds; None if there are none."""
    attentions: Mapping[str, int]
    """Graph → fused attentions in its stored engine."""

    @property
    def disk_bytes(self) -> int:
        """Estimate: weights, and a tenth for kernels."""
        return round(1.1 * sum(engine.size_bytes for engine in self.engines if not engine.is_kept))

    @property
    def memory_bytes(self) -> int:
        """Estimate: three times the largest graph's weights, and workspace."""
        largest = max((engine.size_bytes for engine in self.engines if not engine.is_kept), default=0)
        return 3 * largest + WORKSPACE_BYTES if largest else 0

    def lines(self) -> list[str]:
        lines = [
            f"engines for {self.device}, in {self.folder}",
            f"speaking  about {self.speaking_bytes // MIB} MiB of the GPU's memory with {self.lanes} lanes, "
            "kernels and working memory apart",
        ]
        for engine in self.engines:
            state = "kept" if engine.is_kept else "to build"
            size = f"{'' if engine.is_kept else 'about '}{engine.size_bytes // MIB} MiB"
            lines.append(f"{engine.graph:<12} profiles {engine.profiles:<3} {state:<9} {size}")
        if missing := [engine for engine in self.engines if not engine.is_kept]:
            took = "minutes for each engine; none was built here yet"
            if self.build_s is not None:
                took = f"about {max(math.ceil(self.build_s / 60), 1)} min, by earlier builds here"
            lines += [
                f"time      {took}",
                f"disk      about {self.disk_bytes // MIB} of {free_bytes(self.folder) // MIB} MiB free",
                f"memory    about {self.memory_bytes // MIB} of {available_bytes() // MIB} MiB available",
            ]
        lines += _attention_lines(self.attentions)
        if missing or not self.compared:
            lines.append("then every engine is compared with the CPU's numbers, which takes minutes too")
        else:
            lines.append("nothing to do: the engines were compared with the CPU's numbers and passed")
        return lines


def ensure(
    bundle: Bundle,
    backend: TrtBackend,
    open_backend: OpenBackend,
    lanes: int,
    *,
    postponed: str = "",
    beside: Collection[Path] = (),
) -> Mapping[str, Arithmetic]:
    """Prepare engines unless there is a valid record. Returns the graphs that do not compute as exported.

    `postponed`: reason for building none now. `beside`: folders of other bundles in use. Raises BundleError
    if the bundle is not for this device or building is postponed, StorageError if the cache cannot be used.
    """
    record = read_record(backend.cache.folder, bundle)
    if record is None or not _is_valid(record, bundle, backend):
        if postponed:
            raise BundleError(f"engines are not built yet: {postponed}")
        record = prepare(bundle, backend, open_backend, lanes, beside)
    for graph, value in record.arithmetic.items():
        logger.warning("%s is computed in %s: %s", graph, value, record.refused[graph])
    backend.safer = record.safer
    return record.safer


def plan(bundle: Bundle, backend: TrtBackend, lanes: int) -> BuildPlan:
    """Plan of a `prepare`. Raises BundleError, StorageError."""
    record = read_record(backend.cache.folder, bundle)
    engines = []
    weights = 0
    build_s = dict[str, float](record.build_s if record else {})
    for graph, source in engine_sources(bundle, backend, record.safer if record else {}).items():
        size = backend.cache.size(source)
        stored = sum(path.stat().st_size for path in files_of(source.path))
        weights += stored
        engines.append(PlannedEngine(graph, len(source.profiles), bool(size), size or stored))
    estimate = None
    if timed := [engine for engine in engines if engine.graph in build_s]:
        rate = sum(build_s[engine.graph] for engine in timed) / sum(engine.profiles for engine in timed)
        estimate = rate * sum(engine.profiles for engine in engines if not engine.is_kept)
    platform = backend.cache.platform
    device = f"{platform.device} ({platform.compute_capability}), TensorRT {platform.tensorrt}"
    compared = record is not None and _is_valid(record, bundle, backend)
    speaking = weights + tensor_bytes(bundle, backend, lanes)
    return BuildPlan(
        device,
        backend.cache.folder,
        tuple(engines),
        compared,
        speaking,
        lanes,
        estimate,
        record.attentions if record and compared else {},
    )


def safer(manifest: Manifest, graph: str, now: Arithmetic | None) -> Arithmetic | None:
    """The Arithmetic after `now` (None: as exported) that the bundle has for a graph."""
    answers: list[Arithmetic] = [*Arithmetic]
    for answer in answers[answers.index(now) + 1 if now else 0 :]:
        if manifest.precision == "fp32" and answer is Arithmetic.TF32:
            continue  # wrong by design
        if graph in manifest.variants.get(answer.variant, {}):
            return answer
    return None


def prepare(
    bundle: Bundle, backend: TrtBackend, open_backend: OpenBackend, lanes: int, beside: Collection[Path] = ()
) -> EngineRecord:
    """Build missing engines, compare all, write the record, and remove engines that no bundle in use needs.

    Raises BundleError if a graph is wrong in every Arithmetic, StorageError if the disk is full.
    """
    cache = backend.cache
    planned = plan(bundle, backend, lanes)
    for line in planned.lines():
        cache.announce(line)
    if planned.disk_bytes > (free := free_bytes(planned.folder)):
        raise StorageError(
            f"the cache of engines {planned.folder}: needs about {planned.disk_bytes // MIB} MiB, "
            f"{free // MIB} MiB are free"
        )
    if planned.memory_bytes > (available := available_bytes()):
        logger.warning(
            "building takes about %d MiB of memory, %d MiB are available",
            planned.memory_bytes // MIB,
            available // MIB,
        )
    answers: dict[str, Arithmetic] = {}
    refused: dict[str, str] = {}
    build_s: dict[str, float] = {}
    attentions: dict[str, int] = {}
    while True:
        failed, worst = _build_and_compare(bundle, open_backend, answers, build_s, attentions)
        if not failed:
            break
        for graph, why in failed.items():
            answer = safer(bundle.manifest, graph, answers.get(graph))
            if answer is None:
                raise BundleError(
                    f"{bundle.folder}: not for {cache.platform.device} with {backend.name}: {why}"
                )
            refusal = f"the engine of {graph} is refused, {answer.value} takes its place: {why}"
            cache.announce(refusal, logging.ERROR)
            answers[graph] = answer
        refused |= failed
    engines = {g: cache.digests(source) for g, source in engine_sources(bundle, backend, answers).items()}
    values = {graph: answer.value for graph, answer in answers.items()}
    platform = asdict(cache.platform)
    record = EngineRecord(FORMAT, platform, engines, values, refused, worst, build_s, attentions)
    try:
        with locked(cache.folder):
            replace_file(_record_path(cache.folder, bundle), json.dumps(asdict(record), indent=1).encode())
            _remove_old(cache.folder, {identity(folder) for folder in beside} - {identity(bundle.folder)})
    except OSError as error:
        raise StorageError(f"the cache of engines {cache.folder}: {error}") from error
    for line in _attention_lines(attentions):
        cache.announce(line)
    cache.announce("every engine is built and agrees with the CPU's numbers")
    return record


def unfused(attentions: Mapping[str, int]) -> list[str]:
    return [graph for graph, count in attentions.items() if not count]


def _attention_lines(attentions: Mapping[str, int]) -> list[str]:
    fused = ", ".join(f"{graph} {count}" for graph, count in attentions.items() if count)
    plain = ", ".join(unfused(attentions))
    lines = [f"attention fused kernels: {fused}"] if fused else []
    return lines + ([f"attention not fused in {plain}: steps take more than twice as long"] if plain else [])


def engine_sources(
    bundle: Bundle, backend: TrtBackend, safer: Mapping[str, Arithmetic]
) -> dict[str, EngineSource]:
    """Graph → source. Raises BundleError for a missing graph."""
    manifest = bundle.manifest
    specs, usual = signatures(manifest.dimensions), bundle.variant_for(backend.name)
    return {
        graph: EngineSource(
            bundle.graph(graph, safer[graph].variant if graph in safer else usual),
            specs[graph],
            profiles_of(specs[graph], ranges(graph, manifest, backend)),
            safer.get(graph) is Arithmetic.TF32,
        )
        for graph in graphs_of(manifest.defaults.sampling)
    }


def read_record(folder: Path, bundle: Bundle) -> EngineRecord | None:
    """Record of a bundle; None if missing or damaged. Raises StorageError if unreadable."""
    path = _record_path(folder, bundle)
    if not path.exists():  # name until 0.27
        path = folder / f"{identity(bundle.folder)}.json"
    try:
        raw = json.loads(path.read_bytes())
        record = from_mapping(EngineRecord, raw, where=str(path), error=BundleError)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    except (ValueError, BundleError) as error:
        logger.warning("%s: unreadable, the engines are compared again: %s", path, error)
        return None
    return record if record.format == FORMAT else None


def _record_path(folder: Path, bundle: Bundle) -> Path:
    """Path of a record.

    Versions that build other engines have their own, so an undone upgrade finds its record.
    """
    return folder / f"{identity(bundle.folder)}.{FORMAT}.{build.FORMAT}.json"


def _is_valid(record: EngineRecord, bundle: Bundle, backend: TrtBackend) -> bool:
    if record.platform != asdict(backend.cache.platform):
        return False
    sources = engine_sources(bundle, backend, record.safer)
    return record.engines == {graph: backend.cache.digests(source) for graph, source in sources.items()}


def _build_and_compare(
    bundle: Bundle,
    open_backend: OpenBackend,
    safer: Mapping[str, Arithmetic],
    build_s: dict[str, float],
    attentions: dict[str, int],
) -> tuple[dict[str, str], dict[str, float]]:
    """(failed graph → reason, `EngineRecord.worst`). Adds to `build_s`, and sets `attentions`."""
    backend = cast(TrtBackend, open_backend(TrtBackend.name))
    backend.safer = safer
    engine: Synthesizer | None = None
    try:
        cache, sources = backend.cache, engine_sources(bundle, backend, safer)
        due = {
            graph: [part for part in cache.parts(source) if not cache.size(part)]
            for graph, source in sources.items()
        }
        cache.tally = Tally(sum(map(len, due.values())))
        for graph, parts in due.items():
            if parts:
                begun = time.monotonic()
                try:
                    for part in parts:
                        cache.engine(part)
                except BundleError as error:
                    return {graph: str(error)}, {}
                build_s[graph] = round(time.monotonic() - begun, 1)
        host = open_backend("ort-cpu")
        engine = Synthesizer(bundle, backend, host=host, lanes=1, safer=safer)
        outcome = _compare(bundle, engine, backend, open_backend)
        attentions.clear()
        for graph, counts in backend.attentions.items():
            fused_counts = [count for count in counts if count is not None]
            if graph in STEPS and graph not in safer and len(fused_counts) == len(counts):
                attentions[graph] = sum(fused_counts)
        return outcome
    except (DeviceLost, OutOfDeviceMemory):
        raise
    except EngineFault as error:
        raise BundleError(f"{bundle.folder}: its engines cannot be used: {error}") from error
    finally:
        (engine.shutdown if engine else backend.close)()


def _compare(
    bundle: Bundle, engine: Synthesizer, backend: TrtBackend, open_backend: OpenBackend
) -> tuple[dict[str, str], dict[str, float]]:
    """(failed graph → reason, `EngineRecord.worst`)"""
    exact = Synthesizer(bundle, open_backend("ort-cpu"), lanes=1)
    failed: dict[str, Comparison] = {}
    worst: dict[str, float] = {}
    try:
        for one in compare(engine, exact, read_vocabulary(bundle.vocab)):
            backend.cache.report(f"comparing: {backend.cache.tally.so_far}, {one}")
            worst[one.graph] = max(worst.get(one.graph, 0.0), float(f"{one.error:.2e}"))
            if not one.holds:
                failed.setdefault(one.graph, one)
                if one.graph == "condition":  # an input of every step
                    break
    finally:
        exact.shutdown()
    reasons = {graph: str(one) for graph, one in failed.items()}
    if [*reasons] == [WHOLE]:  # wrong as a whole, though no graph fails alone
        reasons = dict.fromkeys(
            (g for g in graphs_of(bundle.manifest.defaults.sampling) if g != "update"), reasons[WHOLE]
        )
    reasons.pop(WHOLE, None)
    return reasons, worst


def available_bytes() -> int:
    """MemAvailable of proc(5), which a Jetson's GPU shares."""
    for line in Path("/proc/meminfo").read_text("ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _remove_old(folder: Path, used: Collection[str]) -> None:
    """Remove all but the newest records (of each bundle in `used`, and of all others), and their engines.

    Raises OSError.
    """
    by_age = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    digests: set[str] = set()
    counts = Counter[str]()
    for path in by_age:
        of = path.name.partition(".")[0]
        counts[group := of if of in used else ""] += 1
        if counts[group] > KEPT_RECORDS:
            path.unlink()
            continue
        record = json.loads(path.read_bytes())
        if record["format"] == FORMAT:
            digests.update(itertools.chain.from_iterable(record["engines"].values()))
    for path in folder.glob("*.engine"):
        with path.open("rb") as stream:
            head = stream.readline()
        if not any(digest.encode() in head for digest in digests):
            path.unlink()
            logger.info("removed %s, which no bundle uses any more", path)


def tensor_bytes(bundle: Bundle, backend: Backend, lanes: int) -> int:
    """Bytes of a warm engine's tensors."""
    counting = _Counting(backend)
    engine = Synthesizer(bundle, counting, host=_Counting(backend), lanes=lanes)
    engine.reserve()
    return counting.bytes


class _Counting(HostMemory):
    """A backend, graph and binding that computes and allocates nothing."""

    def __init__(self, backend: Backend) -> None:
        self.name, self.label = backend.name, backend.label
        self.frame_multiple, self.max_batch = backend.frame_multiple, backend.max_batch
        self.bytes = 0

    def load(self, name: str, path: Path, spec: GraphSpec, ranges: Ranges) -> Graph:
        return self

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Bound:
        return self

    def run(self, *, release: bool = False, capture: bool = False) -> None: ...

    def empty(self, shape: Sequence[int], dtype: str) -> HostArray:
        zeros = np.broadcast_to(np.zeros((), dtype), shape)  # one element of memory
        self.bytes += zeros.nbytes
        return zeros

    def view(self, tensor: Tensor, shape: Sequence[int], at: tuple[int, ...] = ()) -> HostArray:
        return np.broadcast_to(np.zeros((), tensor.dtype), shape)

    def upload(self, array: HostArray, to: Tensor) -> None: ...

    def copy(self, source: Tensor, to: Tensor) -> None: ...
