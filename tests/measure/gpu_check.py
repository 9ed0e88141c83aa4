"""`scripts/gpu-check`: our engine and upstream's on an NVIDIA GPU.

    python -m tests.measure.gpu_check pack DIR [--capability 90] [--python 3.12]
    python -m tests.measure.gpu_check WORK [--only STAGE]... [--limit STAGE=SECONDS]... [--out DIR]
                                           [--rounds 5]
    python -m tests.measure.gpu_check WORK --rehearse

Upstream and our engine speak alternately in one process: v1_Base with random weights, 5 s of reference, 8.37
s of speech. Each stage is a process with a limit, and the others run although a stage fails. WORK/STAGE.json
holds the rows measured so far, and the status: done, failed, ended with a status, or over its limit. DIR gets
copies, and record.json with all stages. A finished stage runs again only if --only names it.

`prepare` fills the graphs of WORK/graphs.tar.xz with weights (tests/harness/weightless.py) on the CPU. Stages
that need no bundle run at the same time. No stage has torch's exporter.

`--rehearse` runs the tiny model on ONNX Runtime's CUDA provider over libraries that only count, and upstream
on the CPU, by torch's build for CPUs: its figures mean nothing, and the tests that compare numbers fail.
"""

import argparse
import contextlib
import datetime
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from appliance.config import EngineConfig
from appliance.contract import bundle as contract
from appliance.contract.bundle import Bundle, Precision, Sampling
from appliance.contract.schedule import noise, time_grid
from appliance.engine.engine import Synthesizer
from appliance.engine.loading import load_for
from tests.harness import weightless
from tests.harness.segments import segment
from tests.measure import random_base
from tests.measure.random_base import MELS, SEED, FloatArray

ROOT = Path(__file__).resolve().parents[2]
MODULE = "tests.measure.gpu_check"
Rows = Iterator[tuple[str, Any]]
"""Names and values of a stage; each value is written as soon as it is measured."""
Run = Callable[[int, int, int], FloatArray]
"""Maps lanes, NFE and frames of equal replies to the samples of the first, after the device is done."""
PREPARE, REPLIES, DONE = "prepare", "replies", "done"

# ----------------------------------------------------------------------------------------- the package

NAMES = (
    "onnxruntime-gpu",
    *("f5-tts", "vocos", "bigvgan", "x-transformers", "torch-einops-utils", "einx", "frozendict", "loguru"),
    *("librosa", "audioread", "pooch", "decorator", "platformdirs", "soundfile", "soxr", "cffi", "pycparser"),
    *("pydub", "rjieba", "pypinyin", "emoji", "grpcio-health-checking", "grpcio-reflection"),
    *("googleapis-common-protos", "protobuf"),
)
TAGS = (*(f"manylinux_2_{n}_x86_64" for n in range(35, 16, -1)), "manylinux2014_x86_64", "manylinux1_x86_64")
CONTAINER = struct.pack("<IHH", 0xBA55ED50, 1, 16)
"""Head of a container of machine code in a CUDA library: magic number, version, length of the head."""
PTX, ELF = 1, 2
LOT_BYTES = 28 << 20


def pack(arguments: Sequence[str]) -> int:
    """Write wheels and graphs into DIR/1, DIR/2, …, each of at most LOT_BYTES."""
    parser = argparse.ArgumentParser(prog="gpu-check pack")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--capability", type=int, metavar="90", help="keep machine code for this card alone")
    parser.add_argument("--python", default="3.12", help="of the other machine (%(default)s)")
    options = parser.parse_args(arguments)
    shutil.rmtree(options.folder, ignore_errors=True)
    pins = [f"--constraint={ROOT}/scripts/requirements/{lock}.txt" for lock in ("ort-cuda", "upstream")]
    target = ["--python-version", options.python, *(word for tag in TAGS for word in ("--platform", tag))]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([*command, *pins, *target, "--dest", name, *NAMES], check=True)
        for wheel in folder.glob("onnxruntime_gpu-*") if options.capability else ():
            slim_wheel(wheel, options.capability)
        weightless.write(folder, "F5TTS_v1_Base", "fp16")
        lots(list(folder.iterdir()), options.folder, LOT_BYTES)
    for lot in sorted(options.folder.iterdir()):
        print(f"{lot}: {sum(path.stat().st_size for path in lot.iterdir()) / 1e6:.1f} MB")
    return 0


