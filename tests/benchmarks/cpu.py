"""Upstream's DiT against ours on the CPU, side by side: full-size v1_Base with random weights.

Each contender lives in a process of its own, so that its peak memory is its own; they take turns in one run,
so that a busy minute of the machine hits all of them; quoted are ratios of medians.

    python -m tests.benchmarks.cpu compare WORK [--rounds 3]
    python -m tests.benchmarks.cpu curve WORK [--rounds 3]

WORK holds the checkpoint and the bundles; what is there already is not made again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from appliance.config import EngineConfig
from appliance.contract import bundle as contract
from appliance.contract.bundle import Sampling
from appliance.engine.engine import SAMPLINGS, Synthesizer
from appliance.engine.loading import load_for
from appliance.request import Segment
from export.cli import main as export
from export.families import family
from export.precision import rewrites
from tests.benchmarks import random_base
from tests.benchmarks.random_base import GUIDANCE, FloatArray

FAMILY = "F5TTS_v1_Base"
FRAMES, REFERENCE_FRAMES, TOKENS, VOCABULARY = 500, 200, 80, 2545
NFE = 7
CURVE = {
    name: tuple(name.replace("ends", "from_latents + final").split(" + ")) if name != "none" else ()
    for name in (
        *("none", "ends", "ends + attention.out", "ends + down", "ends + qkv", "ends + up"),
        *("ends + down + attention.out", "ends + qkv + attention.out"),
    )
}
"""Roles of the step graph that stay in float32."""

Run = Callable[[], FloatArray]


def upstream(work: Path, autocast: bool) -> Run:
    """`CFM.sample` of f5-tts, in float32 or under bf16 autocast."""
    import torch

    arch = family(FAMILY).arch
    cfm = random_base.sampler(arch, VOCABULARY, random_base.stored(work, arch, VOCABULARY))
    reference, ids = map(torch.from_numpy, random_base.inputs(REFERENCE_FRAMES, TOKENS, VOCABULARY))

    def run() -> FloatArray:
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return np.asarray(random_base.sample(cfm, reference, ids, FRAMES, NFE)[0].numpy())

    return run


def ours(bundle: contract.Bundle, sampling: Sampling = "exact") -> Run:
    """The device's engine, without the vocoder."""
    mel, ids = random_base.inputs(REFERENCE_FRAMES, TOKENS, VOCABULARY)
    noise = random_base.upstream_noise(FRAMES)
    segment = random_base.segment(mel, len(mel) - 1, ids, noise, NFE, sampling)
    engine = load_for(bundle, EngineConfig(backend="ort-cpu", lanes=1))

    return speaking(engine, segment, engine.log_mel)


def speaking(engine: Synthesizer, segment: Segment, result: Callable[[int], FloatArray]) -> Run:
    """All steps of a segment, then the `result` of its lane."""

    def run() -> FloatArray:
        lane = engine.open(segment)
        for _ in range(lane.steps_left):
            engine.step([lane.id])
        found = result(lane.id)
        engine.close(lane.id)
        return found

    return run


def contender(name: str, work: Path) -> Run:
    if name.startswith("upstream"):
        return upstream(work, autocast=name.endswith("bf16"))
    if name.startswith("curve "):
        return ours(curve_bundle(work, name.removeprefix("curve ")))
    folder, *choices = name.removeprefix("ours ").split()
    return ours(contract.read(work / folder, verify=False), *choices)  # type: ignore[arg-type]


def prepare(work: Path, precisions: Collection[str]) -> None:
    if not (work / "vocos").exists():
        random_base.write(work, family(FAMILY), VOCABULARY)
    for name in precisions:
        if not (work / name).exists():
            sources = {
                "--family": FAMILY,
                "--checkpoint": work / "checkpoint/model.safetensors",
                "--vocab": work / "checkpoint/vocab.txt",
                "--vocoder-path": work / "vocos",
                "--precision": name,
                "--out": work / name,
            }
            if export(["bundle", *(str(word) for pair in sources.items() for word in pair)]):
                sys.exit(1)


def curve_bundle(work: Path, kept: str) -> contract.Bundle:
    """The fp32 bundle with an INT8 step graph that keeps some roles in float."""
    whole = contract.read(work / "fp32", verify=False)
    step = work / "curve" / f"{kept.replace(' + ', '_')}.onnx"
    if not step.exists():
        step.parent.mkdir(exist_ok=True)
        rewrites.quantise(whole.graph("step_keys", "ort-cpu"), step, CURVE[kept])
    files = {**whole.manifest.variants["default"], "step_keys": f"../curve/{step.name}"}
    return contract.Bundle(whole.folder, dataclasses.replace(whole.manifest, variants={"default": files}))


