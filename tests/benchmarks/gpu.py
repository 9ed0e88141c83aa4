"""Upstream against ours on an NVIDIA GPU, in one process and in turns: v1_Base with random weights.

    python -m tests.benchmarks.gpu WORK [--rounds 5] [--record FILE]
    python -m tests.benchmarks.gpu WORK --rehearse

TensorRT-RTX takes TensorRT's place where that is not installed, and the record says so.

Every stage leaves WORK/STAGE.json and is not repeated; the record is all of them together. `--rehearse` runs
the same on the fake device with the tiny model, and upstream on the CPU: its figures mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import importlib.metadata
import json
import os
import platform
import statistics
import string
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from appliance.client import CallFailed, Client, End, Piece
from appliance.contract import bundle as contract
from appliance.contract.bundle import Bundle, Precision, Sampling
from appliance.contract.schedule import noise, time_grid
from appliance.engine.loading import load
from appliance.engine.ort_cuda import OrtCudaBackend
from appliance.engine.synthesizer import Synthesizer
from appliance.engine.trt import TrtBackend
from appliance.errors import ApplianceError
from appliance.job import Segment
from export import bundle as bundles
from export import parity
from export.families import Family, family
from export.random_checkpoint import write_random, write_random_vocos
from tests import rtx
from tests.daemons import free_port, reference_wav, write_config
from tests.fakes.gpu import installed
from tests.fakes.gpu.device import Device
from tests.fakes.gpu.tensorrt import TensorRT

FloatArray = NDArray[np.float32]
Run = Callable[[int, int], FloatArray]
"""Lanes and NFE → the first lane's samples; returns when the device is done."""

GUIDANCE, SEED = 2.0, 0
BACKENDS = ("ort-cuda", "tensorrt")
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
START_S = 1800.0
"""Time for a daemon to be ready; its engines are built before."""


@dataclass(frozen=True)
class Case:
    """Sizes of the synthesis."""

    family: Family
    reference: int = 469
    """Frames: 5 s."""
    frames: int = 1254
    """5 s of reference and 8.37 s of speech."""
    lanes: tuple[int, ...] = (1, 2, 4, 8)
    nfes: tuple[int, ...] = (7, 16)
    precision: Precision = "fp16"
    device: str = "cuda"
    tokens: int = 80
    vocabulary: int = 2545

    @property
    def audio_s(self) -> float:
        """Seconds of generated speech."""
        return (self.frames - self.reference) * 256 / 24_000


REHEARSAL = Case(
    family(str(Path(__file__).resolve().parent.parent / "tiny" / "family.yaml")),
    *(40, 120, (1, 2), (3,)),
    precision="fp32",
    device="cpu",
    tokens=20,
    vocabulary=64,
)


def flops_of_a_step(case: Case) -> float:
    """Operations of an exact guided step: linear layers, attention, projections, convolutions."""
    arch, n = case.family.arch, case.frames
    d = arch.dim
    block = (8 + 4 * arch.ff_mult) * d * d * n + 4 * d * n * n
    rest = 2 * (200 + arch.text_dim) * d + 2 * 2 * 31 * d * d / 16 + 2 * 100 * d
    return 2.0 * (arch.depth * block + rest * n)


# The contenders


def inputs(case: Case) -> tuple[FloatArray, NDArray[np.int32]]:
    """Log-mel of the reference, and ids."""
    rng = np.random.default_rng(SEED)
    mel = rng.normal(-3.0, 2.0, (case.reference, 100)).clip(-11.5, 3.0).astype(np.float32)
    return mel, rng.integers(0, case.vocabulary, case.tokens, dtype=np.int32)


def upstream(work: Path, case: Case, *, half: bool, compiled: bool = False, mel: bool = False) -> Run:
    """`CFM.sample` and Vocos of f5-tts; `mel` leaves Vocos out."""
    import torch

    from export.checkpoint import load_dit
    from tests import upstream as package

    arch = case.family.arch
    weights = load_dit(work / "checkpoint/model.safetensors", arch, case.vocabulary)
    sizes = {name: getattr(arch, name) for name in ("dim", "depth", "heads", "ff_mult", "text_dim")}
    dit = package.dit_class()(
        **sizes, conv_layers=arch.conv_layers, text_num_embeds=case.vocabulary, mel_dim=100
    )
    dit.load_state_dict(dict(weights), strict=False, assign=True)

    class Mel(torch.nn.Module):
        n_mel_channels = 100

    cfm = package.cfm_class()(transformer=dit, mel_spec_module=Mel(), num_channels=100).eval()
    vocos = package.vocos_module().Vocos.from_hparams(str(work / "vocos/config.yaml")).eval()
    vocos.load_state_dict(torch.load(work / "vocos/pytorch_model.bin", weights_only=True))
    cfm, vocos = cfm.to(case.device), vocos.to(case.device)
    if half:
        cfm = cfm.half()
    if compiled:
        cfm.transformer = torch.compile(cfm.transformer)
    reference, ids = (torch.from_numpy(array).to(case.device) for array in inputs(case))

    def run(lanes: int, nfe: int) -> FloatArray:
        with torch.inference_mode():
            out, _ = cfm.sample(
                reference[None].expand(lanes, -1, -1),
                ids.long()[None].expand(lanes, -1),
                case.frames,
                steps=nfe,
                cfg_strength=GUIDANCE,
                sway_sampling_coef=-1.0,
                seed=SEED,
            )
            made = out.float()[:, case.reference :]
            found = made if mel else vocos.decode(made.transpose(1, 2))
            return np.asarray(found[0].cpu().numpy())

    return run


