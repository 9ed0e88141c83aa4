"""f5-tts' servers and vox-tts against our daemon on this machine's CPU: same weights, texts, reference, steps
and threads.

    scripts/bench-upstream [--quick] [--out FILE]

Five processes take turns, so that a busy minute of the machine affects all of them:

    socket    f5_tts/socket_server.py: sends a chunk of text's audio when that chunk is complete
    file      f5-tts' infer_process, as its infer_cli calls it: the whole reply at once
    vox       vox-tts, an implementation in C++ that lacks average upsampling: only its cost is comparable
    shipped   our daemon with an exported bundle (`short-kv` skips some of the steps' work)
    exact     our daemon with upstream's computation

Before the measurement, `file` and `exact` speak one line from the same noise: unless their log-mels agree,
and all four durations, the run ends. The DiT has the demo's size, random weights and two-row guidance. Its
tokens are letters because upstream has no phones. The weights of Vocos are random too.
"""

import argparse
import ast
import contextlib
import functools
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from appliance.bench.machine import TICK_S, Neighbours, cpu_seconds, describe, memory_mb
from appliance.bench.run import summary
from appliance.box.system import Box
from appliance.client import CallFailed, Client, Reply
from appliance.config import USUAL_NFE as NFE
from appliance.contract import bundle as contract
from appliance.contract.mel import MelSpec, log_mel
from tests.harness.daemons import DEMO, ROOT, SPEECH, running

SCHEMA = 1
TRANSCRIPT = SPEECH.with_suffix(".txt").read_text("utf-8").strip()
CORES = os.cpu_count() or 1
SHORT = "Thanks for the follow, and welcome to the stream."
LONG = (
    "The stream starts at eight tonight, and we will play the new map together. "
    "Bring a friend, and do not forget your headset this time."
)
"""About 8 s with the demo's female voice; two sentences, so that socket_server has a first chunk to send."""
TEXTS = {"short": SHORT, "long": LONG}
LETTERS = " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.,?!'-"
CLIENTS = (1, 2, 4, 8)
STORM = 8
"""Number of requests of a storm, shared by all its clients."""
PORT = 9998
"""Port of socket_server. It reads `--port` as text, which its bind refuses: only the default works."""
START_S = 180.0
REPLY_S = 120.0
"""Longest wait for upstream's data."""
SETTLE_S = 2.0
"""Time to watch the load of the machine, before and after."""
OPTIONS: Any = {"text_handling": "verbatim", "encoding": "pcm16", "playout": "overlap"}
"""Options of our requests: each reply plays independently, like upstream's."""
END = b"END"
MOST_DURATION_ERROR = 0.03
MOST_MEL_ERROR = 0.02
VERSIONS = ("f5-tts", "torch", "vocos", "transformers", "x-transformers", "torchdiffeq")


class NotEqual(Exception):
    """The contenders do not do the same work, or one does not start."""


@dataclass(frozen=True)
class Answer:
    wall_s: float
    first_audio_s: float
    audio_s: float


@dataclass(frozen=True)
class Contender:
    name: str
    pid: int
    whole: Callable[[str, int], Answer]
    """A text and a seed → the complete reply."""
    stream: Callable[[str, int], Answer] | None = None
    """The same for a streamed reply; None: the server cannot stream."""
    start_cpu_s: float = 0.0
    """CPU seconds of the process until it was ready."""


@contextlib.contextmanager
def upstream(
    kind: str, python: Path, folder: Path, threads: int, *arguments: str
) -> Iterator[subprocess.Popen[str]]:
    """Run a server of upstream or vox-tts in its environment, without a network."""
    module = "vox_server" if kind == "vox" else f"upstream_server {kind}"
    offline = {"HF_HUB_CACHE": str(folder / "hub"), "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
    environment = {**os.environ, **offline, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads)}
    command = [str(python), "-m", *f"tests.measure.{module}".split(), str(NFE), *arguments]
    log = folder / f"{kind}.log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            cwd=folder,  # socket_server writes output.wav here
            env=environment,
            stdin=subprocess.PIPE,
            stdout=errors if kind == "socket" else subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        yield process
    except NotEqual as error:
        raise NotEqual(f"{error}\n{kind}: {log.read_text('utf-8')[-2000:]}") from error
    finally:
        process.kill()
        process.communicate()


