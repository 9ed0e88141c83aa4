"""Upstream against ours on an NVIDIA GPU, in one process and in turns: v1_Base with random weights.

    python -m tests.benchmarks.gpu WORK [--only STAGE]... [--limit STAGE=SECONDS]... [--out DIR]
    python -m tests.benchmarks.gpu WORK --rehearse

What was done is not repeated unless it is named. `prepare` fills the graphs of WORK/graphs.tar.xz with
weights (weightless.py) on the CPU, beside the stages that need no bundle. No stage has torch's exporter. WORK
has a file for each stage (stages.py); their copies, and record.json with all of them, go to DIR.

`--rehearse` runs the tiny model on ONNX Runtime's CUDA provider over libraries that only count, and upstream
on the CPU: its figures mean nothing, and the tests that compare numbers fail.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from appliance.config import EngineConfig
from appliance.contract import bundle as contract
from appliance.contract.bundle import Arch, Bundle, Precision, Sampling
from appliance.contract.schedule import noise, time_grid
from appliance.engine.engine import Synthesizer
from appliance.engine.loading import load_for
from tests.benchmarks import random_base, stand_in, weightless
from tests.benchmarks.random_base import MELS, SEED, FloatArray
from tests.benchmarks.stages import Check, Rows, Stage, failed, fill, say, tried, write

if TYPE_CHECKING:
    from appliance.client import Client

ROOT = Path(__file__).resolve().parents[2]


Run = Callable[[int, int, int], FloatArray]
"""Lanes, NFE and frames of equal replies → samples of the first when the device is done."""
SAMPLINGS: tuple[Sampling, ...] = ("exact", "short", "short-kv")
STREAM_S = (1.5, 3.0, 3.87)
"""Segments of a reply of 8.37 s as LOW_LATENCY cuts it."""
FIRST_AUDIO_S, STREAMED_RTF = 0.09, 0.3
"""Targets of a stream."""
TRANSCRIPT = "Some call me nature, others call me mother nature, and I have been here for very long."
TEXT = (
    "Thanks for the question. That is a really good one, and I would start with the shield, go left at the "
    "gate, and keep the lamp for the way back down."
)
"""About 8 s at the pace of a reference of 5 s with that transcript."""


@dataclass(frozen=True)
class Case:
    named: str
    """Family, or path of its file."""
    reference: int = 469
    """Frames: 5 s."""
    frames: int = 1254
    """5 s of reference and 8.37 s of speech."""
    sizes: tuple[tuple[int, int], ...] = ((1, 7), (4, 7))
    """Lanes and NFE; those of `more` are run last."""
    more: tuple[tuple[int, int], ...] = ((1, 16), (2, 7), (8, 7), (4, 16))
    precision: Precision = "fp16"
    device: str = "cuda"
    tokens: int = 80
    vocabulary: int = weightless.VOCABULARY

    @property
    def nfe(self) -> int:
        return self.sizes[0][1]

    @property
    def half(self) -> bool:
        return self.device == "cuda"

    @property
    def audio_s(self) -> float:
        return (self.frames - self.reference) * 256 / 24_000

    def inputs(self) -> tuple[FloatArray, random_base.IntArray]:
        return random_base.inputs(self.reference, self.tokens, self.vocabulary)


REHEARSAL = Case(
    str(Path(__file__).resolve().parent.parent / "tiny" / "family.yaml"),
    *(40, 120, ((1, 3), (2, 3)), ((1, 4),)),
    precision="fp32",
    device="cpu",
    tokens=20,
    vocabulary=64,
)


def flops_of_a_step(arch: Arch, n: int) -> float:
    """Operations of an exact guided step of n frames: products, attention, projections, convolutions."""
    d = arch.dim
    block = (8 + 4 * arch.ff_mult) * d * d * n + 4 * d * n * n
    rest = 2 * (200 + arch.text_dim) * d + 2 * 2 * 31 * d * d / 16 + 2 * 100 * d
    return 2.0 * (arch.depth * block + rest * n)


def upstream(
    work: Path, case: Case, *, half: bool | None = None, compiled: bool = False, mel: bool = False
) -> Run:
    """`CFM.sample` and Vocos of f5-tts; `mel` leaves Vocos out."""
    import torch

    from tests import upstream as package

    cfm = random_base.sampler(_arch(work), case.vocabulary, weightless.drawn)
    vocos = package.vocos_module().Vocos.from_hparams(str(work / "vocos/config.yaml")).eval()
    vocos.load_state_dict(weightless.drawn(vocos), strict=False)
    cfm, vocos = cfm.to(case.device), vocos.to(case.device)
    if case.half if half is None else half:
        cfm = cfm.half()
    if compiled:
        cfm.transformer = torch.compile(cfm.transformer)
    reference, ids = (torch.from_numpy(array).to(case.device) for array in case.inputs())

    def run(lanes: int, nfe: int, frames: int) -> FloatArray:
        with torch.inference_mode():
            made = random_base.sample(cfm, reference, ids, frames, nfe, lanes)[:, case.reference :]
            found = made if mel else vocos.decode(made.transpose(1, 2))
            return np.asarray(found[0].cpu().numpy())

    return run


def ours(engine: Synthesizer, case: Case, sampling: Sampling, *, mel: bool = False) -> Run:
    """The device's engine; `mel` leaves the vocoder out."""
    drawn = random_base.upstream_noise(case.frames, case.device) if mel else noise(SEED, 0, case.frames, MELS)
    reference, ids = case.inputs()
    whole = random_base.segment(reference, case.reference, ids, drawn, 1, sampling)

    def run(lanes: int, nfe: int, frames: int) -> FloatArray:
        segment = replace(whole, times=time_grid(nfe), frames=frames, noise=whole.noise[:frames])
        opened = [engine.open(segment) for _ in range(lanes)]
        try:
            for _ in range(nfe):
                engine.step([lane.id for lane in opened])
            if mel:
                return engine.log_mel(opened[0].id)[case.reference :]
            samples = [engine.finish(lane.id) for lane in opened]
            return samples[0]
        finally:
            for lane in opened:
                engine.close(lane.id)

    return run


