"""`python -m export.demo`: corpus · train · vocoder · ship · rebuild."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as workers

from appliance.contract import bundle as contract
from appliance.errors import BundleError
from export.demo.corpus import coverage, fetch, make, sentences, store, teachers
from export.demo.training import loop, train, vocoder

FAILED = 1
EXPECTED = (BundleError, ValueError, OSError)
OUT = Path("out/demo")
CORPUS, TEXTS, TEACHERS = OUT / "corpus", OUT / "texts", OUT / "teachers"
RUN, VOCODER = OUT / "train", OUT / "vocoder"
VOICE = Path("appliance/demo")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; print an expected failure as one line on standard error and return 1."""
    options = _parser().parse_args(argv)
    try:
        options.run(options)
    except EXPECTED as error:
        print(f"export.demo: {error}", file=sys.stderr)
        return FAILED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export.demo", description="The demo voice, from text to bundle."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, run: Callable[[argparse.Namespace], None], does: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=does, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        added.set_defaults(run=run)
        return added

    corpus = add("corpus", _corpus, "the teachers speak the sentences")
    corpus.add_argument("--folder", type=Path, default=CORPUS, help="for the clips")
    corpus.add_argument("--texts", type=Path, default=TEXTS, help="fetched if missing")
    corpus.add_argument("--teachers", type=Path, default=TEACHERS, help="fetched if missing")
    corpus.add_argument("--voice", choices=teachers.VOICES, default=teachers.HEART, help="that speaks")
    corpus.add_argument("--hours", type=float, default=14.0, help="at least, if there are sentences")
    corpus.add_argument(
        "--pitch", action=argparse.BooleanOptionalAction, default=True, help="for the vocoder"
    )
    corpus.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    dit = add("train", _train, "train the DiT, or resume")
    dit.add_argument("--processes", type=int, default=1, help="of --threads each, with batches of their own")
    _add_training(dit, train.Trainer, train.Recipe, RUN)
    voice = add("vocoder", _train, "train the vocoder, or resume")
    voice.set_defaults(processes=1)
    _add_training(voice, vocoder.Trainer, vocoder.Recipe, VOCODER)
    made = add("ship", _ship, "write the committed voice from trained weights")
    made.add_argument("--weights", type=Path, default=RUN / loop.CHECKPOINT, help="or folder of train --out")
    made.add_argument("--vocoder", type=Path, default=VOCODER / "vocoder", help="folder in Vocos' layout")
    made.add_argument("--teachers", type=Path, default=TEACHERS, help="who speak the references")
    made.add_argument("--licence", required=True, help="terms of the weights, for the manifest")
    made.add_argument("--out", type=Path, default=VOICE, help="for bundle and voices")
    back = add("rebuild", _rebuild, "convert a float bundle to upstream's layout")
    back.add_argument("bundle", type=Path, nargs="?", default=VOICE / "bundle", help="to take apart")
    back.add_argument("--out", type=Path, required=True, help="folder for the files")
    return parser


def _add_training(
    parser: argparse.ArgumentParser,
    trainer: type[train.Trainer] | type[vocoder.Trainer],
    recipe: type[loop.Recipe],
    folder: Path,
) -> None:
    """Options of a run, and one for each field of its recipe."""
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="folder of the clips")
    parser.add_argument("--folder", type=Path, default=folder, help="for checkpoint and log")
    parser.add_argument("--begin-with", type=Path, help="initial weights; a student's teacher")
    parser.add_argument("--out", type=Path, help="for the averaged weights")
    parser.add_argument("--save-minutes", type=float, default=5.0, help="between checkpoints")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="on a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="of torch")
    parser.add_argument("--plan-minutes", type=float, help="end by time instead of by steps")
    parser.set_defaults(trainer=trainer, recipe=recipe)
    kinds: dict[str, Callable[[str], Any]] = {"int": int, "float": float, "Mapping[str, int]": _repeats}
    for field in dataclasses.fields(recipe):
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=kinds.get(str(field.type), str),
            default={} if field.name == "repeats" else getattr(recipe, field.name, None),
            required=field.name in ("steps", "cooldown"),
            choices=("learn", "student") if field.name == "stage" else None,
            help="VOICE=TIMES[,…]" if field.name == "repeats" else "of the recipe",
        )


def _repeats(text: str) -> dict[str, int]:
    return {voice: int(times) for voice, times in (pair.split("=") for pair in text.split(","))}


def _corpus(options: argparse.Namespace) -> None:
    if not options.teachers.exists():
        fetch.teachers(options.teachers)
    path = options.folder / "sentences.jsonl"
    if not path.exists():
        if not options.texts.exists():
            fetch.texts(options.texts)
        found = sentences.collect(options.texts / "fortunes", options.texts / "words")
        phonemes = teachers.Teachers(options.teachers).hibari.g2p
        sentences.write(coverage.ordered(found, phonemes), path)
    lines = sentences.read(path)
    speakers = options.workers, options.teachers
    make.make(options.folder, lines, options.voice, options.hours, *speakers, pitch=options.pitch)


def _train(options: argparse.Namespace) -> None:
    if options.processes == 1:
        _trained(0, options)
        return
    with tempfile.TemporaryDirectory() as scratch:
        options.meeting = f"file://{scratch}/meeting"
        workers.spawn(_trained, (options,), options.processes)  # type: ignore[attr-defined]


def _trained(rank: int, options: argparse.Namespace) -> None:
    """Train in this process, one of several with a place to meet."""
    if options.processes > 1:
        dist.init_process_group("gloo", options.meeting, rank=rank, world_size=options.processes)
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)  # slowed a step on a CPU by a third
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options.recipe)}
    recipe, corpus = options.recipe(**values), store.Store(options.corpus)
    trainer: train.Trainer | vocoder.Trainer = options.trainer(recipe, corpus, options.folder, options.device)
    if options.begin_with is not None:
        trainer.initialise_from(options.begin_with)
    if (options.folder / loop.CHECKPOINT).is_file():
        trainer.load()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, trainer.stop)
    trainer.run(options.save_minutes, options.out, options.plan_minutes)


def _ship(options: argparse.Namespace) -> None:
    from export.demo.shipping import ship  # the exporter's packages, which no training needs

    size = ship.ship(options.weights, options.vocoder, options.teachers, options.licence, options.out)
    print(f"{options.out}: {size / 2**20:.1f} MiB")


def _rebuild(options: argparse.Namespace) -> None:
    from export.demo.shipping import rebuild

    rebuild.rebuild(contract.read(options.bundle), options.out)
