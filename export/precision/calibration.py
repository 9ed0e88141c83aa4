"""Calibration for INT8: observes the inputs of products while the float32 engine synthesises texts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from appliance.contract.bundle import Bundle, Sampling
from appliance.contract.graphs import GraphSpec
from appliance.contract.schedule import time_grid
from appliance.engine.backend import Bound, Graph, Ranges, Tensor
from appliance.engine.cases import FEMALE, MALE
from appliance.engine.engine import Synthesizer
from appliance.engine.ort import OrtBackend, OrtGraph
from appliance.engine.replay import replay
from export import progress
from export.parity.oracles import Case, FloatArray, read_case
from export.precision.rewrites import products_of

READINGS = ((MALE, 520), (FEMALE, 610))
"""Voice and length in frames of the calibration's cases. The parity gate uses other cases."""
TEXT = (
    "Yesterday evening the lights went out in the whole street, so we lit two candles and told stories. "
    "Have you ever seen such a large dog sleep on such a small chair? "
    "Thanks for the follow, and welcome to everyone who has just arrived! "
    "She measured the flour twice, forgot the sugar, and still won the prize for the best cake. "
)
RUNS: tuple[tuple[int, Sampling], ...] = ((7, "exact"), (16, "short-kv"))
"""NFE and sampling. Together they run every graph. The grid of 16 has the times of 5, 6, 7 and 10."""
STRIDE = 61
"""Frames from one sampled frame to the next."""
CALIBRATED = ("step_keys", "step_reply")


@dataclass
class Observed:
    """Magnitudes of a product's input during calibration."""

    largest: FloatArray
    """Largest magnitude of each channel (channels,)."""
    frames: list[NDArray[np.float16]] = field(default_factory=list)
    """Sampled frames (kept, channels) of each call."""

    @property
    def sample(self) -> FloatArray:
        """All sampled frames (frames, channels)."""
        return np.concatenate(self.frames).astype(np.float32)


@dataclass
class Observations:
    """Observed inputs of all products, by weight name."""

    products: dict[str, Observed] = field(default_factory=dict)

    def add(self, weight: str, largest: FloatArray, frames: FloatArray) -> None:
        observed = self.products.setdefault(weight, Observed(np.zeros_like(largest)))
        np.maximum(observed.largest, largest, out=observed.largest)
        # The frames are clipped to the range of float16; the magnitudes above are exact.
        observed.frames.append(frames.clip(-6e4, 6e4).astype(np.float16))


def observe(bundle: Bundle, cases: list[Case] | None = None) -> Observations:
    """Observe the products of a float bundle in all RUNS of `cases`. Raises EngineFault."""
    backend = ObservingBackend()
    engine = Synthesizer(bundle, backend, lanes=1, variant="ort-cpu")
    try:
        runs = [(case, nfe, sampling) for case in cases or readings(bundle) for nfe, sampling in RUNS]
        progress.begin("calibrating")
        for case, nfe, sampling in runs:
            replay(engine, case.segment(time_grid(nfe), sampling))
            progress.part(1 / len(runs))
    finally:
        engine.shutdown()
    return backend.observations


def readings(bundle: Bundle) -> list[Case]:
    m, vocabulary = bundle.manifest, bundle.vocabulary()
    return [
        read_case(voice, frames, m.mel, vocabulary, m.max_frames, TEXT, len(TEXT), m.defaults.guidance)
        for voice, frames in READINGS
    ]


class ObservingBackend(OrtBackend):
    """ONNX Runtime's CPU backend with observed step graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.observations = Observations()

    def load(self, name: str, path: Path, spec: GraphSpec, ranges: Ranges) -> Graph:
        if name not in CALIBRATED:
            return super().load(name, path, spec, ranges)
        model, taps = tapped(path)
        session = self._runtime.InferenceSession(
            model.SerializeToString(), self._options, providers=["CPUExecutionProvider"]
        )
        return ObservingGraph(session, self._run_options, taps, self.observations)


class ObservingGraph(OrtGraph):
    """Session with additional outputs for observation."""

    def __init__(
        self, session: Any, options: Any, taps: Mapping[str, str], observations: Observations
    ) -> None:
        super().__init__(session, options)
        self._taps, self._observations = taps, observations

    def bind(self, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Bound:
        bound = super().bind(inputs, outputs)
        binding = bound._binding  # type: ignore[attr-defined]
        for tap in self._taps:
            for output in (f"{tap}_largest", f"{tap}_frames"):
                binding.bind_output(output, "cpu")
        return ObservingBound(bound, self._observe(binding, len(outputs)))

    def _observe(self, binding: Any, own: int) -> Iterator[None]:
        """Add one run's observations at each `next`. The contract's `own` outputs come first."""
        while True:
            values = [value.numpy() for value in binding.get_outputs()[own:]]
            for weight, largest, frames in zip(self._taps.values(), values[::2], values[1::2], strict=True):
                self._observations.add(weight, largest, frames)
            yield


class ObservingBound:
    """Binding that records observations after each run."""

    def __init__(self, bound: Bound, observe: Iterator[None]) -> None:
        self._bound, self._observe = bound, observe

    def run(self, *, release: bool = False, capture: bool = False) -> None:
        self._bound.run(release=release)
        next(self._observe)


def tapped(path: Path) -> tuple[onnx.ModelProto, dict[str, str]]:
    """Add two outputs to each product: channel maxima of its input, and every STRIDE-th frame.

    Returns the model, and output prefix → weight name.
    """
    model = onnx.load(path)
    graph = model.graph
    for name, values in (("first", [0]), ("end", [2**62]), ("axis", [-2]), ("stride", [STRIDE])):
        graph.initializer.append(helper.make_tensor(f"tap_{name}", TensorProto.INT64, [1], values))
    taps: dict[str, str] = {}
    for product in products_of(graph):
        tap = f"tap_{len(taps)}"
        taps[tap] = product.weight
        x = product.node.input[0]
        graph.node.extend(
            [
                helper.make_node("Abs", [x], [f"{tap}_abs"]),
                helper.make_node("ReduceMax", [f"{tap}_abs", "tap_axis"], [f"{tap}_largest"], keepdims=0),
                helper.make_node(
                    "Slice", [x, "tap_first", "tap_end", "tap_axis", "tap_stride"], [f"{tap}_frames"]
                ),
            ]
        )
        for output in (f"{tap}_largest", f"{tap}_frames"):
            graph.output.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, None))
    return model, taps
