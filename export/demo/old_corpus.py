"""Corpus of synthetic speech: sentences synthesised by RHVoice, trimmed, checked by a recogniser.

    corpus.json                   sample rate, mel specification, engine versions, terms
    sentences.jsonl               sentences in synthesis order
    audio/VOICE/00000.npy         (samples,) int16, the concatenated clips of one batch of sentences
    shards/VOICE/00000.jsonl      the clips of that batch
    verdicts/VOICE/00000.jsonl    transcripts and word error rates of those clips
    clips.jsonl                   usable clips, compiled from shards and verdicts

Batches are written atomically; an interruption loses only the batches in progress.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import multiprocessing
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from appliance.contract.mel import MelSpec
from export.demo import engines, sentences
from export.demo.engines import SAMPLE_RATE_HZ, VOICES, EngineError, Int16Array, RHVoice, Utterance
from export.demo.folder_lock import folder_lock
from export.demo.sentences import Sentence, Split
from export.demo.speech_metrics import missing

BATCH = 128
"""Sentences per shard, about eight minutes of speech."""
MARGIN_S = 0.03
"""Silence kept at either end by trimming."""
SILENCE_DB = -50.0
"""Silence threshold, relative to the loudest window of the clip."""
WINDOW_S = 0.01
MAX_WER = 0.34
"""Largest word error rate of a training clip; the recogniser's own is about 0.1."""
FOLDER = Path("out/demo/corpus")
ENGINE = Path("out/demo/engine")
TEXTS = Path("out/demo/texts")
PACKED = Path("out/demo/carried.tar.xz")


class CorpusError(RuntimeError):
    """The corpus cannot be written or read."""


@dataclass(frozen=True)
class Clip:
    id: str
    """Sentence and voice; "live-…" and "chat-…" are our own texts, "fort-…" quotations."""
    voice: str
    text: str
    split: Split
    shard: int
    start: int
    """First sample in the shard."""
    samples: int
    words: list[tuple[int, int, int]] = field(default_factory=list)
    """First and end character and start sample (± 0.05 s) of each word."""
    wer: float | None = None
    """Word error rate of the recogniser; None before recognition."""

    @property
    def seconds(self) -> float:
        return self.samples / SAMPLE_RATE_HZ


def read_clips(folder: Path) -> list[Clip]:
    """Read all usable clips. Raises CorpusError if there is no corpus."""
    return _read_clips(folder / "clips.jsonl")


def audio(folder: Path, clip: Clip) -> Int16Array:
    """Memory-mapped samples (samples,) of a clip at `SAMPLE_RATE_HZ`."""
    shard = _mapped(_path(folder, "audio", clip.voice, clip.shard))
    return shard[clip.start : clip.start + clip.samples]


def trim(spoken: Utterance) -> Utterance:
    """Trim silence to `MARGIN_S` at either end and shift word times."""
    window = round(SAMPLE_RATE_HZ * WINDOW_S)
    wave = spoken.samples[: len(spoken.samples) // window * window].astype(np.float64)
    power = np.square(wave.reshape(-1, window)).mean(axis=1)
    loud = np.flatnonzero(power > power.max() * 10 ** (SILENCE_DB / 10))
    margin = round(SAMPLE_RATE_HZ * MARGIN_S)
    start = max(0, int(loud[0]) * window - margin)
    end = min(len(spoken.samples), (int(loud[-1]) + 1) * window + margin)
    words = [(first, last, min(max(0, at - start), end - start)) for first, last, at in spoken.words]
    return Utterance(spoken.samples[start:end], words)


def make(folder: Path, engine: Path, texts: Path, voices: Sequence[str], hours: float, workers: int) -> None:
    """Synthesise sentences until each voice has `hours` of training clips or all are used.

    Held-out sentences come first. Resumes an existing corpus. Raises CorpusError, EngineError.
    """
    if not (engine / engines.RECORD).exists():
        engines.prepare(engine, texts)
    path = folder / "sentences.jsonl"
    if not path.exists():
        if not (texts / "fortunes").is_dir():
            raise CorpusError(f"{texts}: no texts; `python -m export.demo corpus prepare` fetches them")
        sentences.write(sentences.collect(texts / "fortunes", texts / "words"), path)
    order = sentences.read(path)
    description = {
        "sample_rate_hz": SAMPLE_RATE_HZ,
        "mel": asdict(MelSpec("vocos")),
        "engine": engines.record(engine),
        "sentences": dict(Counter(sentence.split for sentence in order)),
        "trimming": {"margin_s": MARGIN_S, "silence_db": SILENCE_DB},
        "max_wer": MAX_WER,
    }
    _write(folder / "corpus.json", json.dumps(description, indent=2) + "\n")
    batches = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]
    for voice in voices:
        tasks = [(voice, n, batch) for n, batch in enumerate(batches)]
        with tqdm(total=hours, unit="h", desc=voice, bar_format=_BAR) as bar:
            _speak_hours(hours, bar, folder, tasks, workers, engine)
    compile_clips(folder)


