"""Parity of a bundle with its weights: every variant, on the device's engine, against the oracles."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.contract.bundle import (
    FLOAT32,
    FLOAT32_SUMS,
    FUSED,
    INT8,
    Bundle,
    Manifest,
    Precision,
    Sampling,
)
from appliance.contract.graphs import CONTEXT, kept, signatures
from appliance.contract.mel import log_mel
from appliance.contract.sampler import Sampler
from appliance.engine.backend import Graph
from appliance.engine.engine import Synthesizer
from appliance.engine.ort import OrtBackend
from appliance.engine.replay import replay
from appliance.errors import EngineFault
from export import progress
from export.parity.oracles import (
    EXACT,
    GATE_NFES,
    LONG_FRAMES,
    Case,
    CaseSet,
    Coarse,
    Expectations,
    ExpectedGraph,
    FloatArray,
    Peak,
    TorchOracle,
    Trajectory,
    distance,
    ratio,
    relative_error,
)

BOUNDS: dict[Precision, dict[str, float]] = {
    "fp32": {
        "modulation": 5e-6,
        "condition": 5e-6,
        "step": 5e-6,
        "vocoder": 1e-5,
        "sample": 5e-5,
        "wave": 5e-4,
    },
    "fp16": {
        "modulation": 2e-3,
        "condition": 5e-3,
        "step": 5e-3,
        "vocoder": 1e-2,
        "sample": 1e-2,
        "wave": 1e-1,
    },
    "int8": {
        "modulation": 2e-3,
        "condition": 5e-6,
        "vocoder": 1e-1,
        "mel": 0.35,
        "wave mel": 0.35,
        "heard": 0.05,
    },
    "int8-qdq": {
        "modulation": 2e-3,
        "condition": 5e-3,
        "vocoder": 1e-2,
        "mel": 0.25,
        "wave mel": 0.25,
    },
}
"""Largest accepted errors.

Steps of lossy precisions have none: guidance amplifies their errors, and later steps correct them. Samples
have log-mels instead, because their phase is arbitrary. `heard`: mean distance of log-mels in nepers that
passes whatever few steps cost. INT8 of the demo voice is 0.03 to 0.05 from its float32, and as often wrong in
its words (appliance/demo/README.md). An INT8 vocoder may be as far off as a wave in float16; the demo's is at
0.008.
"""
LOSSY: tuple[Precision, ...] = ("int8", "int8-qdq")
BESIDE_HALF = BOUNDS["int8-qdq"] | {
    name: BOUNDS["int8"][name] for name in ("vocoder", "mel", "wave mel", "heard")
}
"""Bounds of the variant INT8 of an fp16 bundle, whose other graphs read float16 weights."""
CHEAPER: tuple[Sampling, ...] = ("short-kv", "short")
"""Samplings other than `exact` that the export of a DiT chooses from, cheapest first."""
MEASURED: tuple[Sampling, ...] = ("short-once", *CHEAPER)
"""Samplings that are measured.

`short-once` is chosen only by name, because a listening test must justify it.
"""
SHIFTED = 1e-8
"""Additional error for each frame of a row whose reference does not begin at position 0, because float32
rounds the rotary angle n·w differently there.
"""
SAMPLING_BOUND = 1.65
"""Largest distance of a sampling to the fine solution, divided by the distance of `exact` with the same
number of steps.

With a fine solution of NFE 32 it would be 1.5, by six readings of the demo's weights.
"""
FINE_NFE = 16
"""Steps of the fine solution, which stands for the limit of infinitely many steps."""
HOPELESS = 3.0
"""Distance of a sampling, as a multiple of its bound, from which the next sampling is not tried, because its
distance is about the same.
"""
OWN_ERRORS = 8.0
"""Multiple of the error of torch's own float32, with the same weights, within which a float32 graph passes
even if it exceeds its bound. Both are errors against float64. `BOUNDS` are this factor times the 6e-7 that
torch has with usual weights.
"""
RATIOS = ("mel", "wave mel", *CHEAPER)
"""Rows whose error is a ratio of mean absolute distances."""
PEER = "upstream-int8"
"""Variant with upstream's own INT8 of the step."""
KEPT_BYTES = 64 << 20
SHOWN_PEAKS = 3
"""Number of peaks that the report shows of each graph."""
PADDING = 37
"""Most frames of padding that the cases add, for graphs with masks."""