def slim_wheel(wheel: Path, capability: int) -> None:
    new = wheel.with_suffix(".new")
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(new, "w", zipfile.ZIP_DEFLATED) as slimmed:
        for item in old.infolist():
            content = bytearray(old.read(item))
            if item.filename.endswith("libonnxruntime_providers_cuda.so"):
                slim(content, capability)
            slimmed.writestr(item, bytes(content), zipfile.ZIP_LZMA)
    new.rename(wheel)


def slim(code: bytearray, capability: int) -> None:
    """Blank the machine code for other cards, which a driver does not read: blanks compress to nothing."""
    at = 0
    while (at := code.find(CONTAINER, at)) >= 0:
        end = at + 16 + struct.unpack_from("<Q", code, at + 8)[0]
        entries, at = [], at + 16
        while at < end:
            kind, _, head, size = struct.unpack_from("<HHIQ", code, at)
            entries.append((kind, struct.unpack_from("<I", code, at + 28)[0], at + head, size))
            at += head + size
        kept = [entry for entry in entries if entry[:2] == (ELF, capability)]
        # If the file has no code for the card, the driver compiles the portable code.
        kept = kept or [entry for entry in entries if entry[0] == PTX] or entries
        for _, _, start, size in (entry for entry in entries if entry not in kept):
            code[start : start + size] = bytes(size)


def lots(files: list[Path], folder: Path, size: int) -> None:
    """Spread files over numbered folders; a file that fits into no folder is split."""
    lot, room = 0, 0
    for file in sorted(files, key=lambda file: -file.stat().st_size):
        content = file.read_bytes()
        parts = [content[start : start + size] for start in range(0, len(content), size)]
        for number, part in enumerate(parts):
            if len(part) > room:
                lot, room = lot + 1, size
                (folder / str(lot)).mkdir(parents=True)
            name = file.name if len(parts) == 1 else f"{file.name}.part{number:02}"
            (folder / str(lot) / name).write_bytes(part)
            room -= len(part)


# ----------------------------------------------------------------------------- processes that run a stage


@dataclass(frozen=True)
class Stage:
    rows: Callable[..., Rows]
    limit_s: float
    prepared: bool = False
    """True if the stage needs the bundle of `prepare`."""


def tried(work: Callable[..., Any], *arguments: object) -> Any:
    """Return the result of `work`, or its error as a row: later rows are still measured."""
    try:
        return work(*arguments)
    except Exception as error:
        say(text := f"{type(error).__name__}: {error}")
        return {"error": text if len(text) < 1000 else f"{text[:300]} … {text[-700:]}"}


def failed(row: object) -> bool:
    return isinstance(row, Mapping) and "error" in row


def fill(file: Path, rows: Rows) -> None:
    """Run a stage in this process. Write its error, then raise it."""
    left: dict[str, Any] = {"status": "running", "rows": {}}
    begun = time.monotonic()
    try:
        for name, value in rows:
            left["rows"][name] = value
            write(file, left)
        left["status"] = DONE
    except Exception as error:
        left |= {"status": "failed", "error": f"{type(error).__name__}: {error}"[:2000]}
        raise
    finally:
        write(file, left | {"seconds": round(time.monotonic() - begun, 3)})