def recognise(folder: Path, voices: Sequence[str], workers: int, limit: int | None) -> None:
    """Transcribe new shards, at most `limit` per voice, and compile `clips.jsonl`.

    Raises CorpusError if the recogniser is not installed.
    """
    if absent := missing(("moonshine_voice", "jiwer", "soxr")):
        raise CorpusError(f"not installed: {', '.join(absent)}; see scripts/requirements/quality.txt")
    for voice in voices:
        waiting = [n for n in _shards(folder, voice) if not _path(folder, "verdicts", voice, n).exists()]
        tasks = [(folder, voice, n) for n in waiting[:limit]]
        with _pool(workers) as run:
            for _ in tqdm(
                run(_recognise_shard, tasks), total=len(tasks), unit="shard", desc=f"recognising {voice}"
            ):
                compile_clips(folder)
    compile_clips(folder)


def compile_clips(folder: Path) -> None:
    """Write `clips.jsonl` from all shards, without training clips above MAX_WER."""
    lines = []
    for voice in VOICES:
        for n in _shards(folder, voice):
            path = _path(folder, "verdicts", voice, n)
            recognised = path.read_text("utf-8").splitlines() if path.exists() else []
            verdicts = {raw["id"]: raw["wer"] for raw in map(json.loads, recognised)}
            for clip in _read_clips(_path(folder, "shards", voice, n)):
                wer = verdicts.get(clip.id)
                if clip.split == "train" and wer is not None and wer > MAX_WER:
                    continue
                lines.append(json.dumps({**asdict(clip), "wer": wer}) + "\n")
    _write(folder / "clips.jsonl", "".join(lines))


def summary(folder: Path) -> str:
    """Table of hours, clips and word error rates by voice and split."""
    clips = read_clips(folder)
    made = sum(
        1 for v in VOICES for n in _shards(folder, v) for _ in _read_clips(_path(folder, "shards", v, n))
    )
    counts = Counter((clip.voice, clip.split) for clip in clips)
    rows = [f"{'voice':6} {'split':6} {'clips':>7} {'hours':>7} {'judged':>7} {'errors':>7}"]
    for voice, split in sorted(counts):
        chosen = [clip for clip in clips if (clip.voice, clip.split) == (voice, split)]
        rates = [clip.wer for clip in chosen if clip.wer is not None]
        errors = f"{100 * sum(rates) / len(rates):6.1f}%" if rates else "      –"
        hours = sum(clip.seconds for clip in chosen) / 3600
        rows.append(f"{voice:6} {split:6} {len(chosen):7} {hours:7.2f} {len(rates):7} {errors}")
    return "\n".join([*rows, f"{made - len(clips)} of {made} clips were dropped: not understood"])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `python -m export.demo corpus`."""
    parser.add_argument(
        "action",
        nargs="?",
        choices=("prepare", "make", "judge", "show", "pack"),
        default="make",
        help="fetch engine and texts · synthesise · recognise · count · pack for transport (%(default)s)",
    )
    parser.add_argument("--folder", type=Path, default=FOLDER, help="the corpus (%(default)s)")
    parser.add_argument("--engine", type=Path, default=ENGINE, help="the unpacked engine (%(default)s)")
    parser.add_argument("--texts", type=Path, default=TEXTS, help="fortunes and word list (%(default)s)")
    parser.add_argument("--voices", nargs="+", choices=tuple(VOICES), default=list(VOICES))
    parser.add_argument("--hours", type=float, default=2.0, help="of training clips per voice (%(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (%(default)s)")
    parser.add_argument("--shards", type=int, help="judge: most shards per voice")
    parser.add_argument("--out", type=Path, default=PACKED, help="pack: the archive (%(default)s)")


def run(options: argparse.Namespace) -> int:
    """Run one action. Raises CorpusError, EngineError, OSError; ValueError if the folder is locked."""
    if options.action == "prepare":
        engines.prepare(options.engine, options.texts)
    if options.action == "make":
        with folder_lock(options.folder):
            make(
                options.folder, options.engine, options.texts, options.voices, options.hours, options.workers
            )
    if options.action == "judge":
        with folder_lock(options.folder):
            recognise(options.folder, options.voices, options.workers, options.shards)
    if options.action == "pack":
        pack(options.engine, options.folder, options.texts / engines.PRONUNCIATIONS, options.out)
        print(f"{options.out}: {options.out.stat().st_size / 2**20:.1f} MiB")
    if options.action != "prepare":
        print(summary(options.folder))
    return 0


def pack(engine: Path, corpus: Path, pronunciations: Path, out: Path) -> None:
    """Write an archive of engine, sentences and pronunciations, as `corpus make` and `train` read them."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(out, "w:xz") as archive:
        archive.add(engine, "engine")
        archive.add(corpus / "sentences.jsonl", "corpus/sentences.jsonl")
        if pronunciations.is_file():
            archive.add(pronunciations, f"texts/{pronunciations.name}")