@dataclass(frozen=True)
class Row:
    what: str
    variant: str
    against: str
    frames: int
    nfe: int
    """Number of steps; 0 if none."""
    error: float
    """‖a − b‖ / ‖b‖ or a ratio of distances; infinite if the engine failed."""
    bound: float | None
    """Largest accepted error; None if the row is only reported."""
    time: float | None = None
    """Flow time of a single velocity."""

    @property
    def holds(self) -> bool:
        return math.isfinite(self.error) and (self.bound is None or self.error <= self.bound < math.inf)

    @property
    def snr_db(self) -> float | None:
        """Signal-to-noise ratio; None for ratios of distances."""
        return None if self.what in RATIOS else -20.0 * float(np.log10(max(self.error, 1e-12)))

    def __str__(self) -> str:
        place = "" if self.time is None else f", t {self.time:.3f}"
        limit = "not finite" if self.bound is None else f"allowed {self.bound:.1e}"
        return (
            f"{self.what} at {self.frames} frames, NFE {self.nfe}{place}, variant {self.variant}, "
            f"against {self.against}: {self.error:.1e}, {limit}"
        )


@dataclass
class Report:
    precision: str
    rows: list[Row] = field(default_factory=list)
    absent: str = ""
    """Reason why upstream's package was not compared."""
    samplings: list[Row] = field(default_factory=list)
    """Cheaper samplings against `exact`."""
    choices: tuple[Sampling, ...] = CHEAPER
    """Samplings that `sampling` may return."""
    peaks: tuple[Peak, ...] = ()
    """Largest magnitudes in float16."""

    @property
    def broken(self) -> list[Row | Peak]:
        """Rows with non-finite errors, and peaks beyond float16. With these the bundle cannot synthesise."""
        rows = [row for row in (*self.rows, *self.samplings) if not math.isfinite(row.error)]
        return [*rows, *(peak for peak in self.peaks if not peak.is_finite)]

    @property
    def failed(self) -> list[str]:
        """Rows beyond their bound; of samplings, only non-finite ones."""
        beyond = [str(peak) for peak in self.peaks if not peak.holds]
        beyond += [str(row) for row in self.rows if not row.holds]
        return beyond + [str(row) for row in self.samplings if not math.isfinite(row.error)]

    @property
    def sampling(self) -> Sampling:
        """Cheapest measured sampling within its bound."""
        for sampling in self.choices:
            if any(row.what == sampling for row in self.samplings) and not self.beyond(sampling):
                return sampling
        return "exact"

    def drop(self, variant: str) -> list[str]:
        """If a row of a variant is beyond its bound, remove all rows of the variant.

        Returns the rows beyond.
        """
        beyond = [str(row) for row in self.rows if row.variant == variant and not row.holds]
        if beyond:
            self.rows = [row for row in self.rows if row.variant != variant]
            self.samplings = [row for row in self.samplings if row.variant != variant]
        return beyond

    def beyond(self, sampling: Sampling) -> list[str]:
        return [str(row) for row in self.samplings if row.what == sampling and not row.holds]

    def record(self) -> dict[str, Any]:
        rows = []
        for row in (*self.rows, *self.samplings):
            snr_db = None if row.snr_db is None else round(row.snr_db, 1)
            rows.append({**asdict(row), "error": float(f"{row.error:.3g}"), "snr_db": snr_db})
        record = {"rows": rows, "upstream": self.absent or "measured", "sampling": self.sampling}
        if self.peaks:
            largest = [p for _, of in groupby(self.peaks, lambda p: p.graph) for p in islice(of, SHOWN_PEAKS)]
            record["peaks"] = [{**asdict(peak), "value": float(f"{peak.value:.3g}")} for peak in largest]
        return record