@dataclass(frozen=True)
class Check:
    """Stages as processes of `command` and a name. The first of `folders` has their files."""

    stages: Mapping[str, Stage]
    command: Sequence[str]
    folders: Sequence[Path]
    limits: Mapping[str, float]

    def left(self, name: str) -> dict[str, Any]:
        """Read the stage's file; empty if there is none."""
        file = self.folders[0] / f"{name}.json"
        return json.loads(file.read_text()) if file.exists() else {}

    def is_done(self, name: str) -> bool:
        return self.left(name).get("status") == DONE

    def run(self, names: Sequence[str], *, again: bool) -> None:
        """Run stages in order, and `prepare` while others run; a finished stage runs only if `again`."""
        due = [name for name in names if again or not self.is_done(name)]
        needed = any(self.stages[name].prepared for name in due) and not self.is_done(PREPARE)
        preparing = self._begin(PREPARE) if needed or PREPARE in due else None
        try:
            for name in (name for name in due if name != PREPARE):
                is_prepared = self.stages[name].prepared
                if is_prepared and preparing:
                    preparing = self._end(PREPARE, *preparing)
                if is_prepared and not self.is_done(PREPARE):
                    self._leave(name, {"status": f"not run: {PREPARE} is not done", "rows": {}})
                else:
                    self._end(name, *self._begin(name))
            if preparing:
                preparing = self._end(PREPARE, *preparing)
        finally:
            if preparing:
                _kill(preparing[0])

    def _begin(self, name: str) -> tuple[subprocess.Popen[bytes], float]:
        self._leave(name, {"status": "running", "rows": {}})
        limit_s = self.limits.get(name, self.stages[name].limit_s)
        return subprocess.Popen([*self.command, name], start_new_session=True), time.monotonic() + limit_s

    def _end(self, name: str, process: subprocess.Popen[bytes], deadline: float) -> None:
        """Wait for a stage; at its limit, end it with all its child processes."""
        late = False
        try:
            process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            late = True
        finally:
            _kill(process)
        left = self.left(name)
        if left["status"] == "running":
            left["status"] = "over its limit" if late else f"ended with status {process.returncode}"
        self._leave(name, left)

    def _leave(self, name: str, left: Mapping[str, Any]) -> None:
        say(f"==> {name}: {left['status']}")
        for folder in set(self.folders):
            write(folder / f"{name}.json", left)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def write(file: Path, value: object) -> None:
    """Replace a JSON file whole."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(value, indent=1) + "\n")
    os.replace(new, file)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# ---------------------------------------------------------------------- the imports of a stage

COUNTING = "F5_COUNTING_CUDA"
"""Environment variable: the folder of the counting libraries; unset on a card."""
NO_EXPORTER = "F5_NO_EXPORTER"
"""Environment variable: if not empty, nothing can be traced, whatever is installed."""
EXPORTS = {"torch.onnx": ("export",), "torch.export": ("export", "export_for_training", "draft_export")}


def counting(folder: Path) -> Path:
    """Compile the counting libraries unless they exist. Needs onnxruntime-gpu, gcc, torch for CPUs."""
    import torch

    from tests.fakes.nvidia.counting import libraries

    if torch.version.cuda:
        raise SystemExit(f"gpu-check: a rehearsal needs torch's build for CPUs, not {torch.__version__}")
    if not folder.exists():
        new = folder.with_suffix(".new")
        new.mkdir(exist_ok=True)
        libraries.build(new)
        new.rename(folder)
    return folder


def pytest_configure() -> None:
    """Hide the packages that write graphs; in a rehearsal replace CUDA's libraries by counting ones."""
    if os.environ.get(NO_EXPORTER):
        sys.modules |= dict.fromkeys(("onnx", "onnx_ir", "onnxscript"))  # type: ignore[arg-type]
    if folder := os.environ.get(COUNTING):
        from tests.fakes.nvidia.counting import runtime

        made = sorted(Path(folder).glob("lib*.so.*[0-9]"), key=lambda path: "cudart" not in path.name)
        runtime.install(made).use(runtime.HOPPER)


def refuse_exports() -> None:
    """Remove torch's exporters; their modules stay, because torch itself imports them."""

    def refuse(*_: object, **__: object) -> None:
        raise ImportError("torch's exporter is made absent: this machine's may not trace the graphs")

    for name, functions in EXPORTS.items() if importlib.util.find_spec("torch") else ():
        for function in functions:
            setattr(importlib.import_module(name), function, refuse)


