"""`python -m export.demo`: corpus · train · vocoder · ship · rebuild."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import torch

from appliance.contract import bundle as contract
from appliance.errors import BundleError
from export.assemble import BundleFailed
from export.checkpoint import CheckpointError
from export.demo import averaging, corpus, engines, matching, plot, preparation, ship, train, vocoder_train
from export.demo.folder_lock import folder_lock
from export.demo.train import EvaluationOptions, Recipe, Trainer

FAILED = 1
EXPECTED = (
    BundleError,
    BundleFailed,
    CheckpointError,
    corpus.CorpusError,
    engines.EngineError,
    ValueError,
    OSError,
)
OUT = Path("out/demo")
CORPUS, MELS, RUN, VOCODER = corpus.FOLDER, OUT / "mels", OUT / "train", OUT / "vocoder"
VOICE = Path("appliance/demo")
LAST_STEP = 100_000
MEL_STEP, VOCODERS_LAST_STEP = 4_000, 16_000
"""Default number of vocoder steps before discriminators, and in all; about a night on two cores."""
OWN_ARGUMENT = ("steps", "cooldown", "voices", "times", "muon")
"""Fields of the recipe whose arguments are not generated from the dataclass."""


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
    speak = commands.add_parser("corpus", help="synthetic speech of a free engine")
    corpus.add_arguments(speak)
    speak.set_defaults(run=corpus.run)
    _add_train(commands.add_parser("train", help="train the DiT, or resume"))
    _add_vocoder(commands.add_parser("vocoder", help="train the Vocos, or resume"))
    make = commands.add_parser("ship", help="write the committed voice from trained weights")
    make.add_argument(
        "--weights",
        type=Path,
        nargs="+",
        default=[RUN / train.CHECKPOINT],
        help="checkpoints or folders of train --out, averaged if several (%(default)s)",
    )
    make.add_argument("--vocoder", type=Path, default=VOCODER / "vocos", help="folder (%(default)s)")
    make.add_argument("--corpus", type=Path, default=CORPUS, help="for the reference voices (%(default)s)")
    make.add_argument(
        "--engine", type=Path, default=corpus.ENGINE, help="for synthesising them (%(default)s)"
    )
    make.add_argument("--licence", required=True, help="terms of the weights, for the manifest")
    make.add_argument("--out", type=Path, default=VOICE, help="(%(default)s)")
    make.set_defaults(run=_ship)
    back = commands.add_parser("rebuild", help="convert a float bundle to upstream's layout")
    back.add_argument("bundle", type=Path, nargs="?", default=VOICE / "bundle", help="(%(default)s)")
    back.add_argument("--out", type=Path, required=True)
    back.set_defaults(run=_rebuild)
    return parser


def _add_run_options(parser: argparse.ArgumentParser, folder: Path) -> None:
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="(%(default)s)")
    parser.add_argument("--folder", type=Path, default=folder, help="checkpoint and log (%(default)s)")
    parser.add_argument("--minutes", type=float, help="time limit of this run")
    parser.add_argument("--save-minutes", type=float, default=5.0, help="between checkpoints (%(default)s)")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="on a CPU (%(default)s)")
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", help="(%(default)s)"
    )


def _add_train(parser: argparse.ArgumentParser) -> None:
    _add_run_options(parser, RUN)
    parser.add_argument("--mels", type=Path, default=MELS, help="created if missing (%(default)s)")
    parser.add_argument(
        "--lexicon",
        type=Path,
        default=corpus.TEXTS / engines.PRONUNCIATIONS,
        help="pronunciation dictionary (%(default)s)",
    )
    parser.add_argument("--voices", nargs="+", default=["bdl", "slt"], help="(%(default)s)")
    parser.add_argument(
        "--begin-with", type=Path, help="initial weights: as for ship, or a folder of rebuild"
    )
    parser.add_argument("--steps", type=int, default=LAST_STEP, help="the last step (%(default)s)")
    parser.add_argument(
        "--cooldown", type=int, help="steps of falling learning rate at the end (half of them)"
    )
    parser.add_argument(
        "--plan-minutes", type=float, help="set the last step so that training takes this long"
    )
    parser.add_argument("--times", choices=get_args(matching.Times), default="early", help="(%(default)s)")
    parser.add_argument("--no-muon", dest="muon", action="store_false", help="AdamW for all weights")
    for field in dataclasses.fields(Recipe):
        if field.name not in OWN_ARGUMENT:
            kind = {"int": int, "float": float}[str(field.type)]
            name = f"--{field.name.replace('_', '-')}"
            parser.add_argument(name, type=kind, default=field.default, help="(%(default)s)")
    parser.add_argument("--compile", action="store_true", help="compile the model: for a GPU")
    parser.add_argument("--exam-nfe", type=int, help="evaluate held-out sentences at this number of steps")
    parser.add_argument("--exam-sentences", type=int, default=12, help="(%(default)s)")
    parser.add_argument(
        "--exam-guidance", type=float, default=contract.Defaults.guidance, help="(%(default)s)"
    )
    parser.add_argument("--exam-every", type=int, default=500, help="steps (%(default)s)")
    parser.add_argument(
        "--out", type=Path, help="also write the averaged weights in half precision, into this folder"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="for the mels (%(default)s)")
    parser.add_argument(
        "--listener-clips", type=int, default=12_000, help="to train the letter recogniser on (%(default)s)"
    )
    parser.set_defaults(run=_train)


def _use_cpu(threads: int) -> None:
    """Set the thread count and flush denormals, which slowed a training step by a third.

    Call it before any thread starts: threads inherit the flush mode.
    """
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)


def _stop_on_signals(trainer: Trainer | vocoder_train.Trainer) -> None:
    """On SIGINT or SIGTERM finish the step and write the checkpoint; a second signal ends the run at once."""

    def stop(number: int, _: object) -> None:
        trainer.stopping = True
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def _train(options: argparse.Namespace) -> None:
    _use_cpu(options.threads)
    store = preparation.prepare(
        options.corpus, options.mels, options.workers, options.listener_clips, options.device
    )
    evaluation = None
    if options.exam_nfe is not None:
        evaluation = EvaluationOptions(
            options.exam_sentences, options.exam_nfe, options.exam_guidance, options.exam_every
        )
    with folder_lock(options.folder):
        path = options.folder / train.CHECKPOINT
        resumed = path.is_file()
        recipe = _resumed_recipe(path, options) if resumed else _recipe(options)
        trainer = Trainer(
            recipe,
            store,
            options.folder,
            options.device,
            lexicon=options.lexicon,
            compile_model=options.compile,
        )
        if resumed:
            trainer.load()
            done = trainer.progress
            print(f"{path}: goes on at step {done.step}, {done.frames / 1e6:.1f} M frames")
        elif (start := options.begin_with) is not None:
            rebuilt = (start / ship.CHECKPOINT).is_file()
            trainer.initialise_from(
                ship.read_trained_dit(start, recipe.arch) if rebuilt else train.read_average(start)[1]
            )
        _stop_on_signals(trainer)
        trainer.run(options.minutes, options.save_minutes, evaluation, options.out, options.plan_minutes)
        plot.draw(options.folder / train.LOG, options.folder / "loss.svg")


def _resumed_recipe(path: Path, options: argparse.Namespace) -> Recipe:
    """The recipe of a checkpoint; only the end of a run can be changed."""
    recipe = train.recipe_of(train.read(path))
    if options.plan_minutes:
        return recipe
    cooldown = recipe.cooldown if options.cooldown is None else options.cooldown
    return dataclasses.replace(recipe, steps=options.steps, cooldown=cooldown)


def _recipe(options: argparse.Namespace) -> Recipe:
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(Recipe)}
    cooldown = options.steps // 2 if options.cooldown is None else options.cooldown
    return Recipe(**{**values, "voices": tuple(options.voices), "cooldown": cooldown})


def _add_vocoder(parser: argparse.ArgumentParser) -> None:
    _add_run_options(parser, VOCODER)
    parser.add_argument("--steps", type=int, default=VOCODERS_LAST_STEP, help="(%(default)s)")
    parser.add_argument(
        "--mel-steps", type=int, default=MEL_STEP, help="without discriminators (%(default)s)"
    )
    parser.add_argument("--batch", type=int, default=6, help="(%(default)s)")
    parser.add_argument("--segment", type=int, default=12_288, help="samples (%(default)s)")
    parser.add_argument("--period-width", type=int, default=256, help="channels (%(default)s)")
    parser.add_argument("--resolution-width", type=int, default=16, help="channels (%(default)s)")
    parser.add_argument(
        "--abreast", type=int, default=1, help="parallel discriminators, --threads each (%(default)s)"
    )
    parser.add_argument("--begin-with", type=Path, help="initial weights: a Vocos folder, as of rebuild")
    parser.set_defaults(run=_vocoder)


def _vocoder(options: argparse.Namespace) -> None:
    _use_cpu(options.threads)
    with folder_lock(options.folder):
        recipe = vocoder_train.Recipe(
            options.steps,
            options.mel_steps,
            options.batch,
            options.segment,
            period_width=options.period_width,
            resolution_width=options.resolution_width,
            abreast=options.abreast,
        )
        trainer = vocoder_train.Trainer(recipe, options.corpus, options.folder, options.device)
        if vocoder_train.has_checkpoint(options.folder):
            trainer.load()
            print(f"{options.folder}: goes on at step {trainer.step}")
        elif options.begin_with is not None:
            trainer.initialise_from(options.begin_with)
        _stop_on_signals(trainer)
        trainer.run(options.minutes, options.save_minutes)
        plot.draw(options.folder / vocoder_train.LOG, options.folder / "loss.svg")


def _ship(options: argparse.Namespace) -> None:
    trained = [train.read_average(path) for path in options.weights]
    recipe, average = trained[0][0], averaging.mean([weights for _, weights in trained])
    sizes = ship.ship(
        average,
        recipe.arch,
        options.vocoder,
        options.corpus,
        options.engine,
        options.licence,
        options.out,
        recipe.voices,
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
