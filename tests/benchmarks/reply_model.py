"""Modelled time of a reply on a GPU: its calls at the sizes that the engine gives them, at assumed speeds.

Assumed, not measured: the shares of the peak, and the bytes that pointwise work moves. Where attention is
not fused, these are what products, convolutions and softmaxes read and write. Launches are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from appliance.contract.bundle import Bundle, Sampling
from appliance.contract.graphs import FRAME_MULTIPLE
from appliance.engine.calls import calls_alone
from appliance.engine.costs import StepCall
from appliance.request import Segment
from tests.benchmarks.devices import Mode
from tests.benchmarks.graph_work import bytes_moved, count, speedups

REACHED: Mapping[str, float] = {"linear": 0.6, "convolution": 0.6, "attention": 0.4, "rest": 1.0}
"""Share of the peak in FP16, by class; attention is fused."""
INT8_GAIN = 0.73
"""Share of their double peak that INT8 products keep of what FP16 ones reach."""
BANDWIDTH_REACHED = 0.83
POINTWISE_BYTES = 30.0
"""Bytes that norms, rotations, gates and activations of a block of a DiT, whose attention is fused, move per
frame and channel."""
WIDTH = 2
"""Bytes of a number in FP16, in which every graph is modelled."""
FIRST_PIECE_S = 1.5
"""Speech of the first piece of a stream."""
LANE_ROWS = 2


@dataclass(frozen=True)
class ReplyTime:
    sampling: Sampling
    steps_s: float
    other_s: float
    """Condition and vocoder."""
    first_audio_s: float
    """Of a stream whose first piece has FIRST_PIECE_S."""
    padding: float
    """Arithmetic of the steps over that at true lengths."""

    @property
    def total_s(self) -> float:
        return self.steps_s + self.other_s


class ReplyModel:
    def __init__(self, bundle: Bundle, mode: Mode) -> None:
        """Counts the bundle's graphs. Raises BundleError."""
        self._bundle, self._mode = bundle, mode
        self._works = {graph: count(bundle, graph) for graph in ("condition", "step", "vocoder")}
        self._speed = {name: gain * INT8_GAIN for name, gain in speedups(bundle).items()}

    def reply(self, sampling: Sampling, frames: int, reference: int, nfe: int) -> ReplyTime:
        calls, exactly = (self._calls(sampling, frames, reference, nfe, n) for n in (FRAME_MULTIPLE, 1))
        piece = min(frames, round(FIRST_PIECE_S * self._bundle.manifest.mel.frames_per_second))
        first = self._calls(sampling, piece, reference, nfe, FRAME_MULTIPLE)
        return ReplyTime(
            sampling,
            sum(map(self.step_s, calls)),
            self._other_s(frames, reference),
            sum(map(self.step_s, first)) + self._other_s(piece, reference),
            sum(map(self._operations, calls)) / sum(map(self._operations, exactly)),
        )

    def _calls(
        self, sampling: Sampling, frames: int, reference: int, nfe: int, multiple: int
    ) -> list[StepCall]:
        segment = Segment(
            index=0,
            text="",
            ids=np.zeros(1, np.int32),
            frames=frames + reference,
            reference_log_mel=np.zeros((reference, 1), np.float32),
            reference_frames=reference,
            times=self._bundle.manifest.times(nfe),
            guidance=2.0,
            sampling=sampling,
        )
        m = self._bundle.manifest
        return [
            call
            for step in range(nfe)
            for call in calls_alone(segment, step, multiple, LANE_ROWS, m.sampler, m.dimensions)
        ]

    def _of_step(self, call: StepCall) -> dict[str, float]:
        return {
            name: linear * call.tokens + quadratic * call.pairs
            for name, (_, linear, quadratic) in self._works["step"].flops.items()
        }

    def _operations(self, call: StepCall) -> float:
        return sum(self._of_step(call).values())

    def step_s(self, call: StepCall) -> float:
        work, arch = self._works["step"], self._bundle.manifest.arch
        if arch:
            moved = POINTWISE_BYTES * arch.depth * arch.dim * call.tokens
        else:
            _, linear, quadratic = work.values
            moved = WIDTH * (linear * call.tokens + quadratic * call.pairs)
        weights_s = self._moved_s(work.parameters * WIDTH)
        return max(self._compute_s(self._of_step(call)), weights_s) + self._moved_s(moved)

    def other_s(self, graph: str, frames: int) -> float:
        work = self._works[graph]
        moved = bytes_moved(self._bundle, graph, frames, work, WIDTH)
        return max(self._compute_s(work.at(frames)), self._moved_s(moved))

    def kernels(self, graph: str) -> int:
        return self._works[graph].kernels

    def _other_s(self, frames: int, reference: int) -> float:
        return self.other_s("condition", reference + frames) + self.other_s("vocoder", frames)

    def _compute_s(self, flops: Mapping[str, float]) -> float:
        return sum(
            operations / (self._mode.flops * REACHED[name] * self._speed.get(name, 1.0))
            for name, operations in flops.items()
        )

    def _moved_s(self, many: float) -> float:
        return many / (self._mode.bytes_per_s * BANDWIDTH_REACHED)