def listening(process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + START_S
    while True:
        if process.poll() is not None:
            raise NotEqual("socket_server ended")
        if time.monotonic() > end:
            raise NotEqual(f"socket_server does not listen after {START_S:.0f} s")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", PORT)):
            return
        time.sleep(0.1)


def await_ready(process: subprocess.Popen[str]) -> None:
    """Wait for the first line of a server over stdin. Raises NotEqual."""
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise NotEqual("the server ended before it was ready")


def ask_socket(text: str, port: int = PORT) -> Answer:
    """A reply of socket_server over a new connection: float32 samples, then END."""
    begun = time.perf_counter()
    received, first_s = bytearray(), 0.0
    with socket.create_connection(("127.0.0.1", port), REPLY_S) as connection:
        connection.sendall(text.encode())
        # The end marker may also be three bytes of a sample at which a read stops.
        while not (len(received) % 4 == len(END) and received.endswith(END)):
            piece = connection.recv(1 << 16)
            if not piece:
                raise NotEqual("socket_server closed the connection before END; its log says why")
            first_s = first_s or time.perf_counter() - begun
            received += piece
    audio_s = (len(received) - len(END)) / 4 / MelSpec("vocos").sample_rate_hz
    return Answer(time.perf_counter() - begun, first_s, audio_s)


def ask_file(
    process: subprocess.Popen[str], text: str, seed: int | None = None, out: Path | None = None
) -> Answer:
    """A reply of a server over stdin, by the server's clock. infer_process sends no sound before the end."""
    assert process.stdin is not None and process.stdout is not None
    request = {"text": text, "seed": seed, "out": str(out) if out else None}
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise NotEqual("the server failed; its log says why")
    reply = json.loads(line)
    return Answer(reply["wall_s"], reply.get("first_audio_s", reply["wall_s"]), reply["audio_s"])


def upstream_model(folder: Path) -> Path:
    """A DiT of the demo's size and a Vocos, of random weights, in the layout of upstream's loaders."""
    import torch
    from safetensors.torch import save_file

    from export.model.vocos import VocosConfig
    from tests.export.random_checkpoint import write_random, write_random_vocos

    spec, arch = MelSpec("vocos"), contract.read(DEMO / "bundle").manifest.arch
    assert arch is not None
    write_random(folder, arch, LETTERS, mels=spec.mels)
    vocoder = VocosConfig(spec.mels, 256, 768, 6, n_fft=spec.n_fft, hop=spec.hop, padding="center")
    write_random_vocos(folder / "vocos", vocoder)
    # vox-tts reads a .bin only with torch.
    weights = torch.load(folder / "vocos" / "pytorch_model.bin", weights_only=True)
    save_file(weights, folder / "vocos" / "vocos.safetensors")
    mels = {"mel_spec_type": spec.kind, "target_sample_rate": spec.sample_rate_hz}
    model = {"tokenizer": "char", "backbone": "DiT", "arch": asdict(arch), "mel_spec": mels}
    (folder / "family.yaml").write_text(yaml.safe_dump({"model": {"name": "demo", **model}}), "utf-8")
    return folder


def hub(folder: Path, model: Path) -> None:
    """A Hugging Face cache in which socket_server finds these weights as its defaults."""
    for repository, files in (
        ("SWivid/F5-TTS", {"F5TTS_v1_Base/model_1250000.safetensors": model / "model.safetensors"}),
        (
            "charactr/vocos-mel-24khz",
            {name: model / "vocos" / name for name in ("config.yaml", "pytorch_model.bin")},
        ),
    ):
        root, commit = folder / f"models--{repository.replace('/', '--')}", "0" * 40
        for name, source in files.items():
            path = root / "snapshots" / commit / name
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, path)
        (root / "refs").mkdir()
        (root / "refs" / "main").write_text(commit)