def libraries_path() -> str:
    """Return the folders of the CUDA libraries that torch's wheels brought, as a library path."""
    found = importlib.util.find_spec("nvidia")
    places = list(found.submodule_search_locations or ()) if found else []
    folders = [str(path) for place in places for path in sorted(Path(place).glob("*/lib"))]
    return ":".join([*folders, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])


def backends() -> tuple[str, ...]:
    """GPU backends whose libraries this machine may have."""
    has_tensorrt = not os.environ.get(COUNTING) and importlib.util.find_spec("tensorrt")
    return ("ort-cuda", "tensorrt") if has_tensorrt else ("ort-cuda",)


# --------------------------------------------------------------------------------------- upstream and ours


@dataclass(frozen=True)
class Case:
    named: str
    """Name of a family, or path of its file."""
    reference: int = 469
    """Frames: 5 s."""
    frames: int = 1254
    """5 s of reference and 8.37 s of speech."""
    sizes: tuple[tuple[int, int], ...] = ((1, 7), (4, 7))
    """Lanes and NFE; the stage `more` has other sizes."""
    more: tuple[tuple[int, int], ...] = ((1, 16), (2, 7), (8, 7), (4, 16))
    precision: Precision = "fp16"
    device: str = "cuda"
    tokens: int = 80
    vocabulary: int = weightless.VOCABULARY

    @property
    def nfe(self) -> int:
        return self.sizes[0][1]

    def inputs(self) -> tuple[FloatArray, random_base.IntArray]:
        return random_base.inputs(self.reference, self.tokens, self.vocabulary)


SAMPLINGS: tuple[Sampling, ...] = ("exact", "short", "short-kv")
TINY = str(ROOT / "tests/tiny/family.yaml")
REHEARSAL = Case(TINY, 40, 120, ((1, 3), (2, 3)), ((1, 4),), "fp32", "cpu", tokens=20, vocabulary=64)
FIRST_AUDIO_S, STREAMED_RTF = 0.09, 0.3
"""Targets of a stream."""
TRANSCRIPT = "Some call me nature, others call me mother nature, and I have been here for very long."
TEXT = (
    "Thanks for the question. That is a really good one, and I would start with the shield, go left at the "
    "gate, and keep the lamp for the way back down."
)
"""About 8 s at the pace of a reference of 5 s with that transcript."""


def upstream(work: Path, case: Case, *, half: bool = True, compiled: bool = False, mel: bool = False) -> Run:
    """`CFM.sample` and Vocos of f5-tts; `mel` leaves Vocos out."""
    import torch

    from tests.oracle import upstream as package

    arch = bundle_of(work).manifest.arch
    assert arch is not None
    cfm = random_base.sampler(arch, case.vocabulary, weightless.drawn)
    vocos = package.vocos_module().Vocos.from_hparams(str(work / "vocos/config.yaml")).eval()
    vocos.load_state_dict(weightless.drawn(vocos), strict=False)
    cfm, vocos = cfm.to(case.device), vocos.to(case.device)
    if case.device == "cuda" and half:
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
    of_voice = {"reference_log_mel": reference, "reference_frames": case.reference}
    whole = segment(frames=len(drawn), ids=ids, noise=drawn, sampling=sampling, **of_voice)

    def run(lanes: int, nfe: int, frames: int) -> FloatArray:
        asked = replace(whole, times=time_grid(nfe), frames=frames, noise=whole.noise[:frames])
        opened = [engine.open(asked) for _ in range(lanes)]
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
    """Runs by name; a backend that failed to load raises its error at its first run."""

    def raising(lanes: int, nfe: int, frames: int) -> FloatArray:
        raise RuntimeError(engine["error"])

    found = {"upstream eager": upstream(work, case, mel=mel)}
    for name in backends():
        engine = tried(engine_on, name, work, case)
        if failed(engine):
            found[name] = raising
        else:
            found |= {f"{name} {sampling}": ours(engine, case, sampling, mel=mel) for sampling in SAMPLINGS}
    return found