def variants(bundle: Bundle) -> list[str]:
    """Variants that a CPU can run, whichever backend they are for; the CPU's own variant is last."""
    names = {bundle.variant_for(backend) for backend in bundle.manifest.backends} - {FUSED}
    names |= {FLOAT32, INT8} & bundle.manifest.variants.keys()
    return sorted(names, key=lambda name: (name == "ort-cpu", name))


def measure(
    bundle: Bundle, expected: Expectations, choices: tuple[Sampling, ...] = CHEAPER, named: str = "auto"
) -> Report:
    """Compare graphs, generated frames and waveforms of every variant with the oracles.

    `choices`: samplings that the report may choose, cheapest first. `named`: the only sampling to measure, or
    "auto" for all `choices`.
    """
    report = Report(bundle.manifest.precision, absent=expected.absent, peaks=expected.peaks, choices=choices)
    names = variants(bundle)
    paths: set[Path] = set()
    judged = [(name, expected.graphs, expected.trajectories) for name in names]
    last = [solved.last for solved in expected.trajectories[:1]]  # their other graphs are the default's
    judged += [(name, [], last) for name in (FUSED, FLOAT32_SUMS) if name in bundle.manifest.variants]
    for variant, alone, trajectories in judged:
        give_back()
        progress.begin(f"gate of {variant}")
        graphs = Graphs(bundle, variant, bounds_of(bundle.manifest, variant, expected))
        report.rows.extend(single(graphs, alone, paths))
        for solved in trajectories:
            report.rows.extend(velocities(graphs, solved))
        del graphs
    give_back()
    case = expected.trajectories[0].case if expected.trajectories else None
    samplings = choices if named == "auto" else (named,) if named in MEASURED else ()
    sampled = measure_samplings(
        bundle,
        case,
        lambda samples: report.rows.extend(_samples(samples, expected)),
        samplings,
        first=named == "auto",
    )
    report.samplings = sampled.samplings
    if PEER in bundle.manifest.variants and expected.coarse is not None:
        _beside_peer(bundle, report, expected.coarse)
    report.rows.sort(key=lambda row: names.index(row.variant) if row.variant in names else len(names))
    return report


def bounds_of(manifest: Manifest, variant: str, expected: Expectations) -> Mapping[str, float]:
    """Largest accepted errors of a variant: the bounds of `expected`, else of the bundle's precision."""
    return BESIDE_HALF if variant == INT8 else expected.bounds or BOUNDS[manifest.precision]


def single(graphs: Graphs, expected: Sequence[ExpectedGraph], paths: set[Path]) -> Iterator[Row]:
    """Rows of the graphs that run once, except for files in `paths`. Adds their files to it."""
    earlier = frozenset(paths)
    for one in expected:
        if (path := graphs.bundle.graph(one.graph, graphs.variant)) not in earlier:
            paths.add(path)
            error = relative_error(graphs.output(one.graph, one.inputs, one.output.shape), one.output)
            bound = max(graphs.bounds[one.graph], OWN_ERRORS * one.own)
            yield Row(one.graph, graphs.variant, EXACT, one.frames, 0, error, bound)


def measure_samplings(
    bundle: Bundle,
    case: Case | None = None,
    more: Callable[[Samples], None] | None = None,
    samplings: tuple[Sampling, ...] = MEASURED,
    *,
    first: bool = False,
) -> Report:
    """Compare the cheaper `samplings` with `exact`, on `case` (None: the first of READINGS), without an
    oracle.

    It runs the CPU's variant. With `first`, it stops at a sampling within its bound or beyond HOPELESS.
    Nothing is compared if steps re-noise, because more of them are no finer solution, or if no keys are kept.
    `more` is called with each variant's samples before its engine closes.
    """
    m = bundle.manifest
    d, nfe = m.defaults, m.sampler.nearest(GATE_NFES[0])
    case = case or CaseSet(m.mel, bundle.vocabulary(), m.max_frames, d.guidance).read()[0]
    start = len(case.cond)
    coarse, fine = (d.times(n) for n in (nfe, FINE_NFE))
    report = Report(m.precision, absent="not measured")
    if m.sampler.update == "renoise" or not m.dimensions.keeps_keys:
        samplings = ()
    for variant in reversed(variants(bundle)):
        progress.begin(f"samples of {variant}")
        with _samples_of(bundle, variant) as samples:
            if more is not None:
                more(samples)
            if not samplings:
                continue
            finest = samples(case, fine)[0][start:]
            exact = distance(samples(case, coarse)[0][start:], finest)
            for sampling in samplings:
                error = ratio(distance(samples(case, coarse, sampling)[0][start:], finest), exact)
                row = Row(sampling, variant, "exact", case.frames, nfe, error, SAMPLING_BOUND)
                report.samplings.append(row)
                if first and (row.holds or not error < HOPELESS * SAMPLING_BOUND):
                    break
            samplings = ()  # the effect of leaving them out depends on the weights, not on the arithmetic
    return report