def bundles_of(model: Path, folder: Path) -> dict[str, Path]:
    """Two bundles of upstream's files: every step in full, or as trained weights are exported.

    Random weights have no sampling that is near enough to `exact`.
    """
    from export import cli

    shipped, exact = folder / "shipped", folder / "exact"
    sources = ["--family", model / "family.yaml", "--checkpoint", model / "model.safetensors"]
    sources += ["--vocab", model / "vocab.txt", "--vocoder-path", model / "vocos", "--out", shipped]
    options = "--precision fp16 --language en --max-frames 2304"
    options += " --licence Apache-2.0 --vocoder-licence Apache-2.0 --accept random-weights --traces none"
    if cli.main(["bundle", *map(str, sources), *options.split()]) != 0:
        raise NotEqual("no bundle could be made of upstream's files, see above")
    shutil.copytree(shipped, exact)
    bundles = {"exact": exact, "short-kv": shipped}
    for sampling, bundle in bundles.items():
        path = bundle / "manifest.yaml"
        manifest = yaml.safe_load(path.read_text("utf-8"))
        manifest["defaults"]["sampling"] = sampling
        path.write_text(yaml.safe_dump(manifest, sort_keys=False), "utf-8")
    return {"exact": exact, "shipped": shipped}


def whole(client: Client, text: str, seed: int) -> Reply:
    """A unary reply, cut as upstream cuts; like upstream's, it may wait for others."""
    return client.speak(text, "demo", seed=seed, segmentation="upstream", queue_timeout=START_S, **OPTIONS)


def streamed(client: Client, text: str, seed: int) -> Reply:
    return client.stream(text, "demo", seed=seed, segmentation="low_latency", **OPTIONS).reply()


def answer(reply: Reply) -> Answer:
    return Answer(reply.wall_s, reply.first_audio_s, reply.audio_s)


@contextlib.contextmanager
def ours(name: str, folder: Path, bundle: Path, threads: int) -> Iterator[tuple[Contender, Client]]:
    folder.mkdir()
    engine = {"threads": threads}
    with running(folder, speaks_from=bundle, engine=engine) as daemon, Client(daemon.address) as client:
        client.add_voice("demo", SPEECH.read_bytes(), TRANSCRIPT)
        contender = Contender(
            name,
            daemon.process.pid,
            lambda text, seed: answer(whole(client, text, seed)),
            lambda text, seed: answer(streamed(client, text, seed)),
            cpu_s(daemon.process.pid),
        )
        yield contender, client


def judge(file: subprocess.Popen[str], client: Client, folder: Path) -> dict[str, float]:
    """Compare the `exact` daemon's log-mel with upstream's from the same noise. Raises NotEqual."""
    out = folder / "file.npy"
    ask_file(file, SHORT, seed=1, out=out)
    theirs: NDArray[np.float32] = np.load(out).astype(np.float32)
    reply = whole(client, SHORT, 1)
    mine = np.frombuffer(reply.audio, "<i2").astype(np.float32) / np.float32(32_768)
    if len(mine) != len(theirs):
        raise NotEqual(f"{len(mine)} samples of ours, {len(theirs)} of upstream's")
    mine *= theirs.std() / mine.std()  # the daemon levels its replies
    a, b = log_mel(mine, MelSpec("vocos")), log_mel(theirs, MelSpec("vocos"))
    found = {
        "log_mel_error": round(float(np.linalg.norm(a - b) / np.linalg.norm(b)), 5),
        "correlation": round(float(np.corrcoef(mine, theirs)[0, 1]), 5),
    }
    if found["log_mel_error"] > MOST_MEL_ERROR:
        raise NotEqual(f"log-mels from the same noise differ by {found['log_mel_error']:.1%}")
    return found


def cpu_s(pid: int) -> float:
    return cpu_seconds()[pid][1]


