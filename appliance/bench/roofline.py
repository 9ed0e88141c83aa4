"""`appliance bench limit`: what a bundle's graphs must compute and move, against what a device can.

Work is counted from the ONNX files: each graph runs at three small lengths on this CPU, node by node, and the
operations of its products and convolutions follow from the shapes that met there. They are a polynomial of
the frames, of degree two in attention alone, so three lengths give it exactly.

The floor of a graph is the longer of operations / peak and bytes / bandwidth; bytes are its weights once,
what it reads and what it returns: everything between could stay in caches.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from appliance.bench.arrivals import BenchError
from appliance.bench.devices import DEVICES, Mode
from appliance.bench.report import aligned
from appliance.config import SynthesisConfig
from appliance.contract import bundle as bundles
from appliance.contract.bundle import Bundle
from appliance.contract.graphs import CONTEXT, signatures
from appliance.engine.backend import HostArray
from appliance.engine.ort import Timed, products, profile

GRAPHS = ("modulation", "condition", "step", "vocoder")
CLASSES = ("linear", "attention", "convolution", "rest")
COUNTED_AT = (96, 160, 256)
"""Frames at which work is counted."""
CALIBRATED_AT = 500
PREDICTED_AT = (250, 750, 1250)
MEASURED = 9
"""Runs, of which the least counts: what other programs take is no property of the device."""
TIMES = 8
"""Rows of the modulation table that a step is given here."""
LANE_ROWS = 2
"""A guided lane."""
SHARES = (1.0, 0.5, 0.35, 0.2)
"""Shares of the peak for which a plan is drawn."""
WIDTHS = {"fp32": 4, "fp16": 2, "int8": 1, "int8-qdq": 1}
"""Bytes of a weight of the products."""
PRODUCT, VECTOR_MB = 768, 128

Polynomial = tuple[float, float, float]
"""Coefficients of a polynomial of frames: constant, linear, quadratic."""


@dataclass(frozen=True)
class Peak:
    """Peak of a device: operations and bytes a second."""

    flops: float
    bytes_per_s: float


@dataclass(frozen=True)
class Work:
    """Work of one call of a graph, or of one row of a step: operations by class, and parameters."""

    flops: Mapping[str, Polynomial]
    parameters: float

    def at(self, frames: int) -> dict[str, float]:
        """Operations by class."""
        return {name: max(_value(p, frames), 0.0) for name, p in self.flops.items()}


def _value(polynomial: Polynomial, frames: int) -> float:
    constant, linear, quadratic = polynomial
    return constant + (linear + quadratic * frames) * frames


# Counting.


def class_of(node: Mapping[str, Any]) -> str:
    """Which of CLASSES a node of a profile belongs to."""
    op, inputs = node["op"], node["inputs"]
    if "Attention" in op or "Softmax" in op:
        return "attention"
    if "MatMul" in op or "Gemm" in op:
        # Weights are matrices; what attention multiplies has lanes and heads too.
        return "attention" if len(inputs) > 1 and len(inputs[1]) > 2 else "linear"
    return "convolution" if "Conv" in op else "rest"


def operations(node: Mapping[str, Any]) -> float:
    """Multiplications and additions of a product, convolution or attention; 0 of any other node."""
    op, inputs, outputs = node["op"], node["inputs"], node["outputs"]
    if "Attention" in op:
        rows, frames, width = inputs[0]
        return float(4 * rows * frames * inputs[1][-2] * width)
    out = float(math.prod(outputs[0])) if outputs else 0.0
    if "MatMul" in op or "Gemm" in op:
        return 2.0 * float(math.prod(inputs[0])) * float(outputs[0][-1])
    if "ConvTranspose" in op:
        return float(2 * math.prod(inputs[0]) * math.prod(inputs[1][1:]))
    return 2.0 * out * float(math.prod(inputs[1][1:])) if "Conv" in op else 0.0


def parameters(node: Mapping[str, Any]) -> float:
    """Weights of a product or convolution."""
    kind = class_of(node)
    if kind == "linear":
        return float(node["inputs"][0][-1] * node["outputs"][0][-1])
    return float(math.prod(node["inputs"][1])) if kind == "convolution" else 0.0


def feed(bundle: Bundle, graph: str, frames: int) -> dict[str, HostArray]:
    """Inputs of a graph for one row of so many frames; a step's has no reference apart from its latents."""
    sizes = {"R": 1, "N": frames, "P": 0, "C": CONTEXT, "S": TIMES, "K": 1}
    draw = np.random.default_rng(0)
    arrays: dict[str, HostArray] = {}
    for tensor in signatures(bundle.manifest.dimensions)[_file(graph)].inputs:
        shape = tuple(sizes[axis] if isinstance(axis, str) else axis for axis in tensor.axes)
        is_whole = tensor.dtype == "int32"
        array = np.zeros(shape, "int32") if is_whole else draw.normal(0.0, 0.3, shape).astype(tensor.dtype)
        if tensor.name == "lengths":
            array[:] = frames
        arrays[tensor.name] = array
    return arrays