class Samples:
    """Log-mel (N, M) and waveform of one variant, each computed once; NaN if the engine fails."""

    def __init__(self, engine: Synthesizer, variant: str) -> None:
        self.manifest, self.variant = engine.manifest, variant
        self._engine: Synthesizer | None = engine
        self._results: dict[tuple[int, bytes, Sampling], tuple[FloatArray, FloatArray]] = {}

    def __call__(
        self, case: Case, times: NDArray[np.float64], sampling: Sampling = "exact"
    ) -> tuple[FloatArray, FloatArray]:
        key = id(case), times.tobytes(), sampling
        if key not in self._results:
            try:
                assert self._engine is not None, "closed"
                self._results[key] = replay(self._engine, case.segment(times, sampling))
            except EngineFault:
                self._results[key] = np.full_like(case.noise, np.nan), np.full(1, np.nan, np.float32)
            frames = case.frames if sampling == "exact" else case.frames - len(case.cond)
            progress.did(frames, self.manifest.sampler.most_rows, len(times) - 1)
        return self._results[key]

    def close(self) -> None:
        if self._engine is not None:
            self._engine.shutdown()
        self._engine = None


def give_back() -> None:
    """Return freed memory to the system. Otherwise the next variant's graphs would add to it."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # a C library without it
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def _samples_of(bundle: Bundle, variant: str) -> Iterator[Samples]:
    # The CPU backend runs any variant: the default one computes in FP16, as a device does.
    samples = Samples(Synthesizer(bundle, OrtBackend(), lanes=1, variant=variant), variant)
    try:
        yield samples
    finally:
        samples.close()
        give_back()


def _samples(samples: Samples, expected: Expectations) -> Iterator[Row]:
    """Rows of the random cases. A lossy precision has two ratios of distances instead."""
    bounds = bounds_of(samples.manifest, samples.variant, expected)
    if samples.variant == INT8 or samples.manifest.precision in LOSSY:
        if expected.coarse is not None:
            yield from _lossy(samples, expected.coarse, bounds)
        return
    for e in expected.samples:
        mel, wave = samples(e.case, e.times)
        errors: list[tuple[str, float, float]] = [(e.what, e.error(mel), e.own)]
        if e.wave is not None:
            errors.append(("wave", e.wave_error(wave), e.own_wave))
        for what, error, own in errors:
            bound = max(bounds[what], OWN_ERRORS * own)
            yield Row(what, samples.variant, e.against, e.case.frames, len(e.times) - 1, error, bound)


def _lossy(samples: Samples, coarse: Coarse, bounds: Mapping[str, float]) -> Iterator[Row]:
    spec, nfe = samples.manifest.mel, coarse.nfe
    start = len(coarse.case.cond)
    mel, wave = samples(coarse.case, samples.manifest.defaults.times(nfe))
    wave_mel = log_mel(wave, spec)[start:] if np.isfinite(wave).all() else np.full(1, np.nan, np.float32)
    nepers = bounds.get("heard", 0.0)
    for what, error, unit, near in (
        ("mel", distance(mel[start:], coarse.mel[start:]), coarse.mel_distance, nepers / spec.scale),
        ("wave mel", distance(wave_mel, coarse.wave_mel[start:]), coarse.wave_mel_distance, nepers),
    ):
        bound = max(bounds[what], ratio(near, unit))
        yield Row(what, samples.variant, TorchOracle.name, coarse.case.frames, nfe, ratio(error, unit), bound)


def _beside_peer(bundle: Bundle, report: Report, coarse: Coarse) -> None:
    """Accept an INT8 variant beyond its bounds if upstream's own INT8 is as far from float32 or farther.

    Adds upstream's rows.
    """
    if all(row.holds for row in report.rows if row.what in RATIOS):
        return
    with _samples_of(bundle, PEER) as samples:
        theirs = list(_lossy(samples, coarse, dict.fromkeys(("mel", "wave mel"), 0.0)))
    allowed = {row.what: row.error for row in theirs}
    report.rows = [
        replace(row, bound=max(row.bound, allowed[row.what]))
        if row.what in allowed and row.bound is not None
        else row
        for row in report.rows
    ] + [replace(row, bound=None) for row in theirs]


class Graphs:
    """Runs graphs of one variant. The last large one stays loaded."""

    def __init__(self, bundle: Bundle, variant: str, bounds: Mapping[str, float] | None = None) -> None:
        self.bundle, self.variant = bundle, variant
        self.bounds = bounds or BOUNDS[bundle.manifest.precision]
        self.dimensions = bundle.manifest.dimensions
        self._backend, self._loaded = OrtBackend(), dict[str, Graph]()

    @property
    def masks(self) -> bool:
        m = self.bundle.manifest
        return self.variant not in ("ort-cpu", INT8) and m.batch_invariant and "step" in m.variants["default"]

    def run(
        self, name: str, inputs: Mapping[str, NDArray[Any]], shape: tuple[int, ...] = ()
    ) -> dict[str, NDArray[Any]]:
        """Outputs by name, NaN after a fault. `shape` has the sizes that no input shows."""
        spec = signatures(self.dimensions)[name]
        if name not in self._loaded:
            path = self.bundle.graph(name, self.variant)
            weights = path.with_name(f"{path.name}.data")  # a shared file has the size of all
            if not weights.exists() or weights.stat().st_size > KEPT_BYTES:
                self._loaded.clear()
            self._loaded[name] = self._backend.load(name, path, spec, {})
        arrays = {t.name: np.ascontiguousarray(inputs[t.name], t.dtype) for t in spec.inputs}
        axes = {str(a): n for t in spec.inputs for a, n in zip(t.axes, arrays[t.name].shape, strict=True)}
        outputs: dict[str, NDArray[Any]] = {
            t.name: np.zeros(shape or t.shape(axes), t.dtype) for t in spec.outputs
        }
        try:
            self._loaded[name].bind(arrays, outputs).run(release=True)
        except EngineFault:
            for array in outputs.values():
                array.fill(np.nan)
        if "latents" in arrays:
            rows, frames, _ = arrays["latents"].shape
            progress.did(frames, rows)
        return outputs

    def output(
        self, name: str, inputs: Mapping[str, NDArray[Any]], shape: tuple[int, ...] = ()
    ) -> FloatArray:
        """The first output, in float32."""
        return next(iter(self.run(name, inputs, shape).values())).astype(np.float32)


def velocities(graphs: Graphs, solved: Trajectory) -> Iterator[Row]:
    """Errors of velocities at the oracle's latents, through each step graph."""
    d = graphs.dimensions
    n = solved.case.frames
    start = len(solved.case.cond)
    bound, sampler = graphs.bounds.get("step"), graphs.bundle.manifest.sampler
    bound = bound and max(bound, OWN_ERRORS * solved.own)
    tensors = signatures(d)["step_keys" if d.keeps_keys else "step"].inputs
    with np.errstate(over="ignore"):  # in half precision; its rows report it
        condition, table = (
            array.astype(next(t.dtype for t in tensors if t.name == name))
            for name, array in (("condition", solved.condition), ("mod_table", solved.table))
        )
    middle = len(solved.latents) // 2

    def row(what: str, step: int, output: FloatArray, expected: NDArray[Any], more: float = 0.0) -> Row:
        time = round(float(solved.times[step]), 4)
        error = relative_error(output, expected)
        return Row(what, graphs.variant, EXACT, n, 1, error, bound and bound + more, time)

    for step, (x, expected) in enumerate(zip(solved.latents, solved.velocities, strict=True)):
        if d.keeps_keys and n > LONG_FRAMES:
            break  # the other rows would say as much, and cost as much again
        conditions = _shown(sampler, solved.times[step])
        rows = zip(("guided", "unguided"), conditions, expected)  # noqa: B905 - or the first alone
        for what, i, v in islice(rows, 1 + (step == middle)):
            yield row(what, step, _alone(graphs, x, condition[i], table, step), v)
    x, expected = solved.latents[middle], solved.velocities[middle]
    padding = min(PADDING, (graphs.bundle.manifest.max_frames - n) // 2) if graphs.masks else 0
    if d.keeps_keys:
        start = start // d.stride * d.stride
        before, cond = x[None, :start], condition[:1, :start]
        inputs = _rows(x[None, start:], condition[:1, start:], table, middle, padding)
        # The CPU kernel ignores the start of keys.
        first = 0 if graphs.variant == FUSED or d.kept else padding
        keys = graphs.run("step_keys", inputs | _reference(before, cond, first))
        later = SHIFTED * n if first else 0.0
        yield row("keys", middle, keys["velocity"][0, : n - start], expected[0, start:], later)
        context = min(start, CONTEXT)
        missing = CONTEXT - context if graphs.masks else 0
        inputs |= _reference(before[:, -context:], cond[:, -context:], missing, "context")
        inputs |= {t.name: keys[t.name] for t in kept(d)} | {"reference_lengths": np.array([start])}
        velocity = graphs.output("step_reply", inputs)
        yield row("reply", middle, velocity[0, : n - start], expected[0, start:], later)
    if graphs.masks:
        # Two rows; a long case has only one.
        both = np.resize(_shown(sampler, solved.times[middle])[: len(expected)], 1 + (n <= LONG_FRAMES))
        velocity = graphs.output(
            "step", _rows(np.stack([x] * len(both)), condition[both], table, middle, padding)
        )
        yield row("padded", middle, velocity[:, :n], np.resize(expected, (len(both), *expected.shape[1:])))


def _shown(sampler: Sampler, t: float) -> list[int]:
    """Indices in `Sampler.conditions` of the rows that a lane has at flow time `t`."""
    if sampler.most_rows == 1:
        return [0]
    return [0, sampler.conditions.index(sampler.unguided_at(t).condition)]


def _alone(
    graphs: Graphs, x: NDArray[Any], condition: NDArray[Any], table: NDArray[Any], step: int
) -> FloatArray:
    """(N, M) velocity of one row."""
    inputs = _rows(x[None], condition[None], table, step)
    if "step" in graphs.dimensions.required:
        return graphs.output("step", inputs)[0]
    return graphs.output("step_keys", inputs | _reference(x[None, :0], condition[None, :0]))[0]


def _rows(
    latents: NDArray[Any], condition: NDArray[Any], table: NDArray[Any], step: int, padding: int = 0
) -> dict[str, NDArray[Any]]:
    count, frames, _ = latents.shape
    return {
        "latents": _padded(latents, (0, padding)),
        "condition": _padded(condition, (0, padding)),
        "mod_table": table,
        "step_index": np.full(count, step),
        "lengths": np.full(count, frames),
    }


def _reference(
    latents: NDArray[Any], condition: NDArray[Any], padding: int = 0, name: str = "reference"
) -> dict[str, NDArray[Any]]:
    return {
        name: _padded(latents, (padding, 0)),
        f"{name}_condition": _padded(condition, (padding, 0)),
        "reference_lengths": np.array([latents.shape[1]]),
    }


def _padded(array: NDArray[Any], widths: tuple[int, int]) -> NDArray[Any]:
    """Pad (R, N, …) with noise. No result may depend on it."""
    rng = np.random.default_rng(0)
    before, after = (
        rng.standard_normal((array.shape[0], width, array.shape[2])).astype(array.dtype) for width in widths
    )
    return np.concatenate([before, array, after], axis=1)