def latencies(
    contenders: Sequence[Contender], texts: Mapping[str, str], rounds: int
) -> dict[str, dict[str, Any]]:
    """{"short whole", …: {contender: figures}}, after a warm-up."""
    ways = [
        (f"{length} {way}", text, contender, ask)
        for length, text in texts.items()
        for contender in contenders
        for way, ask in (("whole", contender.whole), ("stream", contender.stream))
        if ask is not None
    ]
    answers: dict[tuple[str, str], list[Answer]] = {(row, who.name): [] for row, _, who, _ in ways}
    taken_s = dict.fromkeys(answers, 0.0)
    for turn in range(rounds + 1):
        for row, text, who, ask in ways:
            begun_s = cpu_s(who.pid)
            reply = ask(text, turn)
            if turn:
                answers[row, who.name].append(reply)
                taken_s[row, who.name] += cpu_s(who.pid) - begun_s
        say(f"latency: round {turn} of {rounds}")
    table: dict[str, dict[str, Any]] = {}
    for (row, name), replies in answers.items():
        table.setdefault(row, {})[name] = {
            key: summary([getattr(reply, key) for reply in replies])
            for key in ("wall_s", "first_audio_s", "audio_s")
        }
        spoken_s = sum(reply.audio_s for reply in replies)
        table[row][name]["cpu_s_per_audio_s"] = round(taken_s[row, name] / spoken_s, 4)
    return table


def check_durations(table: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise NotEqual unless the replies to one text are equally long."""
    for row, cells in table.items():
        if row.endswith("whole"):
            lengths = {name: cell["audio_s"]["median"] for name, cell in cells.items()}
            if max(lengths.values()) > (1 + MOST_DURATION_ERROR) * min(lengths.values()):
                raise NotEqual(f"{row}: durations differ: {lengths}")


def storms(
    contenders: Sequence[Contender], clients: Sequence[int], requests: int, rounds: int
) -> dict[str, dict[str, Any]]:
    """{contender: {clients: figures}}: a client sends its next request after the last audio."""
    seen: dict[tuple[str, int], list[tuple[float, list[Answer]]]] = {}
    for turn in range(rounds):
        for count in clients:
            for contender in contenders:
                ask, seeds = contender.whole, itertools.count(1000 * turn)
                begun = time.perf_counter()
                with ThreadPoolExecutor(count) as pool:
                    answers = list(
                        pool.map(lambda _, ask=ask, seeds=seeds: ask(SHORT, next(seeds)), range(requests))
                    )
                seen.setdefault((contender.name, count), []).append((time.perf_counter() - begun, answers))
            say(f"requests a minute: {count} clients, round {turn + 1} of {rounds}")
    return {
        contender.name: {
            str(count): {
                "per_minute": summary([60 * requests / wall for wall, _ in seen[contender.name, count]]),
                "first_audio_s": summary(
                    [a.first_audio_s for _, answers in seen[contender.name, count] for a in answers]
                ),
            }
            for count in clients
        }
        for contender in contenders
    }


@dataclass
class Others(Neighbours):
    """CPU time of other programs, including ended processes and other virtual machines."""

    def __post_init__(self) -> None:
        self._taken_s = self._busy_s()

    def cores(self) -> float:
        """Mean number of cores that others used since construction."""
        return round((self._busy_s() - self._taken_s) / (time.monotonic() - self.begun), 2)

    def _busy_s(self) -> float:
        """CPU seconds of this machine since its boot, without this program's."""
        user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text("ascii").split()[1:9])
        known = cpu_seconds()
        ours = sum(known[pid][1] for pid in (*self.own, os.getpid()) if pid in known)
        return (user + nice + system + sum(interrupts)) * TICK_S - ours


def load() -> dict[str, Any]:
    """Load of the machine by other programs during SETTLE_S."""
    others = Others()
    time.sleep(SETTLE_S)
    average = round(os.getloadavg()[0], 2)
    return {"average": average, "cores": others.cores(), "neighbours": others.busiest()}


def versions_of(python: Path, packages: tuple[str, ...]) -> dict[str, str]:
    code = f"from importlib.metadata import version as v; print({{name: v(name) for name in {packages}}})"
    found: dict[str, str] = ast.literal_eval(subprocess.check_output([str(python), "-c", code], text=True))
    return found