def engine_on(backend: str, work: Path, case: Case) -> Synthesizer:
    """Load and warm up an engine; the warm-up decides about captures."""
    lanes = max(lanes for lanes, _ in (*case.sizes, *case.more))
    settings = EngineConfig(backend=backend, lanes=lanes, cache=work / "engines")
    engine = load_for(bundle_of(work), settings, say)
    engine.warm_up(case.nfe)
    return engine


def bundle_of(work: Path) -> Bundle:
    return contract.read(work / "bundle", verify=False)


def take_turns(runs: Mapping[str, Run], rounds: int, *size: int) -> dict[str, list[float]]:
    """Seconds of each run, after two rounds that do not count."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 2):
        for name, run in runs.items():
            begun = time.perf_counter()
            run(*size)
            if number >= 2:
                seconds[name].append(time.perf_counter() - begun)
    return seconds


# --------------------------------------------------------------------------------------------- the stages


def prepare(work: Path, case: Case, rounds: int) -> Rows:
    """Fill the archive's graphs; without an archive, trace graphs in a process that may have the exporter."""
    graphs = work / weightless.ARCHIVE
    if not graphs.exists():
        command = [sys.executable, "-m", "tests.harness.weightless", str(work), case.named, case.precision]
        subprocess.run(command, env=os.environ | {NO_EXPORTER: ""}, check=True)
    yield "graphs, bytes", graphs.stat().st_size
    made = weightless.fill(graphs, work)
    yield "bytes", sum(path.stat().st_size for path in made.folder.iterdir())