class Contender:
    """Process of one contender, which computes on request and sleeps otherwise."""

    def __init__(
        self,
        name: str,
        work: Path,
        module: str = "tests.benchmarks.cpu",
        options: Sequence[str] = (),
    ) -> None:
        """`module` is started with WORK, the name and the file of its result, and calls `answer`."""
        self.name = name
        self.seconds: list[float] = []
        self.cpu_s: list[float] = []
        """Seconds of processor time of all its threads, by turn."""
        self.peak_gb = 0.0
        self._out = work / "out" / f"{name.replace(' ', '_')}.npy"
        self._out.parent.mkdir(exist_ok=True)
        words = ["serve"] * (module == "tests.benchmarks.cpu") + [str(work), name, str(self._out), *options]
        command = [sys.executable, "-m", module, *words]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def turn(self, *, counts: bool = True) -> None:
        """Run once; a warm-up does not count."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        self.peak_gb = answer["peak_gb"]
        if counts:
            self.seconds.append(answer["seconds"])
            self.cpu_s.append(answer["cpu_s"])

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def result(self) -> FloatArray:
        return np.asarray(np.load(self._out))

    def stop(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def answer(run: Run, out: Path) -> None:
    """Run once for each line of stdin, and print its figures."""
    for _ in sys.stdin:
        begun, used_s = time.perf_counter(), time.process_time()
        result = run()
        took = {"seconds": time.perf_counter() - begun, "cpu_s": time.process_time() - used_s}
        np.save(out, result)
        print(json.dumps(took | {"peak_gb": peak_gb()}), flush=True)


def peak_gb() -> float:
    """Peak memory of this process; getrusage would count its parent's too."""
    status = Path("/proc/self/status").read_text("ascii")
    kib = int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1])
    return kib * 1024 / 1e9


def take_turns(names: list[str], work: Path, rounds: int, *program: Any) -> dict[str, Contender]:
    """Run all in turn, a warm-up and then `rounds` counted rounds; `program` is that of `Contender`."""
    contenders = [Contender(name, work, *program) for name in names]
    for i in range(rounds + 1):
        for c in contenders:
            c.turn(counts=i > 0)
            print(f"round {i} of {rounds}: {c.name}", file=sys.stderr)
    for c in contenders:
        c.stop()
    return {c.name: c for c in contenders}


def error(a: FloatArray, b: FloatArray) -> float:
    """‖a − b‖ / ‖b‖ over the generated frames."""
    a, b = a[REFERENCE_FRAMES:], b[REFERENCE_FRAMES:]
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def compare(work: Path, rounds: int) -> dict[str, Any]:
    prepare(work, ("fp32", "int8"))
    names = ["upstream fp32", "upstream bf16"]
    names += [f"ours {precision} {sampling}" for precision in ("fp32", "int8") for sampling in SAMPLINGS]
    ran = take_turns(names, work, rounds)
    base = ran["upstream fp32"]
    print(f"\n{FAMILY}, N={FRAMES}, NFE {NFE}, CFG {GUIDANCE}: whole sample without vocoder, {rounds} rounds")
    print(
        f"{'':26s} {'median s':>9s} {'min s':>7s} {'max s':>7s} {'× upstream fp32':>16s} "
        f"{'rel. error':>10s} {'peak GB':>8s}"
    )
    rows = {}
    for name in names:
        c = ran[name]
        far = error(c.result(), base.result())
        speed = base.median / c.median
        rows[name] = {"median_s": c.median, "speed": speed, "error": far, "peak_gb": c.peak_gb}
        print(
            f"{name:26s} {c.median:9.2f} {min(c.seconds):7.2f} {max(c.seconds):7.2f} "
            f"{speed:16.2f} {far:10.1e} {c.peak_gb:8.2f}"
        )
    return rows


def curve(work: Path, rounds: int) -> dict[str, Any]:
    prepare(work, ("fp32",))
    for kept in CURVE:
        curve_bundle(work, kept)
    ran = take_turns(["ours fp32 exact", *(f"curve {kept}" for kept in CURVE)], work, rounds)
    base = ran["ours fp32 exact"]
    print(f"\n{FAMILY}, N={FRAMES}, NFE {NFE}: INT8 by what stays in float, {rounds} rounds")
    print(f"{'float':30s} {'× ours fp32':>11s} {'rel. error':>10s} {'peak GB':>8s}")
    rows = {}
    for kept in CURVE:
        c = ran[f"curve {kept}"]
        rows[kept] = {"speed": base.median / c.median, "error": error(c.result(), base.result())}
        print(f"{kept:30s} {rows[kept]['speed']:11.2f} {rows[kept]['error']:10.2e} {c.peak_gb:8.2f}")
    return rows


COMMANDS = {"compare": compare, "curve": curve}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.cpu", description=__doc__)
    parser.add_argument("what", choices=(*COMMANDS, "serve"))
    parser.add_argument("work", type=Path)
    parser.add_argument("served", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    if arguments.what == "serve":
        name, out = arguments.served
        answer(contender(name, arguments.work), Path(out))
        return
    results = COMMANDS[arguments.what](arguments.work, arguments.rounds)
    (arguments.work / f"{arguments.what}.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
