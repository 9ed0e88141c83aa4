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
from typing import Literal, get_args

from appliance.contract import bundle as contract
from appliance.contract.mel import Kind
from appliance.contract.sampler import Guidance, Sampler, Update
from appliance.errors import BundleError, EngineFault, PhonesMissing
from export import assemble, contact, evidence, fetch, inspection, progress, watermark, workload
from export.families import NAMED, Family, FamilyError, family, of
from export.graphs.to_onnx import ExportError
from export.precision import qdq, rewrites
from export.proof import parity
from export.sources import look, weights
from export.sources.checkpoint import CheckpointError, preferred
from export.sources.reading import read_options

FAILED = 1
AUTO = "auto"
"""Precision fp16 with the variant INT8."""
NO_FINER = "its errors are measured in those of few steps against many, which a re-noising sampler has not"
SAMPLINGS = get_args(contract.Sampling)
GRIDS: dict[str, tuple[Literal["epss", "uniform"], float]] = {
    "epss": ("epss", -1.0),
    "sway": ("uniform", -1.0),
    "uniform": ("uniform", 0.0),
}
"""`--grid` → grid and sway: upstream's pruned times, its times of any number of steps, equal steps."""
EXPECTED = (
    BundleError,
    CheckpointError,
    EngineFault,
    ExportError,
    FamilyError,
    PhonesMissing,
    assemble.BundleFailed,
    contact.ContactFailed,
    fetch.FetchError,
    ValueError,
    OSError,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; print an expected failure as one line on standard error and return 1."""
    typed = sys.argv[1:] if argv is None else list(argv)
    arguments = _parser().parse_args(typed)
    arguments.typed = typed[1:]
    try:
        arguments.run(arguments)
    except EXPECTED as error:
        print(f"export: {error}", file=sys.stderr)
        return FAILED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m export", description="Official weights of flow-matching voices to bundles."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    make = commands.add_parser("bundle", help="weights in, a measured bundle out")
    make.add_argument(
        "folder", nargs="?", metavar="FOLDER", help="of a training: what `look` says of it is the default"
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
    make.add_argument("--licence", help="terms of the weights, where they cannot be told from the files")
    make.add_argument("--vocoder-licence", help="terms of the vocoder, likewise")
    make.add_argument("--out", type=Path)
    _add_sampler(make)
    _add_gate(make)
    make.set_defaults(run=_bundle, usage_error=make.error)

    get = commands.add_parser("fetch", help="known weights and their vocoder from the hub, resumable")
    get.add_argument("name", nargs="?", help="name or repository; without it all that are known are listed")
    get.add_argument("--out", type=Path, default=Path("weights"))
    get.set_defaults(run=_fetch)

    meet = commands.add_parser("first-contact", help="fetch, export, speak, and one JSON to send back")
    meet.add_argument("name", help="as of fetch")
    meet.add_argument("--out", type=Path, help="default: first-contact/NAME")
    meet.add_argument("--fetched", type=Path, default=Path("weights"), metavar="FOLDER", help="of fetch")
    _add_export(meet)
    meet.add_argument("--lines", type=Path, metavar="FILE", help="a text to speak on each line")
    meet.set_defaults(run=_first_contact)

    see = commands.add_parser("look", help="what a training's folder holds, and the command for it")
    look.add_arguments(see)
    see.set_defaults(run=lambda arguments: print(look.describe(arguments.folder, look.given(arguments))))

    check = commands.add_parser("parity", help="measure a bundle against the weights that it was made of")
    check.add_argument("bundle", type=Path)
    _add_sources(check)
    check.set_defaults(run=_parity)

    mark = commands.add_parser("watermark", help="graphs of `audio.watermark`, of a network out of its wheel")
    mark.add_argument("wheel", type=Path, help="resemble_perth-1.0.1-py3-none-any.whl")
    mark.add_argument("--out", type=Path, default=Path("watermark"), help="default: watermark")
    mark.set_defaults(run=lambda arguments: watermark.export_wheel(arguments.wheel, arguments.out))

    show = commands.add_parser("inspect", help="sizes, parameters, operators, precision, licences, parity")
    show.add_argument("bundle", type=Path, help="or, as `look`, a checkpoint or its folder")
    show.set_defaults(run=_inspect)
    return parser


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--precision",
        choices=(*get_args(contract.Precision), AUTO),
        default="fp32",
        help=f"{AUTO}: fp16 for GPUs; on CPUs int8 where they are quick at it, else float32",
    )
    parser.add_argument(
        "--max-frames", type=int, default=assemble.MAX_FRAMES, help="reference and reply together"
    )
    parser.add_argument(
        "--recording", type=Path, metavar="FILE", help="up to 12 s of speech in a language of the weights"
    )
    parser.add_argument("--transcript", metavar="TEXT", help="the words of --recording")


def _add_sampler(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sampler",
        choices=get_args(Update),
        help="update of a step, which the weights were trained for; default: the family's",
    )
    parser.add_argument(
        "--guidance",
        choices=get_args(Guidance),
        help="none: trained guidance-free; embedded: the weights take the strength; default: the family's",
    )
    parser.add_argument(
        "--strength", type=float, metavar="W", help="usual strength; with none, that trained for"
    )
    parser.add_argument("--strengths", metavar="LEAST,MOST", help="range that embedded was trained with")
    parser.add_argument("--steps", metavar="N[,N]", help="numbers of steps allowed; default: the family's")
    parser.add_argument("--grid", choices=tuple(GRIDS), help="times of the steps; default: the family's")


def _sampler(arguments: argparse.Namespace, named: Family) -> tuple[Sampler, contract.Defaults]:
    """Sampler and defaults of a command line. Raises ValueError."""
    if of(named.arch).shapes is not None:
        return _retuned(arguments, named)
    guidance, usual = arguments.guidance or Sampler.guidance, arguments.strength
    if (guidance == "embedded") != (arguments.strengths is not None):
        raise ValueError("--strengths: the range of strengths belongs to --guidance embedded, which needs it")
    if guidance == "embedded" and usual is None:
        raise ValueError("--guidance embedded: name the usual strength too, --strength W")
    given = {"--steps": arguments.steps or "", "--strengths": arguments.strengths or ""}
    if wrong := [f"{name} {text}" for name, text in given.items() if not re.fullmatch(r"[\d.,]*", text)]:
        raise ValueError(f"{wrong[0]}: must be numbers with commas between them")
    steps, strengths = ([n for n in text.split(",") if n] for text in given.values())
    ends = (
        tuple(map(float, strengths))
        if guidance == "embedded"
        else (usual,) * (guidance == "none" and usual is not None)
    )
    sampler = Sampler(arguments.sampler or Sampler.update, guidance, tuple(map(int, steps)), ends)
    grid, sway = GRIDS[arguments.grid or "epss"]
    strength = 0.0 if guidance == "none" else contract.Defaults.guidance if usual is None else usual
    return sampler, contract.Defaults(guidance=strength, grid=grid, sway=sway)


def _retuned(arguments: argparse.Namespace, named: Family) -> tuple[Sampler, contract.Defaults]:
    """Those of a family, or of that beside it with another guidance; strength and steps may be others."""
    options = ("sampler", "grid", "strengths")
    if wrong := [f"--{name}" for name in options if getattr(arguments, name) is not None]:
        raise ValueError(
            f"{wrong[0]}: {named.name} has its own; --guidance, --strength and --steps may be given"
        )
    if arguments.guidance is not None:
        beside = [one for one in of(named.arch).named if one.sampler.guidance == arguments.guidance]
        if not beside:
            raise ValueError(f"--guidance {arguments.guidance}: {of(named.arch).name} has no such weights")
        named = beside[0]
    sampler, defaults = named.sampler, named.defaults
    if arguments.steps is not None:
        sampler = replace(sampler, steps=tuple(int(n) for n in arguments.steps.split(",") if n))
    if arguments.strength is not None:
        defaults = replace(defaults, guidance=arguments.strength)
    return sampler, defaults


def _add_gate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sampling",
        choices=("auto", *SAMPLINGS),
        default="auto",
        help="how the bundle samples; auto takes the cheapest that the measurement allows",
    )
    parser.add_argument(
        "--accept",
        metavar="REASON",
        default="",
        help="write the bundle although it breaks bounds; the manifest carries the reason",
    )


def _gate(arguments: argparse.Namespace) -> assemble.Gate:
    return assemble.Gate(arguments.sampling, arguments.accept)


def _add_sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--family",
        help=f"{', '.join(NAMED)}, a name that `fetch` lists, or an upstream-style YAML file or model.json",
    )
    parser.add_argument("--checkpoint", type=Path, help="of safetensors or torch, published or of a training")
    parser.add_argument(
        "--weights",
        choices=("ema", "raw"),
        help="the moving average, or what it was made of, which short fine-tunes need; default: what "
        "upstream speaks from, F5-TTS's average, ZipVoice's raw weights",
    )
    parser.add_argument("--vocab", type=Path)
    parser.add_argument("--vocoder", choices=get_args(Kind), help="default: that of the family's mels")
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
        help="of a vocoder's training that has both",
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
        help="ISO 639-1 codes of what the weights speak, the main one first; for espeak its own too, as "
        "en-gb; default: known or guessed",
    )
    parser.add_argument(
        "--text-around",
        nargs=2,
        metavar=("BEFORE", "AFTER"),
        help="signs in which the weights read each text; default: those of known weights",
    )
    parser.add_argument(
        "--dialect",
        default="",
        metavar="NAME",
        help="of known weights that mark it in those signs: for Habibi-Unified UNK, MSA, EGY …",
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
        )
    )


NEEDED = ("family", "checkpoint", "vocab", "vocoder_path", "out")
"""Options that `bundle` has no default for."""


def _of_folder(arguments: argparse.Namespace) -> None:
    """Run the command that `look` prints. Raises BundleFailed for what is missing."""
    found = look.look(Path(arguments.folder), look.given(arguments))
    print("\n".join(found.lines()))
    if found.is_vocoder:
        raise assemble.BundleFailed(f"{arguments.folder}: is a vocoder's, which a voice's bundle takes")
    if found.missing:
        lacks = "; ".join(f"{name}: {remedy}" for name, remedy in found.missing.items())
        raise assemble.BundleFailed(f"{arguments.folder}: missing: {lacks}")
    more = list(arguments.typed)
    more.remove(arguments.folder)
    print(found.command(more), flush=True)
    again = _parser().parse_args(found.arguments(more))
    again.run(again)


def _inspect(arguments: argparse.Namespace) -> None:
    place = arguments.bundle
    print(look.describe(place) if look.is_training(place) else inspection.describe(contract.read(place)))


def _bundle(arguments: argparse.Namespace) -> None:
    if arguments.folder is not None:
        _of_folder(arguments)
        return
    if lacking := [name for name in NEEDED if getattr(arguments, name) is None]:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in lacking)
        arguments.usage_error(f"the following arguments are required: {options}; or the FOLDER of a training")
    started = time.monotonic()
    if arguments.max_frames not in contract.FRAMES_ALLOWED:
        low, high = contract.FRAMES_ALLOWED[0], contract.FRAMES_ALLOWED[-1]
        raise assemble.BundleFailed(f"--max-frames: must be {low} to {high}, not {arguments.max_frames}")
    if arguments.keep_float is not None and arguments.precision != "int8-qdq":
        raise assemble.BundleFailed("--keep-float: only --precision int8-qdq has it")
    keep_float = qdq.KEEPS_FLOAT if arguments.keep_float is None else arguments.keep_float
    rewrites.DIT.check(keep_float)
    assemble.check_absent(arguments.out)
    named = family(arguments.family)
    sampled = _sampler(arguments, named)
    name, renoises = arguments.precision, sampled[0].update == "renoise"
    beside = name == AUTO and not renoises
    if name == AUTO:
        name = "fp16"
        if renoises:
            print(f"int8 for CPUs is left out: {NO_FINER}", file=sys.stderr)
    if name not in (known := of(named.arch).precisions):
        raise assemble.BundleFailed(f"--precision {name}: {of(named.arch).name} has {', '.join(known)}")
    if renoises and name in parity.LOSSY:
        raise assemble.BundleFailed(f"--precision {name}: {NO_FINER}; fp32 or fp16")
    gc.freeze()  # what is imported is in no later search for garbage
    recordings = _recordings(arguments)
    loaded = _sources(arguments, *sampled)
    plan = workload.plan(
        *(loaded, name, arguments.max_frames, recordings), int8_beside=beside, sampling=arguments.sampling
    )
    with progress.shown(plan):
        found = evidence.weigh(loaded, recordings, accept=arguments.accept)
        for line in found.advice:
            progress.say(line)
        alone = assemble.graphs_alone(loaded, arguments.max_frames)

        def measure(bundle: contract.Bundle) -> parity.Report:
            expected = assemble.expectations(loaded, name, arguments.max_frames, beside, alone)
            return parity.measure(bundle, expected, loaded.declaration.samplings, arguments.sampling)

        made = assemble.build(
            loaded,
            name,
            arguments.out,
            measure,
            max_frames=arguments.max_frames,
            created_by="python -m export bundle",
            gate=_gate(arguments),
            keep_float=keep_float,
            int8_beside=beside,
            evidence=found.record(),
            alone=alone,
        )
    print("\n".join(inspection.parity_lines(made.manifest)))
    size = sum(f.size_bytes for f in made.manifest.files.values())
    print(f"licence: {made.manifest.licence.weights} (weights), {made.manifest.licence.vocoder} (vocoder)")
    print(f"{arguments.out}: {size / 1e6:.0f} MB, written in {time.monotonic() - started:.0f} s")


def _recordings(arguments: argparse.Namespace) -> Sequence[evidence.Recording]:
    if (arguments.recording is None) != (arguments.transcript is None):
        raise assemble.BundleFailed("--recording and --transcript: each needs the other")
    if arguments.recording is None:
        return evidence.DEMO
    return [evidence.recording_of(arguments.recording, arguments.transcript)]


def _fetch(arguments: argparse.Namespace) -> None:
    if arguments.name is None:
        print(weights.table())
        return
    got = fetch.fetch(arguments.name, arguments.out)
    options = got.options | {"--precision": "fp16", "--out": "bundle"}
    words = (str(word) for option in options.items() for word in option)
    print("python -m export bundle", shlex.join(words))


def _first_contact(arguments: argparse.Namespace) -> None:
    options = ["--precision", arguments.precision, "--max-frames", str(arguments.max_frames)]
    reference = None
    if _recordings(arguments) is not evidence.DEMO:
        path = arguments.recording
        reference = contact.Reference("own", path.read_bytes(), arguments.transcript, path)
    name = fetch.row_of(arguments.name).name
    visit = contact.Visit(
        name,
        arguments.out or Path("first-contact") / name,
        arguments.fetched,
        options,
        arguments.lines,
        reference,
    )

    def run(command: Sequence[str]) -> None:
        parsed = _parser().parse_args(command)
        parsed.run(parsed)

    contact.meet(visit, run)


def _parity(arguments: argparse.Namespace) -> None:
    made = contract.read(arguments.bundle)
    if not (arguments.family and arguments.checkpoint and arguments.vocab and arguments.vocoder_path):
        print("measured when it was written:")
        print(parity.table(made.manifest.parity.get("rows", []), ""))
        raise assemble.BundleFailed(
            "to measure again, name its sources: --family, --checkpoint, --vocab, --vocoder, --vocoder-path"
        )
    manifest = made.manifest
    loaded = _sources(arguments, manifest.sampler, manifest.defaults)
    expected = assemble.expectations(
        loaded, manifest.precision, manifest.max_frames, contract.INT8 in manifest.variants
    )
    report = parity.measure(made, expected, loaded.declaration.samplings, manifest.defaults.sampling)
    print(report.table())
    if report.failed:
        raise assemble.BundleFailed("; ".join(report.failed))