def contenders(work: Path, case: Case, *, mel: bool = False) -> dict[str, Run]:
    """Runs by name, and by backend what raises the error for which that could not be loaded."""
    found = {"upstream eager": upstream(work, case, mel=mel)}
    for name in backends():
        engine = tried(engine_on, name, work, case)
        if failed(engine):
            found[name] = _raising(engine["error"])
        else:
            found |= {f"{name} {sampling}": ours(engine, case, sampling, mel=mel) for sampling in SAMPLINGS}
    return found


def engine_on(backend: str, work: Path, case: Case) -> Synthesizer:
    """Load and warm up, which decides about captures."""
    lanes = max(lanes for lanes, _ in (*case.sizes, *case.more))
    engine = load_for(
        bundle_of(work), EngineConfig(backend=backend, lanes=lanes, cache=work / "engines"), say
    )
    engine.warm_up(case.nfe)
    return engine


def _raising(error: str) -> Run:
    def run(lanes: int, nfe: int, frames: int) -> FloatArray:
        raise RuntimeError(error)

    return run


def backends() -> tuple[str, ...]:
    """Backends for GPUs whose libraries can be here."""
    return ("ort-cuda", "tensorrt") if stand_in.install() else ("ort-cuda",)


def bundle_of(work: Path) -> Bundle:
    return contract.read(work / "bundle", verify=False)


def _arch(work: Path) -> Arch:
    arch = bundle_of(work).manifest.arch
    assert arch is not None
    return arch


def prepare(work: Path, case: Case, rounds: int) -> Rows:
    """Fill the graphs that were brought; without any, trace them in a process that may have the exporter."""
    graphs = work / weightless.ARCHIVE
    if not graphs.exists():
        command = [sys.executable, "-m", "tests.benchmarks.weightless", str(work), case.named, case.precision]
        subprocess.run(command, env=os.environ | {stand_in.NO_EXPORTER: ""}, check=True)
    yield "graphs, bytes", graphs.stat().st_size
    made = weightless.fill(graphs, work)
    yield "bytes", sum(path.stat().st_size for path in made.folder.iterdir())