def count(bundle: Bundle, graph: str) -> Work:
    """Count a graph's work. Raises BundleError when ONNX Runtime cannot read it."""
    path = bundle.graph(_file(graph), bundle.variant_for("ort-cpu"))
    totals: dict[str, list[float]] = {name: [] for name in CLASSES}
    weights = 0.0
    for frames in COUNTED_AT:
        nodes = profile(path, feed(bundle, graph, frames), optimised=False)
        for name in CLASSES:
            totals[name].append(sum(operations(node) for node in nodes if class_of(node) == name))
        weights = sum(map(parameters, nodes))
    powers = np.vander(np.array(COUNTED_AT, float), 3, increasing=True)
    fitted = {name: np.linalg.solve(powers, values) for name, values in totals.items()}
    return Work({name: (float(p[0]), float(p[1]), float(p[2])) for name, p in fitted.items()}, weights)


def _file(graph: str) -> str:
    """The graph that runs where shapes are exact."""
    return "step_keys" if graph == "step" else graph


# Limits.


def floor_s(
    work: Work, frames: int, bytes_moved: float, peak: Peak, quick: Mapping[str, float] = {}
) -> float:
    """Seconds below which no call can be; `quick`: classes that are computed so many times as fast."""
    computed = sum(flops / quick.get(name, 1.0) for name, flops in work.at(frames).items()) / peak.flops
    return max(computed, bytes_moved / peak.bytes_per_s)


def moved(bundle: Bundle, graph: str, frames: int, work: Work, width: int) -> float:
    """Bytes of weights, inputs and outputs of a call, weights of so many bytes each."""
    sizes = {"R": 1, "N": frames, "P": 0, "C": CONTEXT, "S": 1, "K": 1, "L": frames * bundle.manifest.mel.hop}
    spec = signatures(bundle.manifest.dimensions)[_file(graph)]
    tensors = (*spec.inputs, *spec.outputs)
    values = sum(
        math.prod(sizes[a] if isinstance(a, str) else a for a in t.axes) * np.dtype(t.dtype).itemsize
        for t in tensors
    )
    return work.parameters * width + values


def measure_peak(threads: int) -> Peak:
    """This machine's float32 products and copies between arrays larger than its caches, the best of some."""
    product_s = products(PRODUCT, threads=threads)
    source = np.ones(VECTOR_MB << 18, np.float32)
    target = np.zeros_like(source)
    workers = _cores()
    parts = list(zip(np.array_split(source, workers), np.array_split(target, workers), strict=True))
    with ThreadPoolExecutor(workers) as pool:
        copy_s = min(
            _seconds(lambda: list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), parts)))
            for _ in range(12)
        )
    return Peak(2.0 * PRODUCT**3 / product_s, 2.0 * source.nbytes / copy_s)


def _cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def _seconds(work: Any) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


# This machine.