def compare(
    python: Path, vox: Path | None, work: Path, threads: int, rounds: int, *, quick: bool
) -> dict[str, Any]:
    """Start everything, judge, measure. Raises NotEqual."""
    texts, clients, requests = ({"long": LONG}, (2,), 4) if quick else (TEXTS, CLIENTS, STORM)
    at, machine, before = time.time(), describe(Box()), load()
    say("drawing weights in upstream's layout")
    model = upstream_model(work / "demo")
    bundles = bundles_of(model, work / "bundles")
    if quick:
        del bundles["shipped"]
    hub(work / "hub", model)
    where = "import importlib.util as u; print(u.find_spec('f5_tts').submodule_search_locations[0])"
    package = subprocess.check_output([str(python), "-c", where], text=True).strip()
    options = {
        "--host": "127.0.0.1",
        "--model": os.path.relpath(model / "family", Path(package) / "configs"),
        "--ckpt_file": str(model / "model.safetensors"),
        "--vocab_file": str(model / "vocab.txt"),
        "--ref_audio": str(SPEECH),
        "--ref_text": TRANSCRIPT,
        "--device": "cpu",
    }
    with contextlib.ExitStack() as stack:
        say("starting the daemons and upstream's servers")
        arguments = itertools.chain.from_iterable(options.items())
        served = stack.enter_context(upstream("socket", python, work, threads, *arguments))
        filed = stack.enter_context(upstream("file", python, work, threads, str(model), str(SPEECH)))
        daemons = [stack.enter_context(ours(n, work / n, bundle, threads)) for n, bundle in bundles.items()]
        await_ready(filed)
        listening(served)
        contenders = [
            Contender("file", filed.pid, lambda text, _: ask_file(filed, text), None, cpu_s(filed.pid)),
            Contender("socket", served.pid, lambda text, _: ask_socket(text), None, cpu_s(served.pid)),
            *(contender for contender, _ in daemons),
        ]
        if vox is not None:
            voxed = stack.enter_context(
                upstream("vox", vox, work, threads, str(threads), str(model), str(SPEECH))
            )
            await_ready(voxed)
            ask = functools.partial(ask_file, voxed)
            contenders.append(Contender("vox", voxed.pid, ask, ask, cpu_s(voxed.pid)))
        equal = judge(filed, daemons[0][1], work)
        say(f"the same noise gives log-mels that differ by {equal['log_mel_error']:.2%}")
        others = Others(tuple(contender.pid for contender in contenders))
        table = latencies(contenders, texts, rounds)
        check_durations(table)
        # vox-tts' process answers one request at a time.
        minutes = storms([c for c in contenders[1:] if c.name != "vox"], clients, requests, rounds)
        during = {"cores": others.cores(), "neighbours": others.busiest()}
        memory = {c.name: round(memory_mb(c.pid)["peak"], 1) for c in contenders}
    return {
        "schema": SCHEMA,
        "kind": "upstream",
        "rounds": rounds,
        "requests": requests,
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at)),
        "took_s": round(time.time() - at, 1),
        "machine": machine,
        "upstream_versions": versions_of(python, VERSIONS) | (versions_of(vox, ("vox-tts",)) if vox else {}),
        "load": {"before": before, "during": during, "after": load()},
        "threads": threads,
        "nfe": NFE,
        "weights": "random, of the demo's size",
        "texts": texts,
        "equal": equal,
        "latency": table,
        "clients": minutes,
        "memory_mb": memory,
        "start_cpu_s": {contender.name: round(contender.start_cpu_s, 2) for contender in contenders},
    }


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {line}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", type=Path, required=True, help="of upstream's environment")
    parser.add_argument("--vox", type=Path, help="python of vox-tts' environment; left out: without it")
    parser.add_argument("--quick", action="store_true", help="a minute: long text, two clients, no `shipped`")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="that count (%(default)s)")
    parser.add_argument("--threads", type=int, default=CORES, metavar="N", help="of a server (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the record")
    options = parser.parse_args()
    if min(options.rounds, options.threads) < 1:
        parser.error("--rounds and --threads must be at least 1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the servers too
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", PORT)) == 0:
            print(f"error: something listens on port {PORT}, which socket_server needs", file=sys.stderr)
            return 1
    with tempfile.TemporaryDirectory(prefix="bench-upstream-") as folder:
        try:
            record = compare(
                options.python.absolute(),
                options.vox and options.vox.absolute(),
                Path(folder),
                options.threads,
                options.rounds,
                quick=options.quick,
            )
        except (NotEqual, CallFailed) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    options.out.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
    say(f"{record['took_s']:.0f} s in all; {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
