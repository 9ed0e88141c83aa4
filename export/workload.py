"""Work of each stage of an export, guessed from the weights, for the time left."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

from appliance.contract.bundle import FLOAT32, FLOAT32_SUMS, FUSED, INT8, Precision
from export import assemble
from export.evidence import SEEDS, TIMES, EvidenceRecording
from export.parity import comparison, oracles
from export.parity.oracles import (
    GATE_NFES,
    LONG_FRAMES,
    LONG_TIMES,
    READINGS,
    SAMPLE_FRAMES,
    SOLVED_TIMES,
    STEP_FRAMES,
)
from export.precision import calibration
from export.progress import Plan, Stage

S_OF_PRODUCT = 2.7e-11
"""Guessed seconds of a core for one multiplication in torch, from v1_Base on an AMD EPYC."""
RATES = {"torch": 1.0, "exact": 2.0, "engine": 0.45, "peaks": 2.0}
"""Kind of stage → guessed time of a multiplication, as a multiple of S_OF_PRODUCT. The work of `trace` is in
seconds.
"""
TRACE_S, TRACE_PARAMETER_S = 0.025, 4.5e-8
"""Guessed seconds of a step graph's trace for each tensor, and for each parameter of the weights."""
REPLY = 0.5
"""Guessed share of a reading's frames that belong to the reply."""
VARIANTS: dict[Precision, tuple[str, ...]] = {
    "fp32": ("default", "ort-cpu"),
    "fp16": ("default", FLOAT32, "ort-cpu"),
    "int8": ("default",),
    "int8-qdq": ("default", FLOAT32, "ort-cpu"),
}
"""Precision → variants that `comparison.variants` will find in the bundle, in the same order."""


def plan(
    loaded: assemble.Loaded,
    options: assemble.BuildOptions,
    recordings: Sequence[EvidenceRecording],
    sampling: str = "auto",
) -> Plan:
    """Stages of `python -m export bundle` in their order. The progress line skips planned stages that do not
    occur.
    """
    return _Work(loaded, options, sampling).plan(recordings)