def machine(work: Path, case: Case, rounds: int) -> Rows:
    """Versions, the GPU, and the speeds of a large matrix product and of copies."""
    import torch

    yield "python", platform.python_version()
    yield "machine", platform.platform()
    fields = "name,compute_cap,driver_version,clocks.sm,clocks.max.sm,temperature.gpu,power.draw"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv"]
    yield "nvidia-smi", tried(lambda: subprocess.check_output(query, text=True).splitlines())
    yield "backends", backends()
    for package in ("torch", "onnxruntime-gpu", "cuda-bindings", "tensorrt", "f5-tts"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield package, importlib.metadata.version(package)
    yield "torch's exporter", tried(torch.onnx.export, torch.nn.Identity(), (torch.zeros(1),))
    size, kind = (8192, torch.float16) if case.device == "cuda" else (512, torch.float32)
    source = torch.randn(size, size, device=case.device, dtype=kind)
    target = torch.empty_like(source)

    def seconds(work: Callable[[], object]) -> float:
        def run(lanes: int, nfe: int, frames: int) -> FloatArray:
            for _ in range(10):
                work()
            return np.asarray(target[0, :1].float().cpu().numpy())

        return statistics.median(take_turns({"": run}, rounds, 1, 1, 1)[""]) / 10

    yield "matmul_flops", 2.0 * size**3 / seconds(lambda: torch.matmul(source, source, out=target))
    # The matrix exceeds the caches: half a gigabyte on a card.
    source, target = source.repeat(4, 1), target.repeat(4, 1)
    yield "copy_bytes_per_s", 2.0 * source.nbytes / seconds(lambda: target.copy_(source))


def tests(work: Path, case: Case, rounds: int) -> Rows:
    """Run the tests that need a GPU, without the plugins of pyproject.toml, which may be missing."""
    options = f"-q -m gpu -p {MODULE} -c /dev/null --rootdir . --import-mode=importlib"
    pytest = [sys.executable, "-m", "pytest", *options.split(), "tests/engine/test_on_gpu.py"]
    return _ran(pytest, F5_REQUIRE_GPU="1")


def sanitizer(work: Path, case: Case, rounds: int) -> Rows:
    """Search for wrong memory accesses in replies of the tiny bundle."""
    checked = ["compute-sanitizer", "--error-exitcode", "3"] if case.device == "cuda" else []
    return _ran([*checked, sys.executable, "-m", MODULE, str(work), "--stage", REPLIES])


def replies(work: Path) -> int:
    """A short reply of the tiny bundle in every sampling."""
    bundle = contract.read(ROOT / "tests/tiny/bundle", verify=False)
    engine = load_for(bundle, EngineConfig(backend="ort-cuda", lanes=1, cache=work / "engines"))
    for sampling in SAMPLINGS:
        samples = ours(engine, REHEARSAL, sampling)(1, 3, REHEARSAL.frames)
        print(f"{sampling}: {len(samples)} samples, mean {np.abs(samples).mean():.2g}")
    engine.shutdown()
    return 0


def _ran(command: Sequence[str], **environment: str) -> Rows:
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    ran = subprocess.run(command, env=os.environ | environment, cwd=ROOT, text=True, **pipes)
    yield "exit", ran.returncode
    yield "tail", (tail := ran.stdout.splitlines()[-40:])
    say("\n".join(tail[-1:]))


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
    """Seconds of alternating runs; a run that fails is dropped."""
    for lanes, nfe in sizes:
        for name, run in list(runs.items()):
            if failed(row := tried(run, lanes, nfe, frames)):
                yield f"{name}, NFE {nfe}, {lanes} lanes", row
                del runs[name]
        for name, seconds in take_turns(runs, rounds, lanes, nfe, frames).items():
            yield f"{name}, NFE {nfe}, {lanes} lanes", seconds
            say(f"{name}, NFE {nfe}, {lanes} lanes: {statistics.median(seconds):.4f} s")


def profile(work: Path, case: Case, rounds: int) -> Rows:
    """Kernels of a warm reply without capture and with it; the warm-up decides for `by policy`."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    activity = ProfilerActivity.CUDA if case.device == "cuda" else ProfilerActivity.CPU

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
        engine = engine_on(backend, work, case)
        yield f"{backend}, captures by policy", engine.captures
        for sampling in SAMPLINGS:
            for engine.captures in (False, True):
                rows = [tried(kernels, ours(engine, case, sampling)) for _ in range(5)]
                yield f"{backend} {sampling}{', captured' if engine.captures else ''}", rows[-1]


def daemon(work: Path, case: Case, rounds: int) -> Rows:
    """First audio and RTF of streams over gRPC on loopback, from a daemon in another process."""
    from appliance.client import Client
    from tests.harness.daemons import reference_wav, running

    def spoken(backend: str) -> dict[str, Any]:
        folder = work / f"daemon-{backend}"
        folder.mkdir(exist_ok=True)
        engine = {"backend": backend, "lanes": 2, "cache": str(work / "engines"), "threads": 0}
        given: Any = {"nfe": case.nfe, "seed": SEED, "segmentation": "low_latency"}
        options: Any = {"module": MODULE, "speaks_from": work / "bundle", "engine": engine}
        with running(folder, **options) as served, Client(served.address) as client:
            client.add_voice("reference", reference_wav(case.reference * 256 / 24_000), TRANSCRIPT)
            found = [client.stream(TEXT, "reference", **given).reply() for _ in range(rounds + 2)][2:]
            return {
                "first_audio_s": statistics.median(reply.first_audio_s for reply in found),
                "rtf": statistics.median(reply.wall_s / reply.audio_s for reply in found),
                "audio_s": found[0].audio_s,
                "log": served.lines[-20:],
            }

    for backend in backends():
        yield backend, tried(spoken, backend)


STAGES = {
    PREPARE: Stage(prepare, 600),
    "machine": Stage(machine, 90),
    "tests": Stage(tests, 400),
    "sanitizer": Stage(sanitizer, 240),
    "errors": Stage(errors, 240, prepared=True),
    "latency": Stage(latency, 300, prepared=True),
    "profile": Stage(profile, 180, prepared=True),
    "compiled": Stage(compiled, 300, prepared=True),
    "daemon": Stage(daemon, 300, prepared=True),
    "more": Stage(more, 400, prepared=True),
}
"""The stages; the strongest proofs come first."""

# --------------------------------------------------------------------------------------------- the record


def table(stages: Mapping[str, Any]) -> str:
    """Return the measurements as Markdown."""
    rows = {name: left["rows"] for name, left in stages.items()}
    lines = ["| | whole reply | × upstream eager |", "|---|---|---|"]
    timed = [item for stage in ("latency", "compiled", "more") for item in rows.get(stage, {}).items()]
    medians = {row: statistics.median(seconds) for row, seconds in timed if not failed(seconds)}
    for row, took in medians.items():
        base = medians.get(f"upstream eager, {row.partition(', ')[2]}")
        lines.append(f"| {row} | {1e3 * took:.1f} ms | {f'{base / took:.2f}' if base else ''} |")
    for name, row in rows.get("daemon", {}).items():
        if not failed(row):
            first = f"first audio {1e3 * row['first_audio_s']:.1f} ms (goal {1e3 * FIRST_AUDIO_S:.0f})"
            lines.append(f"| {name}, daemon | {first} | RTF {row['rtf']:.3f} (goal {STREAMED_RTF}) |")
    return "\n".join(lines)


def limit(text: str) -> tuple[str, float]:
    """Parse STAGE=SECONDS. Raises ArgumentTypeError."""
    name, _, seconds = text.partition("=")
    if name not in STAGES or not seconds.isdecimal():
        raise argparse.ArgumentTypeError(f"{text}: STAGE=SECONDS is wanted, of {', '.join(STAGES)}")
    return name, float(seconds)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu-check", description="stages: " + ", ".join(STAGES))
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", action="append", choices=STAGES, metavar="STAGE", help="may be repeated")
    parser.add_argument("--limit", action="append", default=[], type=limit, metavar="STAGE=SECONDS")
    parser.add_argument("--out", type=Path, default=os.environ.get("OUT"), help="copies ($OUT, else WORK)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rehearse", action="store_true", help="over libraries that only count")
    parser.add_argument("--stage", choices=(*STAGES, REPLIES), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Run the stages, write the record and print it; return 1 if a stage failed."""
    if sys.argv[1:2] == ["pack"]:
        return pack(sys.argv[2:])
    pytest_configure()
    if sys.argv[1:2] == ["serve"]:
        from appliance.cli import main as serve

        return serve()
    options = parsed()
    work, case = options.work.resolve(), REHEARSAL if options.rehearse else Case("F5TTS_v1_Base")
    if options.stage == REPLIES:
        return replies(work)
    if options.stage:
        refuse_exports()
        fill(work / f"{options.stage}.json", STAGES[options.stage].rows(work, case, options.rounds))
        return 0
    out = (options.out or work).resolve()
    for folder in (work, out):
        folder.mkdir(parents=True, exist_ok=True)
    os.environ |= {"LD_LIBRARY_PATH": libraries_path(), NO_EXPORTER: "1"}
    command = [sys.executable, "-m", MODULE, str(work), "--rounds", str(options.rounds)]
    if options.rehearse:
        command.append("--rehearse")
        os.environ[COUNTING] = str(counting(work / "counting"))
    check = Check(STAGES, [*command, "--stage"], (work, out), dict(options.limit))
    names = [name for name in STAGES if name in (options.only or STAGES)]
    check.run(names, again=bool(options.only))
    record: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "rehearsed": options.rehearse,
        "case": {"family": case.named, "frames": case.frames, "reference": case.reference},
        "stages": {name: left for name in STAGES if (left := check.left(name))},
    }
    write(out / "record.json", record)
    print(f"{table(record['stages'])}\n\nwritten to {out / 'record.json'}")
    return 0 if all(map(check.is_done, names)) else 1


if __name__ == "__main__":
    sys.exit(main())