def spent(bundle: Bundle, graph: str, frames: int, threads: int) -> dict[str, float]:
    """Seconds of a call by class, as the engine's runtime computes it: each node's least."""
    path = bundle.graph(_file(graph), bundle.variant_for("ort-cpu"))
    nodes = profile(path, feed(bundle, graph, frames), threads=threads, runs=MEASURED)
    by_node: dict[tuple[str, str], list[float]] = defaultdict(list)
    for node in nodes:
        by_node[class_of(node), node["name"]].append(node["seconds"])
    found = dict.fromkeys(CLASSES, 0.0)
    for (kind, _), seconds in by_node.items():
        found[kind] += min(seconds)
    return found


def here(bundle: Bundle, frames: int, reference: int, nfe: int, threads: int) -> dict[str, Any]:
    """Floors, shares and predictions on this CPU."""
    peak, rows = measure_peak(threads), list[dict[str, Any]]()
    works = {graph: count(bundle, graph) for graph in GRAPHS}
    calls = {"modulation": nfe, "condition": 1, "step": nfe * LANE_ROWS, "vocoder": 1}
    for graph in GRAPHS:
        size = frames - reference if graph == "vocoder" else frames
        work = works[graph]
        run = Timed(bundle.graph(_file(graph), bundle.variant_for("ort-cpu")), threads)
        given = feed(bundle, graph, size)
        run(given)
        measured_s = min(run(given) for _ in range(MEASURED)) * calls[graph]
        least_s = floor_s(work, size, moved(bundle, graph, size, work, 4), peak) * calls[graph]
        flops = sum(work.at(size).values()) * calls[graph]
        rows.append(
            {
                "graph": graph,
                "calls": calls[graph],
                "gflop": flops / 1e9,
                "floor_s": least_s,
                "s": measured_s,
            }
        )
    whole_s = sum(row["s"] for row in rows)
    for row in rows:
        row["reached"] = row["floor_s"] / row["s"]
        row["if_free"] = whole_s / max(whole_s - row["s"], 1e-9)
    in_step = spent(bundle, "step", frames, threads)
    step_flops = works["step"].at(frames)
    total_s = sum(in_step.values())
    parts = [
        {
            "class": name,
            "gflop": step_flops[name] / 1e9,
            "s": in_step[name],
            "share": in_step[name] / total_s,
            "floor_s": step_flops[name] / peak.flops,
            "reached": step_flops[name] / peak.flops / in_step[name] if in_step[name] else 0.0,
            "step_if_free": total_s / max(total_s - in_step[name], 1e-9),
        }
        for name in CLASSES
    ]
    return {
        "peak": asdict(peak),
        "graphs": rows,
        "step": parts,
        "predictions": predictions(bundle, works["step"], threads),
    }


def predictions(bundle: Bundle, work: Work, threads: int) -> list[dict[str, float]]:
    """Step times at PREDICTED_AT from the shares that each class reaches at CALIBRATED_AT, and measured.

    Products and convolutions grow with their operations, the rest with the frames. Lengths take turns.
    """
    longest = bundle.manifest.max_frames
    lengths = [frames for frames in (CALIBRATED_AT, *PREDICTED_AT) if frames <= longest]
    run = Timed(bundle.graph("step_keys", bundle.variant_for("ort-cpu")), threads)
    feeds = {frames: feed(bundle, "step", frames) for frames in lengths}
    seconds: dict[int, list[float]] = {frames: [] for frames in lengths}
    for turn in range(MEASURED + 1):
        for frames in lengths:
            taken_s = run(feeds[frames])
            if turn:
                seconds[frames].append(taken_s)
    calibrated = spent(bundle, "step", CALIBRATED_AT, threads)
    # A profile's sum lacks what passes between nodes.
    scale = min(seconds[CALIBRATED_AT]) / sum(calibrated.values())
    base = work.at(CALIBRATED_AT)
    found = []
    for frames in lengths[1:]:
        now = work.at(frames)
        growth = {name: now[name] / base[name] if base[name] else frames / CALIBRATED_AT for name in CLASSES}
        predicted_s = scale * sum(calibrated[name] * growth[name] for name in CLASSES)
        measured_s = min(seconds[frames])
        found.append(
            {
                "frames": frames,
                "predicted_s": predicted_s,
                "measured_s": measured_s,
                "median_s": statistics.median(seconds[frames]),
                "most_s": max(seconds[frames]),
                "ratio": predicted_s / measured_s,
            }
        )
    return found


