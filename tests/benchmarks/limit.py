"""`scripts/bench-daemon limit`: what a bundle's graphs must compute and move, against what a device can.

The floor of a graph is the longer of operations / peak and bytes / bandwidth; bytes are its weights, inputs
and outputs once: everything between could stay in caches.
"""

from __future__ import annotations

import argparse
import json
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

from appliance.bench import BenchError
from appliance.bench.output import aligned
from appliance.config import SynthesisConfig
from appliance.contract import bundle as bundles
from appliance.contract.bundle import Bundle
from appliance.engine.engine import SAMPLINGS
from tests.benchmarks.devices import DEVICES, Mode
from tests.benchmarks.graph_work import (
    CLASSES,
    GRAPHS,
    Work,
    bytes_moved,
    class_of,
    count,
    file_of,
    inputs_of,
    speedups,
)
from tests.benchmarks.reply_model import REACHED, ReplyModel
from tests.benchmarks.timing import Timed, products, profile

CALIBRATED_AT = 500
PREDICTED_AT = (250, 750, 1250)
"""Frames at which step times are calibrated and predicted."""
MEASURED = 9
"""Runs, of which the shortest counts: other programs only add time."""
WIDTHS = {"fp32": 4, "fp16": 2, "int8": 1, "int8-qdq": 1}
"""Bytes of a weight by precision."""
PRODUCT, VECTOR_MB = 768, 128
"""Edge of a matrix, and an array larger than the caches."""


@dataclass(frozen=True)
class Peak:
    flops: float
    bytes_per_s: float


def measure_peak(threads: int) -> Peak:
    """Measure float32 products, and copies between arrays larger than the caches."""
    product_s = products(PRODUCT, threads=threads)
    source = np.ones(VECTOR_MB << 18, np.float32)
    target = np.zeros_like(source)
    workers = len(os.sched_getaffinity(0))
    parts = list(zip(np.array_split(target, workers), np.array_split(source, workers), strict=True))
    copies_s = []
    with ThreadPoolExecutor(workers) as pool:
        for _ in range(12):
            begun = time.perf_counter()
            list(pool.map(lambda part: np.copyto(*part), parts))
            copies_s.append(time.perf_counter() - begun)
    return Peak(2.0 * PRODUCT**3 / product_s, 2.0 * source.nbytes / min(copies_s))


def seconds_by_class(bundle: Bundle, graph: str, frames: int, threads: int) -> dict[str, float]:
    """Seconds of a call by class: the sum of each node's shortest run."""
    path = bundle.graph(file_of(bundle, graph), bundle.variant_for("ort-cpu"))
    nodes = profile(path, inputs_of(bundle, graph, frames), threads=threads, runs=MEASURED)
    by_node: dict[tuple[str, str], list[float]] = defaultdict(list)
    for node in nodes:
        by_node[class_of(node), node["name"]].append(node["seconds"])
    found = dict.fromkeys(CLASSES, 0.0)
    for (kind, _), seconds in by_node.items():
        found[kind] += min(seconds)
    return found


def limits_here(bundle: Bundle, frames: int, reference: int, nfe: int, threads: int) -> dict[str, Any]:
    peak, rows = measure_peak(threads), list[dict[str, Any]]()
    works = {graph: count(bundle, graph) for graph in GRAPHS}
    calls = {"modulation": nfe, "condition": 1, "step": nfe * bundle.manifest.sampler.most_rows, "vocoder": 1}
    for graph in GRAPHS:
        size = frames - reference if graph == "vocoder" else frames
        work = works[graph]
        run = Timed(bundle.graph(file_of(bundle, graph), bundle.variant_for("ort-cpu")), threads)
        inputs = inputs_of(bundle, graph, size)
        run(inputs)
        measured_s = min(run(inputs) for _ in range(MEASURED)) * calls[graph]
        flops = sum(work.at(size).values())
        floor_s = max(
            flops / peak.flops, bytes_moved(bundle, graph, size, work, WIDTHS["fp32"]) / peak.bytes_per_s
        )
        row = {"graph": graph, "calls": calls[graph], "gflop": flops * calls[graph] / 1e9}
        rows.append(row | {"floor_s": floor_s * calls[graph], "s": measured_s})
    whole_s = sum(row["s"] for row in rows)
    for row in rows:
        row["reached"] = row["floor_s"] / row["s"]
        row["if_free"] = whole_s / max(whole_s - row["s"], 1e-9)
    in_step = seconds_by_class(bundle, "step", frames, threads)
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
    predicted = predictions(bundle, works["step"], threads)
    return {"peak": asdict(peak), "graphs": rows, "step": parts, "predictions": predicted}