class _Work:
    """Estimates the work of each stage of an export."""

    def __init__(self, loaded: assemble.Loaded, options: assemble.BuildOptions, sampling: str) -> None:
        self._loaded, self._options, self._named = loaded, options, sampling
        self._precision = options.precision
        weights = loaded.weights()
        self._tensors = len(weights)
        shapes = {name: weights.entry(name).shape for name in weights}
        self._parameters = sum(map(math.prod, shapes.values()))
        # Weights that see only the time do not work on frames.
        self._products = sum(
            math.prod(shape)
            for name, shape in shapes.items()
            if len(shape) > 1 and "norm" not in name and "time" not in name
        )
        arch = loaded.given.arch
        sizes = getattr(arch, "dim", 0), getattr(arch, "depth", 0)
        self._scores = 2 * sizes[0] * sizes[1] if all(isinstance(size, int) for size in sizes) else 0
        self._rows = loaded.sources.sampler.most_rows
        self._readings = [min(frames, options.max_frames) for _, frames in READINGS]

    def plan(self, recordings: Sequence[EvidenceRecording]) -> Plan:
        return Plan([*self._before(recordings), *self._gate()], self.evaluation, RATES)

    def evaluation(self, frames: int) -> float:
        """Guessed seconds of torch for one row of this many frames."""
        products = frames * (self._products + self._scores * frames)
        return products * S_OF_PRODUCT / torch.get_num_threads()

    def _before(self, recordings: Sequence[EvidenceRecording]) -> Iterator[Stage]:
        """Stages before the gate: evidence, graphs, calibration, oracles, peaks."""
        spec, declared = self._loaded.mel, self._loaded.declaration
        trials = 2 + len(declared.others(self._loaded.given.arch))
        seeds = 1 if len(recordings) > 1 else len(SEEDS)
        lengths = [len(one.samples(spec.sample_rate_hz)) // spec.hop for one in recordings]
        passes = sum(map(self.evaluation, lengths)) * seeds
        # All trials at one flow time, then at all times; then the user's flags without text, and with another
        # text.
        yield Stage("evidence", "torch", passes * (trials + (trials + 2) * len(TIMES)))
        steps = len(declared.single) + self._forms * len(declared.steps)
        step_s = TRACE_S * self._tensors + TRACE_PARAMETER_S * self._parameters
        yield Stage("graphs", "trace", step_s * (steps + 4 * assemble.SMALL_GRAPH))
        if self._precision == "int8-qdq":
            sampled = sum(self._sampled(self._readings[0], nfe) for nfe, _ in calibration.RUNS)
            yield Stage("calibrating", "engine", 2 * sampled)
        random = self._random()
        coarse = self._sampled(self._readings[0], sum(GATE_NFES)) if self._options.lossy else 0.0
        # The torch oracle samples in float32 and in float64.
        yield Stage("oracle torch", "exact", 2 * random + sum(map(self._solved, self._readings)) + coarse)
        yield Stage("oracle upstream", "torch", random)
        if self._precision not in ("fp32", "int8") and declared.peaks is not None:
            points = 2 * sum(map(self.evaluation, self._readings))
            yield Stage("peaks", "peaks", points)

    @property
    def _forms(self) -> int:
        """Number of forms of the step graphs for rows, as `assemble.BundleWriter` writes them."""
        fuses = self._loaded.declaration.fused and FUSED in assemble.BACKENDS[self._precision]
        return (self._precision != "int8") + fuses

    def _gate(self) -> Iterator[Stage]:
        """Stages of the gate: comparisons of each variant, then its samples."""
        names = list(VARIANTS[self._precision])
        if self._options.int8_beside:
            names.insert(-1, INT8)
        short = self._readings[0]
        one, each = self.evaluation(short), sum(map(self._stepped, self._readings))
        for name in names:
            yield Stage(f"gate of {name}", "engine", each)
        if self._forms > 1:
            yield Stage(f"gate of {FUSED}", "engine", (5 + REPLY) * one)
        if self._precision == "fp16":
            yield Stage(f"gate of {FLOAT32_SUMS}", "engine", (5 + REPLY) * one)
        samplings = self._loaded.declaration.samplings or self._named in comparison.MEASURED
        steps = GATE_NFES[0] * (1 + REPLY) + comparison.FINE_NFE if samplings else 0.0
        for name in reversed(names):
            lossy = name == INT8 or self._precision in comparison.LOSSY
            steps = max(steps, GATE_NFES[0]) if lossy else steps
            yield Stage(
                f"samples of {name}",
                "engine",
                (0.0 if lossy else self._random()) + self._sampled(short, steps),
            )
            steps = 0.0  # the cheaper samplings are measured once

    def _stepped(self, frames: int) -> float:
        """Work of a reading's single steps: in a short reading one row for each time, and one more for the
        middle time; then the keys, the reply that reuses them, and padded rows.
        """
        alone = 0 if frames > LONG_FRAMES else len(SOLVED_TIMES)
        return (alone + 2 + REPLY) * self.evaluation(frames)

    def _solved(self, frames: int) -> float:
        """Work of a reading in float64. A long reading has one row."""
        if frames > LONG_FRAMES:
            return (len(LONG_TIMES) - 1) * self.evaluation(frames)
        return self._sampled(frames, len(SOLVED_TIMES) - 1)

    def _sampled(self, frames: int, steps: float) -> float:
        return self._rows * steps * self.evaluation(frames)

    def _random(self) -> float:
        """Work of the random cases of `oracles.expect`."""
        nfes = self._loaded.sources.sampler.steps or oracles.SAMPLE_NFES
        drawn = sum(self._sampled(frames, 1) for frames in STEP_FRAMES)
        return drawn + self._sampled(SAMPLE_FRAMES, sum(nfes))