# A device that is not here.


def quick_of(bundle: Bundle) -> dict[str, float]:
    """Classes that a GPU computes so many times as fast as in FP16."""
    return {"linear": 2.0} if bundle.manifest.precision == "int8-qdq" else {}


def plan(bundle: Bundle, mode: Mode, frames: int, reference: int, nfe: int) -> dict[str, Any]:
    """Floors of a reply on a GPU, and its times at some shares of the peak."""
    peak = Peak(mode.flops, mode.bytes_per_s)
    width = WIDTHS[bundle.manifest.precision]
    quick = quick_of(bundle)
    works = {graph: count(bundle, graph) for graph in GRAPHS if graph != "modulation"}
    calls = {"condition": 1, "step": nfe, "vocoder": 1}
    audio_s = (frames - reference) / bundle.manifest.mel.frames_per_second
    rows: list[dict[str, Any]] = []
    for graph, work in works.items():
        size = frames - reference if graph == "vocoder" else frames
        lanes = LANE_ROWS if graph == "step" else 1
        # The rows of a step share its weights.
        weights = work.parameters * width
        moved_bytes = weights + lanes * (moved(bundle, graph, size, work, width) - weights)
        by_class = {name: flops * lanes for name, flops in work.at(size).items()}
        compute_s = sum(flops / quick.get(name, 1.0) for name, flops in by_class.items()) / peak.flops
        memory_s = moved_bytes / peak.bytes_per_s
        rows.append(
            {
                "graph": graph,
                "calls": calls[graph],
                "gflop": sum(by_class.values()) * calls[graph] / 1e9,
                "compute_s": compute_s * calls[graph],
                "memory_s": memory_s * calls[graph],
                "floor_s": max(compute_s, memory_s) * calls[graph],
            }
        )
    whole_s = sum(row["floor_s"] for row in rows)
    for row in rows:
        row["if_free"] = whole_s / max(whole_s - row["floor_s"], 1e-12)
    times = [{"share": s, "s": whole_s / s, "rtf": whole_s / s / audio_s} for s in SHARES]
    return {"peak": asdict(peak), "audio_s": audio_s, "graphs": rows, "times": times}