# Synthesis.

_BAR = "{desc}: {percentage:3.0f}%|{bar}| {n:.2f}/{total:.2f} h [{elapsed}<{remaining}]"
_Task = tuple[str, int, Sequence[Sentence]]


def _speak_hours(
    hours: float, bar: Any, folder: Path, tasks: Iterable[_Task], workers: int, engine: Path
) -> None:
    """Synthesise batches in order until the voice has `hours` of training clips."""
    done = 0.0
    with _pool(workers, _open_engine, engine) as run:
        for _, n, seconds in run(functools.partial(_speak, folder), tasks):
            done += seconds / 3600
            bar.update(min(seconds / 3600, bar.total - bar.n))
            if n % 8 == 0:
                compile_clips(folder)
            if done >= hours:
                break


_engines: dict[str, RHVoice] = {}
_engine_folder = Path()


def _open_engine(folder: Path) -> None:
    global _engine_folder
    _engine_folder = folder


def _speak(folder: Path, task: _Task) -> tuple[str, int, float]:
    """Synthesise one shard if missing. Returns its voice, number and seconds of training clips."""
    voice, n, batch = task
    listed = _path(folder, "shards", voice, n)
    if not listed.exists():
        if voice not in _engines:
            _engines[voice] = RHVoice(_engine_folder, voice)
        clips, pieces, start = [], [], 0
        for sentence in batch:
            spoken = trim(_engines[voice].speak(sentence.text))
            size = len(spoken.samples)
            name = f"{sentence.id}-{voice}"
            clips.append(Clip(name, voice, sentence.text, sentence.split, n, start, size, spoken.words))
            pieces.append(spoken.samples)
            start += size
        place = _path(folder, "audio", voice, n)
        place.parent.mkdir(parents=True, exist_ok=True)
        partial = place.with_name(f".{place.name}.{os.getpid()}")
        with partial.open("wb") as file:
            np.save(file, np.concatenate(pieces))
        partial.replace(place)
        # Written last: a listed shard is complete.
        _write(listed, "".join(json.dumps(asdict(clip)) + "\n" for clip in clips))
    return voice, n, sum(clip.seconds for clip in _read_clips(listed) if clip.split == "train")


# Recognition.


@functools.cache
def _recogniser() -> Any:
    from export.demo.speech_metrics import Recogniser

    return Recogniser()


def _recognise_shard(task: tuple[Path, str, int]) -> None:
    folder, voice, n = task
    lines = []
    for clip in _read_clips(_path(folder, "shards", voice, n)):
        heard = _recogniser().transcribe(audio(folder, clip), SAMPLE_RATE_HZ)
        lines.append(
            json.dumps({"id": clip.id, "wer": _recogniser().errors(clip.text, heard).rate, "heard": heard})
            + "\n"
        )
    _write(_path(folder, "verdicts", voice, n), "".join(lines))


# Files.


def _path(folder: Path, kind: str, voice: str, shard: int) -> Path:
    return folder / kind / voice / f"{shard:05}{'.npy' if kind == 'audio' else '.jsonl'}"


def _shards(folder: Path, voice: str) -> list[int]:
    return sorted(int(path.stem) for path in (folder / "shards" / voice).glob("*.jsonl"))


def _read_clips(path: Path) -> list[Clip]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except OSError as error:
        raise CorpusError(f"{path}: no corpus; `python -m export.demo corpus make` makes one") from error
    return [Clip(**json.loads(line)) for line in lines]


@functools.lru_cache(maxsize=256)
def _mapped(path: Path) -> Int16Array:
    mapped: Int16Array = np.load(path, mmap_mode="r")
    return mapped


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text(text, "utf-8")
    partial.replace(path)


@contextlib.contextmanager
def _pool(
    workers: int, start: Callable[..., None] | None = None, *arguments: Any
) -> Iterator[Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]]:
    """Ordered `map` over `workers` processes; pending items are dropped on exit."""
    if workers <= 1:
        if start is not None:
            start(*arguments)
        yield map
        return
    # Spawn: forking is unsafe with the threads and locks of the engine's and the recogniser's libraries.
    with multiprocessing.get_context("spawn").Pool(workers, start, arguments) as pool:
        yield pool.imap


__all__ = [
    "Clip",
    "CorpusError",
    "EngineError",
    "add_arguments",
    "audio",
    "make",
    "read_clips",
    "run",
    "trim",
]