def machine(work: Path, case: Case, rounds: int) -> Rows:
    """Versions, the GPU, and the speeds of a large matrix product and of copies."""
    import torch

    yield "python", platform.python_version()
    yield "machine", platform.platform()
    asked = "name compute_cap driver_version clocks.sm clocks.max.sm temperature.gpu power.draw"
    yield "nvidia-smi", stand_in.smi(*asked.split())
    yield "tensorrt backend", stand_in.install() or "none that runs here"
    for package in ("torch", "onnxruntime-gpu", "cuda-bindings", "tensorrt", "f5-tts"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield package, importlib.metadata.version(package)
    yield "torch's exporter", tried(torch.onnx.export, torch.nn.Identity(), (torch.zeros(1),))
    size, kind = (8192, torch.float16) if case.half else (512, torch.float32)
    source = torch.randn(size, size, device=case.device, dtype=kind)
    target = torch.empty_like(source)

    def seconds(work: Callable[[], object]) -> float:
        def run(lanes: int, nfe: int, frames: int) -> FloatArray:
            for _ in range(10):
                work()
            return np.asarray(target[0, :1].float().cpu().numpy())

        return statistics.median(take_turns({"": run}, 1, 1, 1, rounds)[""]) / 10

    yield "matmul_flops", 2.0 * size**3 / seconds(lambda: torch.matmul(source, source, out=target))
    # Larger than the caches: half a gigabyte on a card.
    source, target = source.repeat(4, 1), target.repeat(4, 1)
    yield "copy_bytes_per_s", 2.0 * source.nbytes / seconds(lambda: target.copy_(source))


def tests(work: Path, case: Case, rounds: int) -> Rows:
    """Run the tests that need a GPU, without plugins of pyproject.toml, which may be missing."""
    options = "-q -m gpu -p tests.benchmarks.stand_in -c /dev/null --rootdir . --import-mode=importlib"
    pytest = [sys.executable, "-m", "pytest", *options.split(), "tests/engine/test_on_gpu.py"]
    return _ran(pytest, F5_REQUIRE_GPU="1")


def sanitizer(work: Path, case: Case, rounds: int) -> Rows:
    """Look for wrong accesses in replies of the tiny bundle."""
    checked = ["compute-sanitizer", "--error-exitcode", "3"] if case.half else []
    replies = [sys.executable, "-m", "tests.benchmarks.gpu", str(work), "--replies", case.device]
    return _ran([*checked, *replies])


def replies(work: Path, device: str) -> None:
    """A short reply of the tiny bundle in every sampling."""
    bundle = contract.read(ROOT / "tests/tiny/bundle", verify=False)
    engine = load_for(bundle, EngineConfig(backend="ort-cuda", lanes=1, cache=work / "engines"))
    for sampling in SAMPLINGS:
        samples = ours(engine, REHEARSAL, sampling)(1, 3, REHEARSAL.frames)
        print(f"{sampling}: {len(samples)} samples on {device}, mean {np.abs(samples).mean():.2g}")
    engine.shutdown()


def _ran(command: Sequence[str], **environment: str) -> Rows:
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    ran = subprocess.run(command, env=os.environ | environment, cwd=ROOT, text=True, **pipes)
    yield "exit", ran.returncode
    yield "tail", (tail := ran.stdout.splitlines()[-40:])
    say("\n".join(tail[-1:]))


def predictions(work: Path, case: Case, rounds: int) -> Rows:
    """Replies as `bench-daemon limit` models them at the ceilings that `machine` has measured."""
    from tests.benchmarks.limit import limits_on

    measured = json.loads((work / "machine.json").read_text())["rows"]
    mode: Any = SimpleNamespace(flops=measured["matmul_flops"], bytes_per_s=measured["copy_bytes_per_s"])
    found = limits_on(bundle_of(work), mode, case.frames, case.reference, case.nfe)
    for row in found["times"]:
        yield f"{row['sampling']}, NFE {case.nfe}, 1 lanes", row
        say(f"predicted {row['sampling']}: {row['s']:.4f} s, RTF {row['rtf']:.4f}")


def errors(work: Path, case: Case, rounds: int) -> Rows:
    """‖mel − mel of upstream in float32‖ / ‖…‖, by contender."""
    wanted = upstream(work, case, half=False, mel=True)(1, case.nfe, case.frames)

    def error(run: Run) -> float:
        away = run(1, case.nfe, case.frames) - wanted
        return float(np.linalg.norm(away) / np.linalg.norm(wanted))

    for name, run in contenders(work, case, mel=True).items():
        yield name, tried(error, run)


def latency(work: Path, case: Case, rounds: int) -> Rows:
    """Seconds of a whole reply, vocoder included, by contender, NFE and lanes."""
    return compared(contenders(work, case), case.sizes, case.frames, rounds)


def more(work: Path, case: Case, rounds: int) -> Rows:
    return compared(contenders(work, case), case.more, case.frames, rounds)


def compiled(work: Path, case: Case, rounds: int) -> Rows:
    runs = {"upstream eager": upstream(work, case), "upstream compiled": upstream(work, case, compiled=True)}
    return compared(runs, case.sizes[:1], case.frames, rounds)


def compared(runs: dict[str, Run], sizes: Sequence[tuple[int, int]], frames: int, rounds: int) -> Rows:
    """Seconds of runs that take turns; one that fails is out."""
    for lanes, nfe in sizes:
        for name, run in list(runs.items()):
            if failed(row := tried(run, lanes, nfe, frames)):
                yield f"{name}, NFE {nfe}, {lanes} lanes", row
                del runs[name]
        for name, seconds in take_turns(runs, lanes, nfe, frames, rounds).items():
            yield f"{name}, NFE {nfe}, {lanes} lanes", seconds
            say(f"{name}, NFE {nfe}, {lanes} lanes: {statistics.median(seconds):.4f} s")


def take_turns(
    runs: Mapping[str, Run], lanes: int, nfe: int, frames: int, rounds: int
) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 2):
        for name, run in runs.items():
            begun = time.perf_counter()
            run(lanes, nfe, frames)
            if number >= 2:
                seconds[name].append(time.perf_counter() - begun)
    return seconds