# The command.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--device", choices=("this", *DEVICES), default="this", help="(%(default)s machine)")
    parser.add_argument("--mode", default="MAXN", help="power mode of that device (%(default)s)")
    parser.add_argument("--audio", type=float, default=8.37, metavar="S", help="of the reply (%(default)s s)")
    parser.add_argument("--reference", type=float, default=5.0, metavar="S", help="(%(default)s s)")
    parser.add_argument("--nfe", type=int, default=SynthesisConfig.nfe, metavar="N", help="(%(default)s)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="of this machine; 0: its cores")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Count, measure where that can be, and print. Raises BenchError, BundleError."""
    bundle = bundles.read(options.bundle, verify=False)
    rate = bundle.manifest.mel.frames_per_second
    reference, made = round(options.reference * rate), round(options.audio * rate)
    frames = reference + made
    if made < 1 or reference < 0 or options.nfe < 1 or frames > bundle.manifest.max_frames:
        most_s = bundle.manifest.max_frames / rate
        raise BenchError(
            f"--audio and --reference together must be above 0 and at most {most_s:.1f} s, --nfe from 1"
        )
    if options.device == "this":
        found = here(bundle, frames, reference, options.nfe, options.threads)
    else:
        modes = DEVICES[options.device]
        if options.mode not in modes:
            raise BenchError(f"{options.device} has the modes {', '.join(modes)}, not {options.mode}")
        found = plan(bundle, modes[options.mode], frames, reference, options.nfe)
    found |= {
        "device": options.device,
        "frames": frames,
        "nfe": options.nfe,
        "bundle": bundle.manifest.family,
    }
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        print(_of_here(found) if options.device == "this" else _of_plan(found, options.mode))
    return 0


def _head(found: Mapping[str, Any], name: str) -> list[tuple[str, str]]:
    peak = found["peak"]
    return [
        ("device", name),
        ("peak · bandwidth", f"{peak['flops'] / 1e9:.0f} GFLOP/s · {peak['bytes_per_s'] / 1e9:.1f} GB/s"),
        ("reply", f"{found['frames']} frames with its reference, NFE {found['nfe']}, guided"),
    ]


def _of_here(found: Mapping[str, Any]) -> str:
    lines = [aligned(_head(found, "this machine, measured now")), ""]
    columns = f"{'GFLOP':>10}{'floor ms':>10}{'takes ms':>10}{'reached':>9}{'if free':>9}"
    lines.append(f"{'graph':<14}{'calls':>6}{columns}")
    for row in found["graphs"]:
        lines.append(
            f"{row['graph']:<14}{row['calls']:>6}{row['gflop']:>10.2f}{row['floor_s'] * 1e3:>10.1f}"
            f"{row['s'] * 1e3:>10.1f}{row['reached']:>9.0%}{row['if_free']:>8.2f}×"
        )
    lines += ["", f"{'in a step':<14}{'share':>6}{columns}"]
    for row in found["step"]:
        lines.append(
            f"{row['class']:<14}{row['share']:>6.0%}{row['gflop']:>10.3f}{row['floor_s'] * 1e3:>10.2f}"
            f"{row['s'] * 1e3:>10.2f}{row['reached']:>9.0%}{row['step_if_free']:>8.2f}×"
        )
    lines += ["", f"{'row of a step':<14}{'predicted ms':>14}{'measured ms':>24}{'ratio':>8}"]
    for row in found["predictions"]:
        spread = f"{row['measured_s'] * 1e3:.1f} (to {row['most_s'] * 1e3:.1f})"
        lines.append(f"{row['frames']:<14}{row['predicted_s'] * 1e3:>14.1f}{spread:>24}{row['ratio']:>8.2f}")
    lines += [
        "",
        "reached: floor / least time of some; above 100 % its weights stay in caches.",
        "if free: how much faster the reply, or the step, would be without that part.",
        f"predicted: from what each part reaches at {CALIBRATED_AT} frames, grown with its operations.",
    ]
    return "\n".join(lines)


def _of_plan(found: Mapping[str, Any], mode: str) -> str:
    lines = [aligned(_head(found, f"{found['device']} at {mode}: public figures, nothing measured")), ""]
    lines.append(f"{'graph':<14}{'calls':>6}{'GFLOP':>10}{'compute ms':>12}{'memory ms':>12}{'if free':>9}")
    for row in found["graphs"]:
        lines.append(
            f"{row['graph']:<14}{row['calls']:>6}{row['gflop']:>10.1f}{row['compute_s'] * 1e3:>12.2f}"
            f"{row['memory_s'] * 1e3:>12.2f}{row['if_free']:>8.2f}×"
        )
    lines.append("")
    for one in found["times"]:
        name = "floor" if one["share"] == 1.0 else f"at {one['share']:.0%} of it"
        took = f"{one['s'] * 1e3:>10.1f} ms for {found['audio_s']:.2f} s"
        lines.append(f"{name:<14}{took}, RTF {one['rtf']:.4f}")
    compute_s, memory_s = (sum(row[name] for row in found["graphs"]) for name in ("compute_s", "memory_s"))
    bound = "compute" if compute_s > memory_s else "memory"
    lines += [
        "",
        f"The longer of compute and memory is a graph's floor; this reply is bound by {bound}. A small model",
        "ends far above it, since launches of kernels are not counted. Public engines reach 50 % of the peak",
        "on server GPUs, torch 20 % on Orin.",
    ]
    return "\n".join(lines)
