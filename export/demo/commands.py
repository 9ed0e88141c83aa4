"""`python -m export.demo`: corpus · train · vocoder · ship · rebuild."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import torch

from appliance.contract import bundle as contract
from appliance.errors import BundleError
from export.assemble import BundleFailed
from export.checkpoint import CheckpointError
from export.demo.corpus import fetch, make, sentences, store, teachers
from export.demo.shipping import ship
from export.demo.training import averaging, matching, train, vocoder

FAILED = 1
EXPECTED = (BundleError, BundleFailed, CheckpointError, fetch.FetchError, ValueError, OSError)
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
    _add_corpus(commands.add_parser("corpus", help="the teachers speak the sentences"))
    _add_train(commands.add_parser("train", help="train the DiT, or resume"))
    _add_vocoder(commands.add_parser("vocoder", help="train the vocoder, or resume"))
    _add_ship(commands.add_parser("ship", help="write the committed voice from trained weights"))
    back = commands.add_parser("rebuild", help="convert a float bundle to upstream's layout")
    back.add_argument("bundle", type=Path, nargs="?", default=VOICE / "bundle", help="(%(default)s)")
    back.add_argument("--out", type=Path, required=True)
    back.set_defaults(run=_rebuild)
    return parser


def _add_corpus(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", type=Path, default=CORPUS, help="(%(default)s)")
    parser.add_argument("--texts", type=Path, default=TEXTS, help="fetched if missing (%(default)s)")
    parser.add_argument("--voice", choices=teachers.VOICES, default=teachers.HEART, help="(%(default)s)")
    parser.add_argument("--hours", type=float, default=14.0, help="(%(default)s)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (%(default)s)")
    parser.add_argument("--teachers", type=Path, default=TEACHERS, help="fetched if missing (%(default)s)")
    parser.set_defaults(run=_corpus)


def _corpus(options: argparse.Namespace) -> None:
    path = options.folder / "sentences.jsonl"
    if not path.exists():
        if not options.texts.exists():
            fetch.texts(options.texts)
        sentences.write(sentences.collect(options.texts / "fortunes", options.texts / "words"), path)
    if not options.teachers.exists():
        fetch.teachers(options.teachers)
    lines = sentences.read(path)
    make.make(options.folder, lines, options.voice, options.hours, options.workers, options.teachers)


def _add_run_options(parser: argparse.ArgumentParser, folder: Path) -> None:
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="(%(default)s)")
    parser.add_argument("--folder", type=Path, default=folder, help="checkpoint and log (%(default)s)")
    parser.add_argument("--minutes", type=float, help="time limit of this run")
    parser.add_argument("--save-minutes", type=float, default=5.0, help="between checkpoints (%(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="on a CPU (%(default)s)")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="(%(default)s)"
    )
    parser.add_argument(
        "--plan-minutes", type=float, help="set the last step so that training takes this long"
    )


def _add_train(parser: argparse.ArgumentParser) -> None:
    _add_run_options(parser, RUN)
    parser.add_argument("--begin-with", type=Path, help="initial weights; a student's teacher")
    parser.add_argument("--out", type=Path, help="also write the averaged weights, in half precision")
    _add_recipe(parser, train.Recipe)
    parser.set_defaults(run=_train)


def _add_vocoder(parser: argparse.ArgumentParser) -> None:
    _add_run_options(parser, VOCODER)
    parser.add_argument("--begin-with", type=Path, help="initial weights: a pytorch_model.bin")
    _add_recipe(parser, vocoder.Recipe)
    parser.set_defaults(run=_vocoder)


def _add_recipe(parser: argparse.ArgumentParser, recipe: type[Any]) -> None:
    """An argument for each field of a recipe."""
    choices = {"stage": ("learn", "student"), "times": get_args(matching.Times)}
    for field in dataclasses.fields(recipe):
        name = f"--{field.name.replace('_', '-')}"
        if field.name == "repeats":
            parser.add_argument(name, nargs="*", type=_repeat, default=[], metavar="VOICE=TIMES")
            continue
        kind = {"int": int, "float": float}.get(str(field.type), str)
        default = None if field.default is dataclasses.MISSING else field.default
        parser.add_argument(
            name,
            type=kind,
            default=default,
            required=default is None,
            choices=choices.get(field.name),
            help="(%(default)s)",
        )


def _repeat(text: str) -> tuple[str, int]:
    voice, _, times = text.partition("=")
    return voice, int(times)


def _recipe(options: argparse.Namespace, recipe: type[Any]) -> Any:
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(recipe)}
    if "repeats" in values:
        values["repeats"] = dict(values["repeats"])
    return recipe(**values)


def _prepare(options: argparse.Namespace) -> None:
    """Set threads and precision. On a CPU denormals are flushed, which slowed a step by a third."""
    torch.set_num_threads(options.threads)
    torch.set_flush_denormal(True)
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.allow_tf32 = True


def _stop_on_signals(trainer: train.Trainer | vocoder.Trainer) -> None:
    """On SIGINT or SIGTERM finish the step and write the checkpoint; a second signal ends the run at once."""

    def stop(number: int, _: object) -> None:
        trainer.stopping = True
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def _train(options: argparse.Namespace) -> None:
    _prepare(options)
    path = options.folder / train.CHECKPOINT
    resumed = path.is_file()
    recipe = _recipe(options, train.Recipe)
    trainer = train.Trainer(recipe, store.Store(options.corpus), options.folder, options.device)
    if options.begin_with is not None:
        trainer.initialise_from(train.read_average(options.begin_with)[1])
    if resumed:
        trainer.load()
    _stop_on_signals(trainer)
    trainer.run(options.minutes, options.save_minutes, options.out, options.plan_minutes)


def _vocoder(options: argparse.Namespace) -> None:
    _prepare(options)
    recipe = _recipe(options, vocoder.Recipe)
    trainer = vocoder.Trainer(recipe, store.Store(options.corpus), options.folder, options.device)
    if options.begin_with is not None:
        trainer.initialise_from(options.begin_with)
    if (options.folder / vocoder.CHECKPOINT).is_file():
        trainer.load()
    _stop_on_signals(trainer)
    trainer.run(options.minutes, options.save_minutes, options.plan_minutes)


def _add_ship(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--weights",
        type=Path,
        nargs="+",
        default=[RUN / train.CHECKPOINT],
        help="checkpoints or folders of train --out, averaged if several (%(default)s)",
    )
    parser.add_argument("--vocoder", type=Path, default=VOCODER / "vocoder", help="folder (%(default)s)")
    parser.add_argument("--teachers", type=Path, default=TEACHERS, help="(%(default)s)")
    parser.add_argument("--licence", required=True, help="terms of the weights, for the manifest")
    parser.add_argument("--out", type=Path, default=VOICE, help="(%(default)s)")
    parser.set_defaults(run=_ship)


def _ship(options: argparse.Namespace) -> None:
    trained = [train.read_average(path) for path in options.weights]
    recipe, average = trained[0][0], averaging.mean([weights for _, weights in trained])
    passes = recipe.passes if recipe.stage == "student" else 0
    sizes = ship.ship(
        average, recipe.arch, options.vocoder, options.teachers, options.licence, passes, options.out
    )
    print(f"{options.out}: " + ", ".join(f"{part} {size / 2**20:.1f} MiB" for part, size in sizes.items()))


def _rebuild(options: argparse.Namespace) -> None:
    ship.rebuild(contract.read(options.bundle), options.out)
    official = options.out
    print(
        f"python -m export bundle --family {official / ship.FAMILY} "
        f"--checkpoint {official / ship.CHECKPOINT} --vocab {official / ship.VOCAB} "
        f"--vocoder vocos --vocoder-path {official / ship.VOCODER} --precision fp16 --out bundle"
    )
