"""Accuracy of INT8 Q/DQ against the share of INT8 operations, on any fp16 bundle: `scripts/bench-curve`."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from appliance.contract.bundle import Arch, Bundle, read
from appliance.contract.schedule import time_grid
from appliance.contract.tokens import read_vocabulary
from appliance.engine.cases import FEMALE, MALE
from appliance.engine.engine import Synthesizer
from appliance.engine.ort import OrtBackend
from appliance.engine.replay import replay
from export.graphs.step import POSITION_CONV_GROUPS
from export.precision import calibration, qdq
from export.precision.calibration import CALIBRATED
from export.precision.qdq import Floats, Scheme
from export.proof import parity
from export.proof.oracles import GATE_NFES, Trajectory, distance, read_case

READINGS = ((MALE, 500), (FEMALE, 500))
"""Voice and length in frames of the cases; the first is also the gate's."""
FRAMES = 1253
"""Length for counting operations: 8.4 s of speech after a reference of 5 s."""
CONVOLUTION = 31
"""Kernel size of the two position convolutions."""
ENDS = ("from_latents", "final")
POINTS: tuple[tuple[str, ...], ...] = (
    (),
    ENDS,
    (*ENDS, "attention.out"),
    (*ENDS, "down"),
    (*ENDS, "up"),
    (*ENDS, "qkv"),
    (*ENDS, "down", "attention.out"),
    (*ENDS, "up", "down"),
    (*ENDS, "qkv", "attention.out"),
    (*ENDS, "qkv", "attention.out", "down"),
)
"""Roles in float16, with smoothing."""
PLAIN: tuple[tuple[str, ...], ...] = ((), (*ENDS, "down"))
"""Roles in float16, without smoothing, for comparison."""


@dataclass(frozen=True)
class Point:
    keep_float: tuple[str, ...]
    smooth: bool
    products: float
    """INT8 share of multiplications with weights."""
    share: float
    """INT8 share of all multiplications of a step at FRAMES frames."""
    step: float
    """Mean relative error of velocities at the float graph's latents."""
    worst: float
    """Largest of these errors."""
    mel: float
    """Mean absolute error at NFE 7 relative to the distance from NFE 7 to 32."""

    def __str__(self) -> str:
        kept = " + ".join(self.keep_float).replace("from_latents + final", "ends") or "nothing"
        name = kept if self.smooth else f"{kept}; MinMax alone"
        shares = f"{self.products:9.0%} {self.share:8.0%}"
        return f"{name:36s} {shares} {self.step:9.2e} {self.worst:9.2e} {self.mel:6.3f}"


HEADING = f"{'float':36s} {'products':>9s} {'of all':>8s} {'step':>9s} {'worst':>9s} {'mel':>6s}"


def curve(bundle: Bundle) -> Iterator[Point]:
    """Measure every point on the CPU. Raises ValueError for a bundle that is not fp16, EngineFault."""
    manifest = bundle.manifest
    if manifest.precision != "fp16":
        raise ValueError(f"{bundle.folder}: int8-qdq is made of an fp16 bundle, not of {manifest.precision}")
    floats, roles = qdq.floats_of(bundle.graph("step"))
    observations = calibration.observe(bundle)
    wanted = list(_solved(bundle))
    for smooth, points in ((False, PLAIN), (True, POINTS)):
        chosen = qdq.choices(floats, observations, smooth=smooth)
        for kept in tqdm(points, desc="curve"):
            made = qdq.scheme(floats, chosen, roles, kept)
            with tempfile.TemporaryDirectory() as scratch:
                trial = with_steps(bundle, made, Path(scratch))
                graphs = parity.Graphs(trial, "ort-cpu")
                errors = [row.error for solved, _ in wanted for row in parity.velocities(graphs, solved)]
                ratios = [_mel_ratio(trial, solved, far) for solved, far in wanted]
            shares = int8_shares(bundle.manifest.arch, floats, made)
            yield Point(kept, smooth, *shares, float(np.mean(errors)), max(errors), float(np.mean(ratios)))


def with_steps(bundle: Bundle, made: Scheme, folder: Path) -> Bundle:
    """Bundle whose CPU variant has step graphs quantised into `folder`."""
    variants = bundle.manifest.variants
    own = dict(variants["ort-cpu"])
    for name in CALIBRATED:
        path = folder / f"{name}.onnx"
        qdq.quantise(bundle.graph(name, "ort-cpu"), path, made)
        own[name] = os.path.relpath(path.resolve(), bundle.folder.resolve())
    manifest = dataclasses.replace(bundle.manifest, variants={**variants, "ort-cpu": own})
    return Bundle(bundle.folder, manifest)


def int8_shares(arch: Arch, floats: Floats, made: Scheme) -> tuple[float, float]:
    """INT8 share of one row's multiplications at FRAMES frames: with weights, and of all."""
    products = sum(values.size for values in floats.values() if values.ndim == 2)
    attention = 2 * FRAMES * arch.heads * arch.dim_head * arch.depth
    convolutions = 2 * CONVOLUTION * arch.dim**2 // POSITION_CONV_GROUPS
    quantised = sum(product.weight.size for product in made.products.values())
    return quantised / products, quantised / (products + attention + convolutions)


def _solved(bundle: Bundle) -> Iterator[tuple[Trajectory, float]]:
    """Cases solved by the float graphs at the coarse NFE, with their distance to the fine solution."""
    graphs, m = parity.Graphs(bundle, "ort-cpu"), bundle.manifest
    vocabulary = read_vocabulary(bundle.vocab)
    for voice, frames in tqdm(READINGS, desc="solving in float"):
        case = read_case(voice, frames, m.mel, vocabulary, m.max_frames, guidance=m.defaults.guidance)
        few, many = (
            parity.solve(graphs, case, time_grid(n, grid=m.defaults.grid, sway=m.defaults.sway))
            for n in GATE_NFES
        )
        start = len(case.cond)
        yield few, distance(few.mel[start:], many.mel[start:])


def _mel_ratio(trial: Bundle, solved: Trajectory, far: float) -> float:
    engine = Synthesizer(trial, OrtBackend(), lanes=1, variant="ort-cpu")
    try:
        mel, _ = replay(engine, solved.case.segment(solved.times))
    finally:
        engine.shutdown()
    start = len(solved.case.cond)
    return distance(mel[start:], solved.mel[start:]) / far


def main(folder: str) -> None:
    points = curve(read(Path(folder)))
    print(HEADING)
    for point in points:
        print(point, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