def predictions(bundle: Bundle, work: Work, threads: int) -> list[dict[str, float]]:
    """Step times at PREDICTED_AT, measured and predicted from the times of each class at CALIBRATED_AT.

    Products and convolutions grow with their operations, the rest with the frames. Lengths take turns.
    """
    longest = bundle.manifest.max_frames
    lengths = [frames for frames in (CALIBRATED_AT, *PREDICTED_AT) if frames <= longest]
    run = Timed(bundle.graph(file_of(bundle, "step"), bundle.variant_for("ort-cpu")), threads)
    feeds = {frames: inputs_of(bundle, "step", frames) for frames in lengths}
    seconds: dict[int, list[float]] = {frames: [] for frames in lengths}
    for number in range(MEASURED + 1):
        for frames in lengths:
            taken_s = run(feeds[frames])
            if number:  # the first warms up
                seconds[frames].append(taken_s)
    calibrated = seconds_by_class(bundle, "step", CALIBRATED_AT, threads)
    # The sum of a profile lacks the time between nodes.
    scale = min(seconds[CALIBRATED_AT]) / sum(calibrated.values())
    base = work.at(CALIBRATED_AT)
    found = []
    for frames in lengths[1:]:
        now = work.at(frames)
        growth = {name: now[name] / base[name] if base[name] else frames / CALIBRATED_AT for name in CLASSES}
        predicted_s = scale * sum(calibrated[name] * growth[name] for name in CLASSES)
        measured_s, most_s = min(seconds[frames]), max(seconds[frames])
        row = {"frames": frames, "predicted_s": predicted_s, "measured_s": measured_s, "most_s": most_s}
        row |= {"median_s": statistics.median(seconds[frames]), "ratio": predicted_s / measured_s}
        found.append(row)
    return found