def profile(work: Path, case: Case, rounds: int) -> Rows:
    """Kernels of a warm reply, not captured and captured; `by policy` is what the warm-up decided."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    activity = ProfilerActivity.CUDA if case.half else ProfilerActivity.CPU

    def kernels(run: Run) -> dict[str, Any]:
        with profiled(activities=[activity]) as found:
            begun = time.perf_counter()
            run(1, case.nfe, case.frames)
            took_s = time.perf_counter() - begun
        events = [event for event in found.key_averages() if event.self_device_time_total > 0]
        events.sort(key=lambda event: -event.self_device_time_total)
        return {
            "s": took_s,
            "kernels": sum(event.count for event in events),
            "kernels_s": sum(event.self_device_time_total for event in events) / 1e6,
            "longest": [[e.key[:100], e.count, e.self_device_time_total / 1e6] for e in events[:15]],
        }

    yield "upstream eager", [tried(kernels, upstream(work, case)) for _ in range(3)][-1]
    for backend in backends():
        engine = tried(engine_on, backend, work, case)
        if failed(engine):
            yield backend, engine
            continue
        yield f"{backend}, captures by policy", engine.captures
        for sampling in SAMPLINGS:
            for engine.captures in (False, True):
                run = ours(engine, case, sampling)
                rows = [tried(kernels, run) for _ in range(5)]
                yield f"{backend} {sampling}{', captured' if engine.captures else ''}", rows[-1]


def stream(work: Path, case: Case, rounds: int) -> Rows:
    """Seconds until each segment of a stream is made, alone on the device."""
    scale = case.audio_s / sum(STREAM_S)
    parts = [case.reference + max(int(seconds * scale * 93.75), 1) for seconds in STREAM_S]

    def streamed(run: Run) -> dict[str, float]:
        firsts, lasts = list[float](), list[float]()
        for _ in range(rounds + 2):
            begun = time.perf_counter()
            ends = [run(1, case.nfe, frames) is not None and time.perf_counter() - begun for frames in parts]
            firsts.append(ends[0])
            lasts.append(ends[-1])
        return {
            "first_audio_s": statistics.median(firsts[2:]),
            "rtf": statistics.median(lasts[2:]) / case.audio_s,
        }

    for name, run in contenders(work, case).items():
        yield name, tried(streamed, run)


def daemon(work: Path, case: Case, rounds: int) -> Rows:
    """First audio and RTF of streams of a whole daemon, a process of its own, over gRPC on loopback."""
    from appliance.client import Client
    from tests.daemons import reference_wav, running

    def spoken(backend: str) -> dict[str, Any]:
        folder = work / f"daemon-{backend}"
        folder.mkdir(exist_ok=True)
        engine = {"backend": backend, "lanes": 2, "cache": str(work / "engines"), "threads": 0}
        program, bundle = "tests.benchmarks.stand_in", work / "bundle"
        with (
            running(folder, module=program, speaks_from=bundle, engine=engine) as served,
            Client(served.address) as client,
        ):
            client.add_voice("reference", reference_wav(case.reference * 256 / 24_000), TRANSCRIPT)
            return {**_streams(client, case.nfe, rounds), "log": served.lines[-20:]}

    for backend in backends():
        yield backend, tried(spoken, backend)


def _streams(client: Client, nfe: int, rounds: int) -> dict[str, float]:
    options: Any = {"nfe": nfe, "seed": SEED, "segmentation": "low_latency"}
    replies = [client.stream(TEXT, "reference", **options).reply() for _ in range(rounds + 2)]
    return {
        "first_audio_s": statistics.median(reply.first_audio_s for reply in replies[2:]),
        "rtf": statistics.median(reply.wall_s / reply.audio_s for reply in replies[2:]),
        "audio_s": replies[0].audio_s,
    }


STAGES = {
    "prepare": Stage(prepare, 600),
    "machine": Stage(machine, 90),
    "tests": Stage(tests, 400),
    "sanitizer": Stage(sanitizer, 240),
    "predictions": Stage(predictions, 60, needs="prepare"),
    "errors": Stage(errors, 240, needs="prepare"),
    "latency": Stage(latency, 300, needs="prepare"),
    "profile": Stage(profile, 180, needs="prepare"),
    "compiled": Stage(compiled, 300, needs="prepare"),
    "stream": Stage(stream, 180, needs="prepare"),
    "daemon": Stage(daemon, 300, needs="prepare"),
    "more": Stage(more, 400, needs="prepare"),
}
"""In their order: what proves most comes first."""


def table(stages: Mapping[str, Any], flops: float) -> str:
    """The measurements as Markdown; `flops` of an exact step."""
    rows = {name: left["rows"] for name, left in stages.items()}
    peak = rows.get("machine", {}).get("matmul_flops")
    lines = [
        "| | NFE | lanes | whole reply | predicted | × upstream eager | share of the matmul peak |",
        "|---|---|---|---|---|---|---|",
    ]
    timed = [item for stage in ("latency", "compiled", "more") for item in rows.get(stage, {}).items()]
    medians = {row: statistics.median(seconds) for row, seconds in timed if not failed(seconds)}
    for row, took in medians.items():
        name, nfe, lanes = row.split(", ")
        steps, count = int(nfe.split()[1]), int(lanes.split()[0])
        base = medians.get(f"upstream eager, {nfe}, {lanes}")
        times = f"{base / took:.2f}" if base else ""
        full = peak and name.endswith(("eager", "compiled", "exact"))
        share = f"{flops * steps * count / took / peak:.0%}" if full else ""
        model = rows.get("predictions", {}).get(row.partition(" ")[2])
        said = f"{1e3 * model['s']:.1f} ms" if model else ""
        lines.append(f"| {name} | {steps} | {count} | {1e3 * took:.1f} ms | {said} | {times} | {share} |")
    for where in ("stream", "daemon"):
        for name, row in rows.get(where, {}).items():
            if isinstance(row, dict) and not failed(row):
                first = f"first audio {1e3 * row['first_audio_s']:.1f} ms (goal {1e3 * FIRST_AUDIO_S:.0f})"
                rtf = f"RTF {row['rtf']:.3f} (goal {STREAMED_RTF})"
                lines.append(f"| {name}, {where} | | 1 | {first} | | | {rtf} |")
    return "\n".join(lines)


def libraries() -> str:
    """Return the folders of the CUDA libraries that torch's wheels brought, as a library path."""
    found = importlib.util.find_spec("nvidia")
    places = list(found.submodule_search_locations or ()) if found else []
    folders = [str(path) for place in places for path in sorted(Path(place).glob("*/lib"))]
    return ":".join([*folders, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])