def ours(engine: Synthesizer, case: Case, sampling: Sampling, *, mel: bool = False) -> Run:
    """The device's engine; `mel` leaves the vocoder out."""
    reference, ids = inputs(case)
    whole = Segment(
        index=0,
        text="",
        ids=ids,
        frames=case.frames,
        reference_log_mel=reference,
        reference_frames=case.reference,
        times=time_grid(1),
        guidance=GUIDANCE,
        sampling=sampling,
        noise=upstream_noise(case) if mel else noise(SEED, 0, case.frames, 100),
    )

    def run(lanes: int, nfe: int) -> FloatArray:
        segment = replace(whole, times=time_grid(nfe))
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


def upstream_noise(case: Case) -> FloatArray:
    """Noise that upstream draws for the seed on the case's device."""
    import torch

    torch.manual_seed(SEED)
    drawn = torch.randn(case.frames, 100, device=case.device)
    return np.asarray(drawn.float().cpu().numpy())


# The stages


def machine(case: Case) -> dict[str, Any]:
    """Versions, the GPU, and the speed of a large matrix product."""
    import torch

    found: dict[str, Any] = {"python": platform.python_version(), "machine": platform.platform()}
    if case.device == "cuda":
        found["tensorrt backend"] = rtx.install() or "not installed"
    for package in ("torch", "onnxruntime-gpu", "onnxruntime", "cuda-bindings", "tensorrt", "f5-tts"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        fields = "name,driver_version,clocks.sm,clocks.max.sm,temperature.gpu,power.draw"
        command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
        answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        found["nvidia-smi"] = dict(zip(fields.split(","), answer.split(", "), strict=False))
    size = 8192 if case.device == "cuda" else 512
    a = torch.randn(size, size, device=case.device, dtype=torch.float16 if size > 512 else torch.float32)

    def product(lanes: int, nfe: int) -> FloatArray:
        out = a
        for _ in range(10):
            out = a @ a
        return np.asarray(out[0, :1].float().cpu().numpy())

    seconds = statistics.median(take_turns({"": product}, 1, 1, 5)[""])
    found["matmul_flops"] = 10 * 2.0 * size**3 / seconds
    return found


def tests() -> dict[str, Any]:
    """Run the tests that need a GPU, without plugins of pyproject.toml, which may be missing."""
    options = (
        "-m gpu -p tests.rtx -c /dev/null --rootdir . --import-mode=importlib tests/engine/test_on_gpu.py"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options.split()],
        env=os.environ | {"F5_REQUIRE_GPU": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    return {"exit": ran.returncode, "tail": ran.stdout.splitlines()[-40:]}


def take_turns(runs: dict[str, Run], lanes: int, nfe: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each, run in turn after two warm-ups."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 2):
        for name, run in runs.items():
            begun = time.perf_counter()
            run(lanes, nfe)
            if number >= 2:
                seconds[name].append(time.perf_counter() - begun)
    return seconds


def engines(bundle: Bundle, case: Case, cache: Path) -> dict[str, Synthesizer]:
    """Load an engine for each available backend."""
    found = {}
    for name in BACKENDS:
        try:
            with _device(case):
                found[name] = load(
                    bundle, backend=name, lanes=max(case.lanes), cache=cache, report=_print_progress
                )
        except ApplianceError as error:
            print(f"{name}: {error}", file=sys.stderr)
    return found


@contextlib.contextmanager
def _device(case: Case) -> Iterator[None]:
    """The machine's device; for a rehearsal the fake one, with few sizes."""
    if case.device == "cuda":
        yield
        return
    OrtCudaBackend.buckets = TrtBackend.buckets = (128,)
    device = Device()
    with installed(device, TensorRT(device)):
        yield


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr)


def errors(work: Path, case: Case, found: dict[str, Synthesizer]) -> dict[str, float]:
    """‖mel − mel of upstream in float32‖ / ‖…‖, by contender."""
    wanted = upstream(work, case, half=False, mel=True)(1, case.nfes[0])
    runs = {"upstream eager": upstream(work, case, half=case.device == "cuda", mel=True)}
    for name, engine in found.items():
        runs |= {f"{name} {sampling}": ours(engine, case, sampling, mel=True) for sampling in SAMPLINGS}
    return {
        name: float(np.linalg.norm(run(1, case.nfes[0]) - wanted) / np.linalg.norm(wanted))
        for name, run in runs.items()
    }


def latency(work: Path, case: Case, found: dict[str, Synthesizer], rounds: int) -> dict[str, Any]:
    """Seconds of a whole reply, vocoder included, by contender, NFE and lanes."""
    on_gpu = case.device == "cuda"
    runs = {"upstream eager": upstream(work, case, half=on_gpu)}
    if on_gpu:
        runs["upstream compiled"] = upstream(work, case, half=True, compiled=True)
    for name, engine in found.items():
        runs |= {f"{name} {sampling}": ours(engine, case, sampling) for sampling in SAMPLINGS}
    rows: dict[str, Any] = {}
    for nfe in case.nfes:
        for lanes in case.lanes:
            for name, seconds in take_turns(runs, lanes, nfe, rounds).items():
                rows[f"{name}, NFE {nfe}, {lanes} lanes"] = seconds
                print(
                    f"{name}, NFE {nfe}, {lanes} lanes: {statistics.median(seconds):.4f} s", file=sys.stderr
                )
    return rows


def stream(case: Case, found: dict[str, Synthesizer], rounds: int) -> dict[str, Any]:
    """Seconds until each segment of a stream is made, alone on the device."""
    rows = {}
    scale = case.audio_s / sum(STREAM_S)
    for name, engine in found.items():
        parts = [
            replace(case, frames=case.reference + max(int(seconds * scale * 93.75), 1))
            for seconds in STREAM_S
        ]
        runs = [ours(engine, part, engine.manifest.defaults.sampling) for part in parts]

        def speak(
            lanes: int, nfe: int, runs: Sequence[Run] = runs, ends: list[float] | None = None
        ) -> FloatArray:
            begun = time.perf_counter()
            for run in runs:
                made = run(lanes, nfe)
                if ends is not None:
                    ends.append(time.perf_counter() - begun)
            return made

        for nfe in case.nfes:
            take_turns({name: speak}, 1, nfe, 1)
            taken: list[list[float]] = []
            for _ in range(rounds):
                ends: list[float] = []
                speak(1, nfe, ends=ends)
                taken.append(ends)
            rows[f"{name}, NFE {nfe}"] = {
                "first_audio_s": statistics.median(ends[0] for ends in taken),
                "rtf": statistics.median(ends[-1] for ends in taken) / case.audio_s,
            }
    return rows


def daemon(work: Path, case: Case, rounds: int) -> dict[str, Any]:
    """First audio and RTF of streams of a whole daemon, a process of its own, over gRPC on loopback."""
    bundle = prepare(work, case)
    rows: dict[str, Any] = {}
    for name in BACKENDS:
        folder = work / f"daemon-{name}"
        folder.mkdir(exist_ok=True)
        settings = {"backend": name, "lanes": 2, "cache": str(work / "engines")}
        try:
            with _serving(folder, bundle, case, settings) as client:
                client.add_voice("reference", reference_wav(case.reference * 256 / 24_000), TRANSCRIPT)
                for nfe in case.nfes:
                    rows[f"{name}, NFE {nfe}"] = _streams(client, nfe, rounds)
        except CallFailed as error:
            print(f"the daemon on {name}: {error}", file=sys.stderr)
    return rows


@contextlib.contextmanager
def _serving(folder: Path, bundle: Bundle, case: Case, engine: dict[str, Any]) -> Iterator[Client]:
    """A daemon's client, once it is ready. Raises CallFailed when it does not become so."""
    config = write_config(folder, bundle.folder, engine=engine, server={"listen": f"127.0.0.1:{free_port()}"})
    address = yaml.safe_load(config.read_text("utf-8"))["server"]["listen"]
    module = "tests.rtx" if case.device == "cuda" else "tests.fakes.gpu"
    command = [sys.executable, "-m", module, "serve", "--config", str(config)]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            with Client(address) as client:
                _wait_for(client, process)
                yield client
        finally:
            process.terminate()


def _wait_for(client: Client, process: subprocess.Popen[bytes]) -> None:
    """Wait until the daemon serves. Raises CallFailed if it ends, or after START_S."""
    end = time.monotonic() + START_S
    while True:
        try:
            if client.health() == "SERVING":
                return
        except CallFailed:
            if process.poll() is not None or time.monotonic() > end:
                raise
        time.sleep(0.5)


def _streams(client: Client, nfe: int, rounds: int) -> dict[str, float]:
    """Medians after two warm-ups."""
    firsts, rtfs = list[float](), list[float]()
    for _ in range(rounds + 2):
        begun = time.monotonic()
        first, rate_hz, samples = 0.0, 0, 0
        stream = client.stream(TEXT, "reference", nfe=nfe, seed=SEED, segmentation="low_latency")
        for event in stream:
            if isinstance(event, Piece):
                first = first or event.arrived - begun
            elif isinstance(event, End):
                samples = event.samples
            else:
                rate_hz = event.sample_rate_hertz
        firsts.append(first)
        rtfs.append((time.monotonic() - begun) * rate_hz / samples)
    return {
        "first_audio_s": statistics.median(firsts[2:]),
        "rtf": statistics.median(rtfs[2:]),
        "audio_s": samples / rate_hz,
    }


def table(record: dict[str, Any]) -> str:
    """The record as Markdown."""
    peak, flops = record["machine"]["matmul_flops"], record["case"]["flops_of_a_step"]
    lines = [
        "| | NFE | lanes | whole reply | × upstream eager | share of the matmul peak |",
        "|---|---|---|---|---|---|",
    ]
    for row, seconds in record["latency"].items():
        name, nfe, lanes = row.split(", ")
        steps, count = int(nfe.split()[1]), int(lanes.split()[0])
        took = statistics.median(seconds)
        base = statistics.median(record["latency"][f"upstream eager, {nfe}, {lanes}"])
        share = flops * steps * count / took / peak if name.endswith(("eager", "compiled", "exact")) else None
        shown = "" if share is None else f"{share:.0%}"
        lines.append(f"| {name} | {steps} | {count} | {1e3 * took:.1f} ms | {base / took:.2f} | {shown} |")
    for what, streams in (("engine", record["stream"]), ("daemon", record["daemon"])):
        for name, row in streams.items():
            first = (
                f"first audio {1e3 * row['first_audio_s']:.1f} ms (asked: under {1e3 * FIRST_AUDIO_S:.0f})"
            )
            rtf = f"RTF {row['rtf']:.3f} (asked: under {STREAMED_RTF})"
            lines.append(f"| {name}, streamed by the {what} | | 1 | {first} | | {rtf} |")
    return "\n".join(lines)


def prepare(work: Path, case: Case) -> Bundle:
    """Make the checkpoint and the bundle if they are missing."""
    if not (work / "vocos").exists():
        words = [*f" {string.ascii_letters}.,", *(f"t{i}" for i in range(case.vocabulary))]
        write_random(work / "checkpoint", case.family.arch, words[: case.vocabulary], SEED)
        write_random_vocos(work / "vocos", seed=SEED)
    if not (work / "bundle").exists():
        checkpoint = work / "checkpoint"
        sources = bundles.Sources(
            case.family, checkpoint / "model.safetensors", checkpoint / "vocab.txt", "vocos", work / "vocos"
        )
        report = parity.Report(case.precision)
        loaded = bundles.load(sources)
        bundles.build(loaded, case.precision, work / "bundle", lambda bundle: report, max_frames=2048)
    return contract.read(work / "bundle", verify=False)


def stages(work: Path, case: Case, rounds: int) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Names and works, in order; the engines are loaded when the first that needs them runs."""
    known: dict[str, Synthesizer] = {}

    def loaded() -> dict[str, Synthesizer]:
        if not known:
            known.update(engines(prepare(work, case), case, work / "engines"))
            if not known:
                sys.exit("no backend of ours runs here, see above")
        return known

    yield "machine", lambda: machine(case)
    if case.device == "cuda":
        yield "tests", tests
    yield "errors", lambda: errors(work, case, loaded())
    yield "latency", lambda: latency(work, case, loaded(), rounds)
    yield "stream", lambda: stream(case, loaded(), rounds)
    yield "daemon", lambda: daemon(work, case, rounds)


def main() -> None:
    """Run every stage that has not left its file, and write the record."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu", description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--record", type=Path, help="(tests/records/gpu-DATE.json)")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    options.work = options.work.resolve()
    if not options.rehearse:
        rtx.install()
    case = REHEARSAL if options.rehearse else Case(family("F5TTS_v1_Base"))
    record: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "rehearsed": options.rehearse,
        "case": {
            "family": case.family.name,
            "frames": case.frames,
            "reference": case.reference,
            "flops_of_a_step": flops_of_a_step(case),
        },
    }
    for name, work in stages(options.work, case, options.rounds):
        file = options.work / f"{name}.json"
        if not file.exists():
            print(f"==> {name}", file=sys.stderr)
            file.write_text(json.dumps(work(), indent=1))
        record[name] = json.loads(file.read_text())
    default = "rehearsal.json" if options.rehearse else f"tests/records/gpu-{record['date']}.json"
    target = options.record or (options.work / default if options.rehearse else Path(default))
    target.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{table(record)}\n\nwritten to {target}")


if __name__ == "__main__":
    main()
