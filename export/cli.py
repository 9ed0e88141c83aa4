"""`python -m export`: bundle · fetch · first-contact · look · parity · watermark · inspect."""

from __future__ import annotations

import argparse
import gc
import re
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from appliance.contract import bundle as contract
from appliance.contract.sampler import Sampler
from appliance.errors import ApplianceError
from export import assemble, contact, evidence, fetch, inspection, progress, traces, watermark, workload
from export.families import MELS, NAMED, Family, family, of
from export.graphs.to_onnx import ExportError
from export.parity import comparison
from export.precision import qdq, rewrites
from export.sources import look, weights
from export.sources.checkpoint import preferred
from export.sources.reading import read_options

FAILED = 1
AUTO = "auto"
"""Precision fp16 with the variant INT8."""
NO_FINER = "its bound is the error of few steps against many, which a re-noising sampler has not"
SAMPLINGS = get_args(contract.Sampling)
GONE = {f"--{key}": key for key in ("guidance", "strength", "strengths", "grid")} | {"--sampler": "update"}
"""Options of `bundle` up to 0.30, and their keys in the section `sampler` of a family's file."""
EXPECTED = (
    *(ApplianceError, ExportError, ValueError, OSError),
    *(assemble.BundleFailed, contact.ContactFailed, fetch.FetchError),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Print an expected failure as one line on standard error, and return 1."""
    typed = sys.argv[1:] if argv is None else list(argv)
    parser = _parser()
    if gone := [option for word in typed[1:] if (option := word.split("=")[0]) in GONE]:
        parser.error(
            f"{gone[0]}: is now the key {GONE[gone[0]]} of the section sampler in the family's file: "
            f"--family '{{family: NAME, sampler: {{{GONE[gone[0]]}: …}}}}' (export/README.md, Samplers)"
        )
    arguments = parser.parse_args(typed)
    arguments.typed = typed[1:]
    try:
        arguments.run(arguments)
    except EXPECTED as error:
        print(f"export: {error}", file=sys.stderr)
        return FAILED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export", description="Converts official weights of flow-matching voices to bundles."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    make = commands.add_parser("bundle", help="convert weights to a measured bundle")
    make.add_argument(
        "folder", nargs="?", metavar="FOLDER", help="folder of a training; `look` finds the defaults in it"
    )
    _add_sources(make)
    _add_export(make)
    make.add_argument(
        "--keep-float",
        nargs="*",
        metavar="ROLE",
        help=f"products that int8-qdq leaves in float16: {', '.join(rewrites.ROLES)} "
        f"(default: {', '.join(qdq.KEEPS_FLOAT)})",
    )
    make.add_argument("--licence", help="terms of the weights, if no file states them")
    make.add_argument("--vocoder-licence", help="terms of the vocoder, if no file states them")
    make.add_argument("--out", type=Path, help="new folder for the bundle")
    make.add_argument(
        "--traces",
        type=lambda word: None if word == "none" else Path(word),
        default=traces.CACHE,
        metavar="FOLDER",
        help="folder of traced graphs for later exports; none: trace again (default: %(default)s)",
    )
    make.add_argument("--steps", metavar="N[,N]", help="allowed numbers of steps; default: the family's")
    _add_gate(make)
    make.set_defaults(run=_bundle, usage_error=make.error)

    get = commands.add_parser("fetch", help="download known weights and their vocoder, resumable")
    get.add_argument("name", nargs="?", help="name or repository; default: list all known weights")
    get.add_argument("--out", type=Path, default=Path("weights"))
    get.set_defaults(run=_fetch)

    meet = commands.add_parser("first-contact", help="fetch, export, speak, and write one JSON to send back")
    meet.add_argument("name", help="a name that `fetch` lists")
    meet.add_argument("--out", type=Path, help="default: first-contact/NAME")
    meet.add_argument("--fetched", type=Path, default=Path("weights"), metavar="FOLDER", help="as of `fetch`")
    _add_export(meet)
    meet.add_argument("--lines", type=Path, metavar="FILE", help="file of texts, one a line")
    meet.set_defaults(run=_first_contact)

    see = commands.add_parser("look", help="list a training's folder, and print the command for it")
    look.add_arguments(see)
    see.set_defaults(run=lambda arguments: print(look.describe(arguments.folder, look.options_of(arguments))))

    check = commands.add_parser("parity", help="measure a bundle against its weights")
    check.add_argument("bundle", type=Path)
    _add_sources(check)
    check.set_defaults(run=_parity)

    mark = commands.add_parser("watermark", help="export a wheel's network for `audio.watermark`")
    mark.add_argument("wheel", type=Path, help="resemble_perth-1.0.1-py3-none-any.whl")
    mark.add_argument("--out", type=Path, default=Path("watermark"), help="default: watermark")
    mark.set_defaults(run=lambda arguments: watermark.export_wheel(arguments.wheel, arguments.out))

    show = commands.add_parser("inspect", help="print sizes, operators, precision, licences, parity")
    show.add_argument("bundle", type=Path, help="a bundle; for a checkpoint or its folder the same as `look`")
    show.set_defaults(run=lambda arguments: print(inspection.described(arguments.bundle)))
    return parser


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--precision",
        choices=(*get_args(contract.Precision), AUTO),
        default="fp32",
        help=f"{AUTO}: fp16 for GPUs; int8 for CPUs that are quick at it, float32 for others",
    )
    parser.add_argument(
        "--max-frames", type=int, default=assemble.MAX_FRAMES, help="limit of reference plus reply"
    )
    parser.add_argument(
        "--recording", type=Path, metavar="FILE", help="up to 12 s of speech in a language of the weights"
    )
    parser.add_argument("--transcript", metavar="TEXT", help="the words of --recording")


def _sampler(arguments: argparse.Namespace, named: Family) -> Sampler:
    """Sampler of the family, with the steps of the command line. Raises ValueError."""
    if arguments.steps is None:
        return named.sampler
    if not re.fullmatch(r"[\d,]*", arguments.steps):
        raise ValueError(f"--steps {arguments.steps}: must be numbers separated by commas")
    return replace(named.sampler, steps=tuple(int(n) for n in arguments.steps.split(",") if n))


def _add_gate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sampling",
        choices=("auto", *SAMPLINGS),
        default="auto",
        help="sampling of the bundle; auto: the cheapest that the measurement allows",
    )
    parser.add_argument(
        "--accept",
        metavar="REASON",
        default="",
        help="write the bundle even if it breaks bounds; the manifest records the reason",
    )


def _add_sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--family",
        help=f"{', '.join(NAMED)}, a name that `fetch` lists, an upstream-style YAML file or model.json, or "
        "a text such as '{family: NAME, sampler: {guidance: none}}'",
    )
    parser.add_argument("--checkpoint", type=Path, help="safetensors or torch, published or of a training")
    parser.add_argument(
        "--weights",
        choices=("ema", "raw"),
        help="the moving average, or the raw weights, which short fine-tunes need; default: as in "
        "upstream, F5-TTS's average, ZipVoice's raw weights",
    )
    parser.add_argument(
        "--adapter", type=Path, metavar="DIR", help="folder of PEFT's LoRA or LoHa, to merge into the weights"
    )
    parser.add_argument("--vocab", type=Path, help="file of the tokens")
    parser.add_argument("--vocoder", choices=tuple(MELS), help="default: the vocoder of the family's mels")
    parser.add_argument(
        "--vocoder-path",
        type=Path,
        help="folder with its config and weights, published or of a training, a file of weights there, or "
        "the checkpoint's if it holds the vocoder",
    )
    parser.add_argument(
        "--vocoder-weights",
        choices=("ema", "raw"),
        default="ema",
        help="weights of a vocoder whose training stored both",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="NAME",
        help="pinyin: F5's; char: every character as it is; ZipVoice's: letters (its libritts), simple, "
        "emilia, espeak:LANG; phones: of English; default: the family's",
    )
    parser.add_argument(
        "--language",
        metavar="CODE[,CODE]",
        help="ISO 639-1 codes of the weights' languages, the main one first; for espeak also its codes, as "
        "en-gb; default: known or guessed",
    )
    parser.add_argument(
        "--text-around",
        nargs=2,
        metavar=("BEFORE", "AFTER"),
        help="signs that the weights need around each text; default: the signs of known weights",
    )
    parser.add_argument(
        "--dialect",
        default="",
        metavar="NAME",
        help="dialect, for known weights that mark it in those signs: for Habibi-Unified UNK, MSA, EGY …",
    )


def _sources(arguments: argparse.Namespace, sampler: Sampler, defaults: contract.Defaults) -> assemble.Loaded:
    named = family(arguments.family)
    tokenizer, voice, languages = read_options(arguments.tokenizer, arguments.language)
    return assemble.load(
        assemble.Sources(
            named,
            arguments.checkpoint,
            arguments.vocab,
            arguments.vocoder or named.mel.kind,
            arguments.vocoder_path,
            getattr(arguments, "licence", None),
            getattr(arguments, "vocoder_licence", None),
            arguments.weights or preferred(arguments.checkpoint, of(named.arch).weights),
            tokenizer,
            languages,
            sampler,
            defaults,
            voice,
            None if arguments.text_around is None else tuple(arguments.text_around),
            arguments.dialect,
            vocoder_weights=arguments.vocoder_weights,
            adapter=arguments.adapter,
        )
    )


NEEDED = ("family", "checkpoint", "vocab", "vocoder_path", "out")
"""Options of `bundle` without a default."""


def _of_folder(arguments: argparse.Namespace) -> None:
    """Run the command that `look` prints. Raises BundleFailed if something is missing."""
    inspected = look.look(Path(arguments.folder), look.options_of(arguments))
    print("\n".join(inspected.lines()))
    if inspected.is_vocoder:
        raise assemble.BundleFailed(f"{arguments.folder}: is a vocoder; pass it as --vocoder-path of a voice")
    if inspected.missing:
        lacks = "; ".join(f"{name}: {remedy}" for name, remedy in inspected.missing.items())
        raise assemble.BundleFailed(f"{arguments.folder}: missing: {lacks}")
    more = list(arguments.typed)
    more.remove(arguments.folder)
    print(inspected.command(more), flush=True)
    again = _parser().parse_args(inspected.arguments(more))
    again.run(again)


def _bundle(arguments: argparse.Namespace) -> None:
    if arguments.folder is not None:
        _of_folder(arguments)
        return
    if lacking := [name for name in NEEDED if getattr(arguments, name) is None]:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in lacking)
        arguments.usage_error(f"the following arguments are required: {names}; or the FOLDER of a training")
    started = time.monotonic()
    if arguments.max_frames not in contract.FRAMES_ALLOWED:
        low, high = contract.FRAMES_ALLOWED[0], contract.FRAMES_ALLOWED[-1]
        raise assemble.BundleFailed(f"--max-frames: must be {low} to {high}, not {arguments.max_frames}")
    if arguments.keep_float is not None and arguments.precision != "int8-qdq":
        raise assemble.BundleFailed("--keep-float: needs --precision int8-qdq")
    keep_float = qdq.KEEPS_FLOAT if arguments.keep_float is None else arguments.keep_float
    rewrites.DIT.check(keep_float)
    assemble.check_absent(arguments.out)
    named = family(arguments.family)
    sampler = _sampler(arguments, named)
    name, renoises = arguments.precision, sampler.update == "renoise"
    beside = name == AUTO and not renoises
    if name == AUTO:
        name = "fp16"
        if renoises:
            print(f"the bundle has no int8 graph for CPUs: {NO_FINER}", file=sys.stderr)
    if name not in (precisions := of(named.arch).precisions):
        raise assemble.BundleFailed(f"--precision {name}: {of(named.arch).name} has {', '.join(precisions)}")
    if renoises and name in comparison.LOSSY:
        raise assemble.BundleFailed(f"--precision {name}: {NO_FINER}; fp32 or fp16")
    gc.freeze()  # later searches for garbage skip the imported modules
    recordings = _recordings(arguments)
    loaded = _sources(arguments, sampler, named.defaults)
    options = assemble.BuildOptions(
        name, arguments.max_frames, beside, keep_float, "python -m export bundle", arguments.traces
    )
    plan = workload.plan(loaded, options, recordings, arguments.sampling)
    with progress.shown(plan):
        weighed = evidence.weigh(loaded, recordings, accept=arguments.accept)
        for line in weighed.advice:
            progress.say(line)
        alone = assemble.graphs_alone(loaded, arguments.max_frames)
        evidence.settle(weighed, arguments.accept)

        def measure(bundle: contract.Bundle) -> comparison.Report:
            expected = assemble.expectations(loaded, options, alone)
            return comparison.measure(bundle, expected, loaded.declaration.samplings, arguments.sampling)

        manifest = assemble.build(
            loaded,
            options,
            arguments.out,
            measure,
            gate=assemble.Gate(arguments.sampling, arguments.accept),
            evidence=weighed.record(),
            alone=alone,
        ).manifest
    print("\n".join(inspection.parity_lines(manifest)))
    size = sum(f.size_bytes for f in manifest.files.values())
    print(f"licence: {manifest.licence.weights} (weights), {manifest.licence.vocoder} (vocoder)")
    print(f"{arguments.out}: {size / 1e6:.0f} MB, written in {time.monotonic() - started:.0f} s")


def _recordings(arguments: argparse.Namespace) -> Sequence[evidence.EvidenceRecording]:
    if (arguments.recording is None) != (arguments.transcript is None):
        raise assemble.BundleFailed("--recording and --transcript: pass both")
    if arguments.recording is None:
        return evidence.DEMO
    return [evidence.recording_of(arguments.recording, arguments.transcript)]


def _fetch(arguments: argparse.Namespace) -> None:
    if arguments.name is None:
        print(weights.listing())
        return
    download = fetch.fetch(arguments.name, arguments.out)
    options = download.options | {"--precision": "fp16", "--out": "bundle"}
    words = (str(word) for option in options.items() for word in option)
    print("python -m export bundle", shlex.join(words))


def _first_contact(arguments: argparse.Namespace) -> None:
    options = ["--precision", arguments.precision, "--max-frames", str(arguments.max_frames)]
    own = _recordings(arguments) is not evidence.DEMO
    voice = (arguments.recording, arguments.transcript) if own else None
    name = fetch.row_of(arguments.name).name
    out = arguments.out or Path("first-contact") / name
    visit = contact.Visit(name, out, arguments.fetched, options, arguments.lines, voice)

    def run(command: Sequence[str]) -> None:
        parsed = _parser().parse_args(command)
        parsed.run(parsed)

    contact.meet(visit, run)


def _parity(arguments: argparse.Namespace) -> None:
    bundle = contract.read(arguments.bundle)
    if not (arguments.family and arguments.checkpoint and arguments.vocab and arguments.vocoder_path):
        print("measured when it was written:")
        print(inspection.table(bundle.manifest.parity))
        raise assemble.BundleFailed(
            "to measure again, name its sources: --family, --checkpoint, --vocab, --vocoder, --vocoder-path"
        )
    manifest = bundle.manifest
    loaded = _sources(arguments, manifest.sampler, manifest.defaults)
    options = assemble.BuildOptions(
        manifest.precision, manifest.max_frames, int8_beside=contract.INT8 in manifest.variants
    )
    expected = assemble.expectations(loaded, options)
    report = comparison.measure(bundle, expected, loaded.declaration.samplings, manifest.defaults.sampling)
    print(inspection.table(report.record()))
    if report.failed:
        raise assemble.BundleFailed("; ".join(report.failed))