def limit(text: str) -> tuple[str, float]:
    """Parse STAGE=SECONDS. Raises ArgumentTypeError."""
    name, _, seconds = text.partition("=")
    if name not in STAGES or not seconds.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: STAGE=SECONDS is wanted, of {', '.join(STAGES)}")
    return name, float(seconds)


def main() -> int:
    """Run the stages, write the record and print it; 1 if a stage was not done."""
    parser = argparse.ArgumentParser(prog="gpu-check", description="stages: " + ", ".join(STAGES))
    parser.add_argument("work", type=Path)
    parser.add_argument(
        "--only", action="append", choices=STAGES, metavar="STAGE", help="several times for more"
    )
    parser.add_argument("--limit", action="append", default=[], type=limit, metavar="STAGE=SECONDS")
    parser.add_argument(
        "--out", type=Path, default=os.environ.get("OUT"), help="for copies ($OUT, else WORK)"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rehearse", action="store_true", help="over libraries that only count")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    parser.add_argument("--replies", metavar="DEVICE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    work = options.work.resolve()
    out = (options.out or work).resolve()
    for folder in (work, out):
        folder.mkdir(parents=True, exist_ok=True)
    case = REHEARSAL if options.rehearse else Case("F5TTS_v1_Base")
    if options.stage or options.replies:
        stand_in.install()
        if options.replies:
            replies(work, options.replies)
        else:
            stand_in.refuse_exports()
            fill(work / f"{options.stage}.json", STAGES[options.stage].rows(work, case, options.rounds))
        return 0
    os.environ |= {"LD_LIBRARY_PATH": libraries(), stand_in.NO_EXPORTER: "1"}
    command = [sys.executable, "-m", "tests.benchmarks.gpu", str(work), "--rounds", str(options.rounds)]
    if options.rehearse:
        command.append("--rehearse")
        os.environ[stand_in.COUNTING] = str(stand_in.counting(work / "counting"))
    check = Check(STAGES, [*command, "--stage"], work, out)
    names = [name for name in STAGES if name in (options.only or STAGES)]
    check.run(names, dict(options.limit), again=bool(options.only))
    found = {name: left for name in STAGES if (left := check.left(name))}
    record: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "rehearsed": options.rehearse,
        "case": {"family": case.named, "frames": case.frames, "reference": case.reference},
        "flops_of_a_step": flops_of_a_step(_arch(work), case.frames) if check.is_done("prepare") else 0.0,
        "stages": found,
    }
    write(out / "record.json", record)
    print(f"{table(found, record['flops_of_a_step'])}\n\nwritten to {out / 'record.json'}")
    return 0 if all(map(check.is_done, names)) else 1


if __name__ == "__main__":
    sys.exit(main())