def limits_on(bundle: Bundle, mode: Mode, frames: int, reference: int, nfe: int) -> dict[str, Any]:
    """Floors of an `exact` reply on a GPU, and modelled times of each sampling."""
    peak = Peak(mode.flops, mode.bytes_per_s)
    width = WIDTHS[bundle.manifest.precision]
    speed = speedups(bundle)
    works = {graph: count(bundle, graph) for graph in GRAPHS if graph != "modulation"}
    calls = {"condition": 1, "step": nfe, "vocoder": 1}
    audio_s = (frames - reference) / bundle.manifest.mel.frames_per_second
    rows: list[dict[str, Any]] = []
    for graph, work in works.items():
        size = frames - reference if graph == "vocoder" else frames
        lanes = bundle.manifest.sampler.most_rows if graph == "step" else 1
        # The rows of a step share its weights.
        weights = work.parameters * width
        total_bytes = weights + lanes * (bytes_moved(bundle, graph, size, work, width) - weights)
        by_class = {name: flops * lanes for name, flops in work.at(size).items()}
        compute_s = sum(flops / speed.get(name, 1.0) for name, flops in by_class.items()) / peak.flops
        memory_s = total_bytes / peak.bytes_per_s
        each = {"compute_s": compute_s, "memory_s": memory_s, "floor_s": max(compute_s, memory_s)}
        each |= {"gflop": sum(by_class.values()) / 1e9}
        row = {"graph": graph, "calls": calls[graph]}
        rows.append(row | {name: one * calls[graph] for name, one in each.items()})
    whole_s = sum(row["floor_s"] for row in rows)
    for row in rows:
        row["if_free"] = whole_s / max(whole_s - row["floor_s"], 1e-12)
    model = ReplyModel(bundle, mode)
    times = []
    for sampling in SAMPLINGS if bundle.manifest.dimensions.keeps_keys else SAMPLINGS[:1]:
        reply = model.reply(sampling, frames - reference, reference, nfe)
        times.append(asdict(reply) | {"s": reply.total_s, "rtf": reply.total_s / audio_s})
    return {"peak": asdict(peak), "audio_s": audio_s, "floor_s": whole_s, "graphs": rows, "times": times}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--device", choices=("this", *DEVICES), default="this", help="(%(default)s machine)")
    parser.add_argument("--mode", default="MAXN", help="power mode of that device (%(default)s)")
    parser.add_argument("--audio", type=float, default=8.37, metavar="S", help="of the reply (%(default)s s)")
    parser.add_argument("--reference", type=float, default=5.0, metavar="S", help="(%(default)s s)")
    parser.add_argument("--nfe", type=int, metavar="N", help="(the daemon's)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="of this machine; 0: its cores")
    parser.add_argument("--json", action="store_true", help="for machines")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Count, measure on this machine, and print. Raises BenchError, BundleError."""
    bundle = bundles.read(options.bundle, verify=False)
    rate = bundle.manifest.mel.frames_per_second
    nfe = SynthesisConfig().steps_with(bundle.manifest.sampler) if options.nfe is None else options.nfe
    reference, made = round(options.reference * rate), round(options.audio * rate)
    frames = reference + made
    if made < 1 or reference < 0 or nfe < 1 or frames > bundle.manifest.max_frames:
        most_s = bundle.manifest.max_frames / rate
        raise BenchError(
            f"--audio and --reference together must be above 0 and at most {most_s:.1f} s, --nfe from 1"
        )
    if options.device == "this":
        found = limits_here(bundle, frames, reference, nfe, options.threads)
    else:
        modes = DEVICES[options.device]
        if options.mode not in modes:
            raise BenchError(f"{options.device} has the modes {', '.join(modes)}, not {options.mode}")
        found = limits_on(bundle, modes[options.mode], frames, reference, nfe)
    found |= {"device": options.device, "frames": frames, "nfe": nfe, "bundle": bundle.manifest.family}
    if options.json:
        print(json.dumps(found, indent=1))
    else:
        print(_table_here(found) if options.device == "this" else _table_on(found, options.mode))
    return 0


def _head(found: Mapping[str, Any], name: str) -> list[tuple[str, str]]:
    peak = found["peak"]
    return [
        ("device", name),
        ("peak · bandwidth", f"{peak['flops'] / 1e9:.0f} GFLOP/s · {peak['bytes_per_s'] / 1e9:.1f} GB/s"),
        ("reply", f"{found['frames']} frames with its reference, NFE {found['nfe']}, guided"),
    ]


def _table_here(found: Mapping[str, Any]) -> str:
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


def _table_on(found: Mapping[str, Any], mode: str) -> str:
    lines = [aligned(_head(found, f"{found['device']} at {mode}: public figures, nothing measured")), ""]
    lines.append(f"{'graph':<14}{'calls':>6}{'GFLOP':>10}{'compute ms':>12}{'memory ms':>12}{'if free':>9}")
    for row in found["graphs"]:
        lines.append(
            f"{row['graph']:<14}{row['calls']:>6}{row['gflop']:>10.1f}{row['compute_s'] * 1e3:>12.2f}"
            f"{row['memory_s'] * 1e3:>12.2f}{row['if_free']:>8.2f}×"
        )
    lines += [
        "",
        f"{'modelled':<14}{'ms a step':>10}{'reply ms':>10}{'RTF':>9}{'first audio ms':>16}{'padding':>9}",
    ]
    for one in found["times"]:
        lines.append(
            f"{one['sampling']:<14}{one['steps_s'] / found['nfe'] * 1e3:>10.1f}{one['s'] * 1e3:>10.1f}"
            f"{one['rtf']:>9.4f}{one['first_audio_s'] * 1e3:>16.1f}{one['padding']:>8.2f}×"
        )
    compute_s, memory_s = (sum(row[name] for row in found["graphs"]) for name in ("compute_s", "memory_s"))
    bound = "compute" if compute_s > memory_s else "memory"
    floor_ms = found["floor_s"] * 1e3
    linear, attention = (f"{REACHED[name]:.0%}" for name in ("linear", "attention"))
    lines += [
        "",
        f"The longer of compute and memory is a graph's floor; this reply, `exact`, takes {floor_ms:.1f} ms",
        f"at least, bound by {bound}. Modelled: products at {linear} of the peak, attention at {attention},",
        "rows as the engine pads them. Launches, which bind a small model, are left out.",
    ]
    return "\n".join(lines)
